# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which build of the package runs: its version and, in a checkout, the commit.

Only ``--version`` and ``doctor`` show it. Files of a run name the version alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import monai_fairfl

CHECKOUT = Path(monai_fairfl.__file__).resolve().parent.parent
"""The folder above the package: a checkout, or the ``site-packages`` of an environment."""

SECONDS = 10.0
"""How long git may take; a checkout can lie on a slow disk."""


def build_of(folder: Path = CHECKOUT) -> str:
    """The version, with the git commit where the package runs from a checkout.

    Args:
        folder: that holds the package.

    >>> build_of(Path("/")) == monai_fairfl.__version__
    True
    """
    version = monai_fairfl.__version__
    # An environment may lie inside the repository of something else.
    if not (folder / ".git").exists() or not (folder / "setup.py").is_file():
        return version
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        # There is no git, or the checkout belongs to another account.
        return f"{version} (a checkout, commit unknown)"
    commit, _, is_dirty = done.stdout.strip().partition("-")
    changed = ", changed since" if is_dirty else ""
    return f"{version} (commit {commit}{changed})"
