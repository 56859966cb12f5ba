# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model as TorchScript or ONNX, with the recipe of its training inside."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from monai.bundle import ConfigParser
from monai.data import save_net_with_metadata
from torch import nn

from monai_fairfl.bundle.configuration import input_shape
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.model_files.recipe import IN_TORCHSCRIPT, ModelRecipe, read_recipe, state_of_file
from monai_fairfl.workflow.bundle_files import METADATA
from monai_fairfl.workflow.running_recipe import digest_of_section

ONNX_KEY = "monai_fairfl.recipe"
"""Key of the recipe in an ONNX file's metadata."""

logger = logging.getLogger(__name__)


def export_model(model: str | Path, out: str | Path, bundle_root: str | Path) -> ModelRecipe:
    """Write a trained model as one file that needs no code of this package.

    TorchScript (``.ts``) holds the bundle's metadata as MONAI's ``load_net_with_metadata`` reads
    it, and the recipe as the extra file ``recipe.json``; the bundle's ``inference.json`` runs it
    like any other model. ONNX (``.onnx``) holds the recipe under ``monai_fairfl.recipe`` of its
    metadata; the number of images in a batch is free.

    Args:
        model: a model file with a recipe.
        out: the file to write; its ending decides the format.
        bundle_root: the bundle that trained the model.

    Returns:
        The recipe.

    Raises:
        ConfigError: when the file exists, the ending is unknown, the model has no recipe or is of
            another network, or the extra ``onnx`` is not installed.
    """
    model = Path(model)
    out = Path(out)
    root = Path(bundle_root)
    if out.suffix not in (".ts", ".onnx"):
        raise ConfigError(f"{out} must end in .ts (TorchScript) or .onnx")
    if out.exists():
        raise ConfigError(f"{out} is there already: name another file, or delete it first")
    recipe = read_recipe(model)
    if recipe is None:
        raise ConfigError(
            f"{model} has no recipe: nobody could know how to prepare images for the exported "
            "model. Export the file that the training or the federation wrote"
        )
    network = _build_network(model, root, recipe)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".ts":
        _write_torchscript(network, out, recipe, root)
    else:
        _write_onnx(network, out, recipe, input_shape(root))
    return recipe


def _build_network(model: Path, bundle_root: Path, recipe: ModelRecipe) -> nn.Module:
    """Build the bundle's network from the values of the recipe, and fill in the model's weights."""
    file = bundle_root / "configs" / "inference.json"
    if not file.is_file():
        raise ConfigError(
            f"{bundle_root} has no configs/inference.json, whose network_def is exported"
        )
    parser = ConfigParser()
    parser.read_config(str(file))
    parser.update({"bundle_root": str(bundle_root), "ckpt_path": str(model)})
    # The weights would also fit a network with another activation.
    trained_digest = recipe.sections.get("network_def")
    if trained_digest is not None and digest_of_section(parser["network_def"]) != trained_digest:
        raise ConfigError(
            f"{model} was trained with another network_def than {file} has, by an argument or a "
            "configuration file of the training: export it with a copy of the bundle whose "
            "network_def is that of the training"
        )
    # A constructor may raise anything, and so may load_state_dict.
    try:
        network: nn.Module = parser.get_parsed_content("network_def")
        network.load_state_dict(dict(state_of_file(model)))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{model} is not a model of {bundle_root}: {in_words(error)}") from error
    return network.eval()


def _write_torchscript(
    network: nn.Module, out: Path, recipe: ModelRecipe, bundle_root: Path
) -> None:
    metadata = json.loads((bundle_root / METADATA).read_text())
    recipe_text = json.dumps(recipe.state_dict()).encode()
    save_net_with_metadata(
        torch.jit.script(network),
        str(out),
        include_config_vals=False,
        meta_values=metadata,
        more_extra_files={IN_TORCHSCRIPT: recipe_text},
    )


def _write_onnx(network: nn.Module, out: Path, recipe: ModelRecipe, shape: tuple[int, ...]) -> None:
    # torch.onnx needs onnxscript, and reports less clearly that it is missing.
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("ONNX needs the extra onnx: pip install 'monai-fairfl[onnx]'") from error
    # An example of two images: a batch of one would be exported as a fixed size.
    example = torch.zeros((2, *shape[1:]))
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["image"],
        output_names=["pred"],
        verbose=False,
    )
    if program is None:
        raise ConfigError(f"PyTorch made no ONNX program of {type(network).__name__}")
    program.model.metadata_props[ONNX_KEY] = json.dumps(recipe.state_dict())
    program.save(str(out))
