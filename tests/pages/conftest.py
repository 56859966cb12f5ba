# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The site, of which tests read pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce


@pytest.fixture(scope="session")
def site(made_once: MadeOnce) -> Path:
    """The site, built as `make site` builds it; read only."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")

    def build(folder: Path) -> None:
        words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        found = subprocess.run(words, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
        # mkdocs.yml is strict: a warning is an error. Not with --quiet, which does not count them.
        assert found.returncode == 0, found.stderr

    return made_once("site", build)
