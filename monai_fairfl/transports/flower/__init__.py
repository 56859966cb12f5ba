# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower 1.41: the same federation over its SuperLink and SuperNodes, or in its simulation.

Needs the extra ``flower``. ``job`` describes and writes a job; ``apps`` has its ``ServerApp`` and
its ``ClientApp``, and runs both in a simulation here.
"""

import os
from importlib.util import find_spec

import lazy_loader

from monai_fairfl.errors import ConfigError

if find_spec("flwr") is None:
    raise ConfigError("Flower is not installed: pip install 'monai-fairfl[flower]'")

# Flower reports each run to its makers unless somebody says so before it is imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
