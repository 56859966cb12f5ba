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
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import digests_of_configs
from monai_fairfl.bundle.runs import failure_of
from monai_fairfl.bundle.settings import Settings
from monai_fairfl.bundle.site import has_evaluation
from monai_fairfl.bundle.trainings import Training, remove_spare, run_logged, run_trainings
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards.registry import config_of
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.report.terminal import as_text
from monai_fairfl.run.resuming import config_files, ended, files_to_write, require_same_cases
from monai_fairfl.server.settings import FREE
from monai_fairfl.strategies import Standalone
from monai_fairfl.strategies.registry import configuration_of
from monai_fairfl.transports.workers import Turn, prepare
from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.files import locked, private_folder, write_atomically
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.terminal import print_replacing

logger = logging.getLogger(__name__)

PLAN = "plan.json"

BESIDE = (".lock", "log.txt")
"""What a folder may hold besides a comparison."""

SPLIT_SEED = 0
"""Of every fold's split: the folds are the same for all seeds, and each seed tests each case."""

WITHOUT_STANDALONE = (
    "Standalone is not among the strategies: nothing will show what a hospital gains over training "
    "alone. You cannot add it later."
)
"""Said before hours of training."""

OF_THE_COMPARISON = {
    "split_folds": "give --folds",
    "split_fold": "leave it out: --folds trains every fold",
}
"""Overrides that a comparison sets itself -> what to give in their place."""


@dataclass(frozen=True)
class Cell:
    """One federation of a comparison.

    Args:
        strategy: its name, which is that of its folder.
        seed: of the run.
        fold: whose cases are tested; ``None``: the bundle's own split.
    """

    strategy: str
    seed: int
    fold: int | None

    @property
    def title(self) -> str:
        """How messages call it.

        >>> Cell("FedCE-sum", 1, 0).title
        'FedCE-sum, seed 1, fold 0'
        """
        fold = "" if self.fold is None else f", fold {self.fold}"
        return f"{self.strategy}, seed {self.seed}{fold}"

    def folder(self, out: Path) -> Path:
        """Return the folder of its run.

        >>> str(Cell("FedCE-sum", 1, 0).folder(Path("out")))
        'out/cells/FedCE-sum/seed-1-fold-0'
        """
        fold = "" if self.fold is None else f"-fold-{self.fold}"
        return out / "cells" / self.strategy / f"seed-{self.seed}{fold}"


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
        self._check(settings)
        # Strategies as the user gave them, or their configuration: by the names of their folders.
        self.texts: dict[str, str] = {}
        for given, strategy in zip(settings.strategies, federation.strategies, strict=True):
            if not isinstance(given, str):
                # Arguments that are no plain values are in its name.
                plain = configuration_of(strategy)
                given = strategy.name if plain is None else json.dumps(plain)
            if strategy.name in self.texts:
                raise ConfigError(
                    f"{given!r} and {self.texts[strategy.name]!r} are the same strategy "
                    f"{strategy.name}: give it once"
                )
            self.texts[strategy.name] = given
        if len(self.texts) < 2:
            raise ConfigError(
                "a comparison needs two strategies or more: name another one with --strategy"
            )
        folds: list[int | None] = [None] if settings.folds is None else [*range(settings.folds)]
        # Seed by seed and fold by fold all strategies: what is finished early can be compared.
        product = itertools.product(self.seeds, folds, self.texts)
        self.cells = [Cell(name, seed, fold) for seed, fold, name in product]

    def _check(self, settings: Settings) -> None:
        """Refuse settings that a comparison cannot have."""
        seeds, folds = self.seeds, settings.folds
        if not isinstance(seeds, (list, tuple)) or not all(is_whole(seed) for seed in seeds):
            raise ConfigError(
                f"seeds must be a list of whole numbers such as [0, 1], got {seeds!r}"
            )
        if len(set(seeds)) < len(seeds):
            raise ConfigError(f"give each seed once; got {list(seeds)}")
        if settings.valuations:
            raise ConfigError(
                "valuations are of one training: leave them out, or leave out seeds and folds"
            )
        for name, fix in OF_THE_COMPARISON.items():
            if name in settings.overrides:
                raise ConfigError(f"{name} in the overrides is set by the comparison: {fix}")
        if folds is None:
            return
        if not is_whole(folds) or folds < 2:
            raise ConfigError(f"folds must be a whole number of at least 2, or null, got {folds!r}")
        if not has_evaluation(settings.bundle_root):
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
            self.federation.jobs.require_devices()
            with locked(self.out):
                found = self._run()
            print_replacing(f"{as_text(found)}\nPage: {self.out / 'comparison.html'}")
            if found["failed"]:
                raise failure_of(found["failed"], len(self.cells), "trainings")
            return found

    def _run(self) -> dict[str, Any]:
        record = self._record()
        self._require_same(record)
        trainings = [self._training(cell) for cell in self.cells]
        done = [training for training in trainings if ended(training.folder)]
        jobs = self.federation.jobs
        lists: dict[Path, bytes] = {}
        if len(done) < len(trainings):
            if jobs.workers(len(trainings), threads=1) > 1:
                # Libraries are imported for the workers in the meantime.
                prepare()
            lists = self._checked_lists()
        if "Standalone" not in self.texts and not (self.out / PLAN).exists():
            logger.warning(WITHOUT_STANDALONE)
        # The plan goes first: a folder without one holds nothing of a comparison.
        text = json.dumps(record, indent=4, default=str) + "\n"
        write_atomically(self.out / PLAN, text.encode())
        for file, content in lists.items():
            private_folder(file.parent)
            write_atomically(file, content)
        for training in done:
            # A crash may have come between its end and this.
            remove_spare(training.folder)
        failed = run_trainings(trainings, done, jobs.number, jobs.devices)
        finished = [training.folder for training in trainings if training.title not in failed]
        return write_comparison(self.out, record, finished, failed)

    # ---- what is compared

    def _record(self) -> dict[str, Any]:
        """All that decides the numbers, plain JSON: a resumed comparison has the same."""
        settings, names = self.federation.settings, self.federation.names
        bundle = Path(settings.bundle_root)
        files = config_files({"config": settings.config, "sites": settings.sites})
        others: dict[str, Any] = {}
        for row in fields(Settings):
            if FREE not in row.metadata["marks"]:
                others[row.name] = getattr(settings, row.name)
        if settings.guards is not None:
            others["guards"] = config_of(self.federation.guards)
        return {
            "package": __version__,
            "bundle": bundle.absolute().name,
            "files": digests_of_configs(bundle, files),
            "data": {name: self.federation.runs.sites.data_of(name) for name in names},
            "strategies": self.texts,
            "seeds": list(self.seeds),
            "folds": settings.folds,
            "rounds": settings.rounds,
            "local_epochs": settings.local_epochs,
            "overrides": settings.overrides,
            "settings": others,
        }

    def _require_same(self, record: Mapping[str, Any]) -> None:
        """Refuse to mix two comparisons in one folder.

        Raises:
            ConfigError: naming each setting that differs, with both values; or when the folder
                holds something else.
        """
        file = self.out / PLAN
        if not file.exists():
            others = [path.name for path in self.out.iterdir() if path.name not in BESIDE]
            if others:
                raise ConfigError(
                    f"{self.out} holds no comparison but {', '.join(sorted(others)[:3])}: give the "
                    "comparison a folder of its own with --out"
                )
            return
        try:
            recorded = object_of_json(file.read_bytes())
        except ValueError as error:
            raise ConfigError(
                f"{file} is damaged ({error}): restore it, or give the comparison another folder"
            ) from error
        # As JSON has it: tuples are lists.
        now = json.loads(json.dumps(record, default=str))
        differences = [
            text for name in now for text in _differences(name, recorded.get(name), now[name])
        ]
        if differences:
            raise ConfigError(
                f"{self.out} holds another comparison: {'; '.join(differences)}. Give the same "
                "command as before to go on with it, or another folder with --out"
            )

    # ---- before anything is trained

    def _checked_lists(self) -> dict[Path, bytes]:
        """Find what is wrong before anything is trained; nothing is written.

        Returns:
            File -> content of the data lists that the folder lacks, one for each fold and site, and
            of the digests of the sites' cases.

        Raises:
            FairFLError: naming the setting, the site or the file, and the fix.
        """
        digests: Mapping[str, list[str]] | None = None
        lists: dict[Path, bytes] = {}
        for fold in dict.fromkeys(cell.fold for cell in self.cells):
            # The files are the same in every fold: they are read once.
            check = None if digests is not None else self.federation.settings.check
            changes = {"check": check, "seed": self.seeds[0], "run_dir": str(self.out / "checked")}
            federation = self._federation([*self.texts], fold, changes)
            federation.check_settings()
            if digests is None:
                digests = federation.digests
                require_same_cases(self.out / "datalists", digests)
                lists.update(files_to_write(self.out / "datalists", digests))
            for site in federation.names:
                file = _datalists(self.out, fold) / f"{site}.json"
                content = None if file.exists() else federation.runs.sites.new_datalist(site)
                if content is not None:
                    lists[file] = content
        return lists

    # ---- its cells

    def _training(self, cell: Cell) -> Training:
        """How one cell is trained; plain values, which another process can be sent."""
        folder = cell.folder(self.out)
        changes: dict[str, Any] = {"seed": cell.seed, "run_dir": str(folder), "check": None}
        alone = self._candidate_alone()
        if alone not in (None, cell.strategy):
            changes["trained_alone"] = str(
                replace(cell, strategy=alone).folder(self.out) / "models"
            )
        federation = partial(self._federation, [cell.strategy], cell.fold, changes)
        return Training(
            title=cell.title,
            rounds=self.federation.settings.rounds,
            folder=folder,
            federation=federation,
            run=partial(_run_cell, folder, _datalists(self.out, cell.fold), federation),
            waits=alone not in (None, cell.strategy),
        )

    def _candidate_alone(self) -> str | None:
        """The strategy whose models are candidates of the last mile of all others."""
        settings = self.federation.settings
        if settings.adapt_epochs and settings.trained_alone is None:
            for strategy in self.federation.strategies:
                if isinstance(strategy, Standalone):
                    return strategy.name
        return None

    def _federation(
        self,
        names: list[str],
        fold: int | None,
        changes: Mapping[str, Any],
        turn: Turn | None = None,
    ) -> BundleFederation:
        """The federation of some strategies, with these settings.

        Args:
            names: of the strategies.
            fold: whose cases are tested.
            changes: settings of its own.
            turn: what it may use; ``None``: one process.
        """
        turn = turn or Turn()
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


def _differences(name: str, before: Any, now: Any) -> list[str]:
    """What differs in one entry of a plan; of values by name, each that does."""
    if before == now:
        return []
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [f"{name} was {before}, asked for is {now}"]
    if name == "strategies":
        # As a user gave them: the names are those of their folders.
        return [f"strategies was {list(before.values())}, asked for is {list(now.values())}"]
    differences = []
    for key in dict.fromkeys([*before, *now]):
        differences += _differences(f"{key} of {name}", before.get(key), now.get(key))
    return differences


def _datalists(out: Path, fold: int | None) -> Path:
    """The folder of the data lists that all cells of a fold share."""
    folder = out / "datalists"
    return folder if fold is None else folder / f"fold-{fold}"


def _run_cell(folder: Path, datalists: Path, federation: Any, turn: Turn) -> bool:
    """Run a cell to its end, or go on with what its folder holds; its log is ``log.txt``.

    Args:
        folder: of its run.
        datalists: folder of those of its fold.
        federation: makes it, with what it may use.
        turn: what this run may use; the numbers are the same.

    Returns:
        Whether it is finished; ``False`` when a signal stopped it.

    Raises:
        FairFLError: when the federation cannot go on.
    """
    own = private_folder(folder / "datalists")
    # A list that is there is that of the run which goes on.
    for file in sorted(datalists.glob("*.json")):
        if not (own / file.name).exists():
            write_atomically(own / file.name, file.read_bytes())
    finished = run_logged(folder, federation, turn)
    if finished:
        remove_spare(folder)
    return finished
