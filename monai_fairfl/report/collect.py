# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds runs and reads each as one long table: hospital, round, measurement, class, value.

A ledger names the round that a measurement's model results from, ``of_round``: that of a received
model is in the record of the next round. Every number of a report comes from this table, from the
tables of single cases in the hospitals' folders, or from the events beside it.
"""

from __future__ import annotations

import glob
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import is_plain_estimate
from monai_fairfl.replies import weights_of_model
from monai_fairfl.run.checkpoint import Schedule
from monai_fairfl.run.ledger import number_in, read_ledger_and_heads, runs_in
from monai_fairfl.run.resuming import DATA, FullRun, read_digests, recorded_config
from monai_fairfl.strategies.registry import shipped
from monai_fairfl.utils.files import distinct_names
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.spreadsheets import read_csv_text
from monai_fairfl.valuation import FreeRiders, free_rider_history

FACTOR = 5.0
ROUNDS = 3
"""A free-rider score above so many times the median of the others', in so many rounds running, is
flagged. Both were fixed beforehand. Honest sites whose images are unlike the others' are, too.
"""

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
    if is_plain_estimate(data):
        return {"mean": Number(float(data["value"]), data["stderr"], data["n"])}
    if not isinstance(data, Mapping):
        return {"mean": Number(float(data))}
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
            ``weight``, ``contribution`` and a method's own quantities, ``own NAME``, are what the
            strategy made of the reports; ``free_rider_score`` is computed of these.
        label: ``mean``, or a class or layer.
        number: in the measurement's unit.
        of_round: the round whose result was measured, -1 is the initial model; ``None`` of what the
            strategy made.
    """

    site: str
    round: int
    measurement: str
    label: str
    number: Number
    of_round: int | None


Case = dict[str, str]
"""A row of a site's table of cases."""


class Run:
    """One run directory, finished or not, whose ledger's chain holds.

    Args:
        path: its folder.

    Attributes:
        name: of its strategy with the arguments that are not the defaults; unique in a report.
        head: SHA-256 of the ledger's last line.
        start: the ledger's opening record.
        rounds: its round records, as far as the run went.
        end: its closing record; ``None`` for an unfinished run.
        config: what its user asked for, where ``settings.json`` records it.
        valuations: made of it afterwards, as their files hold them.
        split: site -> its data list, where the run left one.
        digests: site -> digests of its cases.
        schedule: how long the rounds took.
        data: site -> what the check of its files found before the training, where that was done on
            this machine.
        full_run: of its bundle.

    Raises:
        FederationError: naming a line that is no record of this chain.
        ConfigError: when its records are not those of a run, see :func:`read_records`, a valuation
            is damaged, or ``settings.json`` is no JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        records, self.head = read_records_and_head(path)
        self.start = records[0]
        self.name = self.method
        self.rounds = [record for record in records if record["kind"] == "round"]
        self.end = next((record for record in records if record["kind"] == "end"), None)
        self.valuations = read_valuations(path)
        self.schedule = Schedule.read(path)
        folder, self.config = path, recorded_config(path)
        if not self.config:
            # A comparison of several strategies has one settings.json beside their folders.
            shared = recorded_config(path.resolve().parent)
            if self.name in (shared.get("strategies") or ()):
                folder, self.config = path.resolve().parent, shared
        lists = folder / "datalists"
        self.split = {file.stem: object_of_json(file.read_bytes()) for file in lists.glob("*.json")}
        self.digests = read_digests(lists)
        self.data = recorded_config(folder, DATA)
        full_run = self.config.get("full_run")
        self.full_run = FullRun(**full_run) if full_run else None

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
        return (self.config.get("overrides") or {}).get("split_fold")

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

    @cached_property
    def free_riders(self) -> FreeRiders:
        """Free-rider scores, of the rounds that averaged and measured both scores of a model."""
        return free_rider_history(self.rounds, factor=FACTOR, rounds=ROUNDS)

    @cached_property
    def table(self) -> list[Row]:
        """Every number of the run."""
        return list(self._rows())

    def _rows(self) -> Iterator[Row]:
        known = shipped().get(self.strategy)
        for record in self.rounds:
            number = record["round"]
            for site, measured in record["measurements"].items():
                for name, found in sorted(measured.items()):
                    for label, value in numbers_by_class(found).items():
                        yield Row(site, number, name, label, value, record["of_round"][name])
            made = {"weight": weights_of_model(record["aggregation"])}
            if known is None or known.has_contributions:  # else contributions are weights
                made["contribution"] = record["contributions"]
            made |= {f"own {name}": of_sites for name, of_sites in record["details"].items()}
            for name, of_sites in made.items():
                for site, found in of_sites.items():
                    # One that was not finite has no number.
                    if number_in(found) is not None:
                        value = numbers_by_class(found)["mean"]
                        yield Row(site, number, name, "mean", value, None)
        for site, scores in self.free_riders.scores.items():
            for number, score in zip(self.free_riders.rounds, scores):
                if score is not None:
                    yield Row(site, number, "free_rider_score", "mean", Number(score), None)
        last = len(self.rounds)
        for site, models in (self.end or {"scores": {}})["scores"].items():
            for model, measured in models.items():
                for name, found in sorted(measured.items()):
                    for label, value in numbers_by_class(found).items():
                        yield Row(site, last, f"{model}:{name}", label, value, last - 1)

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
        return rows[0].number if rows else None

    def dice(self, site: str) -> dict[int, Number]:
        """Rounds of training -> validation Dice of the model that ``site`` would use after them.

        That is the global model, or the site's personal one where it trains one: before the first
        round everybody has the initial model. The last is of the end, where it was scored.
        """
        rows, own = self.series(site, "global_score"), self.series(site, "personal_score")
        if own:
            rows = [row for row in rows if row.of_round == -1] + own
        found = {(row.of_round or 0) + 1: row.number for row in rows}
        closing = self.closing(site, "score")
        return found | ({len(self.rounds): closing} if closing else {})

    def newest_dice(self, site: str) -> tuple[int, Number | None]:
        """The last of :meth:`dice` before the last round; 0 and ``None`` where there is none.

        Only runs with personal models measure the one after it before their end; without it,
        unfinished runs of both kinds can be compared.
        """
        known = [item for item in self.dice(site).items() if item[0] < len(self.rounds)]
        return known[-1] if known else (0, None)

    def last_reported(self, key: str) -> dict[str, int]:
        """site -> the newest number that it reported of its training data.

        Args:
            key: ``"cases"``, or ``"samples"`` for the images of an epoch.
        """
        found: dict[str, int] = {}
        for record in self.rounds:
            found.update({site: number for site, number in record[key].items() if number})
        return found

    def cases(self, site: str, measurement: str) -> tuple[Path, list[Case]] | None:
        """The site's table of cases behind a closing score, and its file; ``None`` without one.

        Its mean Dice is the score in the ledger: an earlier attempt at the end may have left
        others.
        """
        score = self.closing(site, measurement)
        if score is None:
            return None
        # As the run was begun: its folder may be renamed.
        begun = glob.escape(self.start.get("run", self.path.resolve().name))
        state = self.path / "sites" / site / "state"
        for name in (f"personal_{measurement}", measurement):
            for file in sorted(state.glob(f"{begun}-{name}-{len(self.rounds)}-*.csv")):
                try:
                    table = read_csv_text(file.read_bytes().decode())
                    dice = [float(case["dice"]) for case in table]
                except (OSError, ValueError, KeyError):  # a damaged table
                    continue
                known = [value for value in dice if not math.isnan(value)]
                if known and abs(sum(known) / len(known) - score.value) < ROUNDING:
                    return file, table
        return None

    def pictures(self, site: str) -> tuple[bytes, list[Case]] | None:
        """The picture of a site's test cases, a PNG, and the table of their sizes.

        Both lie in the site's folder, see :class:`~monai_fairfl.metrics.CasePictures`; ``None``
        where they were not made, or are elsewhere.
        """
        found = self.cases(site, "test_score")
        if found is None:
            return None
        begun, place = found[0].stem.rsplit("test_score-", 1)
        begun = begun.removesuffix("personal_")
        try:
            picture = found[0].with_name(f"{begun}cases-{place}.png").read_bytes()
            sizes = found[0].with_name(f"{begun}sizes-{place}.csv").read_bytes().decode()
        except OSError:
            return None
        return picture, read_csv_text(sizes)

    def scores_by_case(self, site: str, measurement: str) -> dict[str, float]:
        """Case -> its Dice; empty where no whole table of cases with names is there."""
        _, table = self.cases(site, measurement) or (None, [])
        scores = {case["case"]: float(case["dice"]) for case in table if "case" in case}
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
            belong together, which are listed.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        for run in _runs_of(folder):
            found.setdefault(run.resolve(), run)
    return list(found.values())


def _runs_of(folder: Path) -> list[Path]:
    """The run directory ``folder``, those directly in it, or one further down."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder ({folder.absolute()}): give the folder of a run")
    runs = runs_in(folder)
    if runs:
        return runs
    known: set[bytes] = set()
    for file in sorted(folder.rglob("ledger.jsonl"), key=lambda file: (len(file.parts), file)):
        # A coalition that was trained for a valuation lies in its run; NVIDIA FLARE's server
        # copies the results into its job.
        ledger = file.read_bytes()
        if ledger not in known and not any(file.is_relative_to(run) for run in runs):
            known.add(ledger)
            runs.append(file.parent)
    if not runs:
        raise ConfigError(f"{folder} holds no run: there is no ledger.jsonl")
    if len({run.parent for run in runs}) > 1:
        raise ConfigError(f"{folder} holds several runs: name one of them, such as {runs[0]}")
    return runs


# ---- reading a run


def load_runs(folders: Sequence[str | Path]) -> list[Run]:
    """All runs of ``folders``: Standalone, the yardstick, first, the others as given.

    Runs of the same name get their folder in parentheses: ``FedAvg (seed-1)``.

    Args:
        folders: of the runs.
    """
    runs = [Run(path) for path in find_runs(folders)]
    counts = Counter(run.name for run in runs)
    paths = distinct_names([str(run.path.resolve()) for run in runs])
    for run, path in zip(runs, paths):
        if counts[run.name] > 1:
            run.name = f"{run.name} ({path})"
    return sorted(runs, key=lambda run: not run.is_standalone)


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """A run's records: the chain holds, and the opening is first.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: naming the ledger, when it does not begin with an opening record.
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
        raise ConfigError(f"{file} has no record yet: name another run")
    if records[0].get("kind") != "start":
        raise ConfigError(f"{file} does not begin with a run's opening record; restore it")
    return records, heads[-1]


def read_valuations(run_dir: Path) -> list[dict[str, Any]]:
    """The valuations in ``run_dir/valuations``, in the order of their names.

    Raises:
        ConfigError: naming a file that is damaged.
    """
    valuations = []
    for file in sorted((run_dir / "valuations").glob("*.json")):
        try:
            valuations.append(object_of_json(file.read_bytes()))
        except ValueError as error:
            raise ConfigError(
                f"{file} is damaged: {error}. Remove it, and the same command with --resume True "
                f"makes it again"
            ) from error
    return valuations
