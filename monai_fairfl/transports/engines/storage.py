# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where a server or a site stores its runs and states: what must outlive a job."""

from __future__ import annotations

import os
from pathlib import Path

from monai_fairfl.errors import ConfigError
from monai_fairfl.run.resuming import ended

HOME = "MONAI_FAIRFL_HOME"
"""Environment variable: an absolute path that is used in place of the workspace.

NVFlare's simulator empties its workspace at every start.
"""


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
