# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which runs have learnt enough to be judged, and how to get one that has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.collect import Run
from monai_fairfl.run_folder.full_run import FullRun, duration_words, full_command

NONE_JUDGED = "A first look: no hospital is called better off, worse off or left behind, and no number is marked as the best."
SOME_JUDGED = (
    "Some runs are not judged: by them no hospital is called better off, worse off or left behind, and none of their "
    "numbers is marked as the best."
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
    def trained(self) -> bool:
        """Whether the run had its bundle's full training, whatever came of it."""
        return self.full is not None and self.why_not is None


def judge(run: Run) -> Judgement:
    """Whether the run's training was its bundle's full one: as many local epochs, in one planned
    schedule.
    """
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
    epochs = run.config.get("local_epochs")
    if not isinstance(epochs, int) or epochs < 1:
        return Judgement("its config.json does not record local_epochs", full)
    planned = run.schedule.planned
    if not planned or planned[0] is None:
        return Judgement("it is not recorded for how many rounds it was begun", full, retrain=True)
    if len(planned) > 1:
        later = " and then ".join(str(rounds) for rounds in planned[1:])
        changed = f"it was begun with {planned[0]} rounds and resumed with {later}"
        return Judgement(f"{changed}: its learning rate followed two schedules", full, retrain=True)
    if planned[0] * epochs < full.epochs:
        given = f"{_count(planned[0], 'round')} of {_count(epochs, 'local epoch')}"
        return Judgement(
            f"{given} are {_count(planned[0] * epochs, 'epoch')}, and a full run of the bundle has {full.epochs} "
            f"({_count(full.rounds, 'round')} of {full.local_epochs})",
            full,
            retrain=True,
        )
    if run.end is None or len(run.rounds) * epochs < full.epochs:
        return Judgement(
            f"it ended or stopped after {len(run.rounds)} of {planned[0]} rounds", full
        )
    return Judgement(None, full)


def learnt(judgement: Judgement, mean: float | None) -> Judgement:
    """The judgement of a fully trained run whose mean Dice is ``mean``."""
    full = judgement.full
    if full is None or judgement.why_not is not None:
        return judgement
    if mean is None:
        return Judgement("it has no Dice", full)
    if mean < full.mean_dice:
        return Judgement(
            f"its mean Dice is {mean:.3f}, and below {full.mean_dice:g} nothing is judged", full
        )
    return judgement


def first_look(runs: Sequence[Run], judgements: Mapping[str, Judgement]) -> list[dict[str, Any]]:
    """Runs that are not judged: those with the same reason and command together.

    Returns:
        For each ``{"strategies", "why", "trained_with", "full_run", "command", "seconds"}``; the
        last three are ``None`` where another training is no way out, or they are not known.
    """
    found: dict[tuple[str, str | None, str | None], list[Run]] = {}
    for run in runs:
        judgement = judgements[run.name]
        if judgement.why_not is None:
            continue
        full = judgement.full if judgement.retrain else None
        other_values = None if full is None else _other_values(run, full)
        found.setdefault((judgement.why_not, _command(run, judgement), other_values), []).append(
            run
        )
    entries = []
    for (why_not, command, other_values), members in found.items():
        judgement = judgements[members[0].name]
        full = judgement.full if judgement.retrain else None
        entry = {
            "strategies": [run.name for run in members],
            "why": why_not,
            "trained_with": other_values,
            "full_run": (
                None if full is None else {"rounds": full.rounds, "local_epochs": full.local_epochs}
            ),
            "command": command,
            "seconds": None if full is None else _seconds(members, full),
        }
        entries.append(entry)
    return entries


def first_look_lines(report: Mapping[str, Any]) -> list[str]:
    """What a reader must know first: that nothing is judged, why, and how to get a run that is.

    >>> entry = {"strategies": ["FedCE"], "why": "it has no Dice", "trained_with": None, "full_run": None,
    ...          "command": None, "seconds": None}
    >>> strategies = {"FedCE": {"judged": False}}
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
            lines.append(_way_out(entry))
    return lines


def _way_out(entry: Mapping[str, Any]) -> str:
    time = "" if entry["seconds"] is None else f", {duration_words(entry['seconds'])}"
    if entry["command"]:
        return f"A full run, from the start and in a folder of its own{time}: {entry['command']}"
    full = entry["full_run"]
    return (
        f"A full run has {full['rounds']} rounds of {_count(full['local_epochs'], 'local epoch')}, "
        f"from the start and in a run_dir of its own{time}."
    )


def _command(run: Run, judgement: Judgement) -> str | None:
    words = run.config.get("command")
    if judgement.full is None or not judgement.retrain or not isinstance(words, list):
        return None
    return full_command([str(word) for word in words], judgement.full)


def _seconds(runs: Iterable[Run], full: FullRun) -> float | None:
    """Of full runs one after the other, from the median round of each; ``None`` where one recorded
    none.
    """
    total = 0.0
    for run in runs:
        if not run.schedule.seconds:
            return None
        total += full.seconds(median(run.schedule.seconds.values()), run.config["local_epochs"])
    return total


def _other_values(run: Run, full: FullRun) -> str | None:
    """The settings in which the run is not the one that was measured, in words."""
    overrides = run.config.get("overrides") or {}
    own, measured = [], []
    for key, value in full.overrides.items():
        if overrides.get(key) != value:
            own.append(f"{key} {overrides[key]}" if key in overrides else f"the bundle's own {key}")
            measured.append(f"{key} {value}")
    if not own:
        return None
    return f"It trains with {', '.join(own)}; the bundle was measured with {', '.join(measured)}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
