# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The program of ``tests/net``, which is no package: a page's example has a module ``net``."""

from __future__ import annotations

import importlib.util
import sys

from helpers.checkout import CHECKOUT

_spec = importlib.util.spec_from_file_location(
    "of_the_net_play", CHECKOUT / "tests" / "net" / "play.py"
)
assert _spec is not None and _spec.loader is not None
play = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(play)
