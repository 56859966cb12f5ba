# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A warm program of Flower's does what the program itself does, and ends with who asked for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from helpers.flare_poc import BIN, free_port, wait_for  # noqa: E402
from helpers.warm_flower import PROGRAMS, WarmPrograms  # noqa: E402

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPrograms]:
    programs = WarmPrograms(tmp_path_factory.mktemp("warm") / "warm")
    programs.start()
    yield programs
    programs.stop()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("words", [["--help"], ["--no-such-option"]])
def test_output_and_exit_status_are_those_of_the_program(
    program: str, words: list[str], warm: WarmPrograms
) -> None:
    expected, found = (
        subprocess.run([str(folder / program), *words], capture_output=True, text=True)
        for folder in (BIN, warm.bin)
    )

    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_a_fork_is_killed_with_the_program_that_asked_for_it(
    warm: WarmPrograms, tmp_path: Path
) -> None:
    # Nobody listens there: it asks again and again.
    nowhere = f"127.0.0.1:{free_port()}"
    words = ["--insecure", "--token", "x", "--runtime-api-address", nowhere]
    with (tmp_path / "log").open("w") as log:
        asking = subprocess.Popen(
            [str(warm.bin / "flwr-clientapp"), *words],
            stdout=log,
            stderr=log,
            env={**os.environ, "FLWR_HOME": str(tmp_path)},
        )
    wait_for("its fork", lambda: bool(warm.forks_of([asking.pid])), 60)
    [fork] = warm.forks_of([asking.pid])
    wait_for("its first line", lambda: "Start" in (tmp_path / "log").read_text(), 60)
    assert psutil.pid_exists(fork)

    asking.kill()
    asking.wait(timeout=30)

    wait_for("the fork's end", lambda: not psutil.pid_exists(fork), 30)
