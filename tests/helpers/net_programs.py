# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The programs of ``tests/net``, which is no package: a page's example has a module ``net``."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from helpers.checkout import CHECKOUT


def _program(name: str) -> ModuleType:
    file = CHECKOUT / "tests" / "net" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"of_the_net_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


adapter = _program("adapter")
play = _program("play")
