# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs a small federation in a folder, in a process of its own.

``python tests/edge/federation_on_a_disk.py FOLDER [resume]``
"""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def main(folder: str, *more: str) -> None:
    """Run it, or go on."""
    sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]
    from helpers.least_squares_federation import federation

    federation(Path(folder), rounds=8).run(resume="resume" in more)


if __name__ == "__main__":
    main(*sys.argv[1:])
