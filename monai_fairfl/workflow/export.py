# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model as TorchScript, as ONNX or as a bundle, with the recipe of its training inside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.data import save_net_with_metadata
from monai.utils import optional_import

from monai_fairfl.bundle.configuration import INFERENCE, METADATA, input_shape, read_keys
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.model_files.recipe import ModelRecipe, network_for, save_model_file, state_of_file
from monai_fairfl.workflow.recipes import ModelValues, overlay_of

ONNX_KEY = "monai_fairfl.recipe"
"""Key of the recipe in an ONNX file's metadata."""


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
    model, out, root = Path(model), Path(out), Path(bundle_root)
    if out.suffix not in (".ts", ".onnx", ""):
        raise ConfigError(f"{out} must end in .ts or .onnx, or be a folder without an ending")
    if out.exists():
        raise ConfigError(f"{out} is there already: name another file, or delete it first")
    used = ModelValues(model, root)
    recipe = used.recipe
    if recipe is None:
        raise ConfigError(f"{model} has no recipe: export the file that the training wrote")
    # The weights would also fit a network with another activation.
    used.require(recipe.values)
    config = ConfigParser(read_keys(root / INFERENCE, must=True))
    config.update(overlay_of(recipe, root, config))
    parser = ConfigParser({**config.get(), "bundle_root": str(root), "ckpt_path": str(model)})
    # A constructor may raise anything, and so may load_state_dict.
    try:
        weights = state_of_file(model)
        network = network_for(parser.get_parsed_content("network_def"), weights).eval()
        network.load_state_dict(dict(weights))
    except Exception as error:
        raise ConfigError(f"{model} is not a model of {root}: {in_words(error)}") from error
    # All that may be refused comes before anything is written.
    plain = json.dumps(recipe.state_dict())
    if out.suffix == ".onnx":
        # torch.onnx needs onnxscript, and reports less clearly that it is missing.
        if not optional_import("onnxscript")[1]:
            raise ConfigError("ONNX needs the extra onnx: pip install 'monai-fairfl[onnx]'")
        program: Any = torch.onnx.export(
            network,
            # An example of two images: a batch of one would be exported as a fixed size.
            (torch.zeros((2, *input_shape(root, parser)[1:])),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=["image"],
            output_names=["pred"],
            verbose=False,
        )
        program.model.metadata_props[ONNX_KEY] = plain
        out.parent.mkdir(parents=True, exist_ok=True)
        program.save(str(out))
        return recipe
    # A program that builds the preprocessing without looking for a model gets its values, too.
    if unknown := sorted(recipe.values.keys() - config.get().keys()):
        raise ConfigError(f"{root / INFERENCE} does not have {unknown}: use the model's bundle")
    config.update(dict(recipe.values))
    inference = json.dumps(config.get(), indent=4)
    metadata = _of_whole_images(root, parser)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".ts":
        extra = {"recipe.json": plain.encode(), INFERENCE.name: inference.encode()}
        # Without the values of this machine and without the time.
        save_net_with_metadata(torch.jit.script(network), str(out), False, False, metadata, extra)
        return recipe
    for name in ("configs", "docs", "scripts"):
        if (root / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(root / name, out / name, ignore=ignored)
    if (root / "LICENSE").is_file():
        shutil.copy(root / "LICENSE", out)
    (out / INFERENCE).write_text(inference + "\n")
    (out / METADATA).write_text(json.dumps(metadata, indent=4, ensure_ascii=False) + "\n")
    save_model_file(out / "models" / "model.pt", weights, recipe)
    return recipe


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
    metadata = read_keys(bundle_root / METADATA)
    seen = input_shape(bundle_root, parser)[1]  # refuses metadata without it
    image = metadata["network_data_format"]["inputs"]["image"]
    inferer = parser.get_parsed_content("inferer", default=None)
    inferer = getattr(inferer, "inferer", inferer)
    # A slice inferer knows the axis that it goes along, and the network does not see.
    axis = getattr(inferer, "spatial_dim", None)
    if axis is None and parser.get_parsed_content("network_def#spatial_dims", default=None) != 3:
        return metadata
    image["spatial_shape"].insert(2 if axis is None else axis, "*")
    image["num_channels"] = channels = seen // (2 * getattr(inferer, "neighbours", 0) + 1)
    # The slice itself lies between its neighbours.
    names = list(image.get("channel_def", {}).values())
    first = (len(names) - channels) // 2
    image["channel_def"] = dict(enumerate(names[first : first + channels]))
    return metadata
