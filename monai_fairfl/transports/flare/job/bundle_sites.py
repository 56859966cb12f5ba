# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a job that trains a bundle: their settings, and what answers their tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor, ExecutionMode
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.job_config.api import FedJob
from nvflare.job_config.file_source import FileSource

from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.initial import (
    bundle_recipe,
    digests_of_configs,
    initial_model,
    warn_of_other_training,
)
from monai_fairfl.bundle.shipped import bundle_names, locate_bundle
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.flare.site.executor import FairFLExecutor
from monai_fairfl.transports.flare.site.job_settings import JobSiteSettings
from monai_fairfl.transports.flare.site.script import SCRIPT, SCRIPT_NAME, SETTINGS

IN_PROCESS_OPTIONS = ("server_expected_format", "memory_gc_rounds", "cuda_empty_cache")
"""Options of NVFlare's script runner that count without a process of the script's own."""


class BundleSites:
    """The sites of a job that run this package's client on their copy of a bundle.

    Args:
        bundle: name of a bundle of this package, or the path of one.
        strategy: of the federation.
        min_clients: of the federation.
        settings: of :class:`~monai_fairfl.transports.flare.site.job_settings.JobSiteSettings`, for
            every site.
        custom_code: by a script of the job; else by an executor of the installed package.
        options: of NVFlare's script runner, for every site.
        folder: gets the files that travel with the job.

    Raises:
        ConfigError: when bundle, strategy, overrides and number of clients do not go together.
    """

    def __init__(
        self,
        bundle: str,
        strategy: Strategy,
        min_clients: int,
        *,
        settings: Mapping[str, Any],
        custom_code: bool,
        options: Mapping[str, Any],
        folder: Path,
    ):
        self.root = locate_bundle(bundle)
        self.custom_code = custom_code
        self.options = options
        self.folder = folder
        self.name = f"{self.root.name}-{strategy.name}"

        # A site finds a shipped bundle by its name in its own installation.
        is_shipped = bundle in bundle_names()
        self.settings = {**settings, "bundle": bundle if is_shipped else str(self.root)}
        self.of_all = self._settings_of("", {})

        train = configuration.train_config(self.root, self.of_all.overrides, self.of_all.config)
        clients = [f"client {number}" for number in range(min_clients)]
        preflight.check_strategies([strategy], clients, train)

    @property
    def federation(self) -> dict[str, Any]:
        """Settings of the federation that follow from the bundle."""
        return {"final": list(closing_measurements(self.root))}

    @property
    def asked(self) -> dict[str, Any]:
        """What the run's ``config.json`` records: the job's settings and the bundle's full run.

        A site's own ``local/fairfl.json`` may set other values, which only the site knows.
        """
        full_run = configuration.full_run_of(self.root)
        return {
            "bundle": self.root.name,
            "files": digests_of_configs(self.root),
            **self.of_all.training(),
            "full_run": full_run,
            "trained_with": configuration.measured_settings(
                self.root, self.of_all.overrides, self.of_all.config, full_run
            ),
            "own_overrides": configuration.own_overrides(self.root, self.of_all.overrides),
        }

    def initial(self, file: str | None) -> tuple[Weights, ModelSpec]:
        """Return the bundle's network, built under the caller's seed, or the values of ``file``."""
        overrides, config = self.of_all.overrides, self.of_all.config
        model = initial_model(self.root, overrides, file, config)
        if file is not None:
            warn_of_other_training(file, bundle_recipe(self.root, overrides, config))
        return model

    def recipe(self, per_site: Mapping[str, Mapping[str, Any]]) -> ModelRecipe | None:
        """Return how the sites train.

        The job does not know what a site sets in its own ``local/fairfl.json``.
        """
        overrides, config = self.of_all.overrides, self.of_all.config
        of_sites = {}
        for site, own in per_site.items():
            of_sites[site] = {**own.get("overrides", {}), "config": own.get("config", config)}
        return bundle_recipe(
            self.root,
            overrides,
            config,
            of_sites,
            local_epochs=self.of_all.local_epochs,
            full_run=configuration.full_run_of(self.root),
        )

    def check(self, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse settings of single sites that no site knows.

        Raises:
            ConfigError: naming the setting and those there are.
        """
        for site, own in per_site.items():
            self._settings_of(site, own)

    def add_to(self, job: FedJob, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Give every site its settings and what answers its tasks."""
        if not per_site:
            self._add_site(job.to_clients, "all", {})
        for site, own in per_site.items():
            self._add_site(partial(job.to, target=site), site, own)

    def _settings_of(self, site: str, own: Mapping[str, Any]) -> JobSiteSettings:
        """Return the job's settings for one site."""
        where = f"per_site_config of {site}" if site else "the job"
        return JobSiteSettings.merged({**self.settings, **own}, {}, where)

    def _add_site(self, add: Any, name: str, own: Mapping[str, Any]) -> None:
        """Add what one site, or all of them, gets.

        Args:
            add: adds an object to the site's part of the job.
            name: of a folder for the site's files.
            own: the site's own settings.
        """
        settings = asdict(self._settings_of(name, own))
        if not self.custom_code:
            add(FairFLExecutor(settings), tasks=["*"])
            return
        folder = self.folder / name
        folder.mkdir()
        script = folder / SCRIPT_NAME
        script.write_text(SCRIPT)
        settings_file = folder / SETTINGS
        settings_file.write_text(json.dumps(settings, indent=1))
        add(self._client_api(), tasks=["*"])
        add(FileSource(str(script)))
        add(FileSource(str(settings_file), app_folder_type="config"))

    def _client_api(self) -> ClientAPIExecutor:
        """Return what runs the script at a site: in the job's process, or in one of its own."""
        options = dict(self.options)
        command = options.pop("command")
        in_own_process = options.pop("launch_external_process")
        if in_own_process:
            mode = ExecutionMode.EXTERNAL_PROCESS
            arguments = {"command": f"{command} custom/{SCRIPT_NAME}", **options}
        else:
            mode = ExecutionMode.IN_PROCESS
            arguments = {name: options[name] for name in IN_PROCESS_OPTIONS}
            arguments["task_script_path"] = SCRIPT_NAME
        return ClientAPIExecutor(
            execution_mode=mode,
            params_exchange_format=ExchangeFormat.PYTORCH,
            # The site computes the update itself and marks it as a difference.
            params_transfer_type=TransferType.FULL,
            **arguments,
        )
