# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the checkout is, and the settings that make the prostate bundle tiny."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

DEVICE = os.environ.get("MONAI_FAIRFL_TEST_DEVICE", "cpu")
"""The device on which clients train and measure in tests that compare no bits with stored ones."""

TINY = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "batch_size": 2,
    "slices_per_volume": 4,
    "decay_epochs": 4,
}


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
