# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How long a federation trains, and how its learning rate decays over all rounds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from monai_fairfl.bundle.adoption.engines import HANDLERS, handlers_of
from monai_fairfl.bundle.adoption.training_config import TRAINER, TrainingConfig, target_of

MOST_ROUNDS = 100
DEFAULT_EPOCHS = 100

LENGTHS = {
    "ConstantLR": ("total_iters",),
    "CosineAnnealingLR": ("T_max",),
    "CosineAnnealingWarmRestarts": ("T_0",),
    "LinearLR": ("total_iters",),
    "LinearWarmupCosineAnnealingLR": ("warmup_epochs", "max_epochs"),
    "OneCycleLR": ("total_steps",),
    "PolynomialLR": ("total_iters",),
    "StepLR": ("step_size",),
    "MultiStepLR": ("milestones",),
    "WarmupCosineSchedule": ("warmup_steps", "t_total"),
}
"""Schedule -> its arguments that are numbers of epochs (or of steps)."""

STEPS = {"StepLR": "step_size", "MultiStepLR": "milestones"}
"""Schedule that changes nothing before a certain epoch -> the argument that names it."""


class Length(NamedTuple):
    """How long a federation trains by default: as many epochs as the bundle does."""

    rounds: int
    local_epochs: int


def adopt_length(config: TrainingConfig) -> Length:
    """Divide the bundle's epochs into rounds."""
    epochs = config.number(f"{TRAINER}#max_epochs")
    if epochs is None or epochs < 1:
        config.left.append(
            f"Length: the bundle does not say how many epochs it trains; {DEFAULT_EPOCHS} rounds "
            "of 1 epoch are a guess."
        )
        return Length(DEFAULT_EPOCHS, 1)
    local_epochs = math.ceil(epochs / MOST_ROUNDS)
    rounds = math.ceil(epochs / local_epochs)
    config.changed.append(
        f"Length: {rounds} rounds of {local_epochs} local epoch(s), the bundle's "
        f"{int(epochs)} epochs. Nobody has measured this bundle in a federation, so the report "
        "judges no run (full_run)."
    )
    return Length(rounds, local_epochs)


def adopt_schedule(config: TrainingConfig, length: Length) -> None:
    """Let the learning rate decay over all rounds.

    A schedule of the bundle is stretched to them. Where it has none that a federation can follow,
    it gets the polynomial decay of the shipped bundles.
    """
    epochs = length.rounds * length.local_epochs
    config.add("decay_epochs", epochs)
    schedules = []
    for key, name in handlers_of(config, HANDLERS[0]):
        if name == "LrScheduleHandler":
            schedules.append(key)
    faults = []
    for handler in schedules:
        fault = _stretch(config, handler, epochs)
        if fault:
            config.set(f"{handler}#_disabled_", True)
            faults.append(fault)
    if not schedules:
        _add_decay(config, "the bundle's learning rate is constant")
    elif len(faults) == len(schedules):
        # Once: several schedules would multiply.
        _add_decay(config, "; ".join(faults))
    else:
        for fault in faults:
            config.changed.append(f"Learning rate: {fault}: this schedule is off.")


def _stretch(config: TrainingConfig, handler: str, epochs: int) -> str:
    """Stretch one schedule of the bundle to all rounds.

    Returns:
        Why a federation cannot follow it; empty where it can.
    """
    place = config.find(f"{handler}#lr_scheduler")
    name = target_of(config.get(place)) if place else ""
    if name == "ReduceLROnPlateau" or config.get(f"{handler}#step_transform") is not None:
        return f"{name} follows a score that is not there during a federated training"
    if place is None or name not in LENGTHS:
        config.left.append(
            f"Learning rate: the schedule {name or config.get(f'{handler}#lr_scheduler')!r} stays "
            "as it is; whether it ends with the last round is not known. decay_epochs is the "
            "number of all epochs."
        )
        return ""
    by_epochs = config.get(f"{handler}#epoch_level") in (None, True)
    if by_epochs and _never_acts(config, place, name, epochs):
        return (
            f"{name} ({place}) changes nothing within the bundle's {epochs} epochs, so its "
            "learning rate is constant"
        )
    stretched = []
    for argument in LENGTHS[name]:
        key = config.find(f"{place}#{argument}")
        if key is not None:
            config.set(f"{place}#{argument}", _stretched(config.get(key), key, epochs))
            stretched.append(argument)
    config.changed.append(
        f"Learning rate: {name} ({', '.join(stretched)}) is stretched from the bundle's {epochs} "
        "epochs to all epochs of a federation (decay_epochs)."
    )
    return ""


def _never_acts(config: TrainingConfig, place: str, name: str, epochs: int) -> bool:
    """Whether a schedule of steps makes its first step after the last epoch."""
    argument = STEPS.get(name)
    if argument is None:
        return False
    first = config.number(f"{place}#{argument}")
    if first is None:
        first = config.number(f"{place}#{argument}#0")
    return first is not None and first >= epochs


def _stretched(value: Any, key: str, epochs: int) -> Any:
    """A number of epochs, times all epochs of a federation over those of the bundle."""
    if isinstance(value, list):
        return [_stretched(item, f"{key}#{index}", epochs) for index, item in enumerate(value)]
    if value == 0:
        # A schedule without a warm-up has none in a federation.
        return value
    own = value
    if isinstance(value, str):
        own = f"({value.removeprefix('$')})"
    return f"$max(1, round({own} * @decay_epochs / {epochs}))"


def _add_decay(config: TrainingConfig, reason: str) -> None:
    """Add the polynomial decay of the shipped bundles to the trainer's handlers."""
    optimizer = config.find(f"{TRAINER}#optimizer")
    if optimizer == f"{TRAINER}#optimizer":
        # It is written inside the trainer: the schedule needs a name for it.
        config.set("optimizer", config.get(optimizer))
        config.set(f"{TRAINER}#optimizer", "@optimizer")
        optimizer = "optimizer"
    config.set("decay_power", 0.9)
    config.set("decay_floor", 0.01)
    config.set(
        "decay_schedule",
        {
            "_target_": "torch.optim.lr_scheduler.LambdaLR",
            "optimizer": f"@{optimizer}",
            "lr_lambda": "$lambda epoch: "
            "max(1.0 - epoch / @decay_epochs, @decay_floor) ** @decay_power",
        },
    )
    config.set(
        "decay_handler", {"_target_": "LrScheduleHandler", "lr_scheduler": "@decay_schedule"}
    )
    _append_handler(config, "decay_handler")
    config.changed.append(
        f"Learning rate: {reason}. It now decays over all rounds by (1 - epoch / all epochs) to "
        "the power 0.9; decay_power 0 leaves it constant."
    )


def _append_handler(config: TrainingConfig, handler: str) -> None:
    written = config.get(HANDLERS[0])
    if isinstance(written, list):
        config.set(HANDLERS[0], [*written, f"@{handler}"])
    elif written is None:
        config.set(HANDLERS[0], [f"@{handler}"])
    else:
        own = str(written).removeprefix("$")
        config.set(HANDLERS[0], f"$list({own}) + [@{handler}]")
