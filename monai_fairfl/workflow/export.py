# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model as TorchScript, as ONNX or as a bundle, with the recipe of its training inside."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.data import save_net_with_metadata
from torch import nn

from monai_fairfl.bundle.configuration import INFERENCE, METADATA, input_shape, require_same_bundle
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.model_files.fused import network_for
from monai_fairfl.model_files.recipe import (
    IN_TORCHSCRIPT,
    ModelRecipe,
    read_recipe,
    state_of_file,
    write_recipe_file,
)
from monai_fairfl.workflow.recipe_comparison import require_same_sections
from monai_fairfl.workflow.running_recipe import digest_of_section

ONNX_KEY = "monai_fairfl.recipe"
"""Key of the recipe in an ONNX file's metadata."""


logger = logging.getLogger(__name__)


def export_model(model: str | Path, out: str | Path, bundle_root: str | Path) -> ModelRecipe:
    """Write a trained model in the form in which other programs load it.

    - ``.ts``, TorchScript: with the bundle's metadata as MONAI's ``load_net_with_metadata`` reads
      it, and two extra files. ``inference.json`` is the bundle's own with the values of the recipe,
      and ``recipe.json`` is the recipe. MONAI Deploy needs no other file.
    - ``.onnx``: with the recipe under ``monai_fairfl.recipe`` of its metadata. The number of images
      in a batch is free.
    - A name without an ending, a folder: a whole bundle with the model, as MONAI Label, MONAI
      Deploy and ``monai.bundle run`` load it. Its ``inference.json`` has the values of the recipe.

    Args:
        model: a model file with a recipe.
        out: the file or the folder to write; its ending decides the format.
        bundle_root: the bundle that trained the model.

    Returns:
        The recipe.

    Raises:
        ConfigError: when ``out`` exists, its ending is unknown, the model has no recipe or is of
            another bundle or network, or the extra ``onnx`` is not installed.
    """
    model = Path(model)
    out = Path(out)
    root = Path(bundle_root)
    if out.suffix not in (".ts", ".onnx", ""):
        raise ConfigError(
            f"{out} must end in .ts (TorchScript) or .onnx; a name without an ending is the folder "
            "of a bundle"
        )
    if out.exists():
        raise ConfigError(f"{out} is there already: name another file, or delete it first")
    recipe = read_recipe(model)
    if recipe is None:
        raise ConfigError(
            f"{model} has no recipe: nobody could know how to prepare images for the exported "
            "model. Export the file that the training or the federation wrote"
        )
    require_same_bundle(model.name, recipe, root)
    network = _build_network(model, root, recipe)
    require_same_sections(model.name, recipe, root, skipped=["network_def"])
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".ts":
        _write_torchscript(network, out, recipe, root)
    elif out.suffix == ".onnx":
        _write_onnx(network, out, recipe, input_shape(root))
    else:
        _write_bundle(model, out, recipe, root)
    return recipe


def _build_network(model: Path, bundle_root: Path, recipe: ModelRecipe) -> nn.Module:
    """Build the bundle's network from the values of the recipe, and fill in the model's weights."""
    file = bundle_root / INFERENCE
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
        weights = state_of_file(model)
        network = network_for(parser.get_parsed_content("network_def"), weights)
        network.load_state_dict(dict(weights))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{model} is not a model of {bundle_root}: {in_words(error)}") from error
    return network.eval()


def _write_torchscript(
    network: nn.Module, out: Path, recipe: ModelRecipe, bundle_root: Path
) -> None:
    inference = _with_values(bundle_root / INFERENCE, recipe)
    metadata = _of_whole_images(bundle_root / METADATA, inference)
    extra_files = {
        IN_TORCHSCRIPT: json.dumps(recipe.state_dict()).encode(),
        INFERENCE.name: json.dumps(inference, indent=4).encode(),
    }
    save_net_with_metadata(
        torch.jit.script(network),
        str(out),
        include_config_vals=False,
        meta_values=metadata,
        more_extra_files=extra_files,
    )


def _write_bundle(model: Path, out: Path, recipe: ModelRecipe, bundle_root: Path) -> None:
    """Copy the bundle with the model, and the recipe's values in its inference.json."""
    inference = _with_values(bundle_root / INFERENCE, recipe)
    for name in ("configs", "docs", "scripts"):
        if (bundle_root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(bundle_root / name, out / name, ignore=ignored)
    if (bundle_root / "LICENSE").is_file():
        shutil.copy(bundle_root / "LICENSE", out)
    metadata = _of_whole_images(bundle_root / METADATA, inference)
    for file, content in ((INFERENCE, inference), (METADATA, metadata)):
        (out / file).write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n")
    (out / "models").mkdir()
    shutil.copy(model, out / "models" / "model.pt")
    write_recipe_file(out / "models" / "model.pt", recipe)


def _with_values(file: Path, recipe: ModelRecipe) -> dict[str, Any]:
    """A bundle's configuration with the values of the recipe in place of ``$@recipe['KEY']``.

    A program that builds ``preprocessing`` without looking for a model gets the model's values,
    too.

    Raises:
        ConfigError: when the recipe has a value that the configuration does not know.
    """
    config: dict[str, Any] = json.loads(file.read_text())
    for key, value in recipe.values.items():
        if key not in config:
            raise ConfigError(
                f"the model was trained with {key} {value!r}, which {file} does not know: merge "
                f"the configuration files of its training into a copy of the bundle "
                f"({', '.join(recipe.files) or 'not recorded'}), and name the copy with --bundle"
            )
        if config[key] == f"$@recipe['{key}']":
            config[key] = value
    return config


def _of_whole_images(file: Path, inference: Mapping[str, Any]) -> dict[str, Any]:
    """A bundle's metadata with the shape of the image that the inferer gets.

    The bundle's own has the shape that the network gets, as the model zoo checks it. MONAI Deploy
    4.0 takes a volume for one slice with many channels where two axes are named, and drops all
    slices but the first.
    """
    metadata: dict[str, Any] = json.loads(file.read_text())
    image = metadata["network_data_format"]["inputs"]["image"]
    # A slice inferer names the axis that it goes along, and the network does not see.
    axis = inference.get("inferer", {}).get("spatial_dim")
    if axis is not None:
        image["spatial_shape"].insert(axis, "*")
    return metadata


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
