# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where a server or a site keeps its runs and states: what must outlive a job."""

from __future__ import annotations

import os
from pathlib import Path

from monai_fairfl.errors import ConfigError

HOME = "MONAI_FAIRFL_HOME"
"""Environment variable: an absolute path that keeps them in place of the workspace, which the
simulator empties.
"""


def kept_folder(workspace: str | Path) -> Path:
    """The folder of a server or site: ``fairfl`` in its workspace, or one of the workspace's name
    in ``HOME``.

    Args:
        workspace: of NVFlare.

    Raises:
        ConfigError: when ``HOME`` is relative: NVFlare's processes change their folder, to one that
            it empties.

    >>> kept_folder("/srv/alder").as_posix()
    '/srv/alder/fairfl'
    """
    home, workspace = os.environ.get(HOME), Path(workspace)
    if home and not Path(home).is_absolute():
        raise ConfigError(
            f'{HOME}={home} is relative, and NVFlare changes its folder: give {HOME}="$PWD/{home}"'
        )
    return Path(home) / workspace.name if home else workspace / "fairfl"
