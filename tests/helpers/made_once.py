# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Folders that one worker makes and all workers of a test run read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

Make = Callable[[Path], object]
MadeOnce = Callable[[str, Make], Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """Maker of read-only folders, for session fixtures: ``made_once("hospitals", write_sites)``.

    The first of pytest-xdist's workers that asks for a name makes the folder; the others wait.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # A worker's own folder lies in the one of the test run.
        shared = shared.parent

    def made(name: str, make: Make) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                # What a maker that failed in another worker left.
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made
