# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation as an NVFlare recipe: runs in the simulator, in POC and in production, or becomes a
job folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monai.bundle import ConfigParser
from nvflare.apis.filter import Filter
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe
from torch import nn

from monai_fairfl.bundle import preflight
from monai_fairfl.bundle.site import TRAIN
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.strategies import Strategy, catalogue
from monai_fairfl.transports.flare.job.bundle_sites import BundleSites
from monai_fairfl.transports.flare.job.initial import INITIAL, write_initial
from monai_fairfl.transports.flare.job.own_classes import installed_packages, needs_of, own_classes
from monai_fairfl.transports.flare.job.scripts import (
    ScriptSites,
    check_federation,
    fedce_of,
    key_mode,
)
from monai_fairfl.transports.flare.policy import allow
from monai_fairfl.transports.flare.server.controller import FairFLController
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.random_state import own_random_state

OF_THE_LEAD = (
    "guards retries evaluate final seed threads buffers local_norm clients_per_round keep record_updates groups"
).split()
"""Arguments of ``Federation`` that ``federation`` may set: the others the recipe or the engine
does.
"""


class FairFLRecipe(Recipe):
    """A fair federation of a bundle's sites, or of your own training scripts, in NVFlare's style.

    >>> recipe = FairFLRecipe(bundle="prostate_mri_segmentation", strategy="FedCE", min_clients=3, num_rounds=2,
    ...                       overrides={"size": [32, 32], "channels": [4, 8]})
    >>> recipe.name
    'prostate_mri_segmentation-FedCE'

    In place of a bundle it takes the arguments of NVFlare's ``FedCERecipe``: ``model`` and a
    ``train_script`` of the Client API, unchanged; see docs/flare_migrating.md.

    Run it with ``recipe.execute(SimEnv(clients=[...]))``, ``PocEnv`` or ``ProdEnv``;
    ``recipe.export(DIR)`` writes the job folder. Whatever NVFlare has for recipes stays usable:
    filters, ``add_experiment_tracking``, log streaming.

    Args:
        bundle: name of a bundle of this package, or the path of one; a site may have its own copy
            elsewhere.
        strategy: one of ``monai_fairfl.strategies``, its name, or its configuration with
            ``_target_``; one of your own, its dotted path, or its configuration; ``None``: FedCE,
            and with a ``train_script`` NVFlare's form of it, which ``fedce_mode`` (``"plus"``,
            ``"times"``) chooses.
        min_clients: fewest clients that begin a round and must answer it.
        num_rounds: rounds in all.
        name: of the job and the run.
        model: in place of a bundle, an ``nn.Module``, whose values are those to begin from, or
            ``{"class_path": ..., "args": {...}}``, which is built under ``seed``.
        train_script, train_args: what every site runs. ``sites_root``, ``config``, ``overrides``,
            ``local_epochs``, ``device``, ``amp``, ``check`` and ``custom_code`` are a bundle's
            only.
        trainable_param_names: the parameters of ``model``, if not those that require a gradient.
        key_metric, key_metric_mode: the entry of a script's ``metrics`` that scores the received
            model, and whether ``"max"`` or ``"min"`` of it is best.
        sites_root: a folder with the data of every site, for the simulator and POC; elsewhere each
            site names its own.
        config: training configuration, files relative to the bundle.
        overrides: of the configuration, plain values, for every site and the initial model.
        local_epochs: of one round.
        device: such as ``"cuda:0"``; by default each site's first GPU, else its processor.
        amp: automatic mixed precision.
        threads: of torch, at the server and the sites.
        groups: name -> sites.
        check: let every site read all its images before the first round.
        custom_code: the sites run a script of the job (NVFlare calls that BYOC); ``False``: an
            executor of the installed package, which each site must allow, see
            ``monai-fairfl flare-policy``.
        timeout, resume: see :class:`FairFLController`.
        task_interval: seconds that a site waits before it asks for its next task; NVFlare's own 2
            is most of a small round.
        initial_ckpt: a ``state_dict`` file to begin from, in place of a model built under ``seed``.
        seed: of everything.
        stop_cond, patience, best_model_filename, enable_tensor_disk_offload: see
            :class:`FairFLController`.
        server_memory_gc_rounds: free the server's memory after every so many rounds.
        launch_external_process: run the script in a process of its own, which ``launch_once=False``
            starts for every task: then a site whose training was killed is back in the next round.
        command, launch_once, shutdown_timeout, server_expected_format, client_memory_gc_rounds,
            cuda_empty_cache, per_site_config: as in NVFlare's recipes; ``per_site_config`` holds
            settings of :class:`~monai_fairfl.transports.flare.site.answering.SiteSettings` by site.
        federation: further arguments of :class:`~monai_fairfl.server.federation.Federation`, plain values.

    Raises:
        ConfigError: when bundle or script, strategy, overrides and number of clients do not go
            together.
    """

    def __init__(
        self,
        *,
        bundle: str | Path | None = None,
        strategy: Strategy | str | Mapping[str, Any] | None = None,
        min_clients: int,
        num_rounds: int = 2,
        name: str | None = None,
        sites_root: str | Path | None = None,
        config: Sequence[str] = TRAIN,
        overrides: Mapping[str, Any] | None = None,
        local_epochs: int = 1,
        device: str = "",
        amp: bool = False,
        threads: int = 1,
        groups: Mapping[str, Sequence[str]] | None = None,
        check: bool = True,
        custom_code: bool = True,
        timeout: float = 0,
        task_interval: float = 0.5,
        resume: bool = True,
        initial_ckpt: str | None = None,
        seed: int = 0,
        stop_cond: str | None = None,
        patience: int | None = None,
        best_model_filename: str | None = None,
        enable_tensor_disk_offload: bool = False,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        launch_once: bool = True,
        shutdown_timeout: float = 0.0,
        server_expected_format: ExchangeFormat = ExchangeFormat.PYTORCH,
        client_memory_gc_rounds: int = 0,
        cuda_empty_cache: bool = False,
        per_site_config: dict[str, dict[str, Any]] | None = None,
        federation: Mapping[str, Any] | None = None,
        model: nn.Module | Mapping[str, Any] | None = None,
        train_script: str | None = None,
        train_args: str = "",
        fedce_mode: str = "plus",
        trainable_param_names: Sequence[str] | None = None,
        key_metric: str = "accuracy",
        key_metric_mode: str | None = None,
        server_memory_gc_rounds: int = 0,
    ):
        of_a_bundle = {
            "bundle": bundle is not None, "sites_root": sites_root is not None, "config": config != TRAIN,
            "overrides": overrides is not None, "local_epochs": local_epochs != 1, "device": device != "", "amp": amp,
            "check": not check, "custom_code": not custom_code,
        }  # fmt: skip
        of_a_script = {
            "model": model is not None, "train_script": train_script is not None, "train_args": train_args != "",
            "fedce_mode": fedce_mode != "plus", "trainable_param_names": trainable_param_names is not None,
            "key_metric": key_metric != "accuracy", "key_metric_mode": key_metric_mode is not None,
        }  # fmt: skip
        _one_of(of_a_bundle, of_a_script)
        unknown = sorted(set(federation or {}) - set(OF_THE_LEAD))
        if unknown:
            raise ConfigError(
                f"federation sets {unknown[0]!r}; what may stand there is {', '.join(OF_THE_LEAD)}"
            )
        if not timeout >= 0:
            raise ConfigError(
                f"timeout is a number of seconds, or 0 to wait for all; got {timeout}"
            )
        self.min_clients, self.custom_code = min_clients, custom_code
        self.train_args, self.command = train_args, command  # NVFlare warns of secrets in them
        self.per_site: dict[str, dict[str, Any]] = {}
        self._files = TemporaryDirectory()  # of the job, until it is written
        options = {
            "launch_external_process": launch_external_process, "command": command, "launch_once": launch_once,
            "shutdown_timeout": shutdown_timeout, "server_expected_format": server_expected_format,
            "memory_gc_rounds": client_memory_gc_rounds, "cuda_empty_cache": cuda_empty_cache,
        }  # fmt: skip
        self._sites: BundleSites | ScriptSites
        scripts: dict[str, str] | None = None
        if bundle is None:
            self.strategy = strategy_of(fedce_of(fedce_mode) if strategy is None else strategy)
            check_federation(federation or {})
            scripts = {
                "key_metric": key_metric,
                "key_metric_mode": key_mode(key_metric, key_metric_mode, stop_cond),
            }
            self._sites = ScriptSites(
                str(train_script),
                train_args,
                options,
                model,
                trainable_param_names,
                self.strategy,
                min_clients,
            )
        else:
            self.strategy = strategy_of("FedCE" if strategy is None else strategy)
            settings = {
                "sites_root": str(Path(sites_root).absolute()) if sites_root else "",
                "config": list(config), "overrides": dict(overrides or {}), "local_epochs": local_epochs,
                "device": device, "amp": amp, "threads": threads, "groups": dict(groups or {}), "check": check,
            }  # fmt: skip
            self._sites = BundleSites(
                str(bundle),
                self.strategy,
                min_clients,
                settings,
                custom_code,
                options,
                Path(self._files.name),
            )
        with own_random_state(seed):
            initial = self._sites.initial(initial_ckpt)
        name = name or self._sites.name
        recipe = self._sites.recipe(per_site_config or {})
        write_initial(Path(self._files.name) / INITIAL, *initial, recipe, self._sites.asked)
        try:
            job = FedJob(name, min_clients)
        except ValueError as error:
            raise ConfigError(f"name {name!r}: {error}") from error
        parts = self.strategy.parts
        self.own_classes = own_classes(self.strategy)
        job.set_app_packages(installed_packages(self.own_classes, custom_code))
        job.to_server(
            FairFLController(
                self.strategy,
                num_rounds,
                min_clients,
                run_name=name,
                resume=resume,
                timeout=timeout,
                weighting=parts.weighting,
                reward=parts.reward,
                training=dict(parts.training) or None,
                federation={
                    **self._sites.federation,
                    "seed": seed,
                    "threads": threads,
                    "groups": dict(groups or {}),
                    **(federation or {}),
                },
                stop_cond=stop_cond,
                patience=patience,
                best_model_filename=best_model_filename,
                enable_tensor_disk_offload=enable_tensor_disk_offload,
                memory_gc_rounds=server_memory_gc_rounds,
                scripts=scripts,
                needs=needs_of(self.own_classes, custom_code),
            )
        )
        job.to_server({"server": {"task_request_interval": task_interval}})
        job.add_file_to_server(
            str(Path(self._files.name) / INITIAL), dest_dir=INITIAL, app_folder_type="config"
        )
        super().__init__(job)
        if per_site_config:
            self.set_per_site_config(per_site_config)

    # ---- what NVFlare's Recipe asks for
    # -----------------------------------------------------------------------

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        self._sites.check(config)
        self.per_site = config

    def _prepare_client_apps(self) -> None:
        self._sites.add(self._job, self.per_site)

    def process_env(self, env: ExecEnv) -> None:
        """The simulator is the user's own: there, what a job without code needs is allowed."""
        if isinstance(env, SimEnv) and not self.custom_code:
            local = Path(env.workspace_root) / self.name / "local"
            if not any(
                (local / name).exists() for name in ("resources.json", "resources.json.default")
            ):
                write_atomically(local / "resources.json.default", b'{"format_version": 2}')
            allow(local.parent, self.own_classes)

    def _filtered(self, filter: Filter) -> None:
        """No fair method works on ciphertext."""
        if type(filter).__module__.startswith("nvflare.app_opt.he"):
            raise ConfigError(
                f"{self.strategy.name} cannot work under {type(filter).__name__}: it compares the clients' updates, "
                "which homomorphic encryption hides from the server. Use NVFlare's own FedAvgRecipeWithHE, which only "
                "averages, or another privacy filter (PercentilePrivacy, SVTPrivacy)"
            )

    def add_client_output_filter(self, filter: Filter, *arguments: Any, **options: Any) -> None:
        """A filter of what leaves the sites, such as NVFlare's ``PercentilePrivacy``; it sees the
        update.

        Raises:
            ConfigError: for homomorphic encryption, under which the strategy cannot work.
        """
        self._filtered(filter)
        super().add_client_output_filter(filter, *arguments, **options)

    def add_client_input_filter(self, filter: Filter, *arguments: Any, **options: Any) -> None:
        """A filter of what arrives at the sites; see :meth:`add_client_output_filter`."""
        self._filtered(filter)
        super().add_client_input_filter(filter, *arguments, **options)


def _one_of(of_a_bundle: Mapping[str, bool], of_a_script: Mapping[str, bool]) -> None:
    """Either a bundle and what belongs to it was given, or a model with its script."""
    bundles, scripts = (
        [name for name, given in names.items() if given] for names in (of_a_bundle, of_a_script)
    )
    if bundles and scripts:
        raise ConfigError(
            f"{', '.join(bundles)} belong to a bundle, {', '.join(scripts)} to a training script of your own: leave "
            "one of the two out. A script takes its settings from train_args, a bundle from overrides"
        )
    lacking = [name for name in ("model", "train_script") if not of_a_script[name]]
    if not of_a_bundle["bundle"] and lacking:
        raise ConfigError(
            f"{', '.join(lacking)} must be given: a job needs a bundle, or a model and a train_script"
        )


def strategy_of(given: Strategy | str | Mapping[str, Any]) -> Strategy:
    """A strategy, from itself, its name or dotted path, or its configuration.

    Raises:
        ConfigError: when there is none of that name or path, or its arguments are wrong.

    >>> strategy_of({"_target_": "monai_fairfl.strategies.ShapFed", "personalised": True}).name
    'ShapFed-personalised'
    """
    if isinstance(given, str):
        kind = catalogue.find(given)
        try:
            return kind()
        except Exception as error:  # whatever a constructor raises
            raise ConfigError(
                f"strategy {given!r} cannot be made without arguments: {in_words(error)}. Give its configuration, "
                f'such as {{"_target_": "{kind.__module__}.{kind.__name__}", "ARGUMENT": 0.5}}'
            ) from error
    if isinstance(given, Mapping):
        preflight.check_targets(given)
        config = dict(given)
        try:
            given = ConfigParser({"strategy": config}).get_parsed_content("strategy")
        except Exception as error:  # whatever a constructor raises
            raise ConfigError(f"strategy {config} cannot be made: {in_words(error)}") from error
    if not isinstance(given, Strategy):
        raise ConfigError(
            f"strategy must be a Strategy, its name, its dotted path or its configuration, got {given!r}"
        )
    return given
