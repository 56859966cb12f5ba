# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The federation of a bundle's sites in this process: what ``configs/federate.json`` runs."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from monai_fairfl import preflight
from monai_fairfl.checkpoint import Checkpoints
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.errors import ConfigError, FederationError, in_words
from monai_fairfl.federation import Federation, History
from monai_fairfl.files import read_state_dict, write_atomically
from monai_fairfl.full_run import FullRun, command_line
from monai_fairfl.ledger import read_ledger
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.random_state import own_random_state
from monai_fairfl.records import check_same, trained_by, training_settings
from monai_fairfl.site import bundle_client, has_evaluation
from monai_fairfl.spec import read_spec
from monai_fairfl.strategies import FedAvg, Strategy
from monai_fairfl.terminal import quiet, stopping_on_signals
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.valuation import FinishedRun, Panel, RunValuation
from monai_fairfl.valuing import check_valuations, value_run

__all__ = ["BundleFederation", "initial_model"]

logger = logging.getLogger(__name__)

Groups = Mapping[str, Sequence[str]]


class BundleFederation:
    """Runs one strategy, or several one after the other, over the same sites, splits and seeds; then reports.

    Args:
        bundle_root: the bundle; every site runs its ``configs/train.json``.
        sites_root: one folder per site, or NVFlare's data lists; see ``docs/data.md``.
        strategies: one or more strategies; several write to ``run_dir/<name>`` each.
        rounds: rounds of each.
        run_dir: everything is written here.
        sites: site -> additions to ``overrides`` (plain values; ``"config"``: config files in place of train.json;
            ``"dataset_dir"``: data elsewhere than ``sites_root/<site>``).
        site_names: the sites that take part; ``None``: all of ``sites_root``.
        overrides: plain values that replace those of ``config``, for every site and for the initial model.
        config: the training configuration, files relative to the bundle; overlays come after ``train.json``.
        check: called with each site's folder before anything is trained; ``None``: no check.
        device: for training, such as ``"cpu"`` or ``"cuda:0"``.
        amp: automatic mixed precision.
        local_epochs: epochs of local training per round.
        resume: continue what ``run_dir`` holds; refused where overrides, local epochs or data are others.
        initial: a ``state_dict`` file to begin from; ``None``: built under the seed.
        report: write ``report.html`` and ``report.json`` at the end.
        valuations: made of each finished run, see ``docs/valuation.md``.
        full_run: the training at which the bundle was measured, see :class:`~monai_fairfl.full_run.FullRun`; the
            report judges no shorter one, and none where it is ``None``.
        share_cases: let the report write each case's score into ``cases.csv``.
        groups: name -> sites, or a function from all sites' names to these. A site's configuration finds the name of
            its group under the key ``group``, and the report shows the mean of each.
        federation: further arguments of :class:`~monai_fairfl.federation.Federation`.
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
        self.bundle_root, self.sites_root, self.run_dir = Path(bundle_root), Path(sites_root), Path(run_dir)
        self.strategies = [strategies] if isinstance(strategies, Strategy) else list(strategies)
        self.rounds, self.overrides, self.check = rounds, dict(overrides or {}), check
        self.config = [config] if isinstance(config, str) else list(config)
        self.sites = {name: dict(additions or {}) for name, additions in (sites or {}).items()}
        self.site_names = site_names
        self.device, self.amp, self.local_epochs = str(device), amp, local_epochs
        self.resume, self.initial, self.report, self.federation = resume, initial, report, federation
        self.valuations, self.groups = list(valuations), groups
        self.full_run, self.share_cases = full_run, share_cases

    def run(self) -> list[History]:
        """Check everything, run every strategy, write the report."""
        with preflight.errors_told():
            return self._run()

    def _run(self) -> list[History]:
        self._stopped = False
        FullRun.read(self.full_run)
        names = preflight.site_names(self.sites_root, self.site_names, self.sites)
        train = preflight.train_config(self.bundle_root, self.overrides, self.config)
        self.federation["groups"] = preflight.check_groups(self.groups, names)
        for name in names:
            files, additions = self._additions(name)
            preflight.train_config(self.bundle_root, self.overrides | additions, files)
        preflight.check_strategies(self.strategies, names, train)
        check_valuations(self.valuations, self.bundle_root, names, self.federation)
        self._check_same(names)
        preflight.check_sites({name: self._data_of(name) for name in names}, self._check_of(names))
        histories = []
        for strategy in self.strategies:
            folder = self._folder_of(strategy)
            history = self._federate(strategy, folder, names, resume=self.resume and _begun(folder))
            histories.append(history)
            if self._stopped or not history.finished:
                logger.info("stopped after %d rounds; the same command with --resume True goes on", len(history.rounds))
                break
        try:
            if all(history.finished for history in histories) and not self._stopped:
                self._value(histories, names)
        finally:  # a valuation that failed does not cost the report
            if self.report:
                _write_report(self.run_dir, histories)
        return histories

    def _check_of(self, names: Sequence[str]) -> Callable[[str], Any] | None:
        """The check, told of what was said by hand of the files."""
        check, given = self.check, {}
        for name in names:
            given[self._data_of(name)] = preflight.said_of_files({**self.overrides, **self._additions(name)[1]})
        if check is None or not any(given.values()):
            return check
        return lambda site: check(site, **given[site])

    def _federate(self, strategy: Strategy, folder: Path, names: list[str], resume: bool) -> History:
        federation = self._federation(strategy, folder, names, begun=partial(self._write_config, names))

        def stop() -> None:
            self._stopped = True  # also in a last round, after which the next strategy would begin
            federation.stop()

        with stopping_on_signals(stop), quiet():
            return federation.run(resume)

    def _federation(self, strategy: Strategy, folder: Path, names: Sequence[str], **settings: Any) -> Federation:
        final = ("score", "test_score") if has_evaluation(self.bundle_root) else ("score",)
        initial = partial(initial_model, self.bundle_root, self.overrides, self.initial, self.config)
        settings = {"final": final, **self.federation, **settings}
        return Federation(strategy, self._transport(folder, names), self.rounds, initial, run_dir=folder, **settings)

    def _transport(self, folder: Path, names: Sequence[str]) -> InProcess:
        return InProcess({name: partial(self._client, name, folder) for name in names})

    # ---- valuations -------------------------------------------------------------------------------------------

    def _value(self, histories: Sequence[History], names: list[str]) -> None:
        """Run every valuation of every finished run; trained coalitions are common to all runs."""
        if not self.valuations:
            return
        finished = {strategy.name: history.run_dir for strategy, history in zip(self.strategies, histories)}
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
        """The model that ``coalition`` trains: a federation of its own, resumed where it was stopped."""
        strategy = FedAvg() if strategy is None else copy.deepcopy(strategy)
        if not coalition:
            with own_random_state(self.federation.get("seed", 0)):
                return initial_model(self.bundle_root, self.overrides, self.initial, self.config)[0]
        per_round, run = self.federation.get("clients_per_round"), finished.get(strategy.name)
        if run and coalition == set(names) and trained_by(read_ledger(run / "ledger.jsonl"), names, per_round):
            if done := Checkpoints(run / "checkpoints").load():
                return done.weights
        size = min(len(coalition), per_round or len(coalition))
        settings = {"min_clients": size, "evaluate": (), "final": (), "record_updates": False}
        federation = self._federation(strategy, folder, sorted(coalition), **settings)
        with stopping_on_signals(federation.stop):
            if not federation.run(resume=True).finished:
                raise FederationError("stopped; the same command with --resume True goes on")
        return federation.strategy.weights

    def _client(self, name: str, folder: Path) -> FairMonaiAlgo:
        config, additions = self._additions(name)
        return bundle_client(
            self.bundle_root,
            name,
            folder / "sites" / name,
            dataset_dir=self._data_of(name),
            datalist_file=self.run_dir / "datalists" / f"{name}.json",
            groups=self.federation["groups"],
            device=self.device,
            amp=self.amp,
            rounds=self.rounds,
            local_epochs=self.local_epochs,
            config=config,
            overrides=self.overrides | additions,
        )

    def _additions(self, name: str) -> tuple[list[str], dict[str, Any]]:
        """A site's own configuration files and overrides."""
        additions = {key: value for key, value in self.sites.get(name, {}).items() if key != "config"}
        return list(self.sites.get(name, {}).get("config", self.config)), additions

    @cached_property
    def _folders(self) -> dict[str, Path]:
        return preflight.data_folders(self.sites_root)

    def _data_of(self, name: str) -> str:
        elsewhere = self.sites.get(name, {}).get("dataset_dir")
        return str((Path(elsewhere) if elsewhere else self._folders[name]).absolute())

    def _config_of(self, names: Sequence[str]) -> dict[str, Any]:
        """What was asked for, and the hashes of the bundle's files."""
        files = sorted(path for path in (self.bundle_root / "configs").glob("*.json"))
        return {
            "bundle": self.bundle_root.absolute().name,
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
            "strategies": [strategy.name for strategy in self.strategies],
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
        """Of all that decides what a coalition trains, so that other settings never meet an old model."""
        config = self._config_of(names) | {"strategies": None, "initial": self.initial}
        config["files"] = {name: sha for name, sha in config["files"].items() if name != "federate.json"}
        harmless = ("keep", "record_updates", "evaluate", "final")
        config["federation"] = {key: value for key, value in self.federation.items() if key not in harmless}
        return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:12]

    def _check_same(self, names: Sequence[str]) -> None:
        """What trains is the same before and after a stop, as far as ``config.json`` tells."""
        file = self.run_dir / "config.json"
        if not (self.resume and file.exists() and any(_begun(self._folder_of(s)) for s in self.strategies)):
            return
        before = _trains(json.loads(file.read_text()), names)
        now = _trains(json.loads(json.dumps(self._config_of(names), default=str)), names)
        common = {key: value for key, value in now.items() if key in before}  # sites may come and go
        hint = f". Where the same data only moved, correct their folder in {file}"
        check_same(self.run_dir, before, common, ConfigError, hint)

    def _folder_of(self, strategy: Strategy) -> Path:
        return self.run_dir if len(self.strategies) == 1 else self.run_dir / strategy.name

    def _write_config(self, names: Sequence[str]) -> None:
        """``config.json``: what trains, and what the report needs besides."""
        config = {
            **self._config_of(names),
            "valuations": [valuation.name for valuation in self.valuations],
            "full_run": self.full_run,
            "share_cases": self.share_cases,
            "command": command_line(),
        }
        write_atomically(self.run_dir / "config.json", json.dumps(config, indent=4, default=str).encode())


def _trains(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What of ``config.json`` decides how these sites train, each under the name that an error gives it."""
    found = training_settings(config)
    of_sites = {f"{key} of {n}": found[key][n] for key in ("sites", "data") for n in names if n in found[key]}
    files = {f"files of {name}": sha for name, sha in found["files"].items()}
    return {**found["plain"], "overrides": found["overrides"], **files, **of_sites}


def _begun(folder: Path) -> bool:
    return (folder / "ledger.jsonl").exists()


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
        file: a ``state_dict`` whose values replace the built ones, or a checkpoint with one under ``"model"``.

    Raises:
        ConfigError: when the network cannot be built.
        FederationError: when ``file`` does not fit the network.
    """
    parser = preflight.train_config(Path(bundle_root), overrides or {}, config)
    try:
        network = parser.get_parsed_content("network_def")
    except Exception as error:  # whatever a constructor raises
        given = f" with overrides {dict(overrides)}" if overrides else ""
        raise ConfigError(f"network_def of {bundle_root} cannot be built{given}: {in_words(error)}") from error
    spec = read_spec(network, torch.zeros(preflight.input_shape(Path(bundle_root))))
    if file is not None:
        try:
            network.load_state_dict(read_state_dict(file))
        except (ConfigError, RuntimeError) as error:
            raise FederationError(f"initial model {file} cannot be used: {error}") from error
    state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    parameters, buffers = spec.split(state)
    return {**parameters, **buffers}, spec


def _write_report(run_dir: Path, histories: Sequence[History]) -> None:
    from monai_fairfl.report import as_text, write_report_if_possible

    report = write_report_if_possible([history.run_dir for history in histories], run_dir)
    if report is not None:
        print(f"{as_text(report)}\nReport: {run_dir / 'report.html'}")
