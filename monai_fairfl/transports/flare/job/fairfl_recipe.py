# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation as an NVFlare recipe.

It runs in the simulator, in POC and in production, or becomes a job folder.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.apis.filter import Filter
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.recipe.run import Run
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.initial_files import INITIAL, write_initial
from monai_fairfl.transports.engines.job_arguments import (
    RUN_SETTINGS,
    check_run_settings,
    split_settings,
)
from monai_fairfl.transports.engines.job_guards import config_of_shipped
from monai_fairfl.transports.engines.site_settings import JobSiteSettings
from monai_fairfl.transports.flare.job.bundle_sites import BundleJobSites
from monai_fairfl.transports.flare.job.script_sites import ScriptSites, check_federation, key_mode
from monai_fairfl.transports.flare.job.simulator import (
    ERRORS,
    LostClientError,
    ending_without_a_client,
)
from monai_fairfl.transports.flare.job.strategy import (
    installed_packages,
    needs_of,
    nvflare_fedce,
    own_classes,
)
from monai_fairfl.transports.flare.policy import allow, has_policy, write_default_policy
from monai_fairfl.transports.flare.server.controller import FairFLController
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop
from monai_fairfl.utils.random_state import own_random_state

logger = logging.getLogger(__name__)


class FairFLRecipe(Recipe):
    """A fair federation of a bundle's sites, or of your own training scripts, in NVFlare's style.

    >>> recipe = FairFLRecipe(
    ...     bundle="prostate_mri_segmentation",
    ...     strategy="FedCE",
    ...     min_clients=3,
    ...     num_rounds=2,
    ...     overrides={"size": [32, 32], "channels": [4, 8, 8]},
    ... )
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
        model: in place of a bundle, an ``nn.Module``, whose values are those to begin with, or
            ``{"class_path": ..., "args": {...}}``, which is built under ``seed``.
        train_script: what every site runs.
        train_args: its arguments.
        fedce_mode: see ``strategy``.
        trainable_param_names: the parameters of ``model``, if not those that require a gradient.
        key_metric: the entry of a script's ``metrics`` that scores the received model.
        key_metric_mode: whether its ``"max"`` or its ``"min"`` is best.
        initial_ckpt: a ``state_dict`` file to begin with, in place of a model built under ``seed``.
        custom_code: the sites of a bundle run a script of the job (NVFlare calls that BYOC);
            ``False``: an executor of the installed package, which each site must allow, see
            ``monai-fairfl flare-policy``.
        seed: of everything.
        timeout: see :class:`FairFLController`.
        resume: see :class:`FairFLController`.
        stop_cond: see :class:`FairFLController`.
        patience: see :class:`FairFLController`.
        best_model_filename: see :class:`FairFLController`.
        enable_tensor_disk_offload: see :class:`FairFLController`.
        task_interval: seconds that a site waits before it asks for its next task; NVFlare's own 2
            is most of a small round.
        server_memory_gc_rounds: free the server's memory after every so many rounds.
        launch_external_process: run the script in a process of its own, which ``launch_once=False``
            starts for every task: then a site whose training was killed is back in the next round.
        command: as in NVFlare's recipes.
        launch_once: as in NVFlare's recipes.
        shutdown_timeout: as in NVFlare's recipes.
        server_expected_format: as in NVFlare's recipes.
        client_memory_gc_rounds: as in NVFlare's recipes.
        cuda_empty_cache: as in NVFlare's recipes.
        per_site_config: site -> its own settings, those of ``settings`` below or, with a
            ``train_script``, those of NVFlare's recipes.
        federation: settings of the run, plain values; see ``settings``.
        settings: of the sites of a bundle, ``sites_root``, ``config``, ``overrides``,
            ``local_epochs``, ``device``, ``amp`` and ``check``: fields of
            :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`. And of the
            run, fields of :class:`~monai_fairfl.server.settings.RunSettings` such as ``groups`` and
            ``threads``, which are also the sites'; and ``guards``, guards of this package, their
            names or configurations, where the default ones are not wanted.

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
        model: nn.Module | Mapping[str, Any] | None = None,
        train_script: str | None = None,
        train_args: str = "",
        fedce_mode: str = "plus",
        trainable_param_names: Sequence[str] | None = None,
        key_metric: str = "accuracy",
        key_metric_mode: str | None = None,
        initial_ckpt: str | None = None,
        custom_code: bool = True,
        seed: int = 0,
        timeout: float = 0,
        resume: bool = True,
        stop_cond: str | None = None,
        patience: int | None = None,
        best_model_filename: str | None = None,
        enable_tensor_disk_offload: bool = False,
        task_interval: float = 0.5,
        server_memory_gc_rounds: int = 0,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        launch_once: bool = True,
        shutdown_timeout: float = 0.0,
        server_expected_format: ExchangeFormat = ExchangeFormat.PYTORCH,
        client_memory_gc_rounds: int = 0,
        cuda_empty_cache: bool = False,
        per_site_config: dict[str, dict[str, Any]] | None = None,
        federation: Mapping[str, Any] | None = None,
        **settings: Any,
    ):
        # Check what goes together.
        settings = {name: value for name, value in settings.items() if value is not None}
        site_settings, run_settings = split_settings(settings, "FairFLRecipe", _own_arguments())
        run_settings = {"seed": seed, **run_settings, **(federation or {})}
        if run_settings.get("guards") is not None:
            run_settings["guards"] = config_of_shipped(run_settings["guards"])
        check_run_settings(run_settings, num_rounds, min_clients, timeout)
        # The server makes its own: here it refuses what would end the job there.
        EarlyStop(stop_cond, patience)
        bundle_only = {"bundle": bundle, **_of_sites_only(settings), "custom_code": custom_code}
        script_only = {
            "model": model,
            "train_script": train_script,
            "train_args": train_args,
            "fedce_mode": fedce_mode,
            "trainable_param_names": trainable_param_names,
            "key_metric": key_metric,
            "key_metric_mode": key_metric_mode,
        }
        _check_bundle_or_script(_given(bundle_only), _given(script_only))

        # NVFlare looks for secrets in these attributes.
        self.train_args = train_args
        self.command = command
        self.min_clients = min_clients
        self.custom_code = custom_code
        self._resume = resume
        self.per_site: dict[str, dict[str, Any]] = {}
        # Files of the job until it is written.
        self._files = TemporaryDirectory()
        files = Path(self._files.name)

        if strategy is None:
            strategy = nvflare_fedce(fedce_mode) if bundle is None else "FedCE"
        self.strategy = strategy_of(strategy)
        self.own_classes = own_classes(self.strategy)

        # Check bundle or script together with the strategy.
        client_options = {
            "launch_external_process": launch_external_process,
            "command": command,
            "launch_once": launch_once,
            "shutdown_timeout": shutdown_timeout,
            "server_expected_format": server_expected_format,
            "memory_gc_rounds": client_memory_gc_rounds,
            "cuda_empty_cache": cuda_empty_cache,
        }
        self._sites: BundleJobSites | ScriptSites
        scripts: dict[str, str] | None = None
        if bundle is not None:
            self._sites = BundleJobSites(
                str(bundle),
                self.strategy,
                min_clients,
                settings=site_settings,
                custom_code=custom_code,
                options=client_options,
                folder=files,
            )
        else:
            check_federation(run_settings)
            mode = key_mode(key_metric, key_metric_mode, stop_cond)
            scripts = {"key_metric": key_metric, "key_metric_mode": mode}
            self._sites = ScriptSites(
                str(train_script),
                self.strategy,
                min_clients,
                train_args=train_args,
                options=client_options,
                model=model,
                trainable_param_names=trainable_param_names,
            )

        # Make the initial model.
        with own_random_state(seed):
            weights, spec = self._sites.initial(initial_ckpt)
        model_recipe = self._sites.recipe(per_site_config or {})
        write_initial(files / INITIAL, weights, spec, model_recipe, self._sites.asked)

        # Add the controller, with the initial model beside it.
        job = self._make_job(name or self._sites.name)
        parts = self.strategy.parts
        controller = FairFLController(
            self.strategy,
            num_rounds,
            min_clients,
            run_name=job.name,
            resume=resume,
            timeout=timeout,
            weighting=parts.weighting,
            reward=parts.reward,
            training=dict(parts.training) or None,
            average=parts.average,
            cap=parts.cap,
            clip_reports=parts.clip_reports,
            federation={**self._sites.federation, **run_settings},
            stop_cond=stop_cond,
            patience=patience,
            best_model_filename=best_model_filename,
            enable_tensor_disk_offload=enable_tensor_disk_offload,
            memory_gc_rounds=server_memory_gc_rounds,
            scripts=scripts,
            needs=needs_of(self.own_classes, custom_code),
        )
        job.to_server(controller)
        job.to_server({"server": {"task_request_interval": task_interval}})
        job.add_file_to_server(str(files / INITIAL), dest_dir=INITIAL, app_folder_type="config")

        # Add the sites: NVFlare calls _prepare_client_apps when it needs them.
        super().__init__(job)
        if per_site_config:
            self.set_per_site_config(per_site_config)

    def run(self, env: ExecEnv, *given: Any, **options: Any) -> Run:
        """Run the job; the simulator begins again once if it loses the process of a client.

        Args:
            env: where it runs: ``SimEnv``, ``PocEnv`` or ``ProdEnv``.
            given: as in NVFlare's recipes.
            options: as in NVFlare's recipes.

        Raises:
            LostClientError: when the simulator loses a client again.
        """
        if not isinstance(env, SimEnv):
            return super().run(env, *given, **options)
        try:
            return self._simulate(env, *given, **options)
        except LostClientError as error:
            if not self._resume:
                raise
            logger.warning("%s. The simulator begins again", error)
            return self._simulate(env, *given, **options)

    def _simulate(self, env: SimEnv, *given: Any, **options: Any) -> Run:
        """Run the simulator once.

        Raises:
            LostClientError: when it has lost the process of a client.
        """
        errors = Path(env.workspace_root) / self.name / "server" / ERRORS
        with ending_without_a_client(errors):
            return super().run(env, *given, **options)

    # ---- what NVFlare's Recipe asks for ----

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        self._sites.check(config)
        self.per_site = config

    def _prepare_client_apps(self) -> None:
        self._sites.add_to(self._job, self.per_site)

    def process_env(self, env: ExecEnv) -> None:
        """Allow in the simulator, which is the user's own, what a job without code needs."""
        if not isinstance(env, SimEnv) or self.custom_code:
            return
        server = Path(env.workspace_root) / self.name
        if not has_policy(server / "local"):
            write_default_policy(server / "local")
        allow(server, self.own_classes)

    def add_client_output_filter(self, filter: Filter, *arguments: Any, **options: Any) -> None:
        """Add a filter of what leaves the sites, such as NVFlare's ``PercentilePrivacy``.

        The filter sees the update.

        Raises:
            ConfigError: for homomorphic encryption, under which the strategy cannot work.
        """
        self._refuse_encryption(filter)
        super().add_client_output_filter(filter, *arguments, **options)

    def add_client_input_filter(self, filter: Filter, *arguments: Any, **options: Any) -> None:
        """Add a filter of what arrives at the sites; see :meth:`add_client_output_filter`."""
        self._refuse_encryption(filter)
        super().add_client_input_filter(filter, *arguments, **options)

    def _refuse_encryption(self, filter: Filter) -> None:
        """Refuse a filter that encrypts: no fair method works on ciphertext."""
        if type(filter).__module__.startswith("nvflare.app_opt.he"):
            raise ConfigError(
                f"{self.strategy.name} cannot work under {type(filter).__name__}: it compares the "
                "clients' updates, which homomorphic encryption hides from the server. Use "
                "NVFlare's own FedAvgRecipeWithHE, which only averages, or another privacy filter "
                "(PercentilePrivacy, SVTPrivacy)"
            )

    def _make_job(self, name: str) -> FedJob:
        """Return an empty job that names the packages whose code does not travel with it."""
        try:
            job = FedJob(name, self.min_clients)
        except ValueError as error:
            raise ConfigError(f"name {name!r}: {error}") from error
        job.set_app_packages(installed_packages(self.own_classes, self.custom_code))
        return job


def _own_arguments() -> set[str]:
    """Return the names of the recipe's own arguments, for the advice on a misspelt one."""
    return set(inspect.signature(FairFLRecipe).parameters) - {"settings"}


def _of_sites_only(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a bundle's sites that are not of the run, without default values."""
    defaults = JobSiteSettings()
    found = {}
    for name, value in settings.items():
        if name not in RUN_SETTINGS and value != getattr(defaults, name):
            found[name] = value
    return found


def _given(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of arguments of the recipe whose values are not the defaults."""
    parameters = inspect.signature(FairFLRecipe).parameters
    given = []
    for name, value in arguments.items():
        is_default = name in parameters and value == parameters[name].default
        if not is_default:
            given.append(name)
    return given


def _check_bundle_or_script(bundle_only: Sequence[str], script_only: Sequence[str]) -> None:
    """Refuse arguments of a bundle beside those of a script, and a job of neither.

    Args:
        bundle_only: names of the given arguments that belong to a bundle.
        script_only: names of those that belong to a training script.
    """
    if bundle_only and script_only:
        raise ConfigError(
            f"{', '.join(bundle_only)} belong to a bundle, {', '.join(script_only)} to a training "
            "script of your own: leave one of the two out. A script takes its settings from "
            "train_args, a bundle from overrides"
        )
    lacking = [name for name in ("model", "train_script") if name not in script_only]
    if "bundle" not in bundle_only and lacking:
        raise ConfigError(
            f"{', '.join(lacking)} must be given: a job needs a bundle, or a model and a "
            "train_script"
        )
