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
"""NVIDIA FLARE 2.9: the same federation over its server and clients. Needs the extra ``nvflare``."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from monai_fairfl.errors import ConfigError

if TYPE_CHECKING:
    from monai_fairfl.transports.flare.aggregator import FairFLAggregator
    from monai_fairfl.transports.flare.controller import FairFLController
    from monai_fairfl.transports.flare.executor import FairFLExecutor
    from monai_fairfl.transports.flare.recipe import FairFLRecipe

__all__ = ["FairFLAggregator", "FairFLController", "FairFLExecutor", "FairFLRecipe"]


if find_spec("nvflare") is None:
    raise ConfigError("NVIDIA FLARE is not installed: pip install 'monai-fairfl[nvflare]'")


def __getattr__(name: str) -> Any:
    """Each class from its module when it is asked for: a server needs not the sites' part, and MONAI is large."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.removeprefix('FairFL').lower()}"), name)
