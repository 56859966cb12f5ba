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
"""``monai-fairfl export-flare``: a federation as a job folder that NVFlare's own command line submits."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.transports.flare.recipe import FairFLRecipe

__all__ = ["export_job"]


def export_job(out: str | Path, **arguments: Any) -> Path:
    """Write a job folder.

    Args:
        out: becomes the job folder; it must be new, empty, or a job of an earlier export.
        arguments: of :class:`~monai_fairfl.transports.flare.recipe.FairFLRecipe`.

    Returns:
        The folder.

    Raises:
        ConfigError: when the folder holds something else.

    >>> import tempfile
    >>> job = export_job(tempfile.mkdtemp(), bundle="prostate_mri_segmentation", strategy="FedAvg", min_clients=2)
    >>> sorted(path.name for path in job.iterdir())
    ['app', 'meta.json']
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()) and not (out / "meta.json").exists():
        raise ConfigError(f"{out} holds something that is not an NVFlare job: name a new folder, or delete it first")
    recipe = FairFLRecipe(**arguments)
    with TemporaryDirectory() as folder:
        recipe.export(folder)
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(Path(folder) / recipe.name), out)
    return out
