# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job at Flower's server: its federation, from the initial model to the report."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.serverapp import Grid

from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job_run import JobRecorder, federation_of_job
from monai_fairfl.transports.engines.storage import folder_of_run
from monai_fairfl.transports.flower.job.flower_job import FlowerJob
from monai_fairfl.transports.flower.server.names import Names
from monai_fairfl.transports.flower.server.transport import FlowerTransport
from monai_fairfl.utils.random_state import own_random_state

logger = logging.getLogger(__name__)


class ServerJob:
    """What the server does for a job.

    All that reads the bundle happens here, and nothing of it in :meth:`run`: MONAI looks through
    all imported modules for each configuration, and fails while another thread imports one.

    Args:
        job: what is asked for.

    Raises:
        ConfigError: when bundle, strategy, settings and number of clients do not go together.
    """

    def __init__(self, job: FlowerJob):
        self.job = job
        self.strategy = strategy_of(job.strategy)
        of_bundle = job.of_bundle(self.strategy)
        self.settings = {**of_bundle.federation, **job.run}
        self.config = {**of_bundle.asked, "engine": "Flower", "rounds": job.num_rounds}
        self.recipe = of_bundle.recipe({})
        with own_random_state(job.run["seed"]):
            self._initial = of_bundle.initial(job.initial_ckpt or None)

    def run(self, grid: Grid, names: Names, storage: Path) -> Path:
        """Run the federation, or go on with one of its name that did not end.

        Args:
            grid: of Flower's run.
            names: says which site a node is.
            storage: gets the run's folder.

        Returns:
            The run's folder, with models, ledger and report.

        Raises:
            FederationError: when the run cannot end; it names the reason.
        """
        job = self.job
        folder = folder_of_run(storage, job.name, job.resume)
        federation = federation_of_job(
            self.strategy,
            FlowerTransport(grid, names, job.num_rounds, job.min_clients, job.timeout),
            job.num_rounds,
            self._model,
            folder,
            recipe=self.recipe,
            observer=JobRecorder(folder / "config.json", self.config),
            min_clients=job.min_clients,
            timeout=job.timeout,
            settings=self.settings,
        )
        history = federation.run(resume=folder.exists())
        logger.info("%d rounds are done: %s", len(history.rounds), folder)

        # It loads scipy and jinja2, which nothing needs before the end.
        from monai_fairfl.report import write_report_if_possible

        write_report_if_possible([folder], folder)
        return folder

    def _model(self) -> tuple[Weights, ModelSpec]:
        return self._initial
