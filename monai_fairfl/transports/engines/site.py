# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of a job: its own bundle and data, and one client that answers its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.preflight import data_folders
from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import Reply, Request, failed
from monai_fairfl.transports.engines.site_settings import SITE_FILE, JobSiteSettings
from monai_fairfl.transports.engines.storage import storage_folder
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder, safe_name
from monai_fairfl.utils.plain_values import object_of_json

logger = logging.getLogger(__name__)


class Site:
    """Answers the requests of one job.

    Its state is on disk, so a new process goes on where the previous one ended.

    Args:
        name: of the site.
        workspace: the site's own folder: ``local/fairfl.json`` is read there, states are stored in
            ``fairfl``.
        job: the job's settings, see
            :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`.
    """

    def __init__(self, name: str, workspace: str | Path, job: Mapping[str, Any]):
        self.name = safe_name(name)
        self.workspace = Path(workspace)
        self.job = job
        self._checked = False
        self._client: FairMonaiAlgo | None = None
        # Both write several lines per round and site that tell nothing.
        for library in ("ignite", "monai"):
            logging.getLogger(library).setLevel(logging.WARNING)

    def answer(self, read: Callable[[str], tuple[Request, int]]) -> Reply:
        """Carry out one request.

        Whatever goes wrong is reported in the reply, and the site waits for the next request.

        Args:
            read: returns the request to the site of this name, and the number of rounds of its run.
        """
        try:
            request, rounds = read(self.name)
        except Exception as error:
            logger.exception("site %s cannot read its task", self.name)
            return Reply(self.name, None, 0, error=in_words(error))
        try:
            return self._prepared_client(request, rounds).answer(request)
        except Exception as error:
            logger.exception(
                "site %s cannot do task %d of round %d", self.name, request.id, request.round
            )
            return failed(request, in_words(error))

    def close(self) -> None:
        """Release the client at the end of the job."""
        if self._client is not None:
            self._client.finalize()

    # ---- set-up, when the first task comes ----

    @cached_property
    def settings(self) -> JobSiteSettings:
        """The settings of job and site."""
        file = self.workspace / SITE_FILE
        try:
            own = object_of_json(file.read_bytes()) if file.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{file} cannot be read as settings: {error}") from error
        return JobSiteSettings.merged(self.job, own, str(file))

    @cached_property
    def bundle_root(self) -> Path:
        """The site's bundle: a path, or one of those that came with the package.

        Raises:
            ConfigError: there is no such bundle, or it is among the files that jobs brought.
        """
        fix = f'write {{"bundle": "/path/of/the/bundle"}} into {self.workspace / SITE_FILE}'
        try:
            root = locate_bundle(self.settings.bundle)
        except ConfigError as error:
            raise ConfigError(f"site {self.name}: {error}: {fix}") from error
        # A bundle is code, and the engine unpacks each job's files into the workspace.
        if root.resolve().is_relative_to(self.workspace.resolve()):
            raise ConfigError(
                f"site {self.name}: the bundle {str(root)!r} lies in the workspace, where a job's "
                f"own files are. Copy it to another folder, and {fix}"
            )
        return root

    @cached_property
    def dataset_dir(self) -> Path:
        """The folder of the site's images."""
        if self.settings.dataset_dir:
            return Path(self.settings.dataset_dir)
        folders: Mapping[str, Path] = {}
        if self.settings.sites_root:
            any_folder = configuration.takes_any_folder(self.bundle_root)
            folders = data_folders(Path(self.settings.sites_root), any_folder)
        if self.name in folders:
            return folders[self.name]
        held = f"; {self.settings.sites_root} holds {sorted(folders)}" if folders else ""
        raise ConfigError(
            f'site {self.name}: where are its images? Write {{"dataset_dir": "/path"}} into '
            f"{self.workspace / SITE_FILE}{held}"
        )

    def _prepared_client(self, request: Request, rounds: int) -> FairMonaiAlgo:
        """Return the client, once the site's files have passed their check."""
        # The number of threads is one of this thread: an engine may use another one for each task.
        torch.set_num_threads(self.settings.threads)
        if self._client is None:
            self._client = self._make_client(rounds)
        if self.settings.check and not self._checked:
            self._client.states.begin(request.run, request.run_id)
            # A site with the state of an earlier round passed the check in an earlier process.
            if not self._client.states.before(request.run, request.round):
                self._check()
        self._checked = True
        return self._client

    def _check(self) -> None:
        """Run the bundle's own check of the site's files, if its ``federate.json`` names one."""
        file = self.bundle_root / "configs" / "federate.json"
        if not file.exists():
            return
        parser = ConfigParser()
        parser.read_config(str(file))
        parser["bundle_root"] = str(self.bundle_root)
        check = configuration.parsed_value(parser, "check")
        if check is not None:
            check(str(self.dataset_dir), **configuration.settings_of_files(self.settings.overrides))

    def _make_client(self, rounds: int) -> FairMonaiAlgo:
        settings = self.settings.of_client()
        settings["device"] = settings["device"] or best_device()
        try:
            require_device(settings["device"])
        except ConfigError as error:
            where = f"It is set in {self.workspace / SITE_FILE}, or by the job"
            raise ConfigError(f"site {self.name}: {error}. {where}") from error
        # One folder for all jobs of the site, and for nobody else on its machine.
        storage = private_folder(storage_folder(self.workspace))
        return bundle_client(
            self.bundle_root,
            self.name,
            storage / self.name,
            dataset_dir=self.dataset_dir,
            groups=self.settings.groups,
            rounds=rounds,
            **settings,
        )
