# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of a job: the job's settings below its own, its bundle and data, and its one client.

A job must bring neither code nor files of the site into the site's configuration. How a job is made
of a user's arguments, and what the simulations of all engines share, is here, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ReferenceResolver
from monai.utils import ensure_tuple

from monai_fairfl.bundle import SiteSettings, configuration
from monai_fairfl.bundle.checks import check_strategies
from monai_fairfl.bundle.settings import TRAINS, rows_of
from monai_fairfl.bundle.shipped import bundle_names, locate_bundle
from monai_fairfl.bundle.site import (
    bundle_client,
    bundle_recipe,
    check_files,
    chosen_sites,
    closing_measurements,
    initial_model,
)
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.errors import ConfigError, FederationError, did_you_mean, in_words
from monai_fairfl.messages import Reply, Request
from monai_fairfl.run.resuming import ended
from monai_fairfl.server import RunSettings
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job import Job, Start, config_of_shipped, storage_folder
from monai_fairfl.transports.engines.wire import Packed, request_from
from monai_fairfl.utils.arguments import JOB, marked, setting
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import LONGEST_NAME, private_folder, safe_name
from monai_fairfl.utils.named_classes import made
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.tensors import own_random_state

logger = logging.getLogger(__name__)

SITE_FILE = "local/fairfl.json"
"""The hospital's own settings, in its workspace: they win over those of any job."""


@dataclass(frozen=True)
class JobSiteSettings(SiteSettings):
    """What a site of a job needs to know: some of it from the job, the rest from the site's file.

    Args:
        bundle: name of a bundle of this package, or the path of one on the site. A job may give a
            site that names its own images no path.
        dataset_dir: the site's images and labels.
        sites_root: a folder with the data of every site, for trials on one machine.
        device: such as ``"cuda:0"``; by default the first GPU, else the processor.
        threads: of torch on the processor; more than one changes bits.
        groups: name -> sites.
        check: read every image before the first round that the site takes part in.

    The others are those of :class:`~monai_fairfl.bundle.settings.SiteSettings`; overrides of a job
    are plain values only.
    """

    device: str = setting("")
    bundle: str = setting("")
    dataset_dir: str = setting("")
    sites_root: str = setting("")
    threads: int = setting(1, allowed="[1, inf)")
    groups: Mapping[str, Sequence[str]] = setting({})
    check: bool = setting(True)

    def __post_init__(self) -> None:
        """Refuse values that become part of a configuration, where other texts could be code."""
        super().__post_init__()
        for name in self.groups:
            safe_name(name, "groups: the name")

    @classmethod
    def merged(
        cls, job: Mapping[str, Any], own: Mapping[str, Any], where: str = SITE_FILE
    ) -> JobSiteSettings:
        """Return the job's settings with the site's own over them; the overrides of both count.

        What the site sets, as a setting or an override, no override of the job replaces, at
        whatever depth. A site whose settings name its data is not sent to other files by a job.

        Args:
            job: the job's settings.
            own: the site's settings.
            where: the file of the site's settings, for errors.

        Raises:
            ConfigError: for an unknown key, a value of the wrong type, the images of a site named
                by a job, a folder of the site named by a job as its bundle, a permission that only
                the site can give, or an override of the job that is an expression, which would be
                the job's code, run by the site, or names a file of the site.

        >>> job = {"bundle": "a", "overrides": {"amp": True}}
        >>> JobSiteSettings.merged(job, {"bundle": "/b"}).bundle
        '/b'
        >>> JobSiteSettings.merged({"overrides": {"size": "$__import__('os').getcwd()"}}, {})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the job sets overrides to the expression or class "$__i...
        """
        settings: JobSiteSettings = made(cls, [], {**job, **own})
        own_overrides = own.get("overrides") or {}
        set_by_site = {*own, *own_overrides}
        usable = {}
        for key, value in (job.get("overrides") or {}).items():
            if key not in set_by_site and _parts(key)[-1] not in set_by_site:
                usable[key] = value
        _check_job({**job, "overrides": usable}, own, where)
        return replace(settings, overrides={**usable, **own_overrides})


def _check_job(job: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Refuse what only a site itself can set."""

    def refuse(what: str, why: str) -> None:
        raise ConfigError(
            f"the job sets {what}, {why}: leave it out of the job, or let the site write it into "
            f"{where}"
        )

    for name in ("dataset_dir", "alone"):
        if job.get(name) and not own.get(name):
            refuse(name, "and only a site itself knows its files")
    for file in ensure_tuple(job.get("config", ())):
        if _is_outside(file):
            refuse(f"config to {file!r}", "which is no file of the bundle")

    # A bundle is code. A site without images of its own is one of a trial on one machine, where the
    # lead knows the folders.
    named = job.get("bundle")
    of_a_hospital = "dataset_dir" in own and not own.get("bundle")
    if named and of_a_hospital and named not in bundle_names():
        refuse(f"bundle to {named!r}", "which is none of the package, and a bundle is code")

    for key, value in _nodes(job["overrides"]):
        if _is_code(key, value):
            found = value if isinstance(value, str) else "#".join(key)
            refuse(f"overrides to the expression or class {found!r}", "and must not bring code")
        if "dataset_dir" in key and not own.get("dataset_dir"):
            refuse("dataset_dir", "and only a site itself knows its images")
        if "dataset_dir" in own and _is_outside(value):
            refuse(f"overrides to {value!r}", "and the site's own dataset_dir names its data")


def _nodes(value: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a value and all that is in it, each with the parts of its key."""
    yield key, value
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _nodes(inner, key + _parts(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _nodes(inner, key)


def _parts(key: object) -> tuple[str, ...]:
    """Return the parts of an override's key, without the signs that say how files are merged.

    >>> _parts("train#+handlers::0::_mode_")
    ('train', 'handlers', '0', '_mode_')
    """
    return tuple(str(part).lstrip(" +~") for part in ReferenceResolver.split_id(str(key)))


def _is_code(key: Sequence[str], value: Any) -> bool:
    """Return whether MONAI would run something.

    That is a value that is an expression or a reference, imports, or a key that begins with an
    underscore, which MONAI reads as an order: ``_target_`` builds a class, ``_mode_`` opens a
    debugger, ``_requires_`` runs something first, ``_disabled_`` leaves a component out.

    >>> _is_code(["train", "handlers", "0", "_mode_"], "debug"), _is_code(["batch_size"], 2)
    (True, False)
    """
    if isinstance(value, str) and value.lstrip().startswith(("$", "@", "%")):
        return True
    return any(part.startswith(("_", "imports")) or "_target_" in part for part in key)


def _is_outside(value: Any) -> bool:
    """Return whether a value is a path outside the folder where the job runs."""
    return isinstance(value, str) and (Path(value).is_absolute() or ".." in Path(value).parts)


def simulated_sites(
    sites_root: str | Path, chosen: str | Sequence[str] | None, bundle: str
) -> dict[str, Path]:
    """Return the sites that take part in a simulation, sorted -> folder of each one's images.

    Args:
        sites_root: one folder per site.
        chosen: name or names of those that take part; ``None``: all.
        bundle: of the job.

    Raises:
        ConfigError: when the folder is missing or empty, or has no folder for a chosen site.
    """
    federate = configuration.read_keys(locate_bundle(bundle) / configuration.FEDERATE)
    return chosen_sites(sites_root, chosen, {}, bool(federate.get("any_folder")))


class Site:
    """Answers the requests of one job.

    Its state is on disk, so a new process goes on where the previous one ended.

    Args:
        name: of the site.
        workspace: the site's own folder: ``local/fairfl.json`` is read there, states are stored in
            ``fairfl``.
        job: the job's settings, see :class:`JobSiteSettings`.
    """

    def __init__(self, name: str, workspace: str | Path, job: Mapping[str, Any]):
        self.name = safe_name(name)
        self.workspace = Path(workspace)
        self.file = self.workspace / SITE_FILE
        self.job = job
        self._threads = 1
        self._client: FairMonaiAlgo | None = None

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
                reason += f" (site {self.name}: set by the job, or in {self.file})"
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
        images = self.images(settings)
        # One folder for all jobs of the site, and for nobody else on its machine.
        private = private_folder(storage_folder(self.workspace)) / self.name
        client = bundle_client(
            bundle_root,
            self.name,
            private,
            dataset_dir=images,
            groups=settings.groups,
            rounds=rounds,
            **vars(settings.for_site({})),
        )
        client.states.begin(request.run, request.run_id)
        # A site with the state of an earlier round passed the check in an earlier process.
        is_known = client.states.before(request.run, request.round)
        if settings.check and not is_known:
            check_files(bundle_root, images, settings.overrides)
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

    def images(self, settings: JobSiteSettings) -> Path:
        """Return the folder of the site's images.

        Raises:
            ConfigError: when nobody names it.
        """
        if settings.dataset_dir:
            return Path(str(settings.dataset_dir))
        if not settings.sites_root:
            raise ConfigError('where are its images? Set "dataset_dir" to their folder')
        return simulated_sites(settings.sites_root, self.name, settings.bundle)[self.name]


# ---- making a job


OF_SITES = set(rows_of(JOB, JobSiteSettings)) - {"bundle"}
"""Settings of a bundle's sites that a job may bring."""

OF_RUN = {*rows_of(JOB, RunSettings), "guards"}
"""Settings of a run for which a job has no argument of its own, and its guards."""

OWN = [entry.name for entry in fields(Job) if entry.name not in ("sites", "run")]
"""Arguments of a job that are no settings of its sites or its run."""


def job_of(*, bundle: str, **given: Any) -> Job:
    """Return the job of a user's arguments, checked.

    >>> given = {"bundle": "prostate_mri_segmentation", "local_epochs": 2, "keep": 5}
    >>> job = job_of(**given)
    >>> job.name, job.sites, job.run["keep"]
    ('prostate_mri_segmentation-FedCE', {'local_epochs': 2}, 5)

    Args:
        bundle: name of a bundle of this package, or the path of one.
        given: the other fields of a job, and in place of ``sites`` and ``run`` their settings;
            ``None`` stands for the default.

    Raises:
        ConfigError: when an argument is unknown, or bundle, strategy, settings and number of
            clients do not go together.
    """
    given = {name: value for name, value in given.items() if value is not None}
    known = {*OWN, *OF_SITES, *OF_RUN}
    for name in given:
        if name not in known:
            raise ConfigError(f"a job has no argument {name!r}{did_you_mean(name, known)}")
    own, sites, run = (
        {name: value for name, value in given.items() if name in names}
        for names in (OWN, OF_SITES, OF_RUN)
    )
    root = locate_bundle(bundle)
    # A site finds a shipped bundle by its name in its own installation.
    own["bundle"] = bundle if bundle in bundle_names() else str(root)
    if "sites_root" in sites:
        sites["sites_root"] = str(Path(sites["sites_root"]).absolute())
    if "guards" in run:
        run["guards"] = config_of_shipped(run["guards"])
    run = {"seed": 0, "final": list(closing_measurements(root)), **run}
    job = Job(**own, sites=sites, run=run)

    of_run = {name: value for name, value in run.items() if name != "guards"}
    settings = RunSettings(job.num_rounds, job.min_clients, timeout=job.timeout or None, **of_run)
    of_all = site_settings_of(job)
    strategy = strategy_of(job.strategy)
    train = configuration.train_config(root, of_all.overrides, of_all.config)
    clients = [f"client {number}" for number in range(job.min_clients)]
    check_strategies([strategy], clients, train, settings)
    name = safe_name(job.name or f"{root.name}-{strategy.name}", "name", LONGEST_NAME)
    return replace(job, name=name)


def site_settings_of(job: Job) -> JobSiteSettings:
    """Return the job's settings for every site."""
    return JobSiteSettings.merged({"bundle": job.bundle, **job.sites}, {})


def start_of(job: Job) -> Start:
    """Return what the server begins with.

    Raises:
        ConfigError: when the network cannot be built.
        FederationError: when the file of ``initial_ckpt`` does not fit it.
    """
    root, of_all = locate_bundle(job.bundle), site_settings_of(job)
    overrides, config = of_all.overrides, of_all.config
    with own_random_state(job.run["seed"]):
        weights, spec = initial_model(root, overrides, job.initial_ckpt or None, config)
    full_run = configuration.read_keys(root / configuration.FEDERATE).get("full_run")
    recipe, files = bundle_recipe(root, of_all, {}, full_run)
    asked = {
        "bundle": root.name,
        "files": files,
        **marked(of_all, TRAINS),
        "full_run": full_run,
    }
    return Start(weights, spec, recipe, asked)


@contextmanager
def simulation(run: Path, log: Path | None = None) -> Iterator[None]:
    """Inside, a simulation runs.

    Args:
        run: the run's folder.
        log: file that shows why a run did not end.

    Raises:
        FederationError: when the simulation fails, or returns before its run has ended.
    """
    try:
        yield
        if not ended(run):
            raise RuntimeError(f"the run did not end{f', {log} shows the reason' if log else ''}")
    except RuntimeError as error:
        raise FederationError(f"{error}; the same command goes on where it stopped") from error
