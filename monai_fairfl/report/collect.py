# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Reads run directories: each ledger's chain is verified, and its records become plain numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.valuations import read_valuations
from monai_fairfl.run_folder.ledger import head_of, read_ledger
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.utils.files import distinct_names

NEEDED: dict[str, dict[str, type]] = {
    "start": {"strategy": str, "clients": list},
    "round": {
        "round": int,
        "clients": list,
        "aggregation": dict,
        "contributions": dict,
        "measurements": dict,
    },
    "end": {"scores": dict},
}
"""Kind of a record -> what a report reads of every one, and of which type it is."""
FORMS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}

Split = Mapping[str, Sequence[str]]
"""Part of a site's data list, such as ``"training"`` -> its images, sorted."""


@dataclass(frozen=True)
class Number:
    """A value with its standard error and the number of observations behind it; ``None`` where
    unknown.
    """

    value: float
    stderr: float | None = None
    n: int | None = None

    @classmethod
    def read(cls, data: Any) -> Number:
        """From the ledger's JSON: a number, an estimate's fields, or a mapping with ``"mean"``.

        >>> Number.read({"mean": {"value": 0.8, "stderr": 0.1, "n": 4}, "gland": 0.8})
        Number(value=0.8, stderr=0.1, n=4)
        """
        return dict(entries(data))["mean"]


@dataclass(frozen=True)
class Run:
    """One run directory.

    Args:
        path: its folder.
        name: of its strategy with the arguments that are not the defaults; made unique by
            :func:`load_runs`.
        strategy: class of the strategy.
        head: SHA-256 of the ledger's last line; the chain before it was verified.
        start: the ledger's opening record.
        rounds: its round records, as far as the run went.
        end: its closing record; ``None`` for an unfinished run.
        config: what was asked for, where ``config.json`` says so.
        valuations: made of it afterwards, as their files hold them.
        split: site -> its recorded data list; empty where none is beside ``config.json``.
        schedule: for how many rounds it was planned, and how long they took.
    """

    path: Path
    name: str
    strategy: str
    head: str
    start: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] | None
    config: Mapping[str, Any]
    valuations: Sequence[Mapping[str, Any]] = ()
    split: Mapping[str, Split] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def method(self) -> str:
        """The strategy's name with its arguments: the same for its runs of every seed."""
        return str(self.start.get("name", self.strategy))

    @property
    def seed(self) -> Any:
        """The run's seed; ``None`` where the ledger does not say it."""
        return self.start.get("seed")

    @property
    def fold(self) -> Any:
        """The fold of a cross-validation, ``split_fold`` of the overrides; ``None`` where none was
        asked for.
        """
        overrides = self.config.get("overrides")
        return overrides.get("split_fold") if isinstance(overrides, Mapping) else None

    @property
    def sites(self) -> list[str]:
        """Every site that appears anywhere in the run, sorted."""
        return sorted(
            {
                *self.start["clients"],
                *(site for record in self.rounds for site in record["clients"]),
            }
        )

    def final(self, site: str, measurement: str, model: str = "own") -> Number | None:
        """A closing measurement of the model that ``site`` would use (``"own"``) or of the
        ``"global"`` one.
        """
        found = ((self.end or {}).get("scores", {}).get(site) or {}).get(model, {}).get(measurement)
        return None if found is None else Number.read(found)

    @property
    def planned(self) -> int | None:
        """Rounds that the run was meant to have."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def personal(self) -> bool:
        """Whether each site keeps a model of its own beside the global one (Ditto)."""
        return any(
            "personal_score" in found
            for record in self.rounds
            for found in record["measurements"].values()
        )

    def dice(self, site: str) -> dict[int, Number]:
        """rounds finished before -> validation Dice of the model that ``site`` received or, its
        own, would use then.

        A received model is measured when the next round begins, a personal one when its own round
        ends.
        """
        received = self.measured(site, "global_score")
        if not self.personal:
            return received
        begin = {0: received[0]} if 0 in received else {}
        return begin | {
            number + 1: value for number, value in self.measured(site, "personal_score").items()
        }

    def measured(self, site: str, measurement: str) -> dict[int, Number]:
        """round -> what ``site`` measured in it."""
        found = {r["round"]: r["measurements"].get(site, {}).get(measurement) for r in self.rounds}
        return {number: Number.read(value) for number, value in found.items() if value is not None}


def entries(data: Any) -> Iterator[tuple[str, Number]]:
    """The (class, number) pairs of a measurement as the ledger holds it; a single number is its own
    ``"mean"``.

    Where a mapping has no ``"mean"`` (one value per layer), the plain mean is added, without
    uncertainty.

    >>> list(entries(0.5))
    [('mean', Number(value=0.5, stderr=None, n=None))]
    """
    if not isinstance(data, Mapping):
        yield "mean", Number(float(data))
    elif "value" in data and "stderr" in data:
        yield "mean", Number(float(data["value"]), data["stderr"], data.get("n"))
    else:
        inner = {key: next(entries(item))[1] for key, item in data.items() if item is not None}
        if "mean" not in inner and inner:
            yield "mean", Number(sum(number.value for number in inner.values()) / len(inner))
        yield from inner.items()


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """The run directories among ``folders``: each holds a ledger, or is the parent of folders that
    do.

    Raises:
        ConfigError: naming a folder that does not exist, or holds no run.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    for folder in map(Path, folders):
        for run in _runs_in(folder):
            if run.resolve() not in seen:
                seen.add(run.resolve())
                found.append(run)
    if not found:
        raise ConfigError(
            "no run directory was given; name at least one folder with a ledger.jsonl"
        )
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The run directory ``folder``, or those directly in it."""
    if not folder.exists():
        raise ConfigError(
            f"{folder} does not exist (looked for {folder.absolute()}): give the run_dir of a federation"
        )
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file: give the folder of the run that it is of")
    if (folder / "ledger.jsonl").exists():
        return [folder]
    runs = [file.parent for file in sorted(folder.glob("*/ledger.jsonl"))]
    if not runs:
        raise ConfigError(
            f"{folder} holds no run: neither it nor a folder in it has a ledger.jsonl"
        )
    return runs


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """A run's records: the chain holds, the opening is first, and each has what a report reads of
    its kind.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: naming the ledger, the line and what is wrong in it.
    """
    file = run_dir / "ledger.jsonl"
    records = read_ledger(file)
    if not records or records[0].get("kind") != "start":
        raise ConfigError(
            f"{file} does not begin with a run's opening record; restore it from a copy"
        )
    for number, record in enumerate(records, 1):
        kind = str(record.get("kind"))
        if kind not in NEEDED:
            raise ConfigError(
                f"{file}, line {number}: 'kind' must be one of {list(NEEDED)}, got {record.get('kind')!r}"
            )
        for key, form in NEEDED[kind].items():
            if not isinstance(record.get(key), form):
                found = f"{record[key]!r:.40}" if key in record else "nothing"
                raise ConfigError(
                    f"{file}, line {number}: a record of kind {kind!r} needs {key!r}, {FORMS[form]}, "
                    f"got {found}; restore the file from a copy"
                )
    return records


def read_run(path: str | Path) -> Run:
    """One run directory, its ledger's chain verified.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: when its records are not those of a run, see :func:`read_records`, or a
            valuation is damaged.
    """
    path = Path(path)
    records = read_records(path)
    start = records[0]
    asked_in, config = _config(path, str(start.get("name")))
    return Run(
        path=path,
        name=str(start.get("name", start["strategy"])),
        strategy=str(start["strategy"]),
        head=head_of(path / "ledger.jsonl"),
        start=start,
        rounds=[record for record in records if record["kind"] == "round"],
        end=next((record for record in records if record["kind"] == "end"), None),
        config=config,
        valuations=read_valuations(path),
        split=_splits(asked_in / "datalists"),
        schedule=Schedule.read(path),
    )


def load_runs(folders: Sequence[str | Path]) -> list[Run]:
    """All runs of ``folders``: Standalone, the yardstick, first, the others as given.

    Runs of the same name are told apart by seed, then by fold, then by folder: ``FedAvg (seed 1)``.
    """
    runs = [read_run(path) for path in find_runs(folders)]
    taken: set[str] = set()
    unique = []
    for run, name in zip(runs, _told_apart(runs)):
        number = 2
        free = name
        while free in taken:  # a strategy may be called as another's run is here
            free = f"{name} #{number}"
            number += 1
        taken.add(free)
        unique.append(replace(run, name=free))
    return sorted(unique, key=lambda run: run.strategy != "Standalone")


def _told_apart(runs: Sequence[Run]) -> list[str]:
    """The runs' names; those that would be the same say seed, fold or folder, whatever differs
    first.
    """
    marks: list[list[str]] = [[] for _ in runs]
    folders = distinct_names([str(run.path.resolve()) for run in runs])
    seeds = [f"seed {run.seed}" for run in runs]
    folds = [f"fold {run.fold}" for run in runs]
    for of_runs in (seeds, folds, folders):
        before = [(run.name, *mark) for run, mark in zip(runs, marks)]
        for position, (mark, own) in enumerate(zip(marks, of_runs)):
            alike = [other for other, name in zip(of_runs, before) if name == before[position]]
            if len(set(alike)) > 1:
                mark.append(own)
    return [
        f"{run.name} ({', '.join(mark)})" if mark else run.name for run, mark in zip(runs, marks)
    ]


def _splits(folder: Path) -> dict[str, Split]:
    """site -> part -> images of the data lists that a run in one process leaves; a damaged list is
    not read.
    """
    found: dict[str, Split] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            lists = json.loads(file.read_text(encoding="utf-8"))
            found[file.stem] = {
                part: sorted(str(case["image"]) for case in lists[part])
                for part in ("training", "validation", "testing")
            }
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def _config(path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """What was asked for, and the folder that records it.

    A comparison of several strategies has one config.json beside their folders.
    """
    for folder in (path, path.resolve().parent):
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(config, dict):
            continue
        strategies = config.get("strategies")
        if folder == path or (isinstance(strategies, list) and name in strategies):
            return folder, config
    return path, {}
