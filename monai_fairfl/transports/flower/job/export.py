# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job as an app for ``flwr run``: a folder with one file, ``pyproject.toml``.

The code of both components is that of the installed package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.bundle.shipped import check_new
from monai_fairfl.transports.flower.job.flower_job import FlowerJob, Scalar
from monai_fairfl.utils.files import write_atomically

APP = """# A federation for Flower: monai-fairfl export-flower wrote it. Submit it with: flwr run .
# 'flwr run . --run-config "num-rounds=3"' changes a line of the last table for one run.
[project]
name = {name}
version = "1.0.0"
description = {description}
dependencies = ["flwr>=1.41,<1.42", "monai-fairfl=={version}"]

[tool.flwr.app]
publisher = "monai-fairfl"

[tool.flwr.app.components]
serverapp = "monai_fairfl.transports.flower.server.app:app"
clientapp = "monai_fairfl.transports.flower.site.app:app"

[tool.flwr.app.config]
{config}
"""


def export_app(out: str | Path, **arguments: Any) -> Path:
    """Write an app.

    >>> import tempfile
    >>> folder = export_app(tempfile.mkdtemp(), bundle="prostate_mri_segmentation", min_clients=3)
    >>> [path.name for path in folder.iterdir()]
    ['pyproject.toml']

    Args:
        out: becomes the app's folder; it must be new or empty.
        arguments: of :meth:`~monai_fairfl.transports.flower.job.flower_job.FlowerJob.of`.

    Returns:
        The folder.

    Raises:
        ConfigError: when the folder holds something, or the arguments do not go together.
    """
    out = Path(out)
    check_new(out)
    job = FlowerJob.of(**arguments)
    lines = [f"{name} = {_toml(value)}" for name, value in job.run_config().items()]
    text = APP.format(
        name=_toml(re.sub("[^a-z0-9]+", "-", job.name.lower()).strip("-") or "fairfl"),
        description=_toml(f"{job.name}: a fair federation of medical images"),
        version=__version__,
        config="\n".join(lines),
    )
    write_atomically(out / "pyproject.toml", text.encode())
    return out


def _toml(value: Scalar) -> str:
    """Return a value as TOML writes it.

    >>> _toml(True), _toml(0.5), _toml('a "b"')
    ('true', '0.5', '"a \\\\"b\\\\""')
    """
    # JSON's texts, numbers and switches are TOML's, but for one character: DEL.
    return json.dumps(value).replace("\x7f", "\\u007f")
