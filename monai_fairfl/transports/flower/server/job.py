# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job at Flower's server: its federation, from the first site to the report."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid

from monai_fairfl.strategies.resolver import strategy_of
from monai_fairfl.transports.engines.job_run import JobRecorder, federation_of_job
from monai_fairfl.transports.engines.storage import folder_of_run
from monai_fairfl.transports.flower.job.flower_job import FlowerJob
from monai_fairfl.transports.flower.server.names import Names
from monai_fairfl.transports.flower.server.transport import FlowerTransport

logger = logging.getLogger(__name__)


def run_job(job: FlowerJob, grid: Grid, names: Names, storage: Path) -> Path:
    """Run a job's federation, or go on with one of its name that did not end.

    Args:
        job: what is asked for.
        grid: of Flower's run.
        names: says which site a node is.
        storage: gets the run's folder.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        FederationError: when the run cannot end; it names the reason.
    """
    strategy = strategy_of(job.strategy)
    of_bundle = job.of_bundle(strategy)
    folder = folder_of_run(storage, job.name, job.resume)
    transport = FlowerTransport(grid, names, job.num_rounds, job.min_clients, job.timeout)
    config = {**of_bundle.asked, "rounds": job.num_rounds}
    federation = federation_of_job(
        strategy,
        transport,
        job.num_rounds,
        partial(of_bundle.initial, job.initial_ckpt or None),
        folder,
        recipe=of_bundle.recipe({}),
        observer=JobRecorder(folder / "config.json", config),
        min_clients=job.min_clients,
        timeout=job.timeout,
        settings={**of_bundle.federation, **job.run},
    )
    history = federation.run(resume=folder.exists())
    logger.info("%d rounds are done: %s", len(history.rounds), folder)

    # It loads scipy and jinja2, which nothing needs before the end.
    from monai_fairfl.report import write_report_if_possible

    write_report_if_possible([folder], folder)
    return folder
