# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The jobs of docs/flare_migrating.md: its code blocks as files, and how they are run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "flare_migrating.md"


def write_blocks(folder: Path) -> None:
    """Every block of the page, under the name that its first line says."""
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).write_text(text)


def switched(text: str) -> str:
    """A job after the change that the page's diff shows."""
    old, new = re.search(r"```diff\n-(.*)\n\+(.*)\n```", PAGE.read_text()).groups()  # type: ignore[union-attr]
    assert old in text
    return text.replace(old, new)


def run_block(folder: Path, name: str, *arguments: str, timeout: float = 300) -> str:
    """Run a block in its folder, with a home of its own; what it started is ended with it."""
    environment = {
        **os.environ,
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "ignore", name, *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    assert process.returncode == 0, output[-3000:]
    return output
