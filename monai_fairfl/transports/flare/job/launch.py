# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation as a job folder for NVFlare's command line, or at once in NVFlare's simulator."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.recipe.sim_env import SimEnv

from monai_fairfl.bundle.shipped import check_new
from monai_fairfl.errors import FederationError
from monai_fairfl.run.resuming import ended
from monai_fairfl.transports.engines.job_arguments import simulated_sites
from monai_fairfl.transports.engines.storage import HOME, folder_of_run
from monai_fairfl.transports.flare.job.fairfl_recipe import FairFLRecipe


def export_job(out: str | Path, **arguments: Any) -> Path:
    """Write a job folder.

    Args:
        out: becomes the job folder; it must be new or empty.
        arguments: of :class:`~monai_fairfl.transports.flare.job.fairfl_recipe.FairFLRecipe`.

    Returns:
        The folder.

    Raises:
        ConfigError: when the folder holds something, such as the job of an earlier export.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> bundle = "prostate_mri_segmentation"
    >>> job = export_job(folder, bundle=bundle, strategy="FedAvg", min_clients=2)
    >>> sorted(path.name for path in job.iterdir())
    ['app', 'meta.json']
    """
    out = Path(out)
    check_new(out)
    recipe = FairFLRecipe(**arguments)
    with TemporaryDirectory() as folder:
        recipe.export(folder)
        shutil.copytree(Path(folder) / recipe.name, out, dirs_exist_ok=True)
    return out


def simulate_job(
    workspace: str | Path,
    sites_root: str | Path,
    site_names: Sequence[str] | None = None,
    watch: Callable[[Path, str], AbstractContextManager[None]] | None = None,
    **arguments: Any,
) -> Path:
    """Run a federation in NVFlare's simulator: a server and one process per site on this machine.

    NVFlare's simulator empties its workspace at every start; what must outlive that is stored
    beside it.

    Args:
        workspace: gets ``nvflare``, the simulator's own folder, and ``kept``; a run that did not
            end goes on.
        sites_root: one folder per site.
        site_names: those that take part; all by default.
        watch: makes what is entered while the simulator runs, of the run's folder and its name.
        arguments: of :class:`~monai_fairfl.transports.flare.job.fairfl_recipe.FairFLRecipe`.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; the logs name the reason.
    """
    sites = simulated_sites(sites_root, site_names, arguments.get("bundle"))
    recipe = FairFLRecipe(sites_root=sites_root, **{"min_clients": len(sites), **arguments})
    folder = Path(workspace).absolute()
    simulator = folder / "nvflare"
    storage = folder / "kept"
    run = folder_of_run(storage / "server", recipe.name, arguments.get("resume", True))

    watched = watch or (lambda folder, name: nullcontext())
    environment = SimEnv(clients=sites, workspace_root=str(simulator), log_config="concise")
    of_server = simulator / recipe.name / "server"
    try:
        with _home(storage), _logs_to_stderr(), watched(run, recipe.name):
            recipe.execute(environment)
    except RuntimeError as error:
        raise FederationError(f"{error}; the same command goes on where it stopped") from error
    if not ended(run):
        raise FederationError(
            f"the run did not end, {of_server / 'log.txt'} shows the reason; the same command goes "
            "on where it stopped"
        )
    return run


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Let runs and states be stored in ``folder``, for this process and those that it starts."""
    previous = os.environ.get(HOME)
    os.environ[HOME] = str(folder)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[HOME]
        else:
            os.environ[HOME] = previous


@contextmanager
def _logs_to_stderr() -> Iterator[None]:
    """Send what the simulator's processes print to standard error.

    Standard output is for the answer of the command.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
