# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of rounds times whole rounds, and divides their time among parts that exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

from benchmarks import rounds


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_round_is_timed_beside_one_of_another_checkout_and_its_parts_are_the_whole(
    hospitals: Path,
) -> None:
    words = ["--methods", "FedAvg", "--data", str(hospitals), "--before", str(CHECKOUT)]
    words += ["--size", "32", "--pairs", "1", "--profiled", "1"]
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "benchmarks" / "rounds.py"), *words],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    times, _, parts = done.stdout.partition("\nCPU seconds of a round\n\n")

    titles = [cell.strip() for cell in times.splitlines()[0].split("|")[1:-1]]
    cells = [cell.strip() for cell in times.splitlines()[2].split("|")[1:-1]]
    row = dict(zip(titles, cells, strict=True))
    assert row["method"] == "FedAvg"
    now, before = float(row["CPU, s a round"]), float(row["CPU before, s"])
    assert now > 0
    # Numbers of a table have two digits.
    assert float(row["CPU, now / before"]) == pytest.approx(now / before, rel=0.1)

    head, _, *rows = parts.splitlines()
    titles = [cell.strip() for cell in head.split("|")[1:-1]]
    assert titles == ["method", "version", *rounds.PARTS, rounds.SERVER, "all"]
    assert [line.split("|")[2].strip() for line in rows] == [rounds.BEFORE, rounds.NOW]
    for line in rows:
        *seconds, whole = (float(cell) for cell in line.split("|")[3:-1])
        assert sum(seconds) == pytest.approx(whole, abs=0.05 + 0.02 * whole)
        assert seconds[0] > 0 and min(seconds) >= 0
