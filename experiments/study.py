# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study: one federation for every setting, strategy, fold and seed.

Each of them is one cell. ``studies/NAME.json`` describes what is run, ``python experiments/run.py
NAME`` runs it, and ``results/NAME.csv`` has the results. Tables and figures are made from these
tables alone.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tables

from monai_fairfl.data import write_clinics, write_sites
from monai_fairfl.utils.files import write_atomically

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROOT = HERE.parent
FEDERATE = "configs/federate.json"
ALONE = "Standalone"
OF_SETTING = ("overrides", "arguments", "strategies", "alone")
"""What a setting may differ in."""
Folder = Path | str

if str(ROOT) not in sys.path:
    # Overlays name their code from the project's folder on, where a result's command is entered.
    sys.path.append(str(ROOT))


@dataclass(frozen=True)
class Cell:
    """One federation of a study.

    Args:
        setting: of the study.
        strategy: its name.
        fold: whose cases are tested.
        seed: of the run, where the study names seeds.
    """

    setting: str
    strategy: str
    fold: int
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name of its rows and of its folder of runs.

        >>> Cell("", "FedAvg", 0).name, Cell("uniform", "FedAvg", 0, seed=2).name
        ('FedAvg-fold0', 'uniform-FedAvg-fold0-seed2')
        """
        parts = [self.setting, self.strategy, f"fold{self.fold}"]
        if self.seed is not None:
            parts.append(f"seed{self.seed}")
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Study:
    """The content of ``studies/NAME.json``.

    Args:
        name: of the file, and of the table of results.
        bundle: its folder's name.
        sites: a folder of real images within the data root; or of generated hospitals,
            ``{"kind": "prostate", "size": [64, 64, 16], "seed": 0}``, with ``"spare": 4`` empty
            folders beside them, for more clients to deal their images to; or ``{"clients": 10}``:
            empty folders alone, for real images that are dealt.
        strategies: name -> strategy, as in a federation's config.
        folds: every case is tested in one.
        repeats: the folds that are trained; all by default.
        seeds: with each of which every fold is trained; by default the fold's number is its seed,
            unless the setting's arguments name another. The folds are the same for all seeds.
        rounds: of every federation.
        local_epochs: of every round.
        overrides: plain values of the bundle's config, the same at all sites and for all
            strategies.
        arguments: further keys of ``federate.json``; ``{data}`` in a text is the folder of real
            images.
        settings: name -> what differs: ``overrides``, ``arguments``, and ``strategies``: names
            of the strategies that are trained in it, or a mapping of strategies of its own;
            ``alone``: the setting whose models trained alone its last mile may take, by default
            the setting itself.
        keep: measurements of every round that go into the result.
        minutes: estimate for one cell on one thread, for the plan.
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
    seeds: Sequence[int] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    keep: Sequence[str] = ("global_score",)
    minutes: float = 0.0
    what: str = ""

    def __post_init__(self) -> None:
        for setting, differences in self.settings.items():
            # A misspelt one would train the study's own settings under the setting's name.
            unknown = [name for name in differences if name not in OF_SETTING]
            if unknown:
                raise ValueError(
                    f"study {self.name}: setting {setting!r} has {unknown}; a setting has only "
                    f"{', '.join(OF_SETTING)}"
                )
            for strategy in self.strategies_of(setting):
                if strategy not in self._described(setting):
                    raise ValueError(
                        f"study {self.name}: setting {setting!r} trains {strategy!r}, which is no "
                        f"strategy of the study; there are {list(self.strategies)}"
                    )
            if self.seeds and "seed" in self._arguments_of(setting):
                raise ValueError(
                    f"study {self.name}: setting {setting!r} has a seed of its own, and the study "
                    "names seeds: leave out one of both"
                )
            alone = self.settings[setting].get("alone", setting)
            if alone not in self.settings:
                raise ValueError(
                    f"study {self.name}: setting {setting!r} takes models trained alone from "
                    f"{alone!r}, which is no setting; there are {list(self.settings)}"
                )

    @classmethod
    def read(cls, name: str) -> Study:
        """Read the study of that name."""
        path = HERE / "studies" / f"{name}.json"
        if not path.exists():
            raise SystemExit(f"no study {name!r}; there are {', '.join(studies())}")
        return cls(name=name, **json.loads(path.read_text()))

    @property
    def table(self) -> Path:
        """The file of its results, without its ending."""
        return RESULTS / self.name

    def cells(self) -> Iterator[Cell]:
        """Yield all cells: seed by seed and fold by fold, so that what is done can be compared."""
        seeds: Sequence[int | None] = self.seeds or [None]
        for seed in seeds:
            for fold in self.repeats or range(self.folds):
                for setting in self.settings:
                    for strategy in self.strategies_of(setting):
                        yield Cell(setting, strategy, fold, seed)

    def strategies_of(self, setting: str) -> list[str]:
        """Return the names of the strategies that are trained in a setting."""
        return list(self.settings[setting].get("strategies", self.strategies))

    def strategy_of(self, cell: Cell) -> dict[str, Any]:
        """Return the strategy of a cell, as in a federation's config."""
        return dict(self._described(cell.setting)[cell.strategy])

    def _described(self, setting: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the strategies from which a setting takes its own, by their names."""
        of_setting = self.settings[setting].get("strategies", ())
        if isinstance(of_setting, Mapping):
            return of_setting
        return self.strategies

    def about(self, cell: Cell) -> dict[str, Any]:
        """Return what a result has of its study, and its table does not store."""
        return {
            "study": self.name,
            "setting": cell.setting,
            "strategy": cell.strategy,
            "fold": cell.fold,
            "seed": self.seed_of(cell),
        }

    def results(self) -> dict[Cell, dict[str, Any]]:
        """Read the results that exist, in the order of the cells."""
        table = tables.read(self.table)
        found = {}
        for cell in self.cells():
            if cell.name in table:
                found[cell] = {**self.about(cell), **table[cell.name]}
        return found

    def missing(self) -> list[Cell]:
        """List the cells that have no result."""
        table = tables.read(self.table)
        return [cell for cell in self.cells() if cell.name not in table]

    def overrides_of(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's plain values for the bundle's config; a setting's own come last."""
        overrides = {"split_folds": self.folds, "split_seed": 0, "split_fold": cell.fold}
        overrides.update(self.overrides)
        overrides.update(self.settings[cell.setting].get("overrides", {}))
        return overrides

    def arguments_of(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's further keys of ``federate.json``."""
        return self._arguments_of(cell.setting)

    def _arguments_of(self, setting: str) -> dict[str, Any]:
        return {**self.arguments, **self.settings[setting].get("arguments", {})}

    def seed_of(self, cell: Cell) -> int:
        """Return the seed of a cell's run: its own, else its setting's, else its fold's number."""
        if cell.seed is not None:
            return cell.seed
        return int(self.arguments_of(cell).get("seed", cell.fold))

    def alone_of(self, cell: Cell) -> Cell | None:
        """Return the cell whose models, trained alone, are candidates of this one's last mile.

        It has the same fold and seed, and the same setting unless that names another one;
        ``None`` where there is no last mile, or nobody trains alone.
        """
        if not self.arguments_of(cell).get("adapt_epochs"):
            return None
        setting = self.settings[cell.setting].get("alone", cell.setting)
        if ALONE == cell.strategy or ALONE not in self.strategies_of(setting):
            return None
        return replace(cell, setting=setting, strategy=ALONE)

    def rounds_of(self, cell: Cell) -> int:
        """Return the number of rounds of a cell."""
        return int(self.arguments_of(cell).get("rounds", self.rounds))

    def keys_of(
        self,
        cell: Cell,
        bundle: Folder,
        sites_root: Folder,
        run_dir: Folder,
        data: Folder,
        device: str = "cpu",
    ) -> dict[str, Any]:
        """Return the keys of ``federate.json`` that describe a cell, for these folders."""
        keys = {
            "bundle_root": str(bundle),
            "sites_root": str(sites_root),
            "run_dir": str(run_dir),
            "rounds": self.rounds,
            "seed": self.seed_of(cell),
            "local_epochs": self.local_epochs,
            "strategies": [self.strategy_of(cell)],
            "overrides": self.overrides_of(cell),
            **self.arguments_of(cell),
            "device": device,
            "report": False,
            "resume": True,
        }
        alone = self.alone_of(cell)
        if alone is not None:
            # Beside this run.
            keys["trained_alone"] = str(Path(run_dir).parent / alone.name / "models")
        as_in_json = json.dumps(str(data))[1:-1]
        return dict(json.loads(json.dumps(keys).replace("{data}", as_in_json)))

    def recorded_command(self, cell: Cell, device: str = "cpu") -> str:
        """Return the command that trains a cell alone, in the project's folder.

        The result holds it, without this machine's folders.
        """
        sites_root = "SITES"
        if isinstance(self.sites, str):
            sites_root = f"DATA/{self.sites}"
        bundle = f"bundles/{self.bundle}"
        words = ["python", "-W", "ignore", "-m", "monai.bundle", "run"]
        words += ["--config_file", f"{bundle}/{FEDERATE}"]
        keys = self.keys_of(cell, bundle, sites_root, "RUN", "DATA", device)
        for key, value in keys.items():
            words += [f"--{key}", str(value)]
        return shlex.join(words)

    def folders_of_data(self) -> list[str]:
        """List the folders of real images that the study needs, within ``DATA``."""
        if isinstance(self.sites, str):
            return [self.sites]
        keys = json.dumps([self.overrides, self.arguments, self.settings])
        return sorted(set(re.findall(r'{data}/([^"]+)"', keys)))

    def sites_root(self, data: Path, runs: Path) -> Path:
        """Return the folder of the sites; hospitals that do not exist yet are generated."""
        if isinstance(self.sites, str):
            return data / self.sites
        name = "-".join(str(value) for value in self.sites.values()).replace(" ", "")
        root = runs / "sites" / name

        arguments = dict(self.sites)
        empty_folders = {
            "client": arguments.pop("clients", 0),
            "spare": arguments.pop("spare", 0),
        }
        kind = arguments.pop("kind", None)
        if kind == "prostate":
            write_sites(root, **arguments)
        elif kind is not None:
            write_clinics(root, **arguments)
        for prefix, number in empty_folders.items():
            for index in range(number):
                (root / f"{prefix}{index + 1:02d}").mkdir(parents=True, exist_ok=True)
        return root


def studies() -> list[str]:
    """List the names of all studies."""
    return sorted(path.stem for path in (HERE / "studies").glob("*.json"))


def write_result(path: Path, found: Mapping[str, Any]) -> None:
    """Write a result that is committed: one line per key.

    A crash leaves no part of it, which would count as a result.
    """
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rounded(found).items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    write_atomically(path, text.encode())


def rounded(value: Any) -> Any:
    """Round JSON's numbers to six digits; ``None`` for what is not a number.

    >>> rounded({"a": [0.123456789, float("nan"), 3]})
    {'a': [0.123457, None, 3]}
    """
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
