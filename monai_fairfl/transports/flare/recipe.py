# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A federation as an NVFlare recipe, and what the command line makes of one.

A recipe runs in the simulator, in POC and in production, or becomes a job folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nvflare.job_config.api import FedJob
from nvflare.job_config.file_source import FileSource
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import Recipe

from monai_fairfl import strategies
from monai_fairfl.bundle.shipped import check_new
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job import HOME, folder_of_run
from monai_fairfl.transports.engines.site import job_of, simulated_sites, simulation, start_of
from monai_fairfl.transports.flare.controller import INITIAL, FairFLController
from monai_fairfl.transports.flare.sites import FairFLExecutor
from monai_fairfl.utils.named_classes import as_mapping

BRINGS = "brings_code.txt"
ABOUT = "With this folder, NVIDIA FLARE's policies count the job as one that brings code (BYOC).\n"
"""A file, with its content, of a job that counts as one with custom code."""

OF_NVFLARE = ("strategy", "name", "sites")
"""What of a job is not among its controller's values: what NVFlare writes, and what sites get."""


class FairFLRecipe(Recipe):
    """A fair federation of a bundle's sites, in NVFlare's style.

    >>> recipe = FairFLRecipe(
    ...     bundle="prostate_mri_segmentation",
    ...     strategy="FedCE",
    ...     min_clients=3,
    ...     num_rounds=2,
    ...     overrides={"size": [32, 32], "channels": [4, 8, 8]},
    ... )
    >>> recipe.name
    'prostate_mri_segmentation-FedCE'

    Run it with ``recipe.execute(SimEnv(clients=[...]))``, ``PocEnv`` or ``ProdEnv``;
    ``recipe.export(DIR)`` writes the job folder. Whatever NVFlare has for recipes stays usable:
    filters, log streaming. For training scripts of your own, see
    :class:`~monai_fairfl.transports.flare.FairFLAggregator`.

    Args:
        bundle: name of a bundle of this package, or the path of one; a site may have its own copy
            elsewhere.
        strategy: one of ``monai_fairfl.strategies``, its name, or its configuration with
            ``_target_``; one of your own, its dotted path, or its configuration.
        custom_code: the job counts as one that brings code (NVFlare calls that BYOC), and brings
            that of a strategy of your own; ``False``: it brings none, and the server and each site,
            which are none of a simulator, must allow the classes of the installed package, see
            ``monai-fairfl doctor --flare-policy``.
        settings: the other arguments of :class:`~monai_fairfl.transports.engines.job.Job`, such as
            ``min_clients``, ``num_rounds``, ``name``, ``timeout`` and ``initial_ckpt``;
            settings of the sites, such as ``sites_root``, ``config``, ``overrides``,
            ``local_epochs``, ``device``, ``amp`` and ``check``, see
            :class:`~monai_fairfl.transports.engines.site.JobSiteSettings`; and of the run,
            such as ``seed``, ``groups`` and ``threads``, fields of
            :class:`~monai_fairfl.server.settings.RunSettings`, and ``guards`` of this package.

    Raises:
        ConfigError: when bundle, strategy, settings and number of clients do not go together.
    """

    def __init__(
        self,
        *,
        bundle: str | Path,
        strategy: Strategy | str | Mapping[str, Any] = "FedCE",
        custom_code: bool = True,
        **settings: Any,
    ):
        made = strategy_of(strategy)
        own = own_classes(made)
        self.asked = job_of(bundle=str(bundle), strategy=made, **settings)
        # Files of the job until it is written.
        self._files = TemporaryDirectory()
        folder = Path(self._files.name)

        try:
            job = FedJob(self.asked.name, self.asked.min_clients)
        except ValueError as error:
            raise ConfigError(f"name {self.asked.name!r}: {error}") from error
        # Code of one's own travels along, unless the job must bring none.
        installed = [path.partition(".")[0] for path in own if not custom_code]
        job.set_app_packages(["monai_fairfl", *installed])
        # NVFlare takes a mapping with a name for a component.
        plain = {key: value for key, value in vars(self.asked).items() if key not in OF_NVFLARE}
        start_of(self.asked).write(folder / INITIAL)
        job.to_server(FairFLController(made, self.asked.name, plain, made.exchanged))
        # Seconds that a site waits before it asks for its next task; NVFlare's own 2 are most of a
        # small round.
        job.to_server({"server": {"task_request_interval": 0.5}})
        job.add_file_to_server(str(folder / INITIAL), dest_dir=INITIAL, app_folder_type="config")

        executor = FairFLExecutor({"bundle": self.asked.bundle, **self.asked.sites})
        job.to_clients(executor, tasks=["*"])
        if custom_code:
            (folder / BRINGS).write_text(ABOUT)
            job.to_clients(FileSource(str(folder / BRINGS)))
        super().__init__(job)

    # ---- what NVFlare's Recipe asks for ----

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        raise ConfigError(
            f"per_site_config of {', '.join(config)}: a site has settings of its own in "
            "local/fairfl.json of its workspace, and a job brings none for single sites"
        )


def own_classes(strategy: Strategy) -> list[str]:
    """Return the dotted paths of a strategy's classes that are not of this package.

    These are the strategy's class and those of its parts.

    Raises:
        ConfigError: when one does not store an argument under its name: NVFlare writes a job from
            these attributes, and the server would use the default instead.

    >>> from monai_fairfl.strategies import FedCE
    >>> own_classes(FedCE())
    []
    """
    own = []
    parts = strategy.exchanged
    for component in (strategy, parts.weighting, parts.reward, parts.average):
        path = f"{type(component).__module__}.{type(component).__name__}"
        if component is not None and not path.startswith("monai_fairfl."):
            base = Strategy if component is strategy else object
            as_mapping(component, strategies, base)
            own.append(path)
    return own


def export_job(out: str | Path, **arguments: Any) -> Path:
    """Write a job folder.

    Args:
        out: becomes the job folder; it must be new or empty.
        arguments: of :class:`FairFLRecipe`.

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
    *,
    bundle: str,
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
        bundle: as for :class:`FairFLRecipe`.
        arguments: likewise.

    Returns:
        The run's folder, with models, ledger and report.

    Raises:
        ConfigError: when the sites or the settings are wrong.
        FederationError: when the run did not end; the logs name the reason.
    """
    sites = list(simulated_sites(sites_root, site_names, bundle))
    given = {"min_clients": len(sites), **arguments}
    recipe = FairFLRecipe(bundle=bundle, sites_root=sites_root, **given)
    simulator = Path(workspace).absolute() / "nvflare"
    storage = simulator.with_name("kept")
    run = folder_of_run(storage / "server", recipe.name)
    log = simulator / recipe.name / "server" / "log.txt"

    # For this process and those that the simulator starts.
    home = os.environ.get(HOME, "")
    os.environ[HOME] = str(storage)
    try:
        with simulation(run, log):
            recipe.execute(
                SimEnv(clients=sites, workspace_root=str(simulator), log_config="concise")
            )
    finally:
        os.environ[HOME] = home
    return run
