# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the model zoo's ``ci/verify_bundle.py`` asks of a bundle.

The zoo's own program runs where ``MONAI_FAIRFL_MODEL_ZOO`` names a checkout of it. What it checks
in a fresh clone is checked here in any case, in the same order; properties and the network's shape
in ``tests/bundles/test_bundle_files.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.checkout import CHECKOUT
from helpers.own_bundle import OWN_BUNDLE
from helpers.shipped_bundles import BUNDLES, TRAIN, Bundle
from monai.bundle import ConfigParser, ckpt_export, onnx_export, verify_metadata, verify_net_in_out

from monai_fairfl.workflow.export import export_model

OUR_SCHEMA = CHECKOUT / "monai_fairfl" / "bundle_schema.json"

# Of meta_schema_20240725.json, https://project-monai.github.io/schema/ (Apache License 2.0).
REQUIRED_BY_THE_OFFICIAL_SCHEMA = {
    *("schema", "version", "monai_version", "pytorch_version", "numpy_version"),
    *("required_packages_version", "task", "description", "authors", "copyright"),
    "network_data_format",
}
REQUIRED_OF_A_TENSOR = {
    *("type", "format", "num_channels", "spatial_shape", "dtype", "value_range"),
}

RUN_THE_ZOOS_PROGRAM = """
import sys
sys.path.insert(0, "ci")
import bundle_custom_data
name, mode, without_weights = sys.argv[1:]
if without_weights == "yes":
    # What a bundle without weights adds in its pull request.
    bundle_custom_data.exclude_verify_preferred_files_list.append(name)
    bundle_custom_data.exclude_verify_torchscript_list.append(name)
from verify_bundle import verify
verify(name, "models", mode)
"""


def copied(bundle: Bundle, models: Path) -> Path:
    ignored = shutil.ignore_patterns("*.pt", "*.ts", "datalist.json", "eval", "__pycache__")
    return Path(shutil.copytree(bundle.root, models / bundle.name, ignore=ignored))


def write_untrained_weights(bundle_root: Path) -> Path:
    """Write ``models/model.pt`` as the zoo has it: the bare ``state_dict``."""
    parser = ConfigParser()
    parser.read_config(bundle_root / "configs" / "inference.json")
    network = parser.get_parsed_content("network_def")
    file = bundle_root / "models" / "model.pt"
    torch.save(network.state_dict(), file)
    return file


def add_trained_weights(bundle: Bundle, site: Path, bundle_root: Path, work: Path) -> None:
    """Put a model into a bundle as docs/model_zoo.md says: its values, and bare weights."""
    bundle.run(TRAIN, site, work, max_epochs=1)
    export_model(work / "model.pt", work / "export", bundle.root)
    shutil.copy(work / "export" / "configs" / "inference.json", bundle_root / "configs")
    weights = torch.load(work / "model.pt", weights_only=True)["model"]
    torch.save(weights, bundle_root / "models" / "model.pt")


# --- the zoo's own program


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with the zoo's checks, without its bundles."""
    named = os.environ.get("MONAI_FAIRFL_MODEL_ZOO")
    if not named:
        pytest.skip("MONAI_FAIRFL_MODEL_ZOO names no checkout of the model zoo")
    shutil.copytree(Path(named, "ci"), tmp_path / "ci")
    (tmp_path / "models").mkdir()
    shutil.copy(Path(named, "models", "model_info.json"), tmp_path / "models")
    return tmp_path


def schema_of_the_zoo() -> Path:
    """The official schema where the zoo's ``ci/prepare_schema.py`` downloads it; else ours."""
    downloaded = Path(os.environ["MONAI_FAIRFL_MODEL_ZOO"], "models", "meta_schema_20240725.json")
    return downloaded if downloaded.is_file() else OUR_SCHEMA


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "mode, weights", [("min", "without"), ("full", "without"), ("full", "with")]
)
def test_the_zoos_own_program_ends_without_an_error(
    bundle: Bundle, site: Path, mode: str, weights: str, zoo: Path
) -> None:
    root = copied(bundle, zoo / "models")
    (root / "eval").mkdir()
    shutil.copy(schema_of_the_zoo(), root / "eval" / "schema.json")
    if weights == "with":
        add_trained_weights(bundle, site, root, zoo / "training")
    absent = "yes" if weights == "without" else "no"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_THE_ZOOS_PROGRAM, bundle.name, mode, absent],
        cwd=zoo,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "metadata format is verified correctly" in done.stdout
    if (mode, weights) == ("full", "with"):
        assert "export weights into TorchScript module successfully" in done.stdout


# --- what it checks


def test_our_schema_asks_for_all_that_the_official_one_does() -> None:
    ours = json.loads(OUR_SCHEMA.read_text())
    assert set(ours["required"]) >= REQUIRED_BY_THE_OFFICIAL_SCHEMA
    assert set(ours["$defs"]["tensor"]["required"]) >= REQUIRED_OF_A_TENSOR


def test_our_example_of_an_own_bundle_has_valid_metadata() -> None:
    configs = OWN_BUNDLE / "configs"
    verify_metadata(meta_file=str(configs / "metadata.json"), filepath=str(OUR_SCHEMA))
    verify_net_in_out(
        "network_def", str(configs / "metadata.json"), str(configs / "train.json"), device="cpu"
    )


@pytest.mark.slow
def test_bare_weights_are_exported_as_the_zoo_exports_them(bundle: Bundle, tmp_path: Path) -> None:
    root = copied(bundle, tmp_path)
    weights = write_untrained_weights(root)
    files = (str(weights), str(root / "configs" / "metadata.json"))
    inference = str(root / "configs" / "inference.json")
    ckpt_export("network_def", str(tmp_path / "a.ts"), *files, inference)

    exported = torch.jit.load(str(tmp_path / "a.ts")).state_dict()
    for name, value in torch.load(weights, weights_only=True).items():
        assert torch.equal(exported[name], value), name


@pytest.mark.slow
def test_monais_own_onnx_export_writes_a_model_of_the_networks_inputs_and_outputs(
    bundle: Bundle, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    root = copied(bundle, tmp_path)
    weights = write_untrained_weights(root)
    metadata = root / "configs" / "metadata.json"
    inference = root / "configs" / "inference.json"
    target = tmp_path / "model.onnx"
    onnx_export("network_def", str(target), str(weights), str(metadata), str(inference))

    graph = onnx.load(str(target)).graph
    formats = json.loads(metadata.read_text())["network_data_format"]
    for tensors, kind, name in (
        (graph.input, "inputs", "image"),
        (graph.output, "outputs", "pred"),
    ):
        (tensor,) = tensors
        sides = [side.dim_value for side in tensor.type.tensor_type.shape.dim]
        expected = formats[kind][name]
        assert sides == [1, expected["num_channels"], *expected["spatial_shape"]]


def test_both_bundles_pin_the_same_versions() -> None:
    one, other = (bundle.config("metadata") for bundle in BUNDLES)
    for key in ("monai_version", "pytorch_version", "numpy_version", "supported_apps"):
        assert one[key] == other[key], key
    # The one that reads pictures also needs Pillow.
    differing = (
        one["required_packages_version"].items() ^ other["required_packages_version"].items()
    )
    assert {name for name, _ in differing} == {"pillow"}


def test_the_last_label_of_a_mask_is_that_of_the_named_classes(bundle: Bundle) -> None:
    outputs = bundle.config("metadata")["network_data_format"]
    labels = outputs["outputs"]["pred"]["channel_def"]
    assert labels["0"] == "background"
    mask = outputs["post_processed_outputs"]["pred"]
    assert mask["num_channels"] == 1
    assert mask["channel_def"] == labels
    assert mask["value_range"] == [0, len(labels) - 1]
