# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study's table gives back what was written, to the digit, whatever writes or ends meanwhile."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tables
from helpers.checkout import CHECKOUT
from hypothesis import given
from hypothesis import strategies as st
from study import Study, studies

RESULT: dict[str, Any] = {
    "minutes": 4.0,
    "model": "064e8",
    "samples": {"B": 8, "A": 7},
    "test": {
        "cases": {"A": ["a 1.png", "b.png"], "B": ["c.png"]},
        "dice": {"A": [0.5, None], "B": [1.0]},
    },
    "closing": {"A": {"own": {"score": 0.0978655}}, "B": {"own": {"score": 1e-05}}},
    "best": {"round": 19, "score": 0.911991},
    "contributions": None,
    "guards": {"names": [], "touched": {}},
    "reports": {"NaN": "NaN", "1e9": "1e9", "empty": ""},
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


def test_a_result_is_read_back_with_its_types_and_a_row_for_each_site(tmp_path: Path) -> None:
    stem = tmp_path / "study"
    tables.add(stem, {"FedCE-fold0": RESULT}, ["FedCE-fold0"])
    assert json.dumps(tables.read(stem)["FedCE-fold0"], sort_keys=True) == json.dumps(
        RESULT, sort_keys=True
    )
    rows = list(csv.DictReader((tmp_path / "study.csv").open()))
    assert [row["site"] for row in rows] == ["", "B", "A"]
    assert rows[2]["test/dice/*"] == "[0.5 null]" and rows[0]["minutes"] == "4.0"


@given(SCALARS | st.lists(SCALARS, max_size=4))
def test_any_value_of_json_comes_back(value: Any) -> None:
    assert json.dumps(tables.value_of(tables.text_of(value))) == json.dumps(value)


def test_rows_have_the_studys_order_and_a_large_table_is_gzipped(tmp_path: Path) -> None:
    stem = tmp_path / "study"
    order = ["a", "b", "c"]
    for name in ("c", "a"):
        tables.add(stem, {name: {"minutes": 1.0}}, order)
    once = (tmp_path / "study.csv").read_bytes()
    assert list(tables.read(stem)) == ["a", "c"]
    tables.add(stem, {"b": {"many": list(range(100_000))}}, order)
    assert [path.name for path in tmp_path.iterdir()] == ["study.csv.gz"]
    assert tables.read(stem)["b"]["many"][-1] == 99_999
    tables.remove(stem, ["b"])
    assert (tmp_path / "study.csv").read_bytes() == once
    assert [path.name for path in tmp_path.iterdir()] == ["study.csv"]


ADD = """
import sys, tables
from pathlib import Path
first = int(sys.argv[2])
order = [str(number) for number in range(40)]
for number in range(first, first + 20):
    tables.add(Path(sys.argv[1]), {str(number): {"number": number}}, order)
"""
TOO_LARGE = """
import resource, signal, sys, tables
from pathlib import Path
# The system ends the process as it writes beyond this, as where the power fails.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
tables.add(Path(sys.argv[1]), {"b": {"many": list(range(10000))}}, ["a", "b"])
"""


def python(script: str, *words: str) -> subprocess.Popen[bytes]:
    path = f"{CHECKOUT}:{CHECKOUT / 'experiments'}"
    environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
    return subprocess.Popen([sys.executable, "-c", script, *words], env=environment)


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    both = [python(ADD, str(tmp_path / "study"), first) for first in ("0", "20")]
    assert [process.wait() for process in both] == [0, 0]
    found = tables.read(tmp_path / "study")
    assert {name: result["number"] for name, result in found.items()} == {
        str(number): number for number in range(40)
    }


def test_a_process_that_ends_while_it_writes_leaves_the_table_before(tmp_path: Path) -> None:
    tables.add(tmp_path / "study", {"a": {"minutes": 1.0}}, ["a"])
    before = (tmp_path / "study.csv").read_bytes()
    assert python(TOO_LARGE, str(tmp_path / "study")).wait() < 0
    assert (tmp_path / "study.csv").read_bytes() == before


def test_a_committed_table_has_cells_of_its_study_that_tested_what_they_say() -> None:
    from reading import cases

    for name in studies():
        study = Study.read(name)
        assert set(tables.read(study.table)) <= {cell.name for cell in study.cells()}
        for cell, result in study.results().items():
            rounds = study.rounds_of(cell)
            series = (result.get("global_score") or {}).values()
            assert all(len(values) == rounds for values in series)
            for site, scores in cases([result]).items():
                tested = result["closing"][site]["own"]
                whole = tested.get("personal_test_score", tested["test_score"])
                assert sum(scores.values()) / len(scores) == pytest.approx(whole, abs=1e-4), cell
