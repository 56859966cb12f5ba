# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The plan of a comparison: what is trained with every strategy and seed, in every fold."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.utils import ensure_tuple

from monai_fairfl import __version__
from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import digests_of_configs
from monai_fairfl.bundle.preflight import data_folders
from monai_fairfl.bundle.settings import TRAIN
from monai_fairfl.bundle.site import has_evaluation
from monai_fairfl.errors import ConfigError
from monai_fairfl.run.training_config import FullRun, config_files
from monai_fairfl.strategies import Standalone, Strategy
from monai_fairfl.strategies.registry import configuration_of, strategy_of
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils.settings import is_whole, one_or_several

SPLIT_SEED = 0
"""Of every fold's split: the folds are the same for all seeds, and each seed tests each case."""

OF_THE_COMPARISON = {
    "split_folds": "give --folds",
    "split_fold": "leave it out: --folds trains every fold",
}
"""Overrides that a comparison sets itself -> what to give in their place."""


DECIDE_NOTHING = frozenset(
    # Where things lie, and what is called.
    {"bundle_root", "sites_root", "run_dir", "imports", "initialize", "run", "check"}
    # How the machine is used, and what is written.
    | {"jobs", "device", "devices", "resume", "report", "share_cases", "keep", "full_run"}
    | {"case_seconds"}
    # The plan records these by themselves.
    | {"strategy", "strategies", "seed", "seeds", "folds", "rounds", "local_epochs", "overrides"}
)
"""Keys of a configuration that a comparison may go on with whatever they are."""


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
        if self.fold is None:
            return f"{self.strategy}, seed {self.seed}"
        return f"{self.strategy}, seed {self.seed}, fold {self.fold}"

    def folder(self, out: Path) -> Path:
        """Return the folder of its run.

        >>> str(Cell("FedCE-sum", 1, 0).folder(Path("out")))
        'out/cells/FedCE-sum/seed-1-fold-0'
        """
        name = f"seed-{self.seed}"
        if self.fold is not None:
            name = f"{name}-fold-{self.fold}"
        return out / "cells" / self.strategy / name


@dataclass(frozen=True)
class ComparisonPlan:
    """What a comparison trains; all cells share everything but strategy, seed and fold.

    Args:
        bundle: its folder.
        sites_root: one folder per hospital.
        strategies: in the order of the tables, each as on a command line, ``FedAvg`` or
            ``CGSV(gamma=None)``, or made already.
        seeds: of the repeats, each trained for every strategy.
        folds: of a cross-validation, in which every case is tested once; ``None``: the bundle's own
            split.
        rounds: of every cell; ``None``: as the bundle's full run, else as its ``federate.json``.
        local_epochs: of every round; ``None`` likewise.
        overrides: plain values of the bundle's configuration.
        configuration: of every federation, as ``federate.json`` has it before anything of it is
            built; ``None``: the bundle's ``federate.json``.

    Raises:
        ConfigError: when the bundle is none, or an argument cannot be used; it names the fix.
    """

    bundle: Path
    sites_root: Path
    strategies: Sequence[str | Strategy]
    seeds: Sequence[int] = (0,)
    folds: int | None = None
    rounds: int | None = None
    local_epochs: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    configuration: Mapping[str, Any] | None = None

    @classmethod
    def from_parser(cls, parser: ConfigParser) -> ComparisonPlan:
        """The comparison that a configuration describes by its top-level keys.

        Args:
            parser: of the configuration, whose ``seeds`` or ``folds`` is given.

        Raises:
            ConfigError: when the keys do not go together.
        """
        value = partial(configuration.parsed_value, parser)
        if value("valuations"):
            raise ConfigError(
                "valuations are of one training: leave them out, or leave out seeds and folds"
            )
        keys: Any = parser.config
        return cls(
            bundle=Path(value("bundle_root")),
            sites_root=Path(value("sites_root")),
            strategies=one_or_several(value("strategies") or value("strategy")),
            seeds=value("seeds") or [value("seed", 0)],
            folds=value("folds"),
            rounds=value("rounds"),
            local_epochs=value("local_epochs"),
            overrides=value("overrides") or {},
            configuration=keys,
        )

    def __post_init__(self) -> None:
        file = self.bundle / configuration.FEDERATE
        if not file.is_file():
            raise ConfigError(
                f"{file} does not exist: a comparison needs a bundle that trains federations; "
                "monai-fairfl bundle copies a shipped one"
            )
        self._check_seeds()
        if self.folds is not None:
            self._check_folds(self.folds)
        if len(self.names()) < 2:
            raise ConfigError(
                "a comparison needs two strategies or more: name another one with --strategies"
            )
        for name, fix in OF_THE_COMPARISON.items():
            if name in self.overrides:
                raise ConfigError(f"{name} in the overrides is set by the comparison: {fix}")

    def _check_seeds(self) -> None:
        is_list = isinstance(self.seeds, Sequence) and not isinstance(self.seeds, str)
        if not is_list or not all(is_whole(seed) for seed in self.seeds):
            raise ConfigError(
                f"seeds must be a list of whole numbers such as [0, 1, 2], got {self.seeds!r}"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"give each seed once, at least one; got {list(self.seeds)}")

    def _check_folds(self, folds: int) -> None:
        """Every fold tests cases, and no site has cases of its own in every fold."""
        if not is_whole(folds):
            raise ConfigError(
                f"folds must be a whole number such as 4, or null (None) for none, got {folds!r}"
            )
        if folds < 2:
            raise ConfigError(f"a cross-validation has two folds or more, got {folds}")
        if not has_evaluation(self.bundle):
            raise ConfigError(
                f"{self.bundle} has no configs/evaluate.json, so no case is tested in a fold: "
                "leave out --folds to compare on validation cases, or add that file"
            )
        for site, additions in self.sites().items():
            for name in additions:
                if name == "datalist_file" or name.startswith("split_"):
                    raise ConfigError(
                        f"{name} of site {site!r} would give it cases of its own in every fold: "
                        "leave it out, or leave out --folds"
                    )

    def names(self) -> dict[str, str]:
        """Name of each strategy -> the text that the user gave, or its configuration as JSON.

        Raises:
            ConfigError: when a text names no strategy, or two have the same name.
        """
        texts: dict[str, str] = {}
        for given in self.strategies:
            strategy, text = _strategy_and_text(given)
            if strategy.name in texts:
                fix = "give it once"
                if configuration_of(strategy) is None:
                    fix += (
                        "; or, if their arguments differ, its constructor must store each "
                        "argument, a plain value, in an attribute of the same name"
                    )
                raise ConfigError(
                    f"{text!r} and {texts[strategy.name]!r} are the same strategy "
                    f"{strategy.name}: {fix}"
                )
            texts[strategy.name] = text
        return texts

    def strategies_by_name(self) -> dict[str, Strategy]:
        """Name of each strategy -> one that has not run."""
        made = {}
        for given in self.strategies:
            strategy, _ = _strategy_and_text(given)
            made[strategy.name] = copy.deepcopy(strategy)
        return made

    def fold_numbers(self) -> list[int | None]:
        """Return the numbers of the folds; ``None`` alone where there is the bundle's own split."""
        if self.folds is None:
            return [None]
        return list(range(self.folds))

    def cells(self) -> list[Cell]:
        """List all cells: seed by seed and fold by fold all strategies.

        So what is finished early can be compared.
        """
        names = self.names()
        cells = []
        for seed in self.seeds:
            for fold in self.fold_numbers():
                for name in names:
                    cells.append(Cell(name, seed, fold))
        return cells

    def training(self) -> dict[str, int]:
        """Rounds and local epochs: as given, else of the bundle's full run, else its defaults."""
        config = configuration.read_keys(self.bundle / configuration.FEDERATE)
        full_run = FullRun.read(config.get("full_run"))
        found = {"rounds": self.rounds, "local_epochs": self.local_epochs}
        chosen = {}
        for name, value in found.items():
            default = config.get(name, 1)
            if full_run is not None:
                default = getattr(full_run, name)
            chosen[name] = default if value is None else value
        return chosen

    def overrides_of(self, fold: int | None) -> dict[str, Any]:
        """Return the overrides of a cell; all strategies and seeds have the same of a fold."""
        if fold is None:
            return dict(self.overrides)
        return {
            "split_seed": SPLIT_SEED,
            **self.overrides,
            "split_folds": self.folds,
            "split_fold": fold,
        }

    def record(self) -> dict[str, Any]:
        """Return all that decides the numbers, plain JSON: a resumed comparison has the same."""
        folders = {name: str(path.absolute()) for name, path in self.folders().items()}
        return {
            "package": __version__,
            "bundle": self.bundle.absolute().name,
            "files": digests_of_configs(
                self.bundle, config_files({"config": self.files(), "sites": self.sites()})
            ),
            "data": folders,
            "strategies": self.names(),
            "seeds": list(self.seeds),
            "folds": self.folds,
            **self.training(),
            "overrides": dict(self.overrides),
            "settings": self._other_settings(),
        }

    def _other_settings(self) -> dict[str, Any]:
        """All other keys of a configuration that is not the bundle's own."""
        settings = {}
        for key, value in (self.configuration or {}).items():
            if key not in DECIDE_NOTHING and not key.startswith("_"):
                settings[key] = value
        return settings

    def sites(self) -> dict[str, Mapping[str, Any]]:
        """Return what each site adds to the settings of all, by its name."""
        given = self._value("sites") or {}
        return {site: additions or {} for site, additions in given.items()}

    def files(self) -> list[str]:
        """Return the files of the training configuration, relative to the bundle."""
        return list(ensure_tuple(self._value("config") or TRAIN))

    def folders(self) -> dict[str, Path]:
        """Return the folder of each site's images, by the names of the sites."""
        any_folder = bool(self._value("any_folder"))
        return dict(sorted(data_folders(self.sites_root, any_folder).items()))

    def federation(
        self,
        strategies: Sequence[str],
        seed: int,
        fold: int | None,
        run_dir: Path,
        check: bool,
        turn: Turn | None = None,
        trained_alone: Path | None = None,
    ) -> BundleFederation:
        """Make the federation that ``federate.json`` describes, with these settings.

        Args:
            strategies: their names.
            seed: of the run.
            fold: whose cases are tested.
            run_dir: of the run.
            check: whether it checks the files of the sites.
            turn: what it may use; ``None``: one process.
            trained_alone: folder of the models that the sites trained alone, in the same fold with
                the same seed; ``None``: as the configuration has it.
        """
        turn = turn or Turn()
        parser = self._parser()
        made = self.strategies_by_name()
        parser["bundle_root"] = str(self.bundle)
        # The bundle's own check knows its own keys, and not those that it lacks.
        if "initialize" in parser:
            parser.get_parsed_content("initialize")
        given: dict[str, Any] = {
            "sites_root": str(self.sites_root),
            "run_dir": str(run_dir),
            # Objects and not their configuration: MONAI would run an expression in an argument.
            "strategies": [made[name] for name in strategies],
            "seed": seed,
            "overrides": {**(self._value("overrides") or {}), **self.overrides_of(fold)},
            "resume": True,
            "report": False,
            "share_cases": True,
            "jobs": turn.jobs,
            # It is one training: no further comparison.
            "seeds": None,
            "folds": None,
            **self.training(),
        }
        if trained_alone is not None:
            given["trained_alone"] = str(trained_alone)
        if turn.devices:
            given["devices"] = list(turn.devices)
        if not check:
            given["check"] = None
        for key, value in given.items():
            parser[key] = value
        federation: BundleFederation = parser.get_parsed_content("federation")
        return federation

    def _parser(self) -> ConfigParser:
        """A copy of the configuration of every federation."""
        parser = ConfigParser()
        if self.configuration is None:
            parser.read_config(str(self.bundle / configuration.FEDERATE))
            return parser
        return ConfigParser(copy.deepcopy(dict(self.configuration)))

    def _value(self, key: str) -> Any:
        """The value of a key of that configuration; ``None`` where it has none."""
        return configuration.parsed_value(self._parser(), key)

    def candidate_alone(self) -> str | None:
        """Return the strategy whose models are candidates of the last mile of all others.

        It is the name of a :class:`~monai_fairfl.strategies.Standalone`; ``None`` where there is no
        last mile, or nobody trains alone.
        """
        if not self._value("adapt_epochs") or self._value("trained_alone") is not None:
            return None
        for name, strategy in self.strategies_by_name().items():
            if isinstance(strategy, Standalone):
                return name
        return None


def _strategy_and_text(given: str | Strategy) -> tuple[Strategy, str]:
    """A strategy, and how a plan names it."""
    if isinstance(given, str):
        return strategy_of(given), given
    configuration = configuration_of(given)
    if configuration is None:
        # Its arguments are no plain values: its name has those that are not the defaults.
        return given, given.name
    return given, json.dumps(configuration)
