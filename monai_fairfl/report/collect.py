# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds runs and reads each as one long table: hospital, round, measurement, class, value.

A ledger names the round that a measurement's model results from, ``of_round``: that of a received
model is in the record of the next round. Every number of a report comes from this table, from the
tables of single cases in the hospitals' folders, or from the events beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import is_plain_estimate
from monai_fairfl.replies import weights_of_model
from monai_fairfl.run.checkpoint import Schedule
from monai_fairfl.run.ledger import no_record_in, number_in, read_ledger_and_heads, runs_in
from monai_fairfl.run.resuming import read_digests
from monai_fairfl.utils.files import distinct_names
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import read_csv_text

NEEDED: dict[str, dict[str, type]] = {
    "start": {"strategy": str, "clients": list},
    "round": {"round": int, "clients": list},
    "end": {"scores": dict},
}
"""Kind of a record -> what a report reads of every one, and of which type it is."""

OF_SITES = ("aggregation", "contributions", "measurements", "of_round", "verdicts", "notes")
NEEDED["round"] |= dict.fromkeys((*OF_SITES, "details", "facts", "samples", "cases"), dict)

VALUATION: dict[str, Any] = {
    "name": str,
    "strategy": str,
    "method": str,
    "utility": str,
    "data": str,
}
VALUATION |= {"values": dict, "shares": dict, "evaluations": int, "total": (int, float)}
"""Key of a valuation -> the types that its value may have."""

MOST_FOLDERS = 6
"""So many folders deep an engine's workspace is searched for runs."""

ROUNDING = 1e-5
"""By how much a mean of scores may differ that a site writes with six decimals."""


class Number(NamedTuple):
    """A value with its standard error and the observations behind it; ``None`` where unknown."""

    value: float
    stderr: float | None = None
    n: int | None = None


def numbers_by_class(data: Any) -> dict[str, Number]:
    """The numbers of a measurement by class or layer; ``"mean"`` is the one of all.

    A mapping without ``"mean"``, such as one value for each layer, gets the plain mean of its
    values, without uncertainty.

    >>> numbers_by_class({"conv": 0.25, "fc": 0.75})["mean"].value, numbers_by_class(0.5)
    (0.5, {'mean': Number(value=0.5, stderr=None, n=None)})
    """
    if not isinstance(data, Mapping):
        return {"mean": Number(float(data))}
    if is_plain_estimate(data):
        return {"mean": Number(float(data["value"]), data["stderr"], data["n"])}
    known = {name: item for name, item in data.items() if item is not None}
    numbers = {name: numbers_by_class(item)["mean"] for name, item in known.items()}
    if numbers and "mean" not in numbers:
        mean = sum(number.value for number in numbers.values()) / len(numbers)
        return {"mean": Number(mean), **numbers}
    return numbers


class Row(NamedTuple):
    """One number of a run.

    Args:
        site: whose number it is.
        round: in which it was measured; of a closing measurement the number of rounds.
        measurement: its name; a closing one begins with its model, such as ``own:test_score``.
            ``weight`` and ``contribution`` are what the strategy made of the reports.
        label: ``mean``, or a class or layer.
        value: in the measurement's unit.
        stderr: standard error.
        n: observations.
        of_round: the round whose result was measured, -1 is the initial model; ``None`` of what the
            strategy made.
    """

    site: str
    round: int
    measurement: str
    label: str
    value: float
    stderr: float | None
    n: int | None
    of_round: int | None


Case = dict[str, str]
"""A row of a site's table of cases."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory, finished or not, whose ledger's chain holds.

    Args:
        path: its folder.
        name: of its strategy with the arguments that are not the defaults; unique in a report.
        head: SHA-256 of the ledger's last line.
        start: the ledger's opening record.
        rounds: its round records, as far as the run went.
        end: its closing record; ``None`` for an unfinished run.
        config: what its user asked for, where ``settings.json`` records it.
        valuations: made of it afterwards, as their files hold them.
        split: site -> part of its data list, such as ``"training"`` -> its images, sorted. An image
            of several files, one per channel, has a line for each.
        digests: site -> digests of its cases.
        schedule: for how many rounds it was planned, and how long they took.
    """

    path: Path
    name: str
    head: str
    start: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] | None
    config: Mapping[str, Any]
    valuations: Sequence[Mapping[str, Any]] = ()
    split: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def strategy(self) -> str:
        """Class of the strategy."""
        return str(self.start["strategy"])

    @property
    def method(self) -> str:
        """The strategy's name with its arguments: the same for its runs of every seed."""
        return str(self.start.get("name", self.strategy))

    @property
    def is_standalone(self) -> bool:
        """Whether each site trained alone: the yardstick of the federated runs."""
        return self.strategy == "Standalone"

    @property
    def seed(self) -> Any:
        """The run's seed; ``None`` where the ledger does not record it."""
        return self.start.get("seed")

    @property
    def fold(self) -> Any:
        """The fold of a cross-validation, ``split_fold`` of the overrides; ``None`` without one."""
        overrides = self.config.get("overrides")
        return overrides.get("split_fold") if isinstance(overrides, Mapping) else None

    @property
    def cells(self) -> dict[str, Any]:
        """The columns of each CSV file that name the run of a row."""
        about = {"run": self.name, "strategy": self.method}
        return {**about, "seed": self.seed, "fold": self.fold}

    @cached_property
    def sites(self) -> list[str]:
        """Every site that appears anywhere in the run, sorted."""
        sites = set(self.start["clients"])
        for record in self.rounds:
            sites.update(record["clients"])
        return sorted(sites)

    @property
    def closing_scores(self) -> Mapping[str, Any]:
        """site -> model -> closing measurements, as the ledger has them; empty before the end."""
        return self.end["scores"] if self.end is not None else {}

    @cached_property
    def table(self) -> list[Row]:
        """Every number of the run."""
        return list(self._rows())

    def _rows(self) -> Iterator[Row]:
        for record in self.rounds:
            number = record["round"]
            for site, measured in record["measurements"].items():
                for name, found in sorted(measured.items()):
                    for label, value in numbers_by_class(found).items():
                        yield Row(site, number, name, label, *value, record["of_round"][name])
            for site, weight in weights_of_model(record["aggregation"]).items():
                if weight is not None:
                    yield Row(site, number, "weight", "mean", float(weight), None, None, None)
            for site, found in record["contributions"].items():
                # An estimate that was not finite has no number.
                if number_in(found) is not None:
                    value = numbers_by_class(found)["mean"]
                    yield Row(site, number, "contribution", "mean", *value, None)
        last = len(self.rounds)
        for site, models in self.closing_scores.items():
            for model, measured in models.items():
                for name, found in sorted(measured.items()):
                    for label, value in numbers_by_class(found).items():
                        yield Row(site, last, f"{model}:{name}", label, *value, last - 1)

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], dict[int, Row]]:
        """Site and measurement -> the round of the record -> its mean over classes."""
        found: dict[tuple[str, str], dict[int, Row]] = {}
        for row in self.table:
            if row.label == "mean":
                found.setdefault((row.site, row.measurement), {})[row.round] = row
        return found

    def series(self, site: str, measurement: str) -> list[Row]:
        """A site's numbers of one measurement, round by round."""
        return list(self._numbers.get((site, measurement), {}).values())

    def closing(self, site: str, measurement: str, model: str = "own") -> Number | None:
        """A closing measurement; ``None`` where the ledger has none.

        Args:
            site: name of the site.
            measurement: such as ``"test_score"``.
            model: the one that the site would use (``"own"``), or another such as ``"global"``.
        """
        rows = self.series(site, f"{model}:{measurement}")
        return Number(rows[0].value, rows[0].stderr, rows[0].n) if rows else None

    @cached_property
    def personal(self) -> bool:
        """Whether each site trains a model of its own beside the global one (Ditto)."""
        return any(measurement == "personal_score" for _, measurement in self._numbers)

    def dice(self, site: str) -> dict[int, Number]:
        """Rounds of training -> validation Dice of the model that ``site`` would use after them.

        That is the global model, or the site's personal one where it trains one: before the first
        round everybody has the initial model.
        """
        found = {}
        for name in ("global_score", "personal_score"):
            for row in self.series(site, name):
                rounds = (row.of_round or 0) + 1
                if (name == "personal_score") == self.personal or rounds == 0:
                    found[rounds] = Number(row.value, row.stderr, row.n)
        return dict(sorted(found.items()))

    def newest_dice(self, site: str) -> tuple[int, Number] | None:
        """The last of :meth:`dice` before the last round.

        Only runs with personal models measure the one after it before their end; without it,
        unfinished runs of both kinds can be compared.
        """
        known = [item for item in self.dice(site).items() if item[0] < len(self.rounds)]
        return known[-1] if known else None

    def last_reported(self, key: str) -> dict[str, int]:
        """site -> the newest number that it reported of its training data.

        Args:
            key: ``"cases"``, or ``"samples"`` for the images of an epoch.
        """
        found: dict[str, int] = {}
        for record in self.rounds:
            found.update({site: number for site, number in record[key].items() if number})
        return found

    def cases_behind(self, site: str, measurement: str, mean: float) -> list[Case] | None:
        """The site's table of cases whose mean Dice is the score in the ledger.

        Raises:
            OSError, ValueError, KeyError: when a table is damaged.
        """
        found = self._table_behind(site, measurement, mean)
        return None if found is None else found[1]

    def _table_behind(
        self, site: str, measurement: str, mean: float
    ) -> tuple[Path, list[Case]] | None:
        """That table with its file; an earlier attempt at the end may have left others."""
        # As the run was begun: its folder may be renamed.
        run_name = self.start.get("run", self.path.resolve().name)
        for name in (f"personal_{measurement}", measurement):
            prefix = f"{run_name}-{name}-{len(self.rounds)}-"
            for file in sorted((self.path / "sites" / site / "state").glob("*.csv")):
                if not file.name.startswith(prefix):
                    continue
                cases = read_csv_text(file.read_bytes().decode())
                scores = [float(case["dice"]) for case in cases]
                known = [score for score in scores if not math.isnan(score)]
                if known and abs(sum(known) / len(known) - mean) < ROUNDING:
                    return file, cases
        return None

    def pictures(self, site: str) -> tuple[bytes, list[Case]] | None:
        """The picture of a site's test cases, a PNG, and the table of their sizes.

        Both lie in the site's folder, see :class:`~monai_fairfl.metrics.CasePictures`; ``None``
        where they were not made, or are elsewhere.
        """
        score = self.closing(site, "test_score")
        try:
            found = score and self._table_behind(site, "test_score", score.value)
            if not found:
                return None
            file, place = found[0], found[0].stem.split("test_score-")[1]
            run_name = self.start.get("run", self.path.resolve().name)
            sizes = file.with_name(f"{run_name}-sizes-{place}.csv").read_bytes().decode()
            picture = file.with_name(f"{run_name}-cases-{place}.png").read_bytes()
            return picture, read_csv_text(sizes)
        except (OSError, ValueError, KeyError):
            return None

    def scores_by_case(self, site: str, measurement: str) -> dict[str, float]:
        """Case -> its Dice; empty where no whole table of cases with names is there."""
        score = self.closing(site, measurement)
        if score is None:
            return {}
        try:
            table = self.cases_behind(site, measurement, score.value) or []
            scores = {case["case"]: float(case["dice"]) for case in table}
        except (OSError, ValueError, KeyError):  # a damaged table
            return {}
        # Cases without names are numbered in the loader's order, which may differ from run to run.
        if len(scores) < len(table) or list(scores) == [str(n) for n in range(len(table))]:
            return {}
        return {case: value for case, value in scores.items() if not math.isnan(value)}


# ---- finding runs


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """The run directories among ``folders``, each once, wherever an engine put them.

    A folder is a run, or holds runs, such as a comparison; or it is the workspace of NVIDIA FLARE's
    simulator, of a server or of a downloaded job, which holds a run further down.

    Raises:
        ConfigError: naming a folder that does not exist, or holds no run; or several that do not
            belong together, which are listed; or a single folder in place of a list.
    """
    if isinstance(folders, (str, Path)):
        raise ConfigError(f"several folders are expected: give a list, [{str(folders)!r}]")
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for run in _runs_of(folder):
            found.setdefault(run.resolve(), run)
    if not found:
        raise ConfigError("no run was given; name at least one folder with a ledger.jsonl")
    return list(found.values())


def find_run(folder: str | Path) -> Path:
    """The only run directory of a folder, see :func:`find_runs`.

    Raises:
        ConfigError: when there is none, or several, which are listed.
    """
    runs = find_runs([folder])
    if len(runs) > 1:
        raise _several_runs(Path(folder), runs)
    return runs[0]


def _runs_of(folder: Path) -> list[Path]:
    """The run directory ``folder``, those directly in it, or one further down."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what} ({folder.absolute()}): give the folder of a run")
    runs = runs_in(folder)
    if runs:
        return runs
    known: set[bytes] = set()
    for depth in range(2, MOST_FOLDERS + 1):
        for file in sorted(folder.glob("/".join(["*"] * depth) + "/ledger.jsonl")):
            # A coalition that was trained for a valuation lies in its run; NVIDIA FLARE's server
            # copies the results into its job.
            inside = any(file.is_relative_to(run) for run in runs)
            ledger = file.read_bytes()
            if not inside and ledger not in known:
                known.add(ledger)
                runs.append(file.parent)
    if not runs:
        raise ConfigError(f"{folder} holds no run: there is no ledger.jsonl")
    parents = {run.parent for run in runs}
    strategies = (_read_object(runs[0].parent / "settings.json") or {}).get("strategies")
    one_comparison = isinstance(strategies, list) and {run.name for run in runs} <= {*strategies}
    if len(runs) > 1 and (len(parents) > 1 or not one_comparison):
        raise _several_runs(folder, runs)
    return runs


def _several_runs(folder: Path, runs: Sequence[Path]) -> ConfigError:
    """Say that a folder holds several runs; of a comparison over seeds, also where its page is."""
    listed = ", ".join(str(run) for run in runs)
    page = folder / "comparison.html"
    see = f". The page that compares them is {page}" if page.is_file() else ""
    return ConfigError(f"{folder} holds several runs: name the one that you mean, {listed}{see}")


# ---- reading a run


def load_runs(
    folders: Sequence[str | Path], names: Mapping[str | Path, str] | None = None
) -> list[Run]:
    """All runs of ``folders``: Standalone, the yardstick, first, the others as given.

    Runs of the same name get their seed, their fold or their folder in parentheses, whatever
    differs first: ``FedAvg (seed 1)``.

    Args:
        folders: of the runs.
        names: folder of a run -> how it is called here, for those that shall have another name.
    """
    runs = [read_run(path) for path in find_runs(folders)]
    shown: list[tuple[str, ...]] = [(run.name,) for run in runs]
    seeds = [f"seed {run.seed}" for run in runs]
    folds = [f"fold {run.fold}" for run in runs]
    paths = distinct_names([str(run.path.resolve()) for run in runs])
    for marks in (seeds, folds, paths):
        several = {
            name for name in shown if len({m for n, m in zip(shown, marks) if n == name}) > 1
        }
        shown = [(*name, mark) if name in several else name for name, mark in zip(shown, marks)]

    chosen = {Path(folder).resolve(): name for folder, name in (names or {}).items()}
    named: dict[str, Run] = {}
    for run, (name, *marks) in zip(runs, shown):
        usual = f"{name} ({', '.join(marks)})" if marks else name
        wanted = free = chosen.get(run.path.resolve(), usual)
        # A user may name a strategy as another run is called here.
        while free in named:
            free = f"{wanted} #{len(named) + 1}"
        named[free] = replace(run, name=free)
    return sorted(named.values(), key=lambda run: not run.is_standalone)


def read_run(path: str | Path) -> Run:
    """One run directory, its ledger's chain verified.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: when its records are not those of a run, see :func:`read_records`, or a
            valuation is damaged.
    """
    path = Path(path)
    records, head = read_records_and_head(path)
    start = records[0]
    name = str(start.get("name", start["strategy"]))
    # A comparison of several strategies has one settings.json beside their folders.
    folder = path
    config = _read_object(path / "settings.json")
    if config is None:
        shared = _read_object(path.resolve().parent / "settings.json") or {}
        strategies = shared.get("strategies")
        if isinstance(strategies, list) and name in strategies:
            folder, config = path.resolve().parent, shared
    ends = [record for record in records if record["kind"] == "end"]
    return Run(
        path=path,
        name=name,
        head=head,
        start=start,
        rounds=[record for record in records if record["kind"] == "round"],
        end=ends[0] if ends else None,
        config=config or {},
        valuations=read_valuations(path),
        split=_read_splits(folder / "datalists"),
        digests=read_digests(folder / "datalists"),
        schedule=Schedule.read(path),
    )


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """A run's records: the chain holds, the opening is first, and each has what a report needs.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: naming the ledger, the line and what is wrong in it.
    """
    records, _ = read_records_and_head(run_dir)
    return records


def read_records_and_head(run_dir: Path) -> tuple[list[dict[str, Any]], str]:
    """What :func:`read_records` returns, and the SHA-256 of the ledger's last line.

    Raises:
        FederationError: as :func:`read_records`.
        ConfigError: as :func:`read_records`.
    """
    file = run_dir / "ledger.jsonl"
    records, heads = read_ledger_and_heads(file)
    if not records:
        raise ConfigError(no_record_in(file))
    if records[0].get("kind") != "start":
        raise ConfigError(f"{file} does not begin with a run's opening record; restore it")
    for number, record in enumerate(records, 1):
        kind = str(record.get("kind"))
        if kind not in NEEDED:
            raise ConfigError(f"{file}, line {number}: 'kind' is {kind!r}, not of {[*NEEDED]}")
        for key, form in NEEDED[kind].items():
            if not isinstance(record.get(key), form):
                raise ConfigError(
                    f"{file}, line {number}: a record of kind {kind!r} needs {key!r} of the type "
                    f"{form.__name__}, got {record.get(key)!r:.40}; restore the file from a copy"
                )
    return records, heads[-1]


def _read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in ``file``; ``None`` where it is missing, damaged or something else."""
    try:
        return object_of_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _read_splits(folder: Path) -> dict[str, dict[str, list[str]]]:
    """site -> its data list, as a run in one process leaves it; a damaged list is not read."""
    splits = {}
    for file in sorted(folder.glob("*.json")):
        split = {}
        try:
            lists = object_of_json(file.read_bytes())
            for part in ("training", "validation", "testing"):
                images = [case["image"] for case in lists[part]]
                names = ["\n".join(i) if isinstance(i, list) else str(i) for i in images]
                split[part] = sorted(names)
        except (OSError, ValueError, TypeError, KeyError):
            continue
        splits[file.stem] = split
    return splits


def read_valuations(run_dir: Path) -> list[dict[str, Any]]:
    """The valuations in ``run_dir/valuations``, in the order of their names.

    Raises:
        ConfigError: naming a file that is damaged.
    """
    valuations = []
    for file in sorted((run_dir / "valuations").glob("*.json")):
        try:
            valuation = object_of_json(file.read_bytes())
            for key, form in VALUATION.items():
                if not isinstance(valuation.get(key), form):
                    raise ValueError(f"{key} is {valuation.get(key)!r}")
            for client, value in valuation["values"].items():
                if not isinstance(value, dict) or not {"value", "stderr"} <= set(value):
                    raise ValueError(f"the value of {client} is {value!r}")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{file} is damaged: {error}. Remove it, and the same command with --resume True "
                f"makes it again"
            ) from error
        valuations.append(valuation)
    return valuations
