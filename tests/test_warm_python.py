# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A command that is forked from a warm interpreter does what it does in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import warm_python

# The server of a test worker needs four seconds to import its libraries.
pytestmark = pytest.mark.slow

PROGRAM = """
import atexit, os, sys, warnings
import beside
print(sys.argv[1:], os.getcwd(), os.environ["COLOUR"], __name__, beside.NAME)
atexit.register(print, "the end")
warnings.warn("careful")
print("bad", file=sys.stderr)
{ending}
"""


@pytest.mark.parametrize(
    ("warning", "ending"),
    [
        ("ignore", ""),
        ("ignore", "sys.exit(3)"),
        ("ignore", "sys.exit('no such file')"),
        ("ignore", "sys.exit(None)"),
        ("ignore", "1 / 0"),
        # The warning is an error, and the program never reaches its ending.
        ("error", ""),
    ],
)
def test_output_and_exit_status_are_those_of_a_new_interpreter(
    warning: str, ending: str, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(ending=ending))
    words = ["-W", warning, "-m", "program", "one", "--two"]

    warm = warm_python.run(words, tmp_path, COLOUR="green")

    new = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "COLOUR": "green"},
        capture_output=True,
        text=True,
    )
    assert (warm.returncode, warm.stdout) == (new.returncode, new.stdout)
    assert warm.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]
    assert ("Traceback" in warm.stderr) == ("Traceback" in new.stderr)


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(subprocess.TimeoutExpired):
        warm_python.run(["-m", "program"], tmp_path, timeout=0.5)


def test_the_end_of_a_killed_command_is_seen(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time\ntime.sleep(600)\n")
    process = warm_python.start(["-m", "program"], tmp_path)
    process.kill()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
