# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The engines of ``docs/own_loop.md``: they take part in a run, and their handlers act."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl import read_ledger
from monai_fairfl.strategies import FedCE

SCRIPT = CHECKOUT / "docs" / "examples" / "own_engines.py"


def run_script(folder: Path) -> list[dict[str, Any]]:
    """The ledger that the script leaves in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [SCRIPT.name, str(folder)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return read_ledger(folder / "run" / "ledger.jsonl")


def test_the_script_of_the_page_measures_trains_and_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    records = run_script(tmp_path)
    rounds = records[1:-1]
    assert len(rounds) == 4
    weights = [str(record["aggregation"]) for record in rounds]
    assert [line for line in capfd.readouterr().out.splitlines() if line in weights] == weights
    for site, scores in records[-1]["scores"].items():
        assert set(rounds[1]["measurements"][site]) == {"global_score", *FedCE.requires}
        first = rounds[0]["measurements"][site]["global_score"]["mean"]["value"]
        assert scores["own"]["score"]["mean"]["value"] > first + 0.2
    # Nothing frightens the reader: MONAI logs an error where it looks for a metadata file.
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert run_script(tmp_path) == records
