# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a job that trains a bundle: what answers their tasks."""

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

from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.engines.bundle_job import BundleJob
from monai_fairfl.transports.flare.site.executor import FairFLExecutor
from monai_fairfl.transports.flare.site.script import SCRIPT, SCRIPT_NAME, SETTINGS

IN_PROCESS_OPTIONS = ("server_expected_format", "memory_gc_rounds", "cuda_empty_cache")
"""Options of NVFlare's script runner that count without a process of the script's own."""


class BundleJobSites(BundleJob):
    """The sites of a job that run this package's client on their copy of a bundle.

    Args:
        bundle: name of a bundle of this package, or the path of one.
        strategy: of the federation.
        min_clients: of the federation.
        settings: of :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`, for
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
        super().__init__(bundle, strategy, min_clients, settings)
        self.custom_code = custom_code
        self.options = options
        self.folder = folder

    def check(self, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse settings of single sites that no site knows.

        Raises:
            ConfigError: naming the setting and those there are.
        """
        for site, own in per_site.items():
            self.settings_of(site, own)

    def add_to(self, job: FedJob, per_site: Mapping[str, Mapping[str, Any]]) -> None:
        """Give every site its settings and what answers its tasks."""
        if not per_site:
            self._add_site(job.to_clients, "all", {})
        for site, own in per_site.items():
            self._add_site(partial(job.to, target=site), site, own)

    def _add_site(self, add: Any, name: str, own: Mapping[str, Any]) -> None:
        """Add what one site, or all of them, gets.

        Args:
            add: adds an object to the site's part of the job.
            name: of a folder for the site's files.
            own: the site's own settings.
        """
        settings = asdict(self.settings_of(name, own))
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
