# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of both bundles: what MONAI and its model zoo ask for, what they share, their keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, TRAIN, Bundle
from monai.bundle import verify_metadata, verify_net_in_out

from monai_fairfl.bundle import copy_bundle, locate_bundle

SCHEMA = CHECKOUT / "monai_fairfl" / "bundle_schema.json"
# Of meta_schema_20240725.json, https://project-monai.github.io/schema/ (Apache License 2.0).
REQUIRED_BY_THE_OFFICIAL_SCHEMA = {
    *("schema", "version", "monai_version", "pytorch_version", "numpy_version"),
    *("required_packages_version", "task", "description", "authors", "copyright"),
    "network_data_format",
}
REQUIRED_OF_A_TENSOR = {
    *("type", "format", "num_channels", "spatial_shape", "dtype", "value_range"),
}


def test_both_bundles_are_tested_here() -> None:
    names = sorted(folder.parent.name for folder in (CHECKOUT / "bundles").glob("*/configs"))
    assert sorted(bundle.name for bundle in BUNDLES) == names


def test_a_path_is_ones_own_bundle_also_under_the_name_of_a_shipped_one(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_bundle(bundle.root, tmp_path / bundle.name)
    monkeypatch.chdir(tmp_path)
    assert locate_bundle(bundle.name) == bundle.root
    # Shells complete the name of a folder so.
    assert locate_bundle(f"{bundle.name}/") == tmp_path / bundle.name


# --- MONAI's and its model zoo's checks


def test_metadata_satisfy_our_schema_which_asks_for_all_that_the_official_one_does(
    bundle: Bundle, tmp_path: Path
) -> None:
    ours = json.loads(SCHEMA.read_text())
    assert set(ours["required"]) >= REQUIRED_BY_THE_OFFICIAL_SCHEMA
    assert set(ours["$defs"]["tensor"]["required"]) >= REQUIRED_OF_A_TENSOR
    verify_metadata(meta_file=str(bundle.configs / "metadata.json"), filepath=str(SCHEMA))

    metadata = bundle.config("metadata")
    assert metadata["version"] in metadata["changelog"]
    del metadata["intended_use"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="intended_use"):
        verify_metadata(meta_file=str(tmp_path / "metadata.json"), filepath=str(SCHEMA))


def test_every_property_of_the_workflows_is_defined_and_wired(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    with_overlays = [("train", *overlay) for overlay in bundle.overlays]
    for names in (TRAIN, EVALUATE, *with_overlays):
        assert bundle.workflow(names, site, tmp_path).check_properties() == [], names
    assert bundle.workflow(INFERENCE, site / bundle.images, tmp_path).check_properties() == []


def test_networks_take_and_give_what_the_metadata_say(bundle: Bundle) -> None:
    metadata = str(bundle.configs / "metadata.json")
    for name in ("train", "inference"):
        verify_net_in_out("network_def", metadata, bundle.files(name), device="cpu")
    # The last label of a mask is that of the classes that have a name.
    formats = bundle.config("metadata")["network_data_format"]
    labels = formats["outputs"]["pred"]["channel_def"]
    assert labels["0"] == "background"
    mask = formats["post_processed_outputs"]["pred"]
    assert mask["num_channels"] == 1
    assert mask["channel_def"] == labels
    assert mask["value_range"] == [0, len(labels) - 1]


# --- what files have in common


def test_training_and_inference_look_and_preprocess_alike(bundle: Bundle) -> None:
    inferer = bundle.config("inference")["inferer"]
    inferer = inferer.get("inferer", inferer)
    trained = bundle.config("train")["validate"]["inferer"]
    # Validation looks at the whole photograph first, and at no squares.
    assert {**inferer, "scales": None} == {**trained, "scales": None}
    assert inferer.get("scales") in (None, "@scales")
    assert trained.get("scales") in (None, "@first_looks")

    of_images = []
    for transform in bundle.config("train")["train"]["deterministic_transforms"]:
        of_labels = transform["keys"] == "label" or "label" in transform["_target_"].lower()
        if not of_labels:
            of_images.append(without_keys(transform))
    of_inference = bundle.config("inference")["preprocessing"]["transforms"]
    assert of_images == [without_keys(transform) for transform in of_inference]


def without_keys(transform: dict[str, Any]) -> dict[str, Any]:
    """A transform without its text and without what depends on which keys it treats."""
    about_keys = {"keys", "mode", "anti_aliasing", "_desc_"}
    return {name: value for name, value in transform.items() if name not in about_keys}


# --- documented keys


def documented(bundle: Bundle) -> dict[str, str]:
    """Key -> default, by the README's table of the training configuration; empty: none is given."""
    text = (bundle.root / "docs" / "README.md").read_text()
    table = text.partition("## Training configuration")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| `.*$", table, re.M):
        # A bar inside a cell is escaped.
        cells = re.split(r"(?<!\\)\|", line.strip("|"))
        names = re.findall(r"`(\w+)`", cells[0])
        values = re.findall(r"`([^`]+)`", cells[1])
        if len(names) == len(values):
            found.update(zip(names, values))
        else:
            found.update(dict.fromkeys(names, ""))
    return found


def another_value(value: Any) -> Any:
    """Another value of the same type; texts and lists, which may be names, stay as they are."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2
    return value


def test_every_documented_key_is_used_has_its_default_and_can_be_overridden(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    keys = documented(bundle)
    train = bundle.config("train")
    assert len(keys) > 15
    text = json.dumps(train) + json.dumps(bundle.config("evaluate"))
    changed = {}
    for key, default in keys.items():
        assert re.search(rf"@{key}\b", text), key
        value = train[key]
        if default:
            as_json = json.dumps(value).replace(" ", "")
            assert default.replace(" ", "") in (as_json, str(value).lstrip("@")), key
        expression = isinstance(value, str) and value.startswith(("@", "$"))
        plain = isinstance(value, (bool, int, float, str, list)) and not expression
        if plain and key not in bundle.small:
            changed[key] = another_value(value)
    assert len(changed) > 8
    parser = bundle.workflow(TRAIN, site, tmp_path, **changed).parser
    assert {key: parser.get_parsed_content(key) for key in changed} == changed
