# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The learning rate of an adopted bundle decays over all rounds, by torch's own schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.foreign_bundles import write_foreign_bundle

from monai_fairfl.bundle.adoption import adopt_bundle
from monai_fairfl.bundle.configuration import train_config

# Each builds the network of a bundle.
pytestmark = pytest.mark.slow

TRAIN = ["configs/train.json", "configs/federated_train.json"]
OWN_EPOCHS = 50
"""Of the bundle."""
ALL_EPOCHS = 20
"""Of a federation."""
STEPS = "torch.optim.lr_scheduler.StepLR"


def adopted_with(tmp_path: Path, schedule: dict[str, Any] | None, **handler: Any) -> Path:
    """An adopted bundle with this schedule in its handler, or without any."""
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    file = bundle / TRAIN[0]
    content = json.loads(file.read_text())
    content["lr_scheduler"] = schedule and {"optimizer": "@optimizer", **schedule}
    of_handler = {"_target_": "LrScheduleHandler", "lr_scheduler": "@lr_scheduler", **handler}
    content["train"]["handlers"] = [of_handler] if schedule else []
    file.write_text(json.dumps(content))
    adopt_bundle(bundle)
    return bundle


def rates(bundle: Path, key: str, files: list[str], epochs: int) -> list[float]:
    """The learning rate of each epoch by the schedule under a key."""
    config = train_config(bundle, {}, files)
    if files == TRAIN:
        config["decay_epochs"] = epochs
    config["loss"] = None
    schedule = config.get_parsed_content(key)
    found = []
    for _ in range(epochs):
        found.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    "schedule",
    [
        {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": "@epochs"},
        {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": "$@epochs - 10"},
        {"_target_": "torch.optim.lr_scheduler.PolynomialLR", "total_iters": 50},
        {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 10},
        {"_target_": "torch.optim.lr_scheduler.MultiStepLR", "milestones": [10, 30]},
        {"_target_": "WarmupCosineSchedule", "warmup_steps": 10, "t_total": 50},
        {"_target_": "WarmupCosineSchedule", "warmup_steps": 0, "t_total": 50},
    ],
    ids=lambda schedule: "-".join(map(str, schedule.values())),
)
def test_a_schedule_is_stretched_to_all_rounds(schedule: dict[str, Any], tmp_path: Path) -> None:
    bundle = adopted_with(tmp_path, schedule)
    own = rates(bundle, "lr_scheduler", TRAIN[:1], OWN_EPOCHS)
    stretched = rates(bundle, "lr_scheduler", TRAIN, ALL_EPOCHS)
    # Epoch 2 k of 20 is as epoch 5 k of 50.
    assert stretched[::2] == pytest.approx(own[::5])


@pytest.mark.parametrize(
    ("schedule", "handler", "reason"),
    [
        (None, {}, "the bundle's learning rate is constant"),
        (
            {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 5000},
            {},
            "changes nothing within the bundle's 50 epochs",
        ),
        (
            {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"},
            {"step_transform": "$lambda engine: 1"},
            "follows a score that is not there",
        ),
    ],
    ids=["none", "beyond", "plateau"],
)
def test_a_schedule_that_a_federation_cannot_follow_becomes_a_decay(
    schedule: dict[str, Any] | None, handler: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    bundle = adopted_with(tmp_path, schedule, **handler)
    found = rates(bundle, "decay_schedule", TRAIN, ALL_EPOCHS)
    expected = [0.005 * (1 - epoch / ALL_EPOCHS) ** 0.9 for epoch in range(ALL_EPOCHS)]
    assert found == pytest.approx(expected)

    # It is the only one that acts.
    assert schedules_that_act(bundle) == ["LambdaLR"]
    adoption = adopt_bundle(bundle, replace=True)
    assert any(reason in sentence for sentence in adoption.changed)


@pytest.mark.parametrize("length", [5000, 10], ids=["neither acts", "one acts"])
def test_of_several_schedules_those_that_a_federation_cannot_follow_are_off(
    length: int, tmp_path: Path
) -> None:
    bundle = adopted_with(tmp_path, {"_target_": STEPS, "step_size": 5000})
    file = bundle / TRAIN[0]
    content = json.loads(file.read_text())
    other = {"_target_": STEPS, "step_size": length, "optimizer": "@optimizer"}
    content["train"]["handlers"].append({"_target_": "LrScheduleHandler", "lr_scheduler": other})
    file.write_text(json.dumps(content))
    adopt_bundle(bundle, replace=True)
    names = schedules_that_act(bundle)
    assert names == (["LambdaLR"] if length == 5000 else ["StepLR"])


def test_a_schedule_that_the_bundle_has_turned_off_is_none(tmp_path: Path) -> None:
    bundle = adopted_with(tmp_path, {"_target_": STEPS, "step_size": 10}, _disabled_=True)
    assert schedules_that_act(bundle) == ["LambdaLR"]


def schedules_that_act(bundle: Path) -> list[str]:
    """The class of each schedule that a handler of the trainer follows."""
    config = train_config(bundle, {}, TRAIN)
    place = "train#trainer#train_handlers"
    handlers = config.get_parsed_content(place)
    return [type(one.lr_scheduler).__name__ for one in handlers if hasattr(one, "lr_scheduler")]


def test_an_unknown_schedule_stays_and_is_named(tmp_path: Path) -> None:
    schedule = {"_target_": "torch.optim.lr_scheduler.CyclicLR", "base_lr": 0.1, "max_lr": 0.2}
    bundle = adopted_with(tmp_path, schedule)
    assert "lr_scheduler#base_lr" not in json.loads((bundle / TRAIN[1]).read_text())
    adoption = adopt_bundle(bundle, replace=True)
    assert any("'CyclicLR' stays as it is" in sentence for sentence in adoption.left)


@pytest.mark.parametrize(
    ("epochs", "rounds", "local_epochs"), [(800, 100, 8), (50, 50, 1), (250, 84, 3)]
)
def test_a_federation_trains_as_many_epochs_as_the_bundle_at_least(
    epochs: int, rounds: int, local_epochs: int, tmp_path: Path
) -> None:
    bundle = write_foreign_bundle(tmp_path / "bundle", "dynunet")
    file = bundle / TRAIN[0]
    content = json.loads(file.read_text())
    content["epochs"] = epochs
    file.write_text(json.dumps(content))
    adopt_bundle(bundle)
    federate = json.loads((bundle / "configs" / "federate.json").read_text())
    assert (federate["rounds"], federate["local_epochs"]) == (rounds, local_epochs)
    assert epochs <= rounds * local_epochs < epochs + local_epochs
