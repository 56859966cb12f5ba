# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a federation writes before it trains: ``settings.json``, and digests of the sites' cases.

The file has what was asked for and the hashes of the bundle's files. A resumed run compares its own
with it (:func:`~monai_fairfl.run.resuming.check_training`), and the report reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.bundle.initial import digests_of_configs
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.settings import rows_of
from monai_fairfl.guards import DEFAULT
from monai_fairfl.guards.registry import config_of
from monai_fairfl.run.resuming import SETTINGS, config_files, files_to_write
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import configuration_of
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.settings import LEAD


@dataclass(frozen=True)
class StartFiles:
    """The files that are there before anything else of a run is.

    Args:
        run_dir: of the single run or the comparison.
        datalists: folder of the sites' data lists.
        digests: site -> digests of its cases.
        config: content of ``settings.json``.
    """

    run_dir: Path
    datalists: Path
    digests: Mapping[str, Sequence[str]]
    config: bytes

    def write(self) -> None:
        """Write them.

        Where they are there already, other runs may be about to read them.
        """
        for digest_file, content in files_to_write(self.datalists, self.digests).items():
            write_atomically(digest_file, content)
        file = self.run_dir / SETTINGS
        if not file.exists() or file.read_bytes() != self.config:
            write_atomically(file, self.config)


NOT_AGAIN = ("check", "strategy", "run_dir", "resume", "valuations")
"""Keys that whoever goes on with a finished run gives anew, or leaves to ``federate.json``."""


def text_of_config(
    runs: BundleRuns, strategies: Sequence[Strategy], valuations: Sequence[str]
) -> bytes:
    """The content of ``settings.json``: what trains, and what the report needs.

    Args:
        runs: of the federation.
        strategies: of these runs.
        valuations: names of those that are made of the finished runs.
    """
    config = {
        **config_of_runs(runs),
        "valuations": valuations,
        "full_run": runs.settings.full_run,
        "share_cases": runs.settings.share_cases,
        "keys": _keys(runs, strategies),
    }
    return json.dumps(config, indent=4, default=str).encode()


def _keys(runs: BundleRuns, strategies: Sequence[Strategy]) -> dict[str, Any]:
    """The keys of ``federate.json`` with which the same run can be gone on with, plain JSON."""
    settings = runs.settings
    keys = {name: getattr(settings, name) for name in rows_of(LEAD) if name not in NOT_AGAIN}
    for name in ("bundle_root", "sites_root"):
        keys[name] = str(Path(keys[name]).absolute())
    keys["strategies"] = [configuration_of(strategy) for strategy in strategies]
    if keys["guards"] is not None:
        keys["guards"] = config_of(runs.guards)
    return keys


def config_of_runs(runs: BundleRuns) -> dict[str, Any]:
    """What was asked for, and the hashes of the bundle's files."""
    sites = runs.sites
    settings = runs.settings
    files = config_files({"config": settings.config, "sites": settings.sites})
    config = {
        "package": __version__,
        "bundle": sites.bundle_root.absolute().name,
        "files": digests_of_configs(sites.bundle_root, files),
        "strategies": [*runs.folders.previous(), *runs.folders.names],
        "sites": {name: settings.sites.get(name, {}) for name in sites.names},
        "data": {name: sites.data_of(name) for name in sites.names},
        "config": settings.config,
        "overrides": settings.overrides,
        "rounds": settings.rounds,
        "local_epochs": settings.local_epochs,
        "device": _devices(runs.jobs.devices),
        "amp": settings.amp,
        "federation": _config_of_federation(runs),
    }
    return config


def digest_of_training(runs: BundleRuns) -> str:
    """A digest of all that decides what a coalition trains: other settings, another digest."""
    config = config_of_runs(runs)
    del config["package"]
    config["strategies"] = None
    config["initial"] = runs.settings.initial
    config["files"].pop("federate.json", None)
    config["federation"] = runs.settings.compared()
    config["guards"] = _config_of_federation(runs).get("guards")
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _config_of_federation(runs: BundleRuns) -> dict[str, Any]:
    """The settings of the runs, and the guards where other ones were given."""
    config = runs.settings.keywords()
    del config["rounds"]
    # In the first process only: guards that were sent to another one are not these objects.
    if runs.guards is not DEFAULT:
        config["guards"] = config_of(runs.guards)
    return config


def _devices(devices: Sequence[str]) -> str | list[str]:
    """The devices as the configuration shows them: the only one by its name."""
    different = list(dict.fromkeys(devices))
    return different[0] if len(different) == 1 else different
