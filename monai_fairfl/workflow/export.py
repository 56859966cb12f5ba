# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model as TorchScript, as ONNX or as a bundle, with the recipe of its training inside."""

from __future__ import annotations

import copy
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

from monai_fairfl.bundle.configuration import (
    INFERENCE,
    METADATA,
    network_shape,
    parsed_value,
    read_keys,
    read_metadata,
    require_same_bundle,
)
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.model_files.recipe import (
    IN_TORCHSCRIPT,
    ModelRecipe,
    acts,
    network_for,
    read_recipe,
    state_of_file,
    write_recipe_file,
)
from monai_fairfl.workflow.carried import inference_overlay
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
            another bundle or network, a configuration of the bundle does not go with the model, or
            the extra ``onnx`` is not installed.
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
    inference = _inference_of(root, recipe)
    parser = ConfigParser(copy.deepcopy(inference))
    parser.update({"bundle_root": str(root), "ckpt_path": str(model)})
    network = _build_network(model, root, recipe, parser)
    require_same_sections(model.name, recipe, root, skipped=["network_def", *recipe.parts])
    if out.suffix == ".onnx":
        shape = network_shape(root, parser)
        out.parent.mkdir(parents=True, exist_ok=True)
        _write_onnx(network, out, recipe, shape)
        return recipe
    # All that may be refused comes before anything is written.
    inference = _with_values(inference, root / INFERENCE, recipe)
    metadata = _of_whole_images(root, parser)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".ts":
        _write_torchscript(network, out, recipe, inference, metadata)
    else:
        _write_bundle(model, out, recipe, root, inference, metadata)
    return recipe


def _inference_of(bundle_root: Path, recipe: ModelRecipe) -> dict[str, Any]:
    """The bundle's configuration of inference, with what the model brings."""
    file = bundle_root / INFERENCE
    if not file.is_file():
        raise ConfigError(
            f"{bundle_root} has no configs/inference.json, whose network_def is exported"
        )
    parser = ConfigParser(read_keys(file))
    for key, content in inference_overlay(recipe, bundle_root).items():
        parser[key] = content
    merged: dict[str, Any] = parser.get()
    return merged


def _build_network(
    model: Path, bundle_root: Path, recipe: ModelRecipe, parser: ConfigParser
) -> nn.Module:
    """Build the bundle's network from the values of the recipe, and fill in the model's weights."""
    # The weights would also fit a network with another activation.
    trained_digest = recipe.sections.get("network_def")
    is_known = trained_digest is not None and "network_def" not in recipe.parts
    if is_known and digest_of_section(parser["network_def"]) != trained_digest:
        raise ConfigError(
            f"{model} was trained with another network_def than {bundle_root / INFERENCE} has, by "
            "an argument or a configuration file of the training: export it with a copy of the "
            "bundle whose network_def is that of the training"
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
    network: nn.Module,
    out: Path,
    recipe: ModelRecipe,
    inference: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> None:
    extra_files = {
        IN_TORCHSCRIPT: json.dumps(recipe.state_dict()).encode(),
        INFERENCE.name: json.dumps(inference, indent=4).encode(),
    }
    save_net_with_metadata(
        torch.jit.script(network),
        str(out),
        include_config_vals=False,
        meta_values=dict(metadata),
        more_extra_files=extra_files,
    )


def _write_bundle(
    model: Path,
    out: Path,
    recipe: ModelRecipe,
    bundle_root: Path,
    inference: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> None:
    """Copy the bundle with the model, and with these contents of two of its files."""
    for name in ("configs", "docs", "scripts"):
        if (bundle_root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(bundle_root / name, out / name, ignore=ignored)
    if (bundle_root / "LICENSE").is_file():
        shutil.copy(bundle_root / "LICENSE", out)
    for file, content in ((INFERENCE, inference), (METADATA, metadata)):
        (out / file).write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n")
    (out / "models").mkdir()
    shutil.copy(model, out / "models" / "model.pt")
    write_recipe_file(out / "models" / "model.pt", recipe)


def _with_values(config: dict[str, Any], file: Path, recipe: ModelRecipe) -> dict[str, Any]:
    """A bundle's configuration with the values of the recipe in place of ``$@recipe['KEY']``.

    A program that builds ``preprocessing`` without looking for a model gets the model's values,
    too.

    Raises:
        ConfigError: when the recipe has a value that the configuration does not know, or for which
            it has another one.
    """
    for key, value in recipe.values.items():
        if key not in config:
            raise ConfigError(
                f"the model was trained with {key} {value!r}, which {file} does not know: merge "
                f"the configuration files of its training into a copy of the bundle "
                f"({', '.join(recipe.files) or 'not recorded'}), and name the copy with --bundle"
            )
        from_recipe = f"$@recipe['{key}']"
        if config[key] == from_recipe:
            config[key] = value
        elif not acts(config[key]) and config[key] != value:
            raise ConfigError(
                f"{file} has {key} {config[key]!r}, and the model was trained with {value!r}: "
                f'write "{from_recipe}" there, which is the value of each model'
            )
    return config


def _of_whole_images(bundle_root: Path, parser: ConfigParser) -> dict[str, Any]:
    """A bundle's metadata with the image that the inferer gets.

    The bundle's own have what the network gets, as the model zoo checks it: a slice, and its
    neighbours as channels. MONAI Deploy 4.0 takes a volume for one slice with many channels where
    two axes are named, and drops all slices but the first; where several channels are named, it
    refuses a volume of one.

    Args:
        bundle_root: the bundle.
        parser: of its configuration of inference.

    Raises:
        ConfigError: when the bundle has no metadata, or they lack that shape.
    """
    file = bundle_root / METADATA
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: programs that load a bundle read it; add it")
    metadata = read_metadata(bundle_root)
    inferer = parsed_value(parser, "inferer")
    inferer = getattr(inferer, "inferer", inferer)
    # A slice inferer knows the axis that it goes along, and the network does not see.
    axis = getattr(inferer, "spatial_dim", None)
    if axis is None and parsed_value(parser, "network_def#spatial_dims") == 3:
        axis = 2
    if axis is None:
        return metadata
    seen = network_shape(bundle_root, parser)[1]
    channels = seen // (2 * getattr(inferer, "neighbours", 0) + 1)
    try:
        image = metadata["network_data_format"]["inputs"]["image"]
        image["spatial_shape"].insert(axis, "*")
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} must give network_data_format.inputs.image.spatial_shape, a list: {error!r}"
        ) from error
    image["num_channels"] = channels
    # The slice itself lies between its neighbours.
    names = list(image.get("channel_def", {}).values())
    first = (len(names) - channels) // 2
    if first > 0:
        own = names[first : first + channels]
        image["channel_def"] = {str(place): name for place, name in enumerate(own)}
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
