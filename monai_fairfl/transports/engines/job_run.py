# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's part in a job: a federation of its clients, and what it records of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.federation import Federation, Initial
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.engines.job_guards import shipped_guards
from monai_fairfl.utils.files import write_atomically


class JobRecorder(Observer):
    """Writes ``config.json`` of a job's run.

    Args:
        config_file: to be written.
        config: what the job asked for, as far as the server knows it; ``None``: nothing is written.
    """

    def __init__(self, config_file: Path, config: Mapping[str, Any] | None = None):
        self.config_file = config_file
        self.config = config

    def run_started(self) -> None:
        """Write ``config.json``."""
        if self.config is not None:
            write_atomically(self.config_file, json.dumps(self.config, indent=4).encode())


def federation_of_job(
    strategy: Strategy,
    transport: Transport,
    rounds: int,
    initial: Initial,
    folder: Path,
    *,
    recipe: ModelRecipe | None,
    observer: Observer,
    min_clients: int,
    timeout: float,
    settings: Mapping[str, Any],
) -> Federation:
    """Return the federation that a job runs.

    Args:
        strategy: of the job.
        transport: over the engine.
        rounds: in all.
        initial: builds, or reads, the initial model.
        folder: of the run.
        recipe: how the sites train, where the bundle declares it.
        observer: of the run.
        min_clients: fewest clients that must answer every exchange.
        timeout: seconds that an exchange may take; 0: no limit.
        settings: further ones of the run, plain values, ``guards`` among them.

    Raises:
        ConfigError: when a setting is unknown or out of range, or a guard is not of this package.
    """
    given = {"final": ("score", "test_score"), **settings}
    guards = shipped_guards(given.pop("guards", None))
    return Federation(
        strategy,
        transport,
        rounds,
        initial,
        guards,
        folder,
        recipe=recipe,
        observer=observer,
        min_clients=min_clients,
        timeout=timeout or None,
        **given,
    )
