# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job in Flower's simulation: a server, and sites in the worker processes of Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from monai_fairfl.transports.engines.job import folder_of_run, run_job
from monai_fairfl.transports.engines.making_jobs import (
    Watch,
    simulated_sites,
    simulation,
    start_of,
)
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.flower.apps import FlowerTransport, answering_app, packed_of
from monai_fairfl.transports.flower.job import FlowerJob, site_settings
from monai_fairfl.utils.files import safe_name

MOST_SITES = 8
"""That one process has in memory."""


def simulate_job(
    workspace: str | Path,
    sites_root: str | Path,
    site_names: Sequence[str] | None = None,
    watch: Watch = lambda folder, name: nullcontext(),
    processes: int | None = None,
    *,
    bundle: str,
    **arguments: Any,
) -> Path:
    """Run a federation in Flower's simulation, with sites in processes of this machine.

    Args:
        workspace: gets ``server/NAME``, the run, and ``sites/SITE``, the states of the sites; a run
            that did not end goes on.
        sites_root: one folder per site.
        site_names: those that take part; all by default.
        watch: is entered while the simulation runs.
        processes: that train at a time; as many as the machine has processors by default.
        bundle: as for :meth:`~monai_fairfl.transports.flower.FlowerJob.of`.
        arguments: likewise.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; it names the reason.
    """
    sites = simulated_sites(sites_root, site_names, bundle)
    given = {"min_clients": len(sites), **arguments}
    job = FlowerJob.of(bundle=bundle, sites_root=sites_root, **given)
    folder = Path(workspace).absolute()
    run = folder_of_run(folder / "server", job.name)
    # Here: MONAI looks through all imported modules for each configuration, and fails while another
    # thread imports one.
    start = start_of(job)

    failures: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def nodes() -> dict[str, int]:
            return dict(zip(sites, sorted(grid.get_node_ids()), strict=False))

        transport = FlowerTransport(grid, nodes, job.num_rounds, job.min_clients, job.timeout)
        # Flower prints an exception of this thread, and raises another one.
        try:
            run_job(run, job, start, transport, "Flower")
        except BaseException as error:
            failures.append(error)

    site_of = partial(_site_of, folder / "sites", json.dumps(site_settings(job.run_config())))
    at_a_time = min(processes or os.cpu_count() or 1, len(sites))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with simulation(run, job.name, watch):
        run_simulation(
            server_app=server,
            client_app=answering_app(site_of),
            num_supernodes=len(sites),
            backend_config={
                "init_args": {"num_cpus": at_a_time},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        for error in failures:
            raise RuntimeError(str(error)) from error
    return run


def _site_of(folder: Path, job: str, message: Message, context: Context) -> Site:
    """Return the site that a request is to: all nodes of a simulation are the user's own."""
    plain, _ = packed_of(message.content)
    name = safe_name(plain["site"])
    return _site(name, folder / name, job)


@lru_cache(maxsize=MOST_SITES)
def _site(name: str, folder: Path, job: str) -> Site:
    """Return a site, the same for each message that this process answers for it.

    Another process may have trained it in the meantime: its state is on disk.
    """
    return Site(name, folder, json.loads(job))
