# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a job of a user's arguments: of its bundle, its strategy, and settings.

What the simulations of all engines share is here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.checks import check_strategies
from monai_fairfl.bundle.initial import bundle_recipe, initial_model
from monai_fairfl.bundle.settings import TRAINS, rows_of
from monai_fairfl.bundle.shipped import bundle_names, locate_bundle
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.errors import ConfigError, FederationError, did_you_mean
from monai_fairfl.run.resuming import ended
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job import Job, Start, config_of_shipped
from monai_fairfl.transports.engines.site import JobSiteSettings
from monai_fairfl.utils.arguments import JOB, marked
from monai_fairfl.utils.files import LONGEST_NAME, safe_name
from monai_fairfl.utils.tensors import own_random_state

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
