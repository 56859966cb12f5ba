# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The README's Python runs as it is printed, for one round in place of twenty."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

README = (CHECKOUT / "README.md").read_text()


def python_of_readme() -> str:
    [block] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return str(block)


def test_the_command_line_and_python_are_about_ten_lines() -> None:
    lines = [line for line in python_of_readme().splitlines() if line]
    assert len(lines) <= 10
    commands = re.findall(r"^monai-fairfl \w", README, re.MULTILINE)
    assert 8 <= len(commands) <= 12


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_the_python_prints_contributions_and_writes_a_report(tmp_path: Path) -> None:
    code = python_of_readme().replace(", 20, ", ", 1, ")
    assert code != python_of_readme()
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "'willow'" in found.stdout.splitlines()[-1]
    assert (tmp_path / "runs" / "python" / "report.html").exists()
