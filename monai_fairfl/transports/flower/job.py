# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job as Flower's run configuration, and as an app for ``flwr run``.

The configuration is the table ``[tool.flwr.app.config]`` of an app, which ``flwr run --run-config``
changes. The app is a folder with one file: the code of both components is that of the installed
package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from monai_fairfl import __version__
from monai_fairfl.bundle.shipped import check_new
from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.engines.job import Job
from monai_fairfl.transports.engines.site import OF_SITES, OWN, job_of
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json

Scalar = bool | int | float | str

ABOUT = """\
# A federation for Flower, written by monai-fairfl export. Submit it with: flwr run .
# 'flwr run . --run-config "num-rounds=3"' changes a line of the last table for one run.
"""


def run_config(job: Job) -> dict[str, Scalar]:
    """Return a job as flat names with hyphens and values that TOML has.

    Mappings and lists are JSON.
    """
    flat = {name: getattr(job, name) for name in OWN} | {**job.sites, **job.run}
    config = {}
    for name, value in flat.items():
        is_plain = isinstance(value, (int, float, str))
        config[name.replace("_", "-")] = value if is_plain else json.dumps(value)
    return config


def job_of_config(config: Mapping[str, Any]) -> Job:
    """Return the job that :func:`run_config` described, and a user may have changed.

    Raises:
        ConfigError: when a value is no JSON or does not go with the others.

    >>> job = job_of(bundle="prostate_mri_segmentation", overrides={"size": [32, 32]})
    >>> run_config(job)["overrides"]
    '{"size": [32, 32]}'
    >>> job_of_config(run_config(job)) == job
    True
    """
    return job_of(**settings_in(config))


def site_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run configuration sets for its sites; nothing else of it reaches a site.

    >>> site_settings({"local-epochs": 2, "strategy": "FedCE", "overrides": '{"amp": true}'})
    {'local_epochs': 2, 'overrides': {'amp': True}}
    """
    found = settings_in(config)
    return {name: value for name, value in found.items() if name in {*OF_SITES, "bundle"}}


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run configuration: a text that begins as JSON does is JSON.

    Raises:
        ConfigError: when such a text is no JSON.
    """
    found = {}
    for name, value in config.items():
        if isinstance(value, str) and value.startswith(("{", "[")):
            try:
                value = object_of_json(f'{{"value": {value}}}')["value"]
            except ValueError as error:
                raise ConfigError(f"the app sets {name} to no JSON: {error}") from error
        found[name.replace("-", "_")] = value
    return found


def export_app(out: str | Path, **arguments: Any) -> Path:
    """Write an app.

    >>> import tempfile
    >>> folder = export_app(tempfile.mkdtemp(), bundle="prostate_mri_segmentation", min_clients=3)
    >>> [path.name for path in folder.iterdir()]
    ['pyproject.toml']

    Args:
        out: becomes the app's folder; it must be new or empty.
        arguments: of :func:`~monai_fairfl.transports.engines.site.job_of`.

    Returns:
        The folder.

    Raises:
        ConfigError: when the folder holds something, or the arguments do not go together.
    """
    out = Path(out)
    check_new(out)
    job = job_of(**arguments)
    project = {
        "name": re.sub("[^a-z0-9]+", "-", job.name.lower()).strip("-") or "fairfl",
        "version": "1.0.0",
        "description": f"{job.name}: a fair federation of medical images",
        "dependencies": ["flwr>=1.41,<1.42", f"monai-fairfl=={__version__}"],
    }
    components = {
        "serverapp": "monai_fairfl.transports.flower.apps:server_app",
        "clientapp": "monai_fairfl.transports.flower.apps:client_app",
    }
    app = {"publisher": "monai-fairfl", "components": components, "config": run_config(job)}
    text = ABOUT + tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    write_atomically(out / "pyproject.toml", text.encode())
    return out
