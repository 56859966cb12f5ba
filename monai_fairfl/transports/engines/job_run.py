# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's part in a job: the federation that it runs, and what it records of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.guards.registry import guards_of
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job import Job, Start, config_of_shipped
from monai_fairfl.utils.files import write_atomically


class JobRecorder(Observer):
    """Writes ``settings.json`` of a job's run: what the job asked for.

    Args:
        folder: of the run.
        asked: its content.
        engine: of the job, for the file, too.
        rounds: in all, likewise.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any], engine: str, rounds: int):
        self.folder = folder
        self.config = {**asked, "engine": engine, "rounds": rounds}

    def run_started(self) -> None:
        """Write the file."""
        text = json.dumps(self.config, indent=4)
        write_atomically(self.folder / "settings.json", text.encode())


def run_job(folder: Path, job: Job, start: Start, transport: Transport, observer: Observer) -> int:
    """Run the federation of a job, or go on with it, and write its report.

    Args:
        folder: of the run.
        job: what is asked for.
        start: of the job.
        transport: over the engine.
        observer: of the run.

    Returns:
        The number of rounds that are done.

    Raises:
        ConfigError: when a setting is unknown or out of range, or a guard is not of this package.
        FederationError: when the run cannot end; it names the reason.
    """
    settings = dict(job.run)
    guards = guards_of(config_of_shipped(settings.pop("guards", None)))
    federation = Federation(
        strategy_of(job.strategy),
        transport,
        job.num_rounds,
        lambda: (start.weights, start.spec),
        guards,
        folder,
        recipe=start.recipe,
        observer=observer,
        min_clients=job.min_clients,
        timeout=job.timeout or None,
        **settings,
    )
    try:
        return len(federation.run(resume=folder.exists()).rounds)
    finally:
        if (folder / "ledger.jsonl").exists():
            # It loads scipy and jinja2, which nothing needs before the end.
            from monai_fairfl.report import write_report_if_possible

            write_report_if_possible([folder], folder)
