# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl bundle adopt``: what it writes into a bundle of others, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.command_line import Commands, bytes_of
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls
from monai.bundle import ConfigParser

from monai_fairfl.bundle import initial_model
from monai_fairfl.errors import DataError

TRAIN = ["configs/train.json", "configs/federated_train.json"]
EVALUATE = "configs/federated_evaluate.json"

Adopt = Callable[..., dict[str, Any]]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of others with the smallest network."""
    return write_foreign_bundle(tmp_path / "bundle", "dynunet")


@pytest.fixture
def adopt(capsys: pytest.CaptureFixture[str]) -> Adopt:
    """Runs the command, and returns what it says to programs."""
    return lambda *words, code=0: Commands(capsys).json("bundle", "adopt", *words, code=code)


def change(bundle: Path, **keys: Any) -> None:
    """Change keys of a bundle's own ``train.json``; a ``#`` is written ``__``."""
    parser = ConfigParser(json.loads((bundle / TRAIN[0]).read_text()))
    for key, value in keys.items():
        parser[key.replace("__", "#")] = value
    (bundle / TRAIN[0]).write_text(json.dumps(parser.config))


def training(bundle: Path, files: Any = TRAIN) -> ConfigParser:
    """What a site trains with, unresolved."""
    parser = ConfigParser()
    parser.read_config([str(bundle / file) for file in files])
    return parser


def federate_of(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "configs" / "federate.json").read_text())
    return found


def adopt_again(bundle: Path, adopt: Adopt) -> None:
    for file in bundle.glob("configs/federate*"):
        file.unlink()
    adopt(bundle)


# --- files


def test_overlays_come_beside_the_bundles_own_files_or_into_a_copy(
    bundle: Path, tmp_path: Path, adopt: Adopt
) -> None:
    before = bytes_of(bundle, "**/*")
    copied = adopt(bundle, "--out", tmp_path / "copy")
    assert bytes_of(bundle, "**/*") == before
    written = {"configs/federate.json", TRAIN[1], EVALUATE}
    assert set(copied["written"]) == written
    assert bytes_of(tmp_path / "copy", "**/*").keys() == {*before, *written}
    (bundle / "configs" / "federate.json").write_text("mine")
    assert "federate.json" in adopt(bundle, code=2)["error"]
    assert "copy" in adopt(bundle, "--out", tmp_path / "copy", code=2)["error"]
    assert bytes_of(bundle, "**/*") == {**before, "configs/federate.json": b"mine"}
    adopt_again(bundle, adopt)
    after = bytes_of(bundle, "**/*")
    assert {file: after[file] for file in before} == before and after.keys() - before == written
    assert federate_of(bundle)["config"] == TRAIN


COPIED = {"validate__dataset": "%train#dataset"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"train__trainer___target_": "GanTrainer"}, "SupervisedTrainer train#trainer"),
        ({"validate__evaluator": None}, "SupervisedEvaluator validate#evaluator"),
        ({"train__dataset": {"_target_": "Dataset"}}, "train#dataset#data"),
        ({"train__trainer__max_epochs": "$no_such_name"}, "max_epochs no_such_name"),
        (COPIED, "macro"),
    ],
)
def test_what_cannot_be_adopted_is_refused_with_its_cause(
    keys: dict[str, Any], words: str, bundle: Path, adopt: Adopt
) -> None:
    change(bundle, **keys)
    error = adopt(bundle, code=2)["error"]
    assert all(word in error for word in words.split()), error
    assert not (bundle / TRAIN[1]).exists()


def test_a_bundle_that_cannot_train_is_found_by_a_trial_of_two_sites(
    bundle: Path, tmp_path: Path, adopt: Adopt
) -> None:
    assert "configs/train.json" in adopt(tmp_path, code=2)["error"]
    data = write_nested_balls(tmp_path / "data", ["A", "B"], side=16, cases=3)
    # Lists that are not of images and labels.
    other = write_foreign_bundle(tmp_path / "other", "dynunet")
    change(other, train__dataset__data="$[{'image': [i, i], 'label': i} for i in @images]")
    assert "bundle's lists" in adopt(other, "--data", data, code=2)["error"]
    change(bundle, loss="$lambda pred, label: no_such_loss(pred)")
    assert "no_such_loss" in adopt(bundle, "--data", data, code=2)["error"]


# --- what the overlay changes


def test_what_sites_would_share_is_each_sites_own_and_what_is_central_is_off(
    bundle: Path, adopt: Adopt
) -> None:
    handlers = training(bundle, TRAIN[:1])["train#handlers"]
    # An expression that may turn it off.
    handlers[1]["_disabled_"] = "$not @finetune"
    change(bundle, finetune=True, train__handlers=handlers)
    adopted = adopt(bundle)
    parser = training(bundle)
    for part, name in (("train", "training"), ("validate", "validation")):
        assert parser[f"{part}#dataset#cache_dir"] == "@cache_dir"
        assert parser[f"{part}#dataset#data"] == f"$@datalist[{name!r}]"
        assert parser.get_parsed_content(f"{part}#dataloader#num_workers") == 0
    found = parser["train#handlers"]
    off = [handler["_target_"] for handler in found if handler.get("_disabled_") is True]
    assert off == ["CheckpointLoader", "TensorBoardStatsHandler"]
    keys = [f"train#handlers#{number}#_disabled_" for number in (1, 2)]
    assert set(keys) <= set(adopted["changed"])


def test_another_score_gives_way_to_the_dice(bundle: Path, adopt: Adopt) -> None:
    evaluator = "validate#evaluator"
    dice = training(bundle, TRAIN[:1])[f"{evaluator}#key_val_metric"]
    accuracy = {"val_accuracy": {"_target_": "ignite.metrics.Accuracy"}}
    change(bundle, validate__evaluator__key_val_metric=accuracy)
    change(bundle, validate__evaluator__additional_metrics=dice)
    adopt(bundle)
    assert training(bundle)[f"{evaluator}#key_val_metric"] == dice
    assert training(bundle)[f"{evaluator}#additional_metrics"] == accuracy

    iou = {**dice["val_mean_dice"], "_target_": "MeanIoUHandler"}
    change(bundle, validate__evaluator__key_val_metric={"val_iou": iou})
    change(bundle, validate__evaluator__additional_metrics={})
    adopt_again(bundle, adopt)
    assert training(bundle)[f"{evaluator}#key_val_metric"] == dice
    assert training(bundle)[f"{evaluator}#additional_metrics"]["val_iou"] == iou


def test_a_bundles_scripts_are_found(bundle: Path, adopt: Adopt) -> None:
    file = bundle / TRAIN[0]
    content = json.loads(file.read_text())
    unet = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2, "channels": [4, 8]}
    content["network_def"] = {"_target_": "scripts.nets.Own", "strides": [2], **unet}
    file.write_text(json.dumps(content))
    (bundle / "scripts").mkdir()
    (bundle / "scripts" / "nets.py").write_text("from monai.networks.nets import UNet as Own\n")
    adopt(bundle)
    weights, _ = initial_model(bundle, config=TRAIN)
    assert weights


def test_a_bundle_in_yaml_is_adopted(bundle: Path, adopt: Adopt) -> None:
    yaml = pytest.importorskip("yaml")
    file = bundle / TRAIN[0]
    file.with_suffix(".yaml").write_text(yaml.safe_dump(json.loads(file.read_text())))
    file.unlink()
    adopt(bundle)
    assert federate_of(bundle)["config"] == ["configs/train.yaml", TRAIN[1]]


# --- the check of a site


def test_the_check_of_a_site_names_all_files_that_cannot_be_used_and_writes_nothing(
    bundle: Path, tmp_path: Path, adopt: Adopt
) -> None:
    adopt(bundle)
    site = write_nested_balls(tmp_path / "data", ["A"], side=8) / "A"
    parser = ConfigParser(federate_of(bundle))
    parser["bundle_root"] = str(bundle)
    check = parser.get_parsed_content("check")
    before = bytes_of(tmp_path, "**/*")
    assert check(str(site)) == {"training": 3, "validation": 2, "testing": 1}
    assert bytes_of(tmp_path, "**/*") == before
    damaged, spoilt = (site / "volumes" / f"case{number}.nii.gz" for number in (1, 2))
    damaged.write_bytes(damaged.read_bytes()[:100])
    nib.save(nib.Nifti1Image(np.full((8, 8, 8), np.nan, np.float32), np.eye(4)), spoilt)
    with pytest.raises(DataError, match="2 problem") as refused:
        check(str(site))
    assert str(damaged) in str(refused.value) and f"{spoilt} has" in str(refused.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=str(tmp_path / "empty")):
        check(str(tmp_path / "empty"))


# --- the length, and the schedule of the learning rate


def test_a_federation_trains_as_many_epochs_as_the_bundle_and_its_schedule_follows(
    bundle: Path, adopt: Adopt
) -> None:
    for epochs, rounds, local in ((800, 100, 8), (50, 50, 1), (250, 84, 3)):
        change(bundle, epochs=epochs)
        adopt_again(bundle, adopt)
        found = federate_of(bundle)
        assert (found["rounds"], found["local_epochs"]) == (rounds, local)
    parser = training(bundle)
    parser["decay_epochs"] = 20
    assert parser.get_parsed_content("lr_scheduler").T_max == 20
