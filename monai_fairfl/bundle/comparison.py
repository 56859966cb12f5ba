# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Comparisons over seeds and folds: a federation for each strategy, seed and fold.

Such a cell has a folder of its own and is independent of the others, so they may be run in any
order and in any process.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from monai.utils import ensure_tuple

from monai_fairfl.bundle import configuration, trainings
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.settings import Settings
from monai_fairfl.bundle.site import evaluation_files
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards.registry import config_of
from monai_fairfl.report import as_text, write_comparison
from monai_fairfl.run import resuming
from monai_fairfl.server import History
from monai_fairfl.server.settings import FREE
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.files import locked, private_folder, write_atomically

PLAN = "plan.json"

SPLIT_SEED = 0
"""Of every fold's split: the folds are the same for all seeds, and each seed tests each case."""


@dataclass(frozen=True)
class Cell:
    """One federation of a comparison.

    Args:
        out: folder of the comparison.
        strategy: its name, which is that of its folder.
        seed: of the run.
        fold: whose cases are tested; ``None``: the bundle's own split.
    """

    out: Path
    strategy: str
    seed: int
    fold: int | None

    @property
    def title(self) -> str:
        """How messages and its folder call it.

        >>> Cell(Path("out"), "FedCE-sum", 1, 0).title
        'FedCE-sum/seed-1-fold-0'
        """
        fold = "" if self.fold is None else f"-fold-{self.fold}"
        return f"{self.strategy}/seed-{self.seed}{fold}"

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return self.out / "cells" / self.title

    @property
    def datalists(self) -> Path:
        """The folder of the data lists that all cells of its fold share."""
        folder = self.out / "datalists"
        return folder if self.fold is None else folder / f"fold-{self.fold}"


def cells_of(
    out: Path, seeds: Sequence[int], folds: int | None, strategies: Sequence[str]
) -> list[Cell]:
    """Seed by seed and fold by fold all strategies: what is finished early can be compared."""
    product = itertools.product(seeds, [None] if folds is None else range(folds), strategies)
    return [Cell(out, name, seed, fold) for seed, fold, name in product]


class Comparison:
    """What ``configs/federate.json`` runs where it asks for several seeds or for folds.

    All cells share everything but strategy, seed and fold.

    Args:
        federation: of all strategies, whose settings have ``seeds`` or ``folds``.

    Raises:
        ConfigError: when settings do not go together; it names the fix.
    """

    def __init__(self, federation: BundleFederation):
        self.federation = federation
        self.out, settings = federation.run_dir, federation.settings
        self.seeds = seeds = list(ensure_tuple(settings.seeds or settings.seed))
        if not all(map(is_whole, seeds)) or len(set(seeds)) < len(seeds):
            raise ConfigError(f"seeds must be different whole numbers, got {seeds!r}")
        if len(federation.names) < 2:
            raise ConfigError("a comparison needs two strategies or more: give --strategy others")
        if settings.valuations:
            raise ConfigError("valuations are of one run: leave them out, or seeds and folds")
        if settings.folds is not None:
            if not evaluation_files(settings.bundle_root):
                raise ConfigError("folds test every case: the bundle needs a configs/evaluate.json")
            for place, given in {"overrides": settings.overrides, **settings.sites}.items():
                if own := given.keys() & {"split_folds", "split_fold", "datalist_file"}:
                    raise ConfigError(f"{place}: the comparison sets {sorted(own)}: leave it out")

        # The strategy whose models are candidates of the last mile of all others.
        self.alone = ""
        if federation.trained_alone is not None and settings.trained_alone is None:
            self.alone = federation.trained_alone.parent.name
        self.cells = cells_of(self.out, seeds, settings.folds, federation.names)

    def run(self) -> dict[str, Any]:
        """Train every cell that is not done, write the tables and print them.

        A cell that fails does not stop the others. A full disk and Ctrl-C end the comparison; the
        same call goes on.

        Returns:
            What ``comparison.json`` holds, see
            :func:`~monai_fairfl.report.write.write_comparison`.

        Raises:
            FairFLError: when the folder holds another comparison, naming what differs; this machine
                lacks a device; what is wrong with the data; a signal stopped it; no two strategies
                have cells that can be compared; or the folder is used, and ``resume`` not set.
            SomeFailed: naming every cell that failed and why, after the others have run.
        """
        with configuration.errors_in_one_line():
            self.federation.read_settings()
            with locked(self.out):
                found = self._run()
            print(f"{as_text(found)}\nPage: {self.out / 'comparison.html'}")
            if found["failed"]:
                raise trainings.failure_of(found["failed"], len(self.cells))
            return found

    def _run(self) -> dict[str, Any]:
        plan = self._plan()
        before = resuming.recorded_config(self.out, PLAN)
        others = {path.name for path in self.out.iterdir()} - {".lock", "log.txt"}
        if before and not self.federation.settings.resume:
            raise FederationError(f"{self.out} holds a comparison: --resume True goes on with it")
        if others and not before:
            raise ConfigError(f"{self.out} holds {sorted(others)[:3]}: name a new folder")
        resuming.check_same(self.out, before or plan, plan)
        done = [cell.title for cell in self.cells if resuming.ended(cell.folder)]
        checked = self._checked() if len(done) < len(self.cells) else {}
        # The plan goes first: a folder without one holds nothing of a comparison.
        write_atomically(self.out / PLAN, f"{json.dumps(plan, indent=4)}\n".encode())
        private_folder(self.out / "datalists")
        for folder, federation in checked.items():
            files = resuming.files_to_write(self.out, federation.digests, federation.data)
            for file, content in files.items():
                write_atomically(file, content)
            for site in federation.sites:
                if not (folder / f"{site}.json").exists():
                    federation.listed[site](file=folder / f"{site}.json", write=True)
        cells = [self._training(cell) for cell in self.cells]
        sites = len(self.federation.sites)
        failed = trainings.run_trainings(cells, self.federation.jobs, done, sites)
        finished = [cell.folder for cell in self.cells if cell.title not in failed]
        return write_comparison(self.out, plan, finished, failed)

    def _plan(self) -> dict[str, Any]:
        """All that decides the numbers, plain JSON: a resumed comparison has the same."""
        settings = self.federation.settings
        plan = {**self.federation.config, "seeds": self.seeds, "folds": settings.folds}
        # A GPU may take another's place, and the other two change no number.
        for name in ("device", "full_run", "share_cases"):
            del plan[name]
        for row in fields(Settings):
            if FREE not in row.metadata["marks"]:
                plan[row.name] = getattr(settings, row.name)
        plan["guards"] = config_of(self.federation.guards)
        # As JSON has it: tuples are lists.
        plain: dict[str, Any] = json.loads(json.dumps(plan, default=str))
        return plain

    def _checked(self) -> dict[Path, BundleFederation]:
        """Find what is wrong before anything is trained; nothing is written.

        Returns:
            Folder of the data lists of each fold -> a federation of all strategies.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        checked = {}
        # The files are the same in every fold: they are read once.
        check = self.federation.settings.check
        for cell in {cell.fold: cell for cell in self.cells}.values():
            changes = {"check": check, "seed": self.seeds[0], "run_dir": str(self.out / "checked")}
            federation = self._federation(self.federation.names, cell.fold, changes, Turn())
            federation.check_settings()
            resuming.require_same_cases(self.out / "datalists", federation.digests)
            for site in federation.sites:
                federation.listed[site]()
            checked[cell.datalists] = federation
            check = None
        return checked

    # ---- its cells

    def _training(self, cell: Cell) -> trainings.Training:
        """How one cell is trained; plain values, which another process can be sent."""
        changes: dict[str, Any] = {"seed": cell.seed, "run_dir": str(cell.folder), "check": None}
        waits = self.alone not in ("", cell.strategy)
        if waits:
            changes["trained_alone"] = str(replace(cell, strategy=self.alone).folder / "models")
        run = partial(self._run_cell, cell, changes)
        return trainings.Training(cell.title, self.federation.settings.rounds, run, waits)

    def _run_cell(self, cell: Cell, changes: Mapping[str, Any], turn: Turn) -> bool:
        """Run a cell to its end, or go on with what its folder holds; its log is ``log.txt``.

        Args:
            cell: of the comparison.
            changes: settings of its own.
            turn: what this run may use; the numbers are the same.

        Returns:
            Whether it is finished; ``False`` when a signal stopped it.

        Raises:
            FairFLError: when the federation cannot go on.
        """
        own = private_folder(cell.folder / "datalists")
        # A list that is there is that of the run which goes on.
        for file in cell.datalists.glob("*.json"):
            if not (own / file.name).exists():
                write_atomically(own / file.name, file.read_bytes())
        finished = trainings.run_logged(cell.folder, partial(self._trained, cell, changes), turn)
        if finished:
            trainings.remove_spare(cell.folder)
        return finished

    def _trained(self, cell: Cell, changes: Mapping[str, Any], turn: Turn) -> list[History]:
        """Check and train the federation of a cell."""
        federation = self._federation([cell.strategy], cell.fold, changes, turn)
        federation.check_settings()
        return [federation.train(federation.strategies[0], turn)]

    def _federation(
        self,
        names: list[str],
        fold: int | None,
        changes: Mapping[str, Any],
        turn: Turn,
    ) -> BundleFederation:
        """The federation of some strategies, with these settings.

        Args:
            names: of the strategies.
            fold: whose cases are tested.
            changes: settings of its own.
            turn: what it may use.
        """
        given = vars(self.federation.settings) | {"resume": True, "report": False}
        given |= {"share_cases": True, "seeds": None, "folds": None, "jobs": turn.jobs}
        given["devices"] = turn.devices or given["devices"]
        if fold is not None:
            split = {"split_folds": self.federation.settings.folds, "split_fold": fold}
            given["overrides"] = {"split_seed": SPLIT_SEED, **given["overrides"], **split}
        chosen = [one for one in self.federation.strategies if one.name in names]
        given["strategies"] = copy.deepcopy(chosen)
        return BundleFederation(**{**given, **changes})
