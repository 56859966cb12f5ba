# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a bundle's sites in this process: what ``configs/federate.json`` runs."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.site import bundle_client, has_evaluation, images_of_site
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import (
    ConfigError,
    FairFLError,
    FederationError,
    TransportAborted,
    in_words,
)
from monai_fairfl.model_files.recipe import ModelRecipe, digests_of_files, read_recipe
from monai_fairfl.protocol.model_spec import ModelSpec, read_spec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder import resuming
from monai_fairfl.run_folder.checkpoint import Checkpoints
from monai_fairfl.run_folder.full_run import FullRun, command_line
from monai_fairfl.run_folder.ledger import digest_of, read_ledger
from monai_fairfl.run_folder.records import trained_by
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import FedAvg, Strategy
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.files import read_state_dict, write_atomically
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.utils.terminal import quiet, stopping_on_signals
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuation.run import check_valuations, value_run

logger = logging.getLogger(__name__)

Groups = Mapping[str, Sequence[str]]

SHARED = ("seed", "threads", "buffers", "local_norm", "clients_per_round", "groups")
"""Settings of :class:`Federation` that all runs of a comparison share."""


class BundleFederation:
    """Runs one strategy, or several one after the other, over the same sites, splits and seeds;
    then reports.

    Of several, one that fails does not stop the others: the report names it and why, :meth:`run`
    raises at the end.

    Args:
        bundle_root: the bundle; every site runs its ``configs/train.json``.
        sites_root: one folder per site, or NVFlare's data lists; see ``docs/data.md``.
        strategies: one or more strategies; several write to ``run_dir/<name>`` each.
        rounds: rounds of each.
        run_dir: everything is written here.
        sites: site -> additions to ``overrides`` (plain values; ``"config"``: config files in place
            of train.json; ``"dataset_dir"``: data elsewhere than ``sites_root/<site>``).
        site_names: the sites that take part; ``None``: all of ``sites_root``.
        overrides: plain values that replace those of ``config``, for every site and for the initial
            model.
        config: the training configuration, files relative to the bundle; overlays come after
            ``train.json``.
        check: called with each site's folder before anything is trained; ``None``: no check.
        device: for training, such as ``"cpu"`` or ``"cuda:0"``.
        amp: automatic mixed precision.
        local_epochs: epochs of local training per round.
        resume: continue what ``run_dir`` holds; refused where overrides, local epochs or data are
            others. A comparison may grow: former strategies that are not named stay in its report
            and configuration. Without it a used ``run_dir`` is refused.
        initial: a ``state_dict`` file to begin from; ``None``: built under the seed.
        report: write ``report.html`` and ``report.json`` at the end.
        valuations: made of each finished run, see ``docs/valuation.md``.
        full_run: the training at which the bundle was measured, see
            :class:`~monai_fairfl.run_folder.full_run.FullRun`; the report judges no shorter one, and none
            where it is ``None``.
        share_cases: let the report write each case's score into ``cases.csv``.
        groups: name -> sites, or a function from all sites' names to these. A site's configuration
            finds the name of its group under the key ``group``, and the report shows the mean of
            each.
        federation: further arguments of :class:`~monai_fairfl.server.federation.Federation`.
    """

    def __init__(
        self,
        bundle_root: str,
        sites_root: str,
        strategies: Strategy | Sequence[Strategy],
        rounds: int,
        run_dir: str,
        sites: Mapping[str, Mapping[str, Any]] | None = None,
        site_names: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        config: Sequence[str] = ("configs/train.json",),
        check: Callable[[str], Any] | None = None,
        device: str = "cpu",
        amp: bool = False,
        local_epochs: int = 1,
        resume: bool = False,
        initial: str | None = None,
        report: bool = True,
        valuations: Sequence[RunValuation] = (),
        groups: Groups | Callable[[Sequence[str]], Groups] | None = None,
        full_run: Mapping[str, Any] | None = None,
        share_cases: bool = False,
        **federation: Any,
    ):
        self.bundle_root, self.sites_root, self.run_dir = (
            Path(bundle_root),
            Path(sites_root),
            Path(run_dir),
        )
        self.strategies = [strategies] if isinstance(strategies, Strategy) else list(strategies)
        self.rounds, self.overrides, self.check = rounds, dict(overrides or {}), check
        self.config = [config] if isinstance(config, str) else list(config)
        self.sites = {name: dict(additions or {}) for name, additions in (sites or {}).items()}
        self.site_names = site_names
        self.device, self.amp, self.local_epochs = str(device), amp, local_epochs
        self.resume, self.initial, self.report, self.federation = (
            resume,
            initial,
            report,
            federation,
        )
        self.valuations, self.groups = list(valuations), groups
        self.full_run, self.share_cases = full_run, share_cases

    def run(self) -> list[History]:
        """Check everything, run every strategy, write the report.

        Raises:
            FairFLError: what the checks found; or, of one strategy, what ended it.
            FederationError: naming every strategy of several that failed and why, after the others
                have run.
        """
        with configuration.errors_told():
            return self._run()

    def _run(self) -> list[History]:
        self._stopped = False
        FullRun.read(self.full_run)
        names = preflight.site_names(self.sites_root, self.site_names, self.sites)
        train = configuration.train_config(self.bundle_root, self.overrides, self.config)
        self.federation["groups"] = preflight.check_groups(self.groups, names)
        for name in names:
            files, additions = self._additions(name)
            configuration.train_config(self.bundle_root, self.overrides | additions, files)
        preflight.check_strategies(
            self.strategies, names, train, self.federation.get("clients_per_round")
        )
        check_valuations(self.valuations, self.bundle_root, names, self.federation)
        self._check_run_dir(names)
        if self.initial is not None:
            recipe = bundle_recipe(self.bundle_root, self.overrides, self.config)
            warn_of_other_training(self.initial, recipe)
        preflight.check_sites({name: self._data_of(name) for name in names}, self._check_of(names))
        new = [
            strategy
            for strategy in self.strategies
            if not resuming.begun(self._folder_of(strategy))
        ]
        preflight.check_images(new, partial(self._count_images, names))

        histories, failed = self._run_each(names)
        try:
            if all(history.finished for history in histories) and not self._stopped:
                self._value(histories, names)
        finally:  # a valuation that failed does not cost the report
            if self.report:
                self._write_report(histories, failed)
        if failed:
            raise _failure(failed, len(self.strategies))
        return histories

    def _run_each(self, names: list[str]) -> tuple[list[History], dict[str, str]]:
        """Run the strategies one after the other: what they left, and name -> why of those that
        failed.

        Of several, one whose own run fails does not stop the others. What concerns all of them
        does: a disk that is full, an engine that was stopped, or an error before the run has begun,
        which is of its settings or its folder.
        """
        histories: list[History] = []
        failed: dict[str, str] = {}
        for strategy in self.strategies:
            if self._stopped:
                break
            folder = self._folder_of(strategy)
            self._has_begun = False
            try:
                history = self._federate(
                    strategy, folder, names, resume=self.resume and resuming.begun(folder)
                )
            except (OSError, TransportAborted):
                raise
            except Exception as error:
                before_the_run = isinstance(error, FairFLError) and not self._has_begun
                if len(self.strategies) == 1 or before_the_run:
                    raise
                failed[strategy.name] = _logged_failure(strategy.name, error)
            else:
                histories.append(history)
                if self._stopped or not history.finished:
                    done = len(history.rounds)
                    logger.info(
                        "stopped after %d rounds; the same command with --resume True goes on", done
                    )
                    break
        return histories, failed

    def _check_of(self, names: Sequence[str]) -> Callable[[str], Any] | None:
        """The check, told of what was said by hand of the files."""
        check, given = self.check, {}
        for name in names:
            given[self._data_of(name)] = configuration.said_of_files(
                {**self.overrides, **self._additions(name)[1]}
            )
        if check is None or not any(given.values()):
            return check
        return lambda site: check(site, **given[site])

    def _federate(
        self, strategy: Strategy, folder: Path, names: list[str], resume: bool
    ) -> History:
        federation = self._federation(strategy, folder, names, begun=partial(self._begin, names))

        def stop() -> None:
            self._stopped = True  # also in a last round, after which the next strategy would begin
            federation.stop()

        with stopping_on_signals(stop), quiet():
            return federation.run(resume)

    def _federation(
        self, strategy: Strategy, folder: Path, names: Sequence[str], **settings: Any
    ) -> Federation:
        final = ("score", "test_score") if has_evaluation(self.bundle_root) else ("score",)
        initial = partial(
            initial_model, self.bundle_root, self.overrides, self.initial, self.config
        )
        recipe = bundle_recipe(self.bundle_root, self.overrides, self.config, self.sites)
        settings = {"final": final, "recipe": recipe, **self.federation, **settings}
        return Federation(
            strategy,
            self._transport(folder, names),
            self.rounds,
            initial,
            run_dir=folder,
            **settings,
        )

    def _transport(self, folder: Path, names: Sequence[str]) -> InProcess:
        return InProcess({name: partial(self._client, name, folder) for name in names})

    # ---- valuations -------------------------------------------------------------------------------------------

    def _value(self, histories: Sequence[History], names: list[str]) -> None:
        """Run every valuation of every finished run; trained coalitions are common to all runs."""
        if not self.valuations:
            return
        folders = {strategy.name: self._folder_of(strategy) for strategy in self.strategies}
        done = {history.run_dir for history in histories}
        finished = {name: folder for name, folder in folders.items() if folder in done}
        retrained = self.run_dir / "valuations" / f"retrained-{self._digest_of_settings(names)}"
        with quiet():
            for history in histories:
                panel = Panel(self._transport(history.run_dir, names), names)
                coalition_model = partial(self._coalition_model, finished, names)
                run = FinishedRun(history.run_dir, names, panel, coalition_model, retrained)
                try:
                    for valuation in self.valuations:
                        value_run(valuation, run)
                finally:
                    panel.close()

    def _coalition_model(
        self,
        finished: Mapping[str, Path],
        names: Sequence[str],
        coalition: frozenset[str],
        strategy: Strategy | None,
        folder: Path,
    ) -> Weights:
        """The model that ``coalition`` trains: a federation of its own, resumed where it was
        stopped.
        """
        strategy = FedAvg() if strategy is None else copy.deepcopy(strategy)
        if not coalition:
            return self._first_model()[0]
        per_round, run = self.federation.get("clients_per_round"), finished.get(strategy.name)
        if (
            run
            and coalition == set(names)
            and trained_by(read_ledger(run / "ledger.jsonl"), names, per_round)
        ):
            if done := Checkpoints(run / "checkpoints").load():
                return done.weights
        size = min(len(coalition), per_round or len(coalition))
        settings = {"min_clients": size, "evaluate": (), "final": (), "record_updates": False}
        federation = self._federation(strategy, folder, sorted(coalition), **settings)
        with stopping_on_signals(federation.stop):
            if not federation.run(resume=True).finished:
                raise FederationError("stopped; the same command with --resume True goes on")
        return federation.strategy.weights

    def _first_model(self) -> tuple[Weights, ModelSpec]:
        """The model that every run begins with, and its specification."""
        with own_random_state(self.federation.get("seed", 0)):
            return initial_model(self.bundle_root, self.overrides, self.initial, self.config)

    def _client(self, name: str, folder: Path, datalist_file: Path | None = None) -> FairMonaiAlgo:
        config, additions = self._additions(name)
        return bundle_client(
            self.bundle_root,
            name,
            folder / "sites" / name,
            dataset_dir=self._data_of(name),
            datalist_file=datalist_file or self._datalist_of(name),
            groups=self.federation["groups"],
            device=self.device,
            amp=self.amp,
            rounds=self.rounds,
            local_epochs=self.local_epochs,
            config=config,
            overrides=self.overrides | additions,
        )

    def _datalist_of(self, name: str) -> Path:
        return self.run_dir / "datalists" / f"{name}.json"

    def _count_images(self, names: Sequence[str], data: str) -> dict[str, int]:
        """Site -> different images of its ``data`` that pass the network, counted as a run of these
        settings would.

        Nothing is written into ``run_dir``: a data list that is not there yet is made elsewhere,
        from the same seed.
        """
        counts = {}
        with TemporaryDirectory() as folder, quiet():
            for name in names:
                there = self._datalist_of(name)
                datalist = there if there.exists() else Path(folder) / f"{name}.json"
                try:
                    counts[name] = images_of_site(
                        self._client(name, Path(folder), datalist), name, data
                    )
                except Exception as error:  # whatever a site's bundle raises
                    raise ConfigError(
                        f"site {name!r}: its {data} images cannot be read: {in_words(error)}"
                    ) from error
        return counts

    def _additions(self, name: str) -> tuple[list[str], dict[str, Any]]:
        """A site's own configuration files and overrides."""
        additions = {
            key: value for key, value in self.sites.get(name, {}).items() if key != "config"
        }
        return list(self.sites.get(name, {}).get("config", self.config)), additions

    @cached_property
    def _folders(self) -> dict[str, Path]:
        return preflight.data_folders(self.sites_root)

    def _data_of(self, name: str) -> str:
        elsewhere = self.sites.get(name, {}).get("dataset_dir")
        return str((Path(elsewhere) if elsewhere else self._folders[name]).absolute())

    def _config_of(self, names: Sequence[str]) -> dict[str, Any]:
        """What was asked for, and the hashes of the bundle's files."""
        return {
            "bundle": self.bundle_root.absolute().name,
            "files": digests_of_configs(self.bundle_root),
            "strategies": [*self._former(), *(strategy.name for strategy in self.strategies)],
            "sites": {name: self.sites.get(name, {}) for name in names},
            "data": {name: self._data_of(name) for name in names},
            "config": self.config,
            "overrides": self.overrides,
            "rounds": self.rounds,
            "local_epochs": self.local_epochs,
            "device": self.device,
            "amp": self.amp,
            "federation": self.federation,
        }

    def _digest_of_settings(self, names: Sequence[str]) -> str:
        """Of all that decides what a coalition trains, so that other settings never meet an old
        model.
        """
        config = self._config_of(names) | {"strategies": None, "initial": self.initial}
        config["files"] = {
            name: sha for name, sha in config["files"].items() if name != "federate.json"
        }
        harmless = ("keep", "record_updates", "evaluate", "final")
        config["federation"] = {
            key: value for key, value in self.federation.items() if key not in harmless
        }
        return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[
            :12
        ]

    def _check_run_dir(self, names: Sequence[str]) -> None:
        """``run_dir`` is new, or what it holds goes on with the same settings; the methods can
        train the first model.

        A run of a comparison that is not named is checked too, since those named will be compared
        with it.
        """
        strategies = [strategy.name for strategy in self.strategies]
        resuming.check_folder(self.run_dir, strategies, self.resume)
        weights, spec = self._first_model()
        run = self._federation(self.strategies[0], self._folder_of(self.strategies[0]), names)
        for strategy in self.strategies:
            strategy.check_model(spec, run.buffers)

        folders = [self.run_dir / name for name in resuming.compared(self.run_dir, strategies)]
        if resuming.begun(self.run_dir):
            folders = [self.run_dir]
        if folders:
            resuming.check_training(self.run_dir, self._config_of(names), names)
            settings = {name: getattr(run, name) for name in SHARED}
            resuming.check_openings(folders, {**settings, "model": digest_of(weights)})

    def _folder_of(self, strategy: Strategy) -> Path:
        return self.run_dir if len(self.strategies) == 1 else self.run_dir / strategy.name

    def _former(self) -> list[str]:
        """Strategies that the comparison in ``run_dir`` holds and that are not named now."""
        named = {strategy.name for strategy in self.strategies}
        return [name for name in resuming.compared(self.run_dir) if name not in named]

    def _begin(self, names: Sequence[str]) -> None:
        """Before a run writes anything: ``config.json``, what trains and what the report needs
        besides.
        """
        self._has_begun = True
        config = {
            **self._config_of(names),
            "valuations": [valuation.name for valuation in self.valuations],
            "full_run": self.full_run,
            "share_cases": self.share_cases,
            "command": command_line(),
        }
        write_atomically(
            self.run_dir / "config.json", json.dumps(config, indent=4, default=str).encode()
        )

    def _write_report(self, histories: Sequence[History], failed: Mapping[str, str]) -> None:
        """Report these runs and those of former strategies; ``failed`` ones are named with the
        reason.
        """
        from monai_fairfl.report import as_text, write_report_if_possible

        runs = [self.run_dir / name for name in self._former()]
        runs += [history.run_dir for history in histories]
        if not runs:
            return
        report = write_report_if_possible(runs, self.run_dir, failed)
        if report is not None:
            print(f"{as_text(report)}\nReport: {self.run_dir / 'report.html'}")


def _logged_failure(name: str, error: Exception) -> str:
    """Why strategy ``name`` failed, in words; the log has the traceback where the error is a fault
    of the code.
    """
    if isinstance(error, FairFLError):
        logger.error("%s failed: %s", name, error)
        return str(error)
    logger.error("%s failed", name, exc_info=error)
    return in_words(error)


def _failure(failed: Mapping[str, str], strategies: int) -> FederationError:
    """The error that ends a comparison in which some of the ``strategies`` failed."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return FederationError(
        f"{len(failed)} of {strategies} strategies failed ({reasons}). What the others reached is not lost. "
        f"The same command with --resume True tries again: {', '.join(failed)}"
    )


def digests_of_configs(bundle_root: Path) -> dict[str, str]:
    """Name -> SHA-256 of every configuration file of a bundle, for the ``config.json`` of a run."""
    digests = {}
    for file in sorted((bundle_root / "configs").glob("*.json")):
        digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return digests


def initial_model(
    bundle_root: str | Path,
    overrides: Mapping[str, Any] | None = None,
    file: str | None = None,
    config: Sequence[str] = ("configs/train.json",),
) -> tuple[Weights, ModelSpec]:
    """Build ``network_def`` of a bundle and read its specification; runs under the caller's seed.

    Args:
        bundle_root: the bundle; the example input's shape is read from its metadata.
        overrides: of the training configuration.
        config: its files.
        file: a ``state_dict`` whose values replace the built ones, or a checkpoint with one under
            ``"model"``.

    Raises:
        ConfigError: when the network cannot be built.
        FederationError: when ``file`` does not fit the network.
    """
    parser = configuration.train_config(Path(bundle_root), overrides or {}, config)
    try:
        network = parser.get_parsed_content("network_def")
    except Exception as error:  # whatever a constructor raises
        given = f" with overrides {dict(overrides)}" if overrides else ""
        raise ConfigError(
            f"network_def of {bundle_root} cannot be built{given}: {in_words(error)}"
        ) from error
    spec = read_spec(network, torch.zeros(configuration.input_shape(Path(bundle_root))))
    if file is not None:
        try:
            network.load_state_dict(read_state_dict(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"initial model {file} cannot be used: {error}") from error
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    parameters, buffers = spec.split(state)
    return {**parameters, **buffers}, spec


def bundle_recipe(
    bundle_root: str | Path,
    overrides: Mapping[str, Any] | None = None,
    config: Sequence[str] = ("configs/train.json",),
    sites: Mapping[str, Mapping[str, Any]] | None = None,
) -> ModelRecipe | None:
    """The recipe of the models that a federation of this bundle trains; ``None`` where the bundle
    declares none.

    Args:
        bundle_root: the bundle; its configuration declares the recipe under the key ``recipe``.
        overrides: of the training configuration, for all sites.
        config: its files.
        sites: site -> its own overrides, and ``"config"``, its own files. The values that a site
            trains with instead of those of all go into the recipe.
    """
    root = Path(bundle_root)
    recipe = _declared_recipe(root, overrides or {}, config)
    if recipe is None:
        return None
    of_sites = {}
    for site, additions in (sites or {}).items():
        own_overrides = {key: value for key, value in additions.items() if key != "config"}
        own_recipe = _declared_recipe(
            root, {**(overrides or {}), **own_overrides}, additions.get("config", config)
        )
        own_values = own_recipe.values if own_recipe is not None else {}
        other = {key: value for key, value in own_values.items() if value != recipe.values.get(key)}
        if other:
            of_sites[site] = other
    return replace(recipe, files=digests_of_files(root, config), sites=of_sites)


def warn_of_other_training(file: str | Path, recipe: ModelRecipe | None) -> None:
    """Report an initial model that was trained with other values than a federation will train it
    with.

    Args:
        file: of the initial model; one without recipe says nothing.
        recipe: of the federation's models; ``None``: unknown.
    """
    previous = read_recipe(file)
    if previous is None or recipe is None:
        return
    if previous.bundle != recipe.bundle:
        logger.warning(
            "%s is a model of the bundle %r, not of %r", file, previous.bundle, recipe.bundle
        )
    for key, value in recipe.values.items():
        if key in previous.values and previous.values[key] != value:
            logger.warning(
                "%s was trained with %s %r, and this federation trains with %r",
                *(file, key, previous.values[key], value),
            )


def _declared_recipe(
    root: Path, overrides: Mapping[str, Any], config: Sequence[str]
) -> ModelRecipe | None:
    parser = configuration.train_config(root, overrides, config)
    if "recipe" not in parser:
        return None
    parser["bundle_root"] = str(root)
    recipe: ModelRecipe = parser.get_parsed_content("recipe")
    return recipe
