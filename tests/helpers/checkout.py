# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the checkout is, settings that make the prostate bundle tiny, and waiting for processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

DEVICE = os.environ.get("MONAI_FAIRFL_TEST_DEVICE", "cpu")
"""The device on which clients train and measure in tests that compare no bits with stored ones."""

TINY = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "batch_size": 2,
    "slices_per_volume": 4,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, happened: Callable[[], object], seconds: float = 400) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)


def files_of_the_project() -> list[Path]:
    """What git has or would take, so that the checks also hold for work in progress."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [CHECKOUT / name for name in listed.stdout.splitlines() if (CHECKOUT / name).is_file()]
