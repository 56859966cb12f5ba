# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of a job: its own bundle and data, and one client that answers its requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.bundle.sites import data_folders
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.engines.job import storage_folder
from monai_fairfl.transports.engines.site_settings import SITE_FILE, JobSiteSettings
from monai_fairfl.transports.engines.wire import Packed, request_from
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
        self.file = self.workspace / SITE_FILE
        self.job = job
        self._threads = 1
        self._client: FairMonaiAlgo | None = None
        # Both write several lines per round and site that tell nothing.
        for library in ("ignite", "monai"):
            logging.getLogger(library).setLevel(logging.WARNING)

    def answer(self, read: Callable[[], Packed]) -> Reply:
        """Carry out one request.

        Whatever goes wrong is reported in the reply, and the site waits for the next request.

        Args:
            read: returns the request as the engine carries it.
        """
        try:
            request, rounds = request_from(read(), self.name)
            if self._client is None:
                self._client = self._checked_client(request, rounds)
            # It is one of this thread: an engine may use another one for each task.
            torch.set_num_threads(self._threads)
            return self._client.answer(request)
        except Exception as error:
            logger.exception("site %s cannot do its task", self.name)
            reason = in_words(error)
            if isinstance(error, ConfigError):
                reason += f" (site {self.name}; its own settings are in {self.file})"
            # Of an error the server reads no more; it knows whom it asked.
            return Reply(self.name, None, 0, error=reason)

    def close(self) -> None:
        """Release the client at the end of the job."""
        if self._client is not None:
            self._client.finalize()

    def _checked_client(self, request: Request, rounds: int) -> FairMonaiAlgo:
        """Make the client, and check its files before the first round of a run."""
        settings = self.settings()
        settings = replace(settings, device=settings.device or best_device())
        require_device(settings.device)
        bundle_root = self.bundle_root(settings)
        images = self.images(settings, bundle_root)
        # One folder for all jobs of the site, and for nobody else on its machine.
        private = private_folder(storage_folder(self.workspace)) / self.name
        client = bundle_client(
            bundle_root,
            self.name,
            private,
            dataset_dir=images,
            groups=settings.groups,
            rounds=rounds,
            **settings.of_client(),
        )
        client.states.begin(request.run, request.run_id)
        file = bundle_root / "configs" / "federate.json"
        # A site with the state of an earlier round passed the check in an earlier process.
        is_known = client.states.before(request.run, request.round)
        if settings.check and not is_known and file.exists():
            parser = ConfigParser()
            parser.read_config(str(file))
            parser["bundle_root"] = str(bundle_root)
            check = configuration.parsed_value(parser, "check")
            if check is not None:
                check(str(images), **configuration.settings_of_files(settings.overrides))
        self._threads = settings.threads
        return client

    def settings(self) -> JobSiteSettings:
        """Return the settings of the job and of the site's own file.

        Raises:
            ConfigError: when they cannot be used together.
        """
        try:
            own = object_of_json(self.file.read_bytes()) if self.file.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{self.file} cannot be read as settings: {error}") from error
        return JobSiteSettings.merged(self.job, own, str(self.file))

    def bundle_root(self, settings: JobSiteSettings) -> Path:
        """Return the site's bundle: a path, or one of those that came with the package.

        Raises:
            ConfigError: there is no such bundle, or it is among the files that jobs brought.
        """
        root = locate_bundle(settings.bundle)
        # A bundle is code, and the engine unpacks each job's files into the workspace.
        if root.resolve().is_relative_to(self.workspace.resolve()):
            raise ConfigError(
                f"the bundle {str(root)!r} lies in the workspace, where a job's own files are. "
                'Copy it to another folder, and set "bundle" to that'
            )
        return root

    def images(self, settings: JobSiteSettings, bundle_root: Path) -> Path:
        """Return the folder of the site's images.

        Raises:
            ConfigError: when nobody names it.
        """
        if settings.dataset_dir:
            return Path(settings.dataset_dir)
        folders: Mapping[str, Path] = {}
        if settings.sites_root:
            any_folder = configuration.takes_any_folder(bundle_root)
            folders = data_folders(Path(settings.sites_root), any_folder)
        if self.name not in folders:
            held = f"; {settings.sites_root} holds {sorted(folders)}" if folders else ""
            raise ConfigError(f'where are its images? Set "dataset_dir" to their folder{held}')
        return folders[self.name]
