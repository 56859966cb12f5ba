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
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.settings import Settings
from monai_fairfl.bundle.site import evaluation_files
from monai_fairfl.bundle.trainings import (
    Training,
    failure_of,
    remove_spare,
    run_logged,
    run_trainings,
)
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards.registry import config_of
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.report.terminal import as_text
from monai_fairfl.run.resuming import ended, files_to_write, recorded_config, require_same_cases
from monai_fairfl.server.settings import FREE
from monai_fairfl.strategies import Standalone
from monai_fairfl.transports.workers import Turn, prepare
from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.files import locked, private_folder, write_atomically
from monai_fairfl.utils.terminal import print_replacing

logger = logging.getLogger(__name__)

PLAN = "plan.json"

BESIDE = (".lock", "log.txt")
"""What a folder may hold besides a comparison."""

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
        """How messages call it.

        >>> Cell(Path("out"), "FedCE-sum", 1, 0).title
        'FedCE-sum, seed 1, fold 0'
        """
        fold = "" if self.fold is None else f", fold {self.fold}"
        return f"{self.strategy}, seed {self.seed}{fold}"

    @property
    def folder(self) -> Path:
        """The folder of its run.

        >>> str(Cell(Path("out"), "FedCE-sum", 1, 0).folder)
        'out/cells/FedCE-sum/seed-1-fold-0'
        """
        fold = "" if self.fold is None else f"-fold-{self.fold}"
        return self.out / "cells" / self.strategy / f"seed-{self.seed}{fold}"

    @property
    def datalists(self) -> Path:
        """The folder of the data lists that all cells of its fold share."""
        folder = self.out / "datalists"
        return folder if self.fold is None else folder / f"fold-{self.fold}"


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
        self.out = federation.run_dir
        settings = federation.settings
        self.seeds = settings.seeds or [settings.seed]
        _check_seeds_and_folds(settings, self.seeds)
        names = [strategy.name for strategy in federation.strategies]
        if len(set(names)) < len(names):
            raise ConfigError(f"two of the strategies are the same, give each once: {names}")
        if len(names) < 2:
            raise ConfigError(
                "a comparison needs two strategies or more: name another one with --strategy"
            )
        self.names = names
        # The strategy whose models are candidates of the last mile of all others.
        self.alone: str | None = None
        if settings.adapt_epochs and settings.trained_alone is None:
            for strategy in federation.strategies:
                if isinstance(strategy, Standalone):
                    self.alone = strategy.name
        folds: Sequence[int | None] = [None] if settings.folds is None else range(settings.folds)
        # Seed by seed and fold by fold all strategies: what is finished early can be compared.
        product = itertools.product(self.seeds, folds, names)
        self.cells = [Cell(self.out, name, seed, fold) for seed, fold, name in product]

    def run(self) -> dict[str, Any]:
        """Train every cell that is not done, write the tables and print them.

        A cell that fails does not stop the others. A full disk and Ctrl-C end the comparison; the
        same call goes on.

        Returns:
            What ``comparison.json`` holds, see
            :func:`~monai_fairfl.report.repeated.write_comparison`.

        Raises:
            ConfigError: when the folder holds another comparison; it names what differs. Or when
                this machine lacks a device.
            FairFLError: what is wrong with the data; a signal stopped it; no two strategies have
                cells that can be compared; or the folder is used, and ``resume`` not set.
            SomeFailed: naming every cell that failed and why, after the others have run.
        """
        with configuration.errors_in_one_line():
            if (self.out / PLAN).exists() and not self.federation.settings.resume:
                raise FederationError(
                    f"{self.out} already holds a comparison: resume it (--resume True) or choose "
                    "another run_dir"
                )
            self.federation.read_settings()
            with locked(self.out):
                found = self._run()
            print_replacing(f"{as_text(found)}\nPage: {self.out / 'comparison.html'}")
            if found["failed"]:
                raise failure_of(found["failed"], len(self.cells), "trainings")
            return found

    def _run(self) -> dict[str, Any]:
        plan = self._plan()
        _require_same(self.out, plan)
        jobs, names = self.federation.jobs, self.federation.names
        done = [cell for cell in self.cells if ended(cell.folder)]
        lists: dict[Path, bytes] = {}
        if len(done) < len(self.cells):
            if jobs.workers(len(self.cells), threads=1) > 1:
                # Libraries are imported for the workers in the meantime.
                prepare()
            lists = self._checked_lists()
        if "Standalone" not in self.names and not (self.out / PLAN).exists():
            logger.warning(
                "Standalone is not among the strategies: nothing will show what a hospital gains "
                "over training alone. You cannot add it later."
            )
        # The plan goes first: a folder without one holds nothing of a comparison.
        write_atomically(self.out / PLAN, f"{json.dumps(plan, indent=4)}\n".encode())
        for file, content in lists.items():
            private_folder(file.parent)
            write_atomically(file, content)
        for cell in done:
            # A crash may have come between its end and this.
            remove_spare(cell.folder)
        trainings = [self._training(cell) for cell in self.cells]
        titles = [cell.title for cell in done]
        threads = self.federation.settings.threads
        failed = run_trainings(trainings, jobs, titles, len(names), threads)
        finished = [cell.folder for cell in self.cells if cell.title not in failed]
        return write_comparison(self.out, plan, finished, failed)

    def _plan(self) -> dict[str, Any]:
        """All that decides the numbers, plain JSON: a resumed comparison has the same."""
        settings = self.federation.settings
        config = self.federation.runs.config()
        others: dict[str, Any] = {}
        for row in fields(Settings):
            if FREE not in row.metadata["marks"]:
                others[row.name] = getattr(settings, row.name)
        if settings.guards is not None:
            others["guards"] = config_of(self.federation.guards)
        plan = {name: config[name] for name in ("package", "bundle", "files", "data")}
        plan |= {"strategies": self.names, "seeds": self.seeds, "folds": settings.folds}
        plan |= {name: config[name] for name in ("rounds", "local_epochs", "overrides")}
        # As JSON has it: tuples are lists.
        plain: dict[str, Any] = json.loads(json.dumps({**plan, "settings": others}, default=str))
        return plain

    def _checked_lists(self) -> dict[Path, bytes]:
        """Find what is wrong before anything is trained; nothing is written.

        Returns:
            File -> content of the data lists that the folder lacks, one for each fold and site, and
            of the digests of the sites' cases.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        lists: dict[Path, bytes] = {}
        check = self.federation.settings.check
        for cell in {cell.fold: cell for cell in self.cells}.values():
            changes = {"check": check, "seed": self.seeds[0], "run_dir": str(self.out / "checked")}
            federation = self._federation(self.names, cell.fold, changes)
            federation.check_settings()
            if check is not None:
                # The files are the same in every fold: they are read once.
                check = None
                require_same_cases(self.out / "datalists", federation.digests)
                lists.update(files_to_write(self.out / "datalists", federation.digests))
            for site in federation.names:
                file = cell.datalists / f"{site}.json"
                content = None if file.exists() else _new_datalist(federation.runs, site)
                if content is not None:
                    lists[file] = content
        return lists

    # ---- its cells

    def _training(self, cell: Cell) -> Training:
        """How one cell is trained; plain values, which another process can be sent."""
        changes: dict[str, Any] = {"seed": cell.seed, "run_dir": str(cell.folder), "check": None}
        waits = self.alone not in (None, cell.strategy)
        if self.alone is not None and waits:
            changes["trained_alone"] = str(replace(cell, strategy=self.alone).folder / "models")
        federation = partial(self._federation, [cell.strategy], cell.fold, changes)
        rounds = self.federation.settings.rounds
        return Training(cell.title, rounds, partial(_run_cell, cell, federation), waits)

    def _federation(
        self,
        names: list[str],
        fold: int | None,
        changes: Mapping[str, Any],
        turn: Turn = Turn(),  # noqa: B008
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
        if turn.devices:
            given["devices"] = list(turn.devices)
        if fold is not None:
            split = {"split_folds": self.federation.settings.folds, "split_fold": fold}
            given["overrides"] = {"split_seed": SPLIT_SEED, **given["overrides"], **split}
        made = {strategy.name: strategy for strategy in self.federation.strategies}
        given["strategies"] = [copy.deepcopy(made[name]) for name in names]
        return BundleFederation(**{**given, **changes})


def _run_cell(cell: Cell, federation: Any, turn: Turn) -> bool:
    """Run a cell to its end, or go on with what its folder holds; its log is ``log.txt``.

    Args:
        cell: of a comparison.
        federation: makes it, with what it may use.
        turn: what this run may use; the numbers are the same.

    Returns:
        Whether it is finished; ``False`` when a signal stopped it.

    Raises:
        FairFLError: when the federation cannot go on.
    """
    own = private_folder(cell.folder / "datalists")
    # A list that is there is that of the run which goes on.
    for file in sorted(cell.datalists.glob("*.json")):
        if not (own / file.name).exists():
            write_atomically(own / file.name, file.read_bytes())
    finished = run_logged(cell.folder, federation, turn)
    if finished:
        remove_spare(cell.folder)
    return finished


def _check_seeds_and_folds(settings: Settings, seeds: Any) -> None:
    """Refuse settings that a comparison cannot have."""
    if not isinstance(seeds, (list, tuple)) or not all(is_whole(seed) for seed in seeds):
        raise ConfigError(f"seeds must be a list of whole numbers such as [0, 1], got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"give each seed once; got {list(seeds)}")
    if settings.valuations:
        raise ConfigError(
            "valuations are of one training: leave them out, or leave out seeds and folds"
        )
    for name in ("split_folds", "split_fold"):
        if name in settings.overrides:
            raise ConfigError(f"{name} in the overrides is set by the comparison: give --folds")
    if settings.folds is None:
        return
    if not evaluation_files(settings.bundle_root):
        raise ConfigError(
            f"{settings.bundle_root} has no configs/evaluate.json, so no case is tested in a "
            "fold: leave out --folds to compare on validation cases, or add that file"
        )
    for site, additions in settings.sites.items():
        for name in additions:
            if name == "datalist_file" or name.startswith("split_"):
                raise ConfigError(
                    f"{name} of site {site!r} would give it cases of its own in every fold: "
                    "leave it out, or leave out --folds"
                )


def _require_same(out: Path, plan: Mapping[str, Any]) -> None:
    """Refuse to mix two comparisons in one folder.

    Raises:
        ConfigError: naming each setting that differs, with both values; or when the folder holds
            something else.
    """
    before, now = _by_name(recorded_config(out, PLAN)), _by_name(plan)
    if not before:
        others = [path.name for path in out.iterdir() if path.name not in BESIDE]
        if others:
            raise ConfigError(
                f"{out} holds no comparison but {', '.join(sorted(others)[:3])}: give the "
                "comparison a folder of its own with --out"
            )
        return
    differences = []
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            differences.append(f"{name} was {before.get(name)}, asked for is {now.get(name)}")
    if differences:
        raise ConfigError(
            f"{out} holds another comparison: {'; '.join(differences)}. Give the same "
            "command as before to go on with it, or another folder with --out"
        )


def _by_name(values: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """The values of a plan, and those of its mappings, by names of their own."""
    found = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(_by_name(value, f" of {name}{of}"))
        else:
            found[f"{name}{of}"] = value
    return found


def _new_datalist(runs: BundleRuns, name: str) -> bytes | None:
    """The content of the data list that a site would make for itself; nothing is written.

    ``None`` where the bundle's configuration has not the usual keys, or the site's images or list
    lie elsewhere: its client makes its own.
    """
    if {"datalist_file", "dataset_dir"} & set(runs.settings.sites.get(name, {})):
        return None
    with TemporaryDirectory() as place:
        made = Path(place) / f"{name}.json"
        runs.listed(name, made)
        return made.read_bytes() if made.exists() else None
