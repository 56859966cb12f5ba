# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs have learnt enough to be judged."""

from __future__ import annotations

from dataclasses import dataclass

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.run import Run
from monai_fairfl.run.training_config import FullRun
from monai_fairfl.utils.words import count_words

MEAN_DICE = "its mean Dice is"
"""How the reason begins that is of the hospitals' mean."""


@dataclass(frozen=True)
class Judgement:
    """Whether a verdict may be given on a run.

    Args:
        why_not: the reason against it; ``None`` where it may be judged.
        full: the bundle's full run, where it is known.
        retrain: another training would help, and not only more time or a better model.
    """

    why_not: str | None = None
    full: FullRun | None = None
    retrain: bool = False

    @property
    def judged(self) -> bool:
        """Whether a verdict may be given."""
        return self.why_not is None


def judge(run: Run, yardstick: Run | None, mean_dice: float | None) -> Judgement:
    """Whether a verdict may be given on ``run``.

    It must be a full run of its bundle, be compared with a full run, and have learnt enough.

    Args:
        run: in question.
        yardstick: the Standalone run with which it is compared; ``None`` without one.
        mean_dice: mean over the sites of the Dice shown of ``run``; ``None`` where it has none.
    """
    found = judge_training(run)
    full = found.full
    if full is None or not found.judged:
        return found
    if yardstick is not None and not judge_training(yardstick).judged:
        return Judgement(f"{yardstick.name}, with which it is compared, is not a full run", full)
    if mean_dice is None:
        return Judgement("it has no Dice", full)
    if mean_dice < full.mean_dice:
        return Judgement(
            f"{MEAN_DICE} {mean_dice:.3f}, and nothing is judged below {full.mean_dice:g}",
            full,
        )
    return found


def judge_training(run: Run) -> Judgement:
    """Whether the training was the bundle's full one: as many local epochs, in one schedule."""
    if not run.config:
        return Judgement(
            "nobody said how long a full training is: the run has no settings.json with full_run"
        )
    try:
        full = FullRun.read(run.config.get("full_run"))
    except ConfigError as error:
        return Judgement(f"its settings.json is wrong: {error}")
    if full is None:
        return Judgement("its configuration has no full_run, which says which training is judged")
    local_epochs = run.config.get("local_epochs")
    if not isinstance(local_epochs, int) or local_epochs < 1:
        return Judgement("its settings.json does not record local_epochs", full)

    # A learning rate that falls over the planned rounds follows one schedule only if they never
    # changed.
    planned = run.schedule.planned
    if not planned or planned[0] is None:
        return Judgement("its planned number of rounds is not recorded", full, retrain=True)
    if len(planned) > 1:
        later = " and then ".join(str(rounds) for rounds in planned[1:])
        why = (
            f"it was begun with {planned[0]} rounds and resumed with {later}: its learning rate "
            "followed two schedules"
        )
        return Judgement(why, full, retrain=True)

    epochs = planned[0] * local_epochs
    if epochs < full.epochs:
        why = (
            f"{count_words(planned[0], 'round')} of {count_words(local_epochs, 'local epoch')}, "
            f"{count_words(epochs, 'epoch')} in all; a full run of the bundle has {full.epochs} "
            f"({count_words(full.rounds, 'round')} of {full.local_epochs})"
        )
        return Judgement(why, full, retrain=True)
    if not run.finished:
        return Judgement(f"it is unfinished after {len(run.rounds)} of {planned[0]} rounds", full)
    if len(run.rounds) * local_epochs < full.epochs:
        return Judgement(f"it ended after {len(run.rounds)} of {planned[0]} rounds", full)
    return Judgement(None, full)
