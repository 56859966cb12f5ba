# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job in Flower's simulation: a server, and sites in the worker processes of Ray."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from monai_fairfl.errors import FederationError
from monai_fairfl.run.resuming import ended
from monai_fairfl.transports.engines.job_arguments import simulated_sites
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.engines.storage import folder_of_run
from monai_fairfl.transports.flower.job.flower_job import FlowerJob, site_settings
from monai_fairfl.transports.flower.server.job import ServerJob
from monai_fairfl.transports.flower.server.names import NamesByAnswer
from monai_fairfl.transports.flower.site.answering import client_app

logger = logging.getLogger(__name__)

SERVER = "server"
SITES = "sites"
"""Folders in a workspace."""
MOST_SITES = 8
"""That one process has in memory."""


def simulate_job(
    workspace: str | Path,
    sites_root: str | Path,
    site_names: Sequence[str] | None = None,
    watch: Callable[[Path, str], AbstractContextManager[None]] | None = None,
    processes: int | None = None,
    **arguments: Any,
) -> Path:
    """Run a federation in Flower's simulation, with sites in processes of this machine.

    Args:
        workspace: gets ``server/NAME``, the run, and ``sites/SITE``, the states of the sites; a run
            that did not end goes on.
        sites_root: one folder per site.
        site_names: those that take part; all by default.
        watch: makes what is entered while the simulation runs, of the run's folder and its name.
        processes: that train at a time; as many as the machine has processors by default.
        arguments: of :meth:`~monai_fairfl.transports.flower.job.flower_job.FlowerJob.of`.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; it names the reason.
    """
    sites = simulated_sites(sites_root, site_names, arguments.get("bundle"))
    job = FlowerJob.of(sites_root=sites_root, **{"min_clients": len(sites), **arguments})
    folder = Path(workspace).absolute()
    run = folder_of_run(folder / SERVER, job.name, job.resume)
    server_job = ServerJob(job)

    failures: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        # Flower prints an exception of this thread, and raises another one.
        try:
            server_job.run(grid, NamesByAnswer(grid), folder / SERVER)
        except BaseException as error:
            logger.debug("the server's part of the simulation failed", exc_info=True)
            failures.append(error)

    watched = watch or (lambda folder, name: nullcontext())
    of_sites = site_settings(job.run_config())
    site_of = partial(_site_of, sites, folder / SITES, json.dumps(of_sites))
    at_a_time = min(processes or os.cpu_count() or 1, len(sites))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with watched(run, job.name):
        run_simulation(
            server_app=server,
            client_app=client_app(site_of),
            num_supernodes=len(sites),
            backend_config={
                "init_args": {"num_cpus": at_a_time},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    if failures:
        raise FederationError(
            f"{failures[0]}; the same command goes on where it stopped"
        ) from failures[0]
    if not ended(run):
        raise FederationError(
            "Flower's simulation ended before the run; the same command goes on where it stopped"
        )
    return run


def _site_of(sites: Sequence[str], folder: Path, job: str, context: Context) -> Site:
    """Return the site that a simulated node is: the one of its number.

    Args:
        sites: all of them, sorted.
        folder: gets a folder for each.
        job: settings of the sites, as JSON.
        context: of the node.
    """
    name = sites[int(context.node_config["partition-id"])]
    return _site(name, folder / name, job)


@lru_cache(maxsize=MOST_SITES)
def _site(name: str, folder: Path, job: str) -> Site:
    """Return a site, the same for each message that this process answers for it.

    Another process may have trained it in the meantime: its state is on disk.
    """
    return Site(name, folder, json.loads(job))
