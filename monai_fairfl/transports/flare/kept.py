# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Where a server or a site keeps its runs and states: what must outlive a job."""

from __future__ import annotations

import os
from pathlib import Path

from monai_fairfl.errors import ConfigError

__all__ = ["HOME", "kept_folder"]

HOME = "MONAI_FAIRFL_HOME"
"""Environment variable: an absolute path that keeps them in place of the workspace, which the simulator empties."""


def kept_folder(workspace: str | Path) -> Path:
    """The folder of a server or site: ``fairfl`` in its workspace, or one of the workspace's name in ``HOME``.

    Args:
        workspace: of NVFlare.

    Raises:
        ConfigError: when ``HOME`` is relative: NVFlare's processes change their folder, to one that it empties.

    >>> kept_folder("/srv/alder").as_posix()
    '/srv/alder/fairfl'
    """
    home, workspace = os.environ.get(HOME), Path(workspace)
    if home and not Path(home).is_absolute():
        raise ConfigError(f'{HOME}={home} is relative, and NVFlare changes its folder: give {HOME}="$PWD/{home}"')
    return Path(home) / workspace.name if home else workspace / "fairfl"
