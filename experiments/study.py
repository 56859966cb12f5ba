# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study: the same federation trained for every setting, strategy and fold, each of them one cell
and one small JSON.

``studies/NAME.json`` says what is run, ``python experiments/run.py NAME`` runs it,
``results/NAME/*.json`` is what it left. Tables and figures are made from these files alone.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monai_fairfl.data import write_clinics, write_sites

__all__ = ["HERE", "ROOT", "Cell", "Study", "rounded", "studies", "write_result"]

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Cell:
    """One federation of a study: a setting, a strategy, and the fold whose cases are tested."""

    setting: str
    strategy: str
    fold: int

    @property
    def name(self) -> str:
        """Of its result file and its folder of runs."""
        return "-".join(part for part in (self.setting, self.strategy, f"fold{self.fold}") if part)


@dataclass(frozen=True)
class Study:
    """What ``studies/NAME.json`` says.

    Args:
        name: of the file, and of the folder of results.
        bundle: its folder's name.
        sites: a folder of real images within the data root; or of generated hospitals, ``{"kind": "prostate",
            "size": [64, 64, 16], "seed": 0}``, with ``"spare": 4`` empty folders beside them, for more clients to deal
            their images to; or ``{"clients": 10}``: empty folders alone, for real images that are
            dealt.
        strategies: name -> strategy, as in a federation's config.
        folds: every case is tested in one.
        repeats: the folds that are trained; all by default.
        rounds: of every federation.
        local_epochs: of every round.
        overrides: plain values of the bundle's config, the same at all sites and for all
            strategies.
        arguments: further keys of ``federate.json``; ``{data}`` in a text is the folder of real
            images.
        settings: name -> what differs: ``overrides``, ``arguments``, and ``strategies``: the names
            of those that are trained in it, or a mapping of strategies of its own.
        keep: measurements of every round that the result keeps.
        minutes: what one cell is thought to take on one thread, for the plan.
        what: one sentence for the plan.
    """

    name: str
    bundle: str
    sites: str | Mapping[str, Any]
    strategies: Mapping[str, Mapping[str, Any]]
    folds: int
    rounds: int
    local_epochs: int
    repeats: Sequence[int] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    keep: Sequence[str] = ("global_score",)
    minutes: float = 0.0
    what: str = ""

    @classmethod
    def read(cls, name: str) -> Study:
        """The study of that name."""
        path = HERE / "studies" / f"{name}.json"
        if not path.exists():
            raise SystemExit(f"no study {name!r}; there are {', '.join(studies())}")
        return cls(name=name, **json.loads(path.read_text()))

    @property
    def results(self) -> Path:
        """Where its JSON files are."""
        return HERE / "results" / self.name

    def cells(self) -> Iterator[Cell]:
        """All of them, fold by fold."""
        for fold in self.repeats or range(self.folds):
            for setting in self.settings:
                for strategy in self.strategies_of(setting):
                    yield Cell(setting, strategy, fold)

    def strategies_of(self, setting: str) -> list[str]:
        """The names of those that are trained in it."""
        return list(self.settings[setting].get("strategies", self.strategies))

    def strategy_of(self, cell: Cell) -> dict[str, Any]:
        """The strategy of a cell, as in a federation's config."""
        of_setting = self.settings[cell.setting].get("strategies", ())
        if isinstance(of_setting, Mapping):
            return dict(of_setting[cell.strategy])
        return dict(self.strategies[cell.strategy])

    def path(self, cell: Cell) -> Path:
        """The cell's result."""
        return self.results / f"{cell.name}.json"

    def missing(self) -> list[Cell]:
        """The cells that have no result."""
        return [cell for cell in self.cells() if not self.path(cell).exists()]

    def committed(self) -> list[dict[str, Any]]:
        """The results that are there, in the order of the cells."""
        return [
            json.loads(path.read_text()) for path in map(self.path, self.cells()) if path.exists()
        ]

    def overrides_of(self, cell: Cell) -> dict[str, Any]:
        """Plain values of the bundle's config."""
        split = {"split_folds": self.folds, "split_seed": 0, "split_fold": cell.fold}
        return {**split, **self.overrides, **self.settings[cell.setting].get("overrides", {})}

    def arguments_of(self, cell: Cell) -> dict[str, Any]:
        """Further keys of ``federate.json``."""
        return {**self.arguments, **self.settings[cell.setting].get("arguments", {})}

    def seed_of(self, cell: Cell) -> int:
        """Of the whole run: the fold, unless the setting names another."""
        return int(self.arguments_of(cell).get("seed", cell.fold))

    def command(self, cell: Cell, sites_root: str, run_dir: str, data: str = "DATA") -> list[str]:
        """The exact command of a cell, from the project's folder on."""
        values = {
            "config_file": f"bundles/{self.bundle}/configs/federate.json",
            "bundle_root": f"bundles/{self.bundle}",
            "sites_root": sites_root,
            "run_dir": run_dir,
            "rounds": self.rounds,
            "seed": self.seed_of(cell),
            "local_epochs": self.local_epochs,
            "strategies": [self.strategy_of(cell)],
            "overrides": self.overrides_of(cell),
            **self.arguments_of(cell),
            "device": "cpu",
            "report": False,
            "resume": True,
        }
        words = [
            part
            for key, value in values.items()
            for part in (f"--{key}", str(value).replace("{data}", data))
        ]
        return [sys.executable, "-W", "ignore", "-m", "monai.bundle", "run", *words]

    def recorded_command(self, cell: Cell) -> str:
        """The command without this machine's folders, for the result."""
        where = f"DATA/{self.sites}" if isinstance(self.sites, str) else "SITES"
        return shlex.join(["python", *self.command(cell, where, "RUN")[1:]])

    def folders_of_data(self) -> list[str]:
        """The folders of real images that it needs, within ``DATA``."""
        return (
            [self.sites]
            if isinstance(self.sites, str)
            else re.findall(r"{data}/([^']+)'", str(self.overrides))
        )

    def model(self, cell: Cell, runs: Path, site: str = "") -> Path:
        """The last model that a site would use, of a run that is still there.

        Raises:
            SystemExit: it is not; says how to get it.
        """
        models = runs / self.name / cell.name / "models"
        own = models / f"{site}.pt"
        found = own if site and own.exists() else models / "global.pt"
        if not found.exists():
            raise SystemExit(
                f"{found} is not there, and models are not committed: delete {self.path(cell)} and train again"
            )
        return found

    def sites_root(self, data: Path, runs: Path) -> Path:
        """The folder of the sites; generated hospitals are written where they are not yet."""
        if isinstance(self.sites, str):
            return data / self.sites
        root = (
            runs / "sites" / "-".join(str(value) for value in self.sites.values()).replace(" ", "")
        )
        generated = {
            key: value
            for key, value in self.sites.items()
            if key not in ("clients", "kind", "spare")
        }
        if "kind" in self.sites:
            write = write_sites if self.sites["kind"] == "prostate" else write_clinics
            write(root, workers=2, **generated)
        for name, number in (
            ("client", self.sites.get("clients", 0)),
            ("spare", self.sites.get("spare", 0)),
        ):
            for index in range(number):
                (root / f"{name}{index + 1:02d}").mkdir(parents=True, exist_ok=True)
        return root


def studies() -> list[str]:
    """The names of all studies."""
    return sorted(path.stem for path in (HERE / "studies").glob("*.json"))


def write_result(path: Path, found: Mapping[str, Any]) -> None:
    """A committed result: one line per key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rounded(found).items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def rounded(value: Any) -> Any:
    """JSON's numbers to six digits, and ``None`` for what is not a number.

    >>> rounded({"a": [0.123456789, float("nan"), 3]})
    {'a': [0.123457, None, 3]}
    """
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
