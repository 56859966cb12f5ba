# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job of a bundle: what its sites are given, and what runs there."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from monai_fairfl.bundle.site import has_evaluation
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Weights
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.flare.site.answering import SiteSettings
from monai_fairfl.transports.flare.site.executor import FairFLExecutor
from monai_fairfl.transports.flare.site.script import SCRIPT, SCRIPT_NAME, SETTINGS


class BundleSites:
    """The sites of a job run this package's client on their copy of a bundle.

    Args:
        bundle: name of a bundle of this package, or the path of one.
        strategy: of the federation.
        min_clients: of the federation.
        settings: of :class:`~monai_fairfl.transports.flare.site.answering.SiteSettings`, for every site.
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
        settings: Mapping[str, Any],
        custom_code: bool,
        options: Mapping[str, Any],
        folder: Path,
    ):
        self.root, shipped = locate_bundle(bundle), bundle in bundle_names()
        self.settings: dict[str, Any] = {
            **settings,
            "bundle": bundle if shipped else str(self.root),
        }
        self.custom_code, self.options, self.folder = custom_code, options, folder
        train = configuration.train_config(
            self.root, self.settings["overrides"], self.settings["config"]
        )
        preflight.check_strategies([strategy], [f"client {i}" for i in range(min_clients)], train)
        self.check({})
        self.name = f"{self.root.name}-{strategy.name}"
        self.federation = {
            "final": ["score", "test_score"] if has_evaluation(self.root) else ["score"]
        }

    @property
    def asked(self) -> dict[str, Any]:
        """What the run's ``config.json`` records: the job's settings and the bundle's full run, as
        the lead has them.

        A site's own ``local/fairfl.json`` may set other values, which only the site knows.
        """
        federate = self.root / "configs" / "federate.json"
        full_run = json.loads(federate.read_text()).get("full_run") if federate.exists() else None
        plain = ("config", "overrides", "local_epochs", "amp")
        return {
            "bundle": self.root.name,
            "files": digests_of_configs(self.root),
            **{key: self.settings[key] for key in plain},
            "full_run": full_run,
        }

    def initial(self, file: str | None) -> tuple[Weights, ModelSpec]:
        """The bundle's network, built under the caller's seed, or the values of ``file``."""
        overrides, config = self.settings["overrides"], self.settings["config"]
        model = initial_model(self.root, overrides, file, config)
        if file is not None:
            warn_of_other_training(file, bundle_recipe(self.root, overrides, config))
        return model

    def recipe(self, per_site: Mapping[str, Mapping[str, Any]]) -> ModelRecipe | None:
        """How the sites train; what a site sets in its own ``local/fairfl.json`` the job does not
        know.
        """
        of_sites = {}
        for site, settings in per_site.items():
            config = settings.get("config", self.settings["config"])
            of_sites[site] = {**settings.get("overrides", {}), "config": config}
        return bundle_recipe(
            self.root, self.settings["overrides"], self.settings["config"], of_sites
        )

    def check(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse settings of single sites that no site knows.

        Raises:
            ConfigError: naming the setting and those there are.
        """
        for site, own in (config or {"": {}}).items():
            SiteSettings.of({**self.settings, **own}, {}, f"per_site_config of {site}")

    def add(self, job: FedJob, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Give every site its settings and what answers its tasks."""
        for site, own in (per_site or {"": {}}).items():
            settings = {**self.settings, **own}
            add = (
                job.to_clients
                if not site
                else lambda obj, site=site, **options: job.to(obj, site, **options)
            )
            if not self.custom_code:
                add(FairFLExecutor(settings), tasks=["*"])
                continue
            folder = self.folder / (site or "all")
            folder.mkdir()
            (folder / SCRIPT_NAME).write_text(SCRIPT)
            (folder / SETTINGS).write_text(json.dumps(settings, indent=1))
            add(self._client_api(), tasks=["*"])
            add(FileSource(str(folder / SCRIPT_NAME)))
            add(FileSource(str(folder / SETTINGS), app_folder_type="config"))

    def _client_api(self) -> ClientAPIExecutor:
        """What runs the script at a site: in the job's process, or in one of its own."""
        options = dict(self.options)
        arguments: dict[str, Any]
        if options.pop("launch_external_process"):
            mode, command = (
                ExecutionMode.EXTERNAL_PROCESS,
                f"{options.pop('command')} custom/{SCRIPT_NAME}",
            )
            arguments = {"command": command, **options}
        else:
            mode = ExecutionMode.IN_PROCESS
            keys = ("server_expected_format", "memory_gc_rounds", "cuda_empty_cache")
            arguments = {"task_script_path": SCRIPT_NAME, **{key: options[key] for key in keys}}
        return ClientAPIExecutor(
            execution_mode=mode,
            params_exchange_format=ExchangeFormat.PYTORCH,
            params_transfer_type=TransferType.FULL,  # the update is made here, and says so itself
            **arguments,
        )
