# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job: what is asked of an engine, what its server begins with, the run, and where it is stored.

It loads no MONAI.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.registry import Given, config_of, guards_of
from monai_fairfl.messages import ModelSpec, Weights, to_json
from monai_fairfl.model_files import ModelRecipe
from monai_fairfl.run.resuming import ended
from monai_fairfl.server import Federation, Observer, Transport
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.files import tensors_as_bytes, write_atomically
from monai_fairfl.utils.plain_values import object_of_json

HOME = "MONAI_FAIRFL_HOME"
"""Environment variable: an absolute path that is used in place of the workspace.

NVFlare's simulator empties its workspace at every start.
"""


@dataclass(frozen=True)
class Job:
    """A federation of a bundle's sites, for any engine.

    Args:
        bundle: name of a bundle of this package, or the path of one; a site may have its own copy
            elsewhere.
        strategy: a strategy, its name or dotted path, or a configuration with ``_target_``.
        min_clients: sites that are waited for, and must answer each round.
        num_rounds: rounds in all.
        name: of the run, which goes on if one of this name did not end; by default the bundle's and
            the strategy's.
        timeout: seconds that an exchange may take; 0: no limit.
        initial_ckpt: a ``state_dict`` file to begin with; empty: a model built under the seed.
        sites: settings of
            :class:`~monai_fairfl.transports.engines.site.JobSiteSettings`.
        run: settings of :class:`~monai_fairfl.server.settings.RunSettings`, and ``guards``.
    """

    bundle: str
    strategy: Any = "FedCE"
    min_clients: int = 2
    num_rounds: int = 2
    name: str = ""
    timeout: float = 0.0
    initial_ckpt: str = ""
    sites: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """What a job's server begins with.

    Args:
        weights: parameters and buffers of the initial model, without aliases.
        spec: of the model.
        recipe: how the sites train it, as far as the job knows, where the bundle declares it. A
            site may set other values in its own ``local/fairfl.json``.
        asked: the job's settings and the bundle's full run, for ``settings.json`` of the run.
    """

    weights: Weights
    spec: ModelSpec
    recipe: ModelRecipe | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    def initial(self) -> tuple[Weights, ModelSpec]:
        """The initial model, as a federation asks for it."""
        return self.weights, self.spec

    def write(self, folder: Path) -> None:
        """Write ``model.safetensors`` and ``job.json``; no pickle."""
        recipe = self.recipe and self.recipe.state_dict()
        plain = {"spec": to_json(self.spec), "recipe": recipe, "asked": dict(self.asked)}
        write_atomically(folder / "model.safetensors", tensors_as_bytes(self.weights))
        write_atomically(folder / "job.json", json.dumps(plain, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Start:
        """Return what :meth:`write` wrote."""
        plain = object_of_json((folder / "job.json").read_bytes())
        spec = ModelSpec.from_json(plain["spec"])
        tensors = load_file(folder / "model.safetensors")
        weights = {name: tensors[name] for name in (*spec.parameters, *spec.buffers)}
        recipe = plain["recipe"] and ModelRecipe.from_state(plain["recipe"], folder)
        return cls(weights, spec, recipe, plain["asked"])


def config_of_shipped(given: Given) -> list[dict[str, Any]] | None:
    """The configuration of a job's guards, in plain JSON; ``None``: the default ones.

    Raises:
        ConfigError: when one is unknown, or is not of this package.

    >>> config_of_shipped(["NonFinite"])
    [{'_target_': 'monai_fairfl.guards.NonFinite'}]
    """
    if given is None:
        return None
    config = config_of(guards_of(given))
    for one in config:
        if not one["_target_"].startswith("monai_fairfl.guards."):
            raise ConfigError(
                f"guard {one['_target_']!r} is not of this package: a job must not name classes "
                "that its engine's policy does not see. Use shipped guards, or run the federation "
                "in one process"
            )
    return config


@dataclass
class JobObserver(Observer):
    """Writes ``settings.json`` of a job's run.

    Args:
        folder: of the run.
        config: content of the file: what the job asked for.
    """

    folder: Path
    config: Mapping[str, Any]

    def run_started(self) -> None:
        """Write the file."""
        text = json.dumps(self.config, indent=4)
        write_atomically(self.folder / "settings.json", text.encode())


def run_job(folder: Path, job: Job, start: Start, transport: Transport, engine: str) -> None:
    """Run the federation of a job, or go on with it, and write its report.

    Args:
        folder: of the run.
        job: what is asked for.
        start: of the job.
        transport: over the engine.
        engine: its name, for ``settings.json``.

    Raises:
        ConfigError: when a setting is unknown or out of range, or a guard is not of this package.
        FederationError: when the run cannot end; it names the reason.
    """
    settings = dict(job.run)
    guards = guards_of(config_of_shipped(settings.pop("guards", None)))
    config = {**start.asked, "engine": engine, "rounds": job.num_rounds}
    federation = Federation(
        strategy_of(job.strategy),
        transport,
        job.num_rounds,
        start.initial,
        guards,
        folder,
        recipe=start.recipe,
        observer=JobObserver(folder, config),
        min_clients=job.min_clients,
        timeout=job.timeout or None,
        **settings,
    )
    try:
        federation.run(resume=folder.exists())
    finally:
        if (folder / "ledger.jsonl").exists():
            # It loads scipy and jinja2, which nothing needs before the end.
            from monai_fairfl.report import write_report_if_possible

            write_report_if_possible([folder], folder)


def storage_folder(workspace: str | Path) -> Path:
    """Return the folder of a server or site: ``fairfl`` in its workspace.

    Where ``HOME`` is set it is a folder in there, of the workspace's name.

    Args:
        workspace: of the server or site in its engine.

    Raises:
        ConfigError: when ``HOME`` is relative: an engine's processes change their folder, to one
            that NVFlare empties.

    >>> storage_folder("/srv/alder").as_posix()
    '/srv/alder/fairfl'
    """
    home = os.environ.get(HOME)
    if not home:
        return Path(workspace) / "fairfl"
    if not Path(home).is_absolute():
        raise ConfigError(
            f"{HOME}={home} is relative, and the engine changes its folder: give "
            f'{HOME}="$PWD/{home}"'
        )
    return Path(home) / Path(workspace).name


def folder_of_run(storage: Path, name: str) -> Path:
    """Return the folder of a run: that of the newest one of this name, if it can go on.

    Otherwise it is a new folder: ``NAME``, ``NAME-2`` and so on.

    Args:
        storage: of the server, see :func:`storage_folder`.
        name: of the run.

    >>> import tempfile
    >>> folder_of_run(Path(tempfile.mkdtemp()), "fedce").name
    'fedce'
    """
    folder = storage / name
    number = 1
    while ended(folder):
        number += 1
        folder = storage / f"{name}-{number}"
    return folder
