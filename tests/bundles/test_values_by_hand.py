# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model is used as it was trained: values that differ are refused, or recorded where allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.changed_recipes import with_recipe
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, TRAIN, Bundle
from monai.fl.client import MonaiAlgo

from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.utils.saved_files import read_state_dict

OTHER_SIZE = [48, 48]


def refusal(bundle: Bundle, names: tuple[str, ...], data: Path, out: Path, **given: Any) -> str:
    """The message with which a run is refused that is given these values and no others."""
    error = bundle.without_overrides().cause_of_failed_run(names, data, out, **given)
    assert isinstance(error, ConfigError), error
    return str(error)


def infer(bundle: Bundle, images: Path, out: Path, **given: Any) -> None:
    """Segment a folder of images, with these values and no others."""
    bundle.without_overrides().run(INFERENCE, images, out, **given)


def used_model(out: Path) -> dict[str, Any]:
    """The record of the model and the values that a workflow used."""
    content: dict[str, Any] = json.loads((out / "eval" / "model.json").read_text())
    return content


def masks(bundle: Bundle, out: Path) -> list[Path]:
    return list((out / "eval").glob(bundle.masks))


# --- values of the training


def test_a_value_that_differs_from_the_training_is_an_error_that_names_both(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    given = {"ckpt_path": str(trained), "size": OTHER_SIZE}
    for names, data in ((INFERENCE, one_image), (EVALUATE, site)):
        message = refusal(bundle, names, data, tmp_path, **given)
        assert "size is [48, 48] here, and model.pt was trained with [32, 32]" in message
    assert not masks(bundle, tmp_path)


@pytest.mark.slow
def test_values_that_a_hospital_gives_by_hand_are_used_and_recorded(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"ckpt_path": str(trained), "size": OTHER_SIZE, "own_values": ["size"]}
    if "sw_batch_size" in bundle.config("inference"):
        given["sw_batch_size"] = 3
    infer(bundle, one_image, tmp_path, **given)
    assert masks(bundle, tmp_path)
    used = used_model(tmp_path)
    assert used["values"]["size"] == [48, 48]
    assert used["recipe"]["values"]["size"] == [32, 32]


def test_the_interpolation_of_the_training_is_used_and_another_is_refused(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    message = refusal(
        bundle, EVALUATE, site, tmp_path, ckpt_path=str(trained), interpolation=["nearest"]
    )
    assert "image_interpolation is 'nearest' here, and model.pt was trained with" in message

    bundle.run(TRAIN, site, tmp_path, max_epochs=1, interpolation=["nearest", "nearest-exact"])
    recipe = read_recipe(tmp_path / "model.pt")
    assert recipe is not None
    assert recipe.values["image_interpolation"] == "nearest"

    model = {"ckpt_path": str(tmp_path / "model.pt")}
    evaluation = bundle.workflow(EVALUATE, site, tmp_path, **model)
    assert evaluation.parser.get_parsed_content("interpolation") == ["nearest"]
    inference = bundle.without_overrides().workflow(INFERENCE, one_image, tmp_path, **model)
    assert inference.parser.get_parsed_content("interpolation") == ["nearest"]


def test_a_value_of_the_recipe_that_the_configuration_does_not_know_is_refused(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(trained)
    assert recipe is not None

    values = {**recipe.values, "flip": True}
    newer = with_recipe(trained, tmp_path / "newer.pt", values=values)
    message = refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(newer))
    assert "newer.pt was trained with flip True, which this configuration does not know" in message

    nothing_decides = {"ckpt_path": str(trained), "deciding": {}, "size": OTHER_SIZE}
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **nothing_decides)
    assert "which this configuration does not know" in message

    fewer = {key: value for key, value in recipe.values.items() if key != "size"}
    older = with_recipe(trained, tmp_path / "older.pt", values=fewer)
    message = refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(older))
    assert "older.pt does not give size" in message
    assert "it has no recipe" not in message


# --- sections of the configuration


def test_a_section_that_is_changed_by_hand_is_an_error_that_names_both(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    model = {"ckpt_path": str(trained)}

    last = len(bundle.config("inference")["preprocessing"]["transforms"]) - 1
    disabled = f"preprocessing#transforms#{last}#_disabled_"
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **model, **{disabled: True})
    assert f"{disabled} is True here, and absent in configs/inference.json" in message

    name = inferers_size(bundle)
    section = "inferer#inferer" if bundle.name.startswith("prostate") else "inferer"
    changed = {f"{section}#{name}": [16, 16]}
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **model, **changed)
    assert f"{section}#{name} is a list of 2 here, and '@size'" in message

    changed = {f"validate#inferer#{name}": [16, 16]}
    message = refusal(bundle, EVALUATE, site, tmp_path, **model, **changed)
    assert f"validate#inferer#{name} is a list of 2 here" in message
    assert not masks(bundle, tmp_path)


def test_a_section_that_a_hospital_changes_as_its_own_is_used_and_recorded(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    key = f"validate#inferer#{inferers_size(bundle)}"
    given = {"ckpt_path": str(trained), "own_values": ["validate#inferer"], key: [16, 16]}
    bundle.without_overrides().run(EVALUATE, site, tmp_path, **given)
    assert used_model(tmp_path)["by_hand"] == {key: {"here": [16, 16], "bundle": "@size"}}


def inferers_size(bundle: Bundle) -> str:
    """The argument of the bundle's inferer that is the size of its windows or images."""
    if bundle.name.startswith("prostate"):
        return "roi_size"
    return "size"


@pytest.mark.slow
def test_overlap_and_mirrored_looks_may_differ_and_are_recorded(
    one_image: Path, bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    if not bundle.name.startswith("prostate"):
        pytest.skip("photographs are not cut into windows")
    given = {"inferer#inferer#overlap": 0.5, "inferer#mirror_axes": []}
    infer(bundle, one_image, tmp_path, ckpt_path=str(trained), **given)
    by_hand = used_model(tmp_path)["by_hand"]
    assert by_hand["inferer#inferer#overlap"]["here"] == 0.5
    assert by_hand["inferer#mirror_axes"]["here"] == []


def test_another_network_than_the_models_is_refused(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    network = {**bundle.config("inference")["network_def"], "act": "RELU"}
    message = refusal(
        bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(trained), network_def=network
    )
    assert "network_def of this configuration is not what model.pt was trained with" in message


# --- the bundle


def test_another_bundle_than_the_models_is_refused(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    other = next(each for each in BUNDLES if each.name != bundle.name)
    given = {"ckpt_path": str(trained), "bundle_root": str(other.root)}
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **given)
    assert "is a model of the bundle" in message


def test_the_other_bundles_model_is_named_as_such(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    other = with_recipe(trained, tmp_path / "other.pt", bundle="Spleen", values={"spacing": 1.0})
    message = refusal(bundle, INFERENCE, one_image, tmp_path, ckpt_path=str(other))
    assert "other.pt is a model of the bundle 'Spleen'" in message


def test_a_wrong_bundle_root_does_not_switch_the_checks_off(
    bundle: Bundle, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    given = {"ckpt_path": str(trained), "bundle_root": str(tmp_path / "elsewhere")}
    message = refusal(bundle, INFERENCE, one_image, tmp_path, **given)
    assert "has no configs/inference.json: name the bundle with --bundle_root" in message


# --- a model without a recipe, or no model file at all


@pytest.mark.slow
def test_for_a_model_without_recipe_every_missing_value_is_listed(
    bundle: Bundle, site: Path, one_image: Path, trained: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.pt"
    torch.save(read_state_dict(trained), plain)
    deciding = set(bundle.config("inference")["deciding"])
    for names, data in ((INFERENCE, one_image), (EVALUATE, site)):
        message = refusal(bundle, names, data, tmp_path, ckpt_path=str(plain), size=[32, 32])
        assert "plain.pt does not record how it was trained" in message
        for key in deciding - {"size"}:
            assert f"--{key} " in message, key
        assert "--size" not in message

    recipe = read_recipe(trained)
    assert recipe is not None
    infer(bundle, one_image, tmp_path, ckpt_path=str(plain), **recipe.values)
    assert masks(bundle, tmp_path)


def test_an_overlay_may_name_a_handler_of_its_own(
    bundle: Bundle, site: Path, trained: Path, tmp_path: Path
) -> None:
    given = {
        "own_handler": {"_target_": "StatsHandler", "iteration_log": False},
        "validate#handlers": ["@own_handler"],
    }
    model = {"ckpt_path": str(trained)}
    evaluation = bundle.without_overrides().workflow(EVALUATE, site, tmp_path, **model, **given)
    assert evaluation.parser.get_parsed_content("size") == [32, 32]


def test_monais_own_client_is_warned_where_its_evaluation_is_given_no_values(
    bundle: Bundle, site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "dataset_dir": str(site),
        "ckpt_dir": str(tmp_path),
        "output_dir": str(tmp_path / "eval"),
        "device": "cpu",
    }
    client = MonaiAlgo(str(bundle.root), config_train_filename=None, eval_kwargs=given)
    client.initialize()
    assert caplog.text.count("this evaluation has no model file") == 1
