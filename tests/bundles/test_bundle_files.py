# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of both bundles: MONAI's own checks, what they share, and the documented keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, ROOT, TRAIN, Bundle
from monai.bundle import verify_metadata, verify_net_in_out

from monai_fairfl.bundle.shipped import bundle_names

SCHEMA = ROOT / "monai_fairfl" / "bundle_schema.json"


def test_both_bundles_are_tested_here() -> None:
    assert sorted(bundle.name for bundle in BUNDLES) == bundle_names()


# --- MONAI's own checks of a bundle


def test_metadata_satisfies_our_schema_offline(bundle: Bundle) -> None:
    verify_metadata(meta_file=str(bundle.configs / "metadata.json"), filepath=str(SCHEMA))
    metadata = bundle.config("metadata")
    assert metadata["version"] in metadata["changelog"]


@pytest.mark.parametrize("key", ["version", "network_data_format", "intended_use"])
def test_schema_refuses_metadata_without_a_required_field(
    bundle: Bundle, key: str, tmp_path: Path
) -> None:
    metadata = bundle.config("metadata")
    del metadata[key]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match=f"'{key}' is a required property"):
        verify_metadata(meta_file=str(tmp_path / "metadata.json"), filepath=str(SCHEMA))


@pytest.mark.slow
def test_every_property_of_the_workflows_is_defined_and_wired(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    with_overlays = [("train", *overlay) for overlay in bundle.overlays]
    for names in (TRAIN, EVALUATE, *with_overlays):
        assert bundle.workflow(names, site, tmp_path).check_properties() == [], names
    assert bundle.workflow(INFERENCE, site / bundle.images, tmp_path).check_properties() == []


@pytest.mark.parametrize("name", ["train", "inference"])
def test_network_takes_and_gives_what_the_metadata_says(bundle: Bundle, name: str) -> None:
    metadata = str(bundle.configs / "metadata.json")
    verify_net_in_out("network_def", metadata, bundle.files(name), device="cpu")


# --- what files have in common


def test_training_and_inference_define_the_same_network(bundle: Bundle) -> None:
    train = bundle.config("train")
    inference = bundle.config("inference")
    evaluate = bundle.config("evaluate")
    assert set(inference["deciding"]) == set(train["deciding"])
    assert evaluate["defaults"] == inference["defaults"]
    for key in inference["defaults"]:
        assert evaluate[key] == inference[key], key

    # Values that come from the model's recipe have the training's values as defaults.
    from_recipe = set()
    for key in inference["deciding"]:
        if inference[key] == f"$@recipe['{key}']":
            from_recipe.add(key)
    assert from_recipe >= {"channels", "norm", "size", "largest_component"}
    for key in from_recipe:
        assert json.dumps(train[key]) == json.dumps(inference["defaults"][key]), key

    # Training also has the interpolation of the label, after that of the image.
    assert train["interpolation"][:1] == inference["interpolation"]

    own = {"imports", "inferer", "run", "handlers", "recipe", "network", "interpolation"}
    shared = (set(train) & set(inference)) - from_recipe - own
    assert shared >= {"network_def", "activation", "discretisation", "deciding"}
    for key in shared:
        assert json.dumps(train[key]) == json.dumps(inference[key]), key


def test_training_and_inference_have_the_same_inferer(bundle: Bundle) -> None:
    inferer = bundle.config("inference")["inferer"]
    trained = bundle.config("train")["validate"]["inferer"]
    inferer = inferer.get("inferer", inferer)
    # Validation looks at the whole photograph first, and at no squares.
    assert {**inferer, "scales": None} == {**trained, "scales": None}
    assert inferer.get("scales") in (None, "@scales")
    assert trained.get("scales") in (None, "@first_looks")


def test_training_and_inference_preprocess_an_image_alike(bundle: Bundle) -> None:
    of_images = []
    for transform in bundle.config("train")["train"]["deterministic_transforms"]:
        of_labels = transform["keys"] == "label" or "label" in transform["_target_"].lower()
        if not of_labels:
            of_images.append(without_keys(transform))
    of_inference = []
    for transform in bundle.config("inference")["preprocessing"]["transforms"]:
        of_inference.append(without_keys(transform))
    assert of_images == of_inference


def without_keys(transform: dict[str, Any]) -> dict[str, Any]:
    """A transform without its text and without what depends on which keys it treats."""
    about_keys = {"keys", "mode", "anti_aliasing", "_desc_"}
    return {name: value for name, value in transform.items() if name not in about_keys}


def test_configs_are_pretty_json_without_anybodys_absolute_paths(bundle: Bundle) -> None:
    # "@bundle_root + '/models'" is relative.
    absolute = re.compile(r"(?<!\+ )[\"'](/|~|[A-Za-z]:\\)")
    for path in bundle.configs.glob("*.json"):
        text = path.read_text()
        pretty = json.dumps(json.loads(text), indent=4, ensure_ascii=False) + "\n"
        assert text == pretty, path.name
        assert not absolute.search(text), path.name


@pytest.mark.parametrize(
    "name",
    [
        "LICENSE",
        "docs/README.md",
        "configs/metadata.json",
        "configs/inference.json",
        "configs/logging.conf",
    ],
)
def test_the_bundle_ships_what_the_zoo_asks_for(bundle: Bundle, name: str) -> None:
    assert (bundle.root / name).is_file()


def test_the_licence_is_apaches(bundle: Bundle) -> None:
    assert "Apache License" in (bundle.root / "LICENSE").read_text()


@pytest.mark.parametrize("name", ["logging.conf", "fl_handlers.json", "fl_filters.json"])
def test_files_that_both_bundles_share_are_the_same(name: str) -> None:
    texts = {(bundle.configs / name).read_text() for bundle in BUNDLES}
    assert len(texts) == 1


def test_both_bundles_federate_alike_but_for_their_checks_and_measured_training() -> None:
    one, other = (bundle.config("federate") for bundle in BUNDLES)
    assert set(one) == set(other)
    differ = {key for key in one if one[key] != other[key]}
    assert differ <= {"imports", "check", "full_run", "rounds", "local_epochs", "case_seconds"}


# --- documented keys


def documented(bundle: Bundle) -> dict[str, str]:
    """Key -> default, by the README's table of the training configuration.

    The default is empty where the table has none.
    """
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


def test_every_documented_key_exists_is_used_and_has_the_documented_default(bundle: Bundle) -> None:
    keys = documented(bundle)
    train = bundle.config("train")
    assert len(keys) > 15
    text = json.dumps(train) + json.dumps(bundle.config("evaluate"))
    for key, default in keys.items():
        assert key in train
        assert re.search(rf"@{key}\b", text), key
        if default:
            as_json = json.dumps(train[key]).replace(" ", "")
            as_reference = str(train[key]).lstrip("@")
            assert default.replace(" ", "") in (as_json, as_reference), key


def another_value(value: Any) -> Any:
    """Another value of the same type; texts and lists, which may be names, stay as they are."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2
    return value


def test_every_documented_key_can_be_overridden(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    train = bundle.config("train")
    changed = {}
    for key in documented(bundle):
        value = train[key]
        expression = isinstance(value, str) and value.startswith(("@", "$"))
        plain = isinstance(value, (bool, int, float, str, list)) and not expression
        if plain and key not in bundle.small:
            changed[key] = another_value(value)
    assert len(changed) > 8

    parser = bundle.workflow(TRAIN, site, tmp_path, **changed).parser
    parsed = {key: parser.get_parsed_content(key) for key in changed}
    assert parsed == changed
