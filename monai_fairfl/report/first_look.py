# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs that are not judged: what a reader must know first, and how to get a run that is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from monai_fairfl.report.judging import Judgement
from monai_fairfl.report.run import Run
from monai_fairfl.report.scores import CASES_OF, TESTED, empty_labels
from monai_fairfl.run_folder.commands import full_command
from monai_fairfl.run_folder.full_run import QUICK, FullRun
from monai_fairfl.utils.words import count_words, duration_words

NONE_JUDGED = (
    "This was a first look. It calls no hospital better off, worse off or left behind, and marks "
    "no number as the best."
)
SOME_JUDGED = (
    "Some runs are not judged. They call no hospital better off, worse off or left behind, and "
    "none of their numbers is marked as the best."
)

STANDALONE_JOB = (
    "submit a second job with --strategy Standalone, and give both runs to "
    "monai-fairfl report RUN1 RUN2"
)
"""How to compare the run of an engine's job with training alone."""

FEW_CASES = 5
"""Below so many cases an interval tells little.

By Student's t it is wider than plus and minus 1.5 standard deviations of the cases: 1.6 of four,
2.5 of three, 9 of two.
"""


@dataclass(frozen=True)
class FirstLook:
    """Runs that are not judged for the same reason.

    Args:
        strategies: the names of the runs.
        why: the reason.
        trained_with: a sentence on settings in which they differ from the bundle's full run.
        changes: what the command does with these settings, in a sentence; ``None`` where it repeats
            them all.
        full_run: ``rounds`` and ``local_epochs`` of the full run; this and what follows is ``None``
            where another training would not help, or it is not known.
        command: what trains a full run.
        folds_command: what trains it in folds, so that every case is tested once.
        seconds: how long ``command`` takes, for all of them; at least, where ``trained_with`` says
            that the settings differ and ``with_start`` is false.
        with_start: a run has one timed round, which includes the start, so ``seconds`` may be far
            too many.
    """

    strategies: list[str]
    why: str
    trained_with: str | None
    changes: str | None
    full_run: dict[str, int] | None
    command: str | None
    folds_command: str | None
    seconds: float | None
    with_start: bool


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
        first = members[0]
        judgement = judgements[first.name]
        full = judgement.way_out
        full_run = None
        if full is not None:
            full_run = {"rounds": full.rounds, "local_epochs": full.local_epochs}
        entry = FirstLook(
            strategies=[run.name for run in members],
            why=why_not,
            trained_with=other_settings,
            changes=_changes(first, command, judgement),
            full_run=full_run,
            command=command,
            folds_command=_folds_command(first, judgement),
            seconds=_seconds(members, full, command),
            with_start=any(len(run.schedule.seconds) == 1 for run in members),
        )
        entries.append(entry)
    return entries


def first_look_lines(report: Mapping[str, Any], with_time: bool = True) -> list[str]:
    """What a reader must know first: that nothing is judged, why, and how to get a run that is.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        with_time: estimate how long a full run takes. Equal runs take other times.

    >>> entry = {"strategies": ["FedCE"], "why": "it has no Dice", "trained_with": None,
    ...          "full_run": None, "command": None}
    >>> strategies = {"FedCE": {"judged": False, "strategy": "FedCE"}}
    >>> report = {"first_look": [entry], "strategies": strategies, "focus": None}
    >>> first_look_lines(report)[1]
    'FedCE: it has no Dice.'
    """
    entries = report["first_look"]
    if not entries:
        return []
    some_judged = any(found["judged"] for found in report["strategies"].values())
    lines = [SOME_JUDGED if some_judged else NONE_JUDGED]
    name = report["focus"]
    if name is not None and not report["strategies"][name]["judged"]:
        lines.extend(_hint(report, name))
    few = few_cases_line(report)
    for entry in entries:
        lines.append(f"{', '.join(entry['strategies'])}: {entry['why']}.")
        if entry["trained_with"]:
            lines.append(entry["trained_with"])
        if entry["full_run"]:
            engine = engine_of(report, entry["strategies"][0])
            lines.append(_way_out(entry, with_time, engine))
            if entry["changes"]:
                lines.append(entry["changes"])
            if few:
                # In folds, one person must have the images of all hospitals.
                folds = "" if engine else _folds_words(entry, with_time)
                lines.append(f"{few}{folds}".rstrip())
    methods = {found["strategy"] for found in report["strategies"].values()}
    commands = [entry["command"] for entry in entries]
    if "Standalone" not in methods and not any(_trains_standalone(text) for text in commands):
        if any(engine_of(report, name) for name in report["strategies"]):
            lines.append(f"A verdict compares with training alone: {STANDALONE_JOB}.")
        else:
            lines.append("A verdict compares with training alone, so run Standalone, too.")
    return lines


def engine_of(report: Mapping[str, Any], name: str) -> str | None:
    """The engine whose job a run was; ``None`` for one that this package ran itself.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the run.
    """
    found: str | None = report["strategies"].get(name, {}).get("settings", {}).get("engine")
    return found


def _way_out(entry: Mapping[str, Any], with_time: bool, engine: str | None) -> str:
    """How to get a full run, in a sentence."""
    time = ""
    if with_time and entry["seconds"] is not None:
        time = f", {_time_words(entry, entry['seconds'])}"
    if entry["command"]:
        return f"Train a full run, from the start and in a new folder{time}: {entry['command']}"
    full = entry["full_run"]
    rounds = count_words(full["rounds"], "round")
    epochs = count_words(full["local_epochs"], "local epoch")
    if engine:
        return (
            f"A full run has {rounds} of {epochs}, from the start{time}: submit a new job with "
            f"--num-rounds {full['rounds']} --local-epochs {full['local_epochs']}."
        )
    return f"A full run has {rounds} of {epochs}, from the start and in a new run_dir{time}."


def _time_words(entry: Mapping[str, Any], seconds: float) -> str:
    """An estimated time; a lower bound where the rounds that were timed had other settings.

    A single round is no lower bound: its start counts as often as a full run has rounds.
    """
    words = duration_words(seconds)
    if entry["with_start"]:
        return f"{words} by the one round that was timed, which includes the start"
    return f"{words} or more" if entry["trained_with"] else words


def _hint(report: Mapping[str, Any], name: str) -> Iterator[str]:
    """At how many hospitals the federation is higher than training alone, in a sentence."""
    gains = []
    for result in report["strategies"][name]["sites"].values():
        if result["gain"] is not None:
            gains.append(result["gain"]["value"])
    if gains:
        higher = sum(gain > 0 for gain in gains)
        yield (
            f"{name} is higher than training alone at {higher} of "
            f"{count_words(len(gains), 'hospital')}. This is a hint, not a verdict."
        )


def few_cases(report: Mapping[str, Any]) -> dict[str, int]:
    """Hospital -> its cases, where they are too few to tell after a full run, too.

    Without hospitals that have empty labels: folds give no label to these.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
    """
    found: dict[str, int] = {}
    name = report["focus"]
    if name is None:
        return found
    for site, result in report["strategies"][name]["sites"].items():
        score = result["score"]
        if score is None or score["n"] is None or empty_test_labels(report, name, site):
            continue
        if score["n"] < FEW_CASES:
            found[site] = score["n"]
    return found


def empty_test_labels(report: Mapping[str, Any], name: str, site: str) -> int:
    """How many test labels of a hospital are empty.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the strategy.
        site: the hospital.
    """
    strategy = report["strategies"][name]
    result = strategy["sites"][site]
    score, boundary = result["score"], result.get("boundary")
    if strategy["measurement"] != TESTED or score is None or boundary is None:
        return 0
    return empty_labels(score["n"], boundary["n"])


def few_cases_line(report: Mapping[str, Any]) -> str:
    """That a full run would not tell at hospitals of few cases; empty where there are none."""
    few = few_cases(report)
    if not few:
        return ""
    cases = CASES_OF[report["strategies"][report["focus"]]["measurement"]]
    counts = ", ".join(f"{site} {number}" for site, number in few.items())
    return f"A full run alone will hardly tell at hospitals with few {cases} cases ({counts}). "


def _folds_words(entry: Mapping[str, Any], with_time: bool) -> str:
    """How to test every case of a hospital, in a sentence."""
    words = entry["folds_command"]
    if words is None:
        return "monai-fairfl compare with --folds tests each case once."
    time = ""
    if with_time and entry["seconds"] is not None:
        folds = int(_value_of(words, "--folds"))
        time = f", {_time_words(entry, folds * entry['seconds'])}"
    return f"Training in folds tests each case once{time}: {words}"


def _value_of(command: str, option: str) -> str:
    """The word after an option of a command."""
    words = shlex.split(command)
    return words[words.index(option) + 1]


def _folds_command(run: Run, judgement: Judgement) -> str | None:
    """The command of a full run in folds, where the run records it."""
    words = run.config.get("folds_command")
    if judgement.way_out is None or not isinstance(words, list):
        return None
    return shlex.join([str(word) for word in words])


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
    own, _ = _contradicting(run, judgement.way_out)
    return full_command([str(word) for word in words], judgement.way_out, own)


def _trains_standalone(command: str | None) -> bool:
    """Whether a command of a full run trains Standalone, with which a verdict compares.

    >>> _trains_standalone("monai-fairfl train hospitals --strategies Standalone FedCE")
    True
    """
    return command is not None and "Standalone" in shlex.split(command)


def _seconds(runs: Sequence[Run], full: FullRun | None, command: str | None) -> float | None:
    """Estimated time of full runs, one after the other, from the rounds of each run.

    The first round includes the start, which a full run has once, too: the median of the later
    ones is what a round takes. ``None`` where a run did not record the times of its rounds, or
    there is no full run.

    Args:
        runs: those that are not judged, for one reason.
        full: of their bundle.
        command: that trains the full runs, perhaps one of Standalone beside these.
    """
    if full is None:
        return None
    total = 0.0
    for run in runs:
        seconds = [taken for _, taken in sorted(run.schedule.seconds.items())]
        if not seconds:
            return None
        per_round = median(seconds[1:] or seconds)
        start = max(0.0, seconds[0] - per_round)
        total += start + full.seconds(per_round, run.config["local_epochs"])
    adds_one = not any(run.is_standalone for run in runs)
    if adds_one and _trains_standalone(command):
        # A round of training alone takes about as long as one of a federation.
        total *= (len(runs) + 1) / len(runs)
    return total


def _other_settings(run: Run, judgement: Judgement) -> str | None:
    """The settings in which the run differs from the full run that was measured, in a sentence."""
    if judgement.way_out is None:
        return None
    contradicting, others = _contradicting(run, judgement.way_out)
    own = []
    measured = []
    for key, value in contradicting.items():
        own.append(f"the bundle's own {key}" if value is None else f"{key} {value}")
        measured.append(f"{key} {judgement.way_out.overrides[key]}")
    for key, value in others.items():
        own.append(f"{key} {value}")
        measured.append(f"its own {key}")
    if not own:
        return None
    return f"It trains with {', '.join(own)}; the bundle was measured with {', '.join(measured)}."


def _changes(run: Run, command: str | None, judgement: Judgement) -> str | None:
    """What the command of a full run does with settings that differ from it, in a sentence."""
    if judgement.way_out is None or command is None:
        return None
    contradicting, others = _contradicting(run, judgement.way_out)
    left_out = []
    for key, value in contradicting.items():
        if value is not None:
            left_out.append(f"{key} {value}")
    repeated = []
    # The bundle's overlay of a first look is never repeated; a file of the user always is.
    with_overlay = QUICK in " ".join(str(word) for word in run.config.get("command") or [])
    for key, value in others.items():
        named = f'"{key}"' in command or f"'{key}'" in command or f"#{key}" in command
        if named or not with_overlay:
            repeated.append(f"{key} {value}")
        elif "--config " not in command:
            left_out.append(f"{key} {value}")
    parts = []
    if left_out:
        parts.append(f"leaves out {', '.join(left_out)}")
    if repeated:
        parts.append(f"keeps {', '.join(repeated)}, with which the bundle was not measured")
    return f"This command {'; it '.join(parts)}." if parts else None


def _contradicting(run: Run, full: FullRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The overrides of a run that differ from its bundle's full run.

    Returns:
        Those that the full run names, ``None`` where the run has no value of its own; and the
        others, with which the bundle was not measured.
    """
    trained_with = run.config.get("trained_with") or {}
    contradicting = {}
    for key, value in full.overrides.items():
        if trained_with.get(key) != value:
            contradicting[key] = trained_with.get(key)
    others = {}
    for key, value in (run.config.get("own_overrides") or {}).items():
        if key not in full.overrides:
            others[key] = value
    return contradicting, others
