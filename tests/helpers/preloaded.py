# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the fork server of ``warm_python`` has imported before its first fork."""

from __future__ import annotations

import gc
import os
import pkgutil
from contextlib import suppress
from importlib import import_module

import helpers.one_search  # noqa: F401  # as in the tests' own process
from monai.bundle import ComponentLocator

# What commands load sooner or later; a library that is not installed is skipped. The last ones are
# loaded by an optimizer, by a table and by reports.
LIBRARIES = [
    "fire",
    "highdicom",
    "ignite.handlers",
    "jsonschema",
    "monai.bundle",
    "monai.fl.client",
    "monai.fl.utils.filters",
    "nibabel",
    "pytest",
    "rich.progress",
    "safetensors.torch",
    "scipy.stats",
    "skimage.color",
    "skimage.morphology",
    "skimage.segmentation",
    "torch._dynamo",
    "rich._emoji_codes",
    "jinja2",
    "PIL.ImageFont",
    "matplotlib.backends.backend_svg",
]
# Rooms of this checkout; a fork for another one loads that one's.
OURS = [f"monai_fairfl.{room}" for room in ("bundle", "cli", "client", "report", "strategies")]

for name in LIBRARIES:
    with suppress(ImportError):
        import_module(name)
for room in OURS:
    for module in pkgutil.iter_modules(import_module(room).__path__, f"{room}."):
        import_module(module.name)
import_module("helpers.warm_python")

# As in the tests' own process: see ``conftest.py``.
os.fsync = lambda descriptor: None
# The names that are there already; a fork adds those of modules that it loads.
ComponentLocator().get_component_module_name("")

# The collector of a fork leaves these objects alone, and so the memory that it shares.
gc.collect()
gc.freeze()
