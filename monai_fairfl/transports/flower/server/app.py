# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ``ServerApp`` of a deployment: what an app's ``pyproject.toml`` names."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from monai_fairfl.errors import ConfigError, FairFLError, FederationError
from monai_fairfl.transports.engines.storage import HOME
from monai_fairfl.transports.flower.job.flower_job import FlowerJob
from monai_fairfl.transports.flower.server.job import ServerJob
from monai_fairfl.transports.flower.server.names import NamesByKey

KEYS = "keys"
RUNS = "runs"
"""Folders in the server's home."""


def home() -> Path:
    """Return the server's own folder, which no app can choose.

    Raises:
        ConfigError: when the SuperLink was started without it.
    """
    folder = os.environ.get(HOME, "")
    if not Path(folder).is_absolute():
        raise ConfigError(
            f"{HOME} is {folder!r}: start flower-superlink with {HOME}=/an/absolute/folder. Its "
            f"{KEYS}/ holds the public key of each site as SITE.pub, and runs go into its {RUNS}/"
        )
    return Path(folder)


def main(grid: Grid, context: Context) -> None:
    """Run the job of an app."""
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("monai_fairfl").setLevel(logging.INFO)
    folder = home()
    names = NamesByKey(grid, folder / KEYS)
    job = FlowerJob.from_run_config(context.run_config)
    try:
        ServerJob(job).run(grid, names, folder / RUNS)
    except FairFLError as error:
        raise FederationError(
            f"{error}\nSubmit the app again to go on from {folder / RUNS / job.name}"
        ) from error


# Flower looks for a plain assignment.
app = ServerApp()
app.main()(main)
