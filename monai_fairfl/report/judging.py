# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs have learnt enough to be judged, and how to get one that has."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.run import Run
from monai_fairfl.run_folder.full_run import FullRun, count_words, duration_words, full_command

MEAN_DICE = "its mean Dice is"
"""How the reason begins that is of the hospitals' mean."""

NONE_JUDGED = (
    "A first look: no hospital is called better off, worse off or left behind, and no number is "
    "marked as the best."
)
SOME_JUDGED = (
    "Some runs are not judged: by them no hospital is called better off, worse off or left behind, "
    "and none of their numbers is marked as the best."
)


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

    @property
    def way_out(self) -> FullRun | None:
        """The training that would give a run that can be judged; ``None`` where none would."""
        return self.full if self.retrain else None


@dataclass(frozen=True)
class FirstLook:
    """Runs that are not judged for the same reason.

    Args:
        strategies: the names of the runs.
        why: the reason.
        trained_with: a sentence on settings in which they differ from the bundle's full run.
        full_run: ``rounds`` and ``local_epochs`` of the full run; this and what follows is ``None``
            where another training would not help, or it is not known.
        command: what trains a full run.
        seconds: how long that takes, for all of them.
    """

    strategies: list[str]
    why: str
    trained_with: str | None
    full_run: dict[str, int] | None
    command: str | None
    seconds: float | None


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
        return Judgement(f"{yardstick.name}, with which it is compared, is no full run", full)
    if mean_dice is None:
        return Judgement("it has no Dice", full)
    if mean_dice < full.mean_dice:
        return Judgement(
            f"{MEAN_DICE} {mean_dice:.3f}, and below {full.mean_dice:g} nothing is judged",
            full,
        )
    return found


def judge_training(run: Run) -> Judgement:
    """Whether the training was the bundle's full one: as many local epochs, in one schedule."""
    if not run.config:
        return Judgement("it has no config.json, so its bundle's full_run is not known")
    try:
        full = FullRun.read(run.config.get("full_run"))
    except ConfigError as error:
        return Judgement(f"its config.json is wrong: {error}")
    if full is None:
        return Judgement(
            "its bundle's federate.json has no key full_run, which says what training may be judged"
        )
    local_epochs = run.config.get("local_epochs")
    if not isinstance(local_epochs, int) or local_epochs < 1:
        return Judgement("its config.json does not record local_epochs", full)

    # A learning rate that falls over the planned rounds follows one schedule only if they never
    # changed.
    planned = run.schedule.planned
    if not planned or planned[0] is None:
        return Judgement("it is not recorded for how many rounds it was begun", full, retrain=True)
    if len(planned) > 1:
        later = " and then ".join(str(rounds) for rounds in planned[1:])
        return Judgement(
            f"it was begun with {planned[0]} rounds and resumed with {later}: "
            f"its learning rate followed two schedules",
            full,
            retrain=True,
        )

    epochs = planned[0] * local_epochs
    if epochs < full.epochs:
        return Judgement(
            f"{count_words(planned[0], 'round')} of {count_words(local_epochs, 'local epoch')}, "
            f"{count_words(epochs, 'epoch')} in all; a full run of the bundle has {full.epochs} "
            f"({count_words(full.rounds, 'round')} of {full.local_epochs})",
            full,
            retrain=True,
        )
    if not run.finished or len(run.rounds) * local_epochs < full.epochs:
        return Judgement(
            f"it ended or stopped after {len(run.rounds)} of {planned[0]} rounds", full
        )
    return Judgement(None, full)


def first_look(runs: Sequence[Run], judgements: Mapping[str, Judgement]) -> list[FirstLook]:
    """The runs that are not judged; those with the same reason and command together.

    Args:
        runs: of the report.
        judgements: name of a run -> whether it is judged.
    """
    alike: dict[tuple[str, str | None, str | None], list[Run]] = {}
    for run in runs:
        judgement = judgements[run.name]
        if judgement.why_not is None:
            continue
        key = (judgement.why_not, _command(run, judgement), _other_settings(run, judgement))
        alike.setdefault(key, []).append(run)

    entries = []
    for (why_not, command, other_settings), members in alike.items():
        full = judgements[members[0].name].way_out
        full_run = None
        seconds = None
        if full is not None:
            full_run = {"rounds": full.rounds, "local_epochs": full.local_epochs}
            seconds = _seconds(members, full)
            adds_one = not any(run.is_standalone for run in members)
            if seconds is not None and adds_one and _trains_standalone(command):
                # A round of training alone takes about as long as one of a federation.
                seconds *= (len(members) + 1) / len(members)
        entry = FirstLook(
            strategies=[run.name for run in members],
            why=why_not,
            trained_with=other_settings,
            full_run=full_run,
            command=command,
            seconds=seconds,
        )
        entries.append(entry)
    return entries


def first_look_lines(report: Mapping[str, Any], with_time: bool = True) -> list[str]:
    """What a reader must know first: that nothing is judged, why, and how to get a run that is.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        with_time: estimate how long a full run takes. Equal runs take other times.

    >>> entry = {"strategies": ["FedCE"], "why": "it has no Dice", "trained_with": None,
    ...          "full_run": None, "command": None, "seconds": None}
    >>> strategies = {"FedCE": {"judged": False, "strategy": "FedCE"}}
    >>> first_look_lines({"first_look": [entry], "strategies": strategies})[1]
    'FedCE: it has no Dice.'
    """
    entries = report["first_look"]
    if not entries:
        return []
    some_judged = any(found["judged"] for found in report["strategies"].values())
    lines = [SOME_JUDGED if some_judged else NONE_JUDGED]
    for entry in entries:
        lines.append(f"{', '.join(entry['strategies'])}: {entry['why']}.")
        if entry["trained_with"]:
            lines.append(entry["trained_with"])
        if entry["full_run"]:
            lines.append(_way_out(entry, with_time))
    methods = {found["strategy"] for found in report["strategies"].values()}
    commands = [entry["command"] for entry in entries]
    if "Standalone" not in methods and not any(_trains_standalone(text) for text in commands):
        lines.append("A verdict compares with training alone: run Standalone beside the full run.")
    return lines


def _way_out(entry: Mapping[str, Any], with_time: bool) -> str:
    """How to get a full run, in a sentence."""
    time = ""
    if with_time and entry["seconds"] is not None:
        time = f", {duration_words(entry['seconds'])}"
    if entry["command"]:
        return f"A full run, from the start and in a folder of its own{time}: {entry['command']}"
    full = entry["full_run"]
    rounds = count_words(full["rounds"], "round")
    epochs = count_words(full["local_epochs"], "local epoch")
    return f"A full run has {rounds} of {epochs}, from the start and in a run_dir of its own{time}."


def _command(run: Run, judgement: Judgement) -> str | None:
    """The command of a full run, where the run records it, or its own."""
    if judgement.way_out is None:
        return None
    short = run.config.get("full_command")
    if isinstance(short, list):
        return shlex.join([str(word) for word in short])
    words = run.config.get("command")
    if not isinstance(words, list):
        return None
    return full_command([str(word) for word in words], judgement.way_out)


def _trains_standalone(command: str | None) -> bool:
    """Whether a command of a full run trains Standalone, with which a verdict compares.

    >>> _trains_standalone("monai-fairfl train hospitals --strategies Standalone FedCE")
    True
    """
    return command is not None and "Standalone" in shlex.split(command)


def _seconds(runs: Sequence[Run], full: FullRun) -> float | None:
    """Estimated time of full runs, one after the other, from the median round of each run.

    ``None`` where a run did not record the times of its rounds.
    """
    total = 0.0
    for run in runs:
        if not run.schedule.seconds:
            return None
        per_round = median(run.schedule.seconds.values())
        total += full.seconds(per_round, run.config["local_epochs"])
    return total


def _other_settings(run: Run, judgement: Judgement) -> str | None:
    """The settings in which the run differs from the full run that was measured, in a sentence."""
    if judgement.way_out is None:
        return None
    overrides = run.config.get("overrides") or {}
    # An earlier version recorded the overrides alone.
    trained_with = run.config.get("trained_with") or overrides
    own = []
    measured = []
    for key, value in judgement.way_out.overrides.items():
        if trained_with.get(key) == value:
            continue
        if key in trained_with:
            own.append(f"{key} {trained_with[key]}")
        else:
            own.append(f"the bundle's own {key}")
        measured.append(f"{key} {value}")
    if not own:
        return None
    return f"It trains with {', '.join(own)}; the bundle was measured with {', '.join(measured)}."
