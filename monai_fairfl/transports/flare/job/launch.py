# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation as a job folder that NVFlare's own command line submits, or at once in NVFlare's
simulator.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.recipe.sim_env import SimEnv

from monai_fairfl.bundle import preflight
from monai_fairfl.bundle.shipped import check_new
from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.transports.flare.job.recipe import FairFLRecipe
from monai_fairfl.transports.flare.server.controller import run_folder
from monai_fairfl.transports.flare.workspace import HOME


def export_job(out: str | Path, **arguments: Any) -> Path:
    """Write a job folder.

    Args:
        out: becomes the job folder; it must be new or empty.
        arguments: of :class:`~monai_fairfl.transports.flare.job.recipe.FairFLRecipe`.

    Returns:
        The folder.

    Raises:
        ConfigError: when the folder holds something, such as the job of an earlier export.

    >>> import tempfile
    >>> job = export_job(tempfile.mkdtemp(), bundle="prostate_mri_segmentation", strategy="FedAvg", min_clients=2)
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
    **arguments: Any,
) -> Path:
    """Run a federation in NVFlare's simulator: a server and a process for each site on this
    machine.

    NVFlare's simulator empties its workspace at every start; what must outlive that is kept beside
    it.

    Args:
        workspace: gets ``nvflare``, the simulator's own folder, and ``kept``; a run that did not
            end goes on.
        sites_root: one folder per site.
        site_names: those that take part; all by default.
        arguments: of :class:`~monai_fairfl.transports.flare.job.recipe.FairFLRecipe`.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; the logs say why.
    """
    sites = preflight.site_names(Path(sites_root), site_names, {})
    recipe = FairFLRecipe(sites_root=sites_root, **{"min_clients": len(sites), **arguments})
    folder = Path(workspace).absolute()
    environment = SimEnv(
        clients=sites, workspace_root=str(folder / "nvflare"), log_config="concise"
    )
    run = run_folder(folder / "kept" / "server", recipe.name, arguments.get("resume", True))
    before = os.environ.get(HOME)
    os.environ[HOME] = str(folder / "kept")
    try:
        with _logs_to_stderr():
            recipe.execute(environment)
    except RuntimeError as error:
        raise FederationError(f"{error}; the same command goes on where it stopped") from error
    finally:
        if before is None:
            del os.environ[HOME]
        else:
            os.environ[HOME] = before
    records = read_ledger(run / "ledger.jsonl") if (run / "ledger.jsonl").exists() else []
    if not records or records[-1]["kind"] != "end":
        log = folder / "nvflare" / recipe.name / "server" / "log.txt"
        raise FederationError(
            f"the run did not end, {log} says why; the same command goes on where it stopped"
        )
    return run


@contextmanager
def _logs_to_stderr() -> Iterator[None]:
    """What the simulator's processes print; standard output is for the answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
