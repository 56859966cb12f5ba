# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
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
    """Each class from its module when it is asked for: a server needs not the sites' part, and
    MONAI is large.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.removeprefix('FairFL').lower()}"), name)
