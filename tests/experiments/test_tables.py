# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A study's table gives back what was written, to the digit, whatever writes or ends meanwhile."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import tables
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


def test_a_result_is_read_back_with_its_types_and_a_row_for_each_site(tmp_path: Path) -> None:
    stem = tmp_path / "study"
    tables.add(stem, {"FedCE-fold0": RESULT}, ["FedCE-fold0"])
    assert json.dumps(tables.read(stem)["FedCE-fold0"], sort_keys=True) == json.dumps(
        RESULT, sort_keys=True
    )
    rows = list(csv.DictReader((tmp_path / "study.csv").open()))
    assert [row["site"] for row in rows] == ["", "B", "A"]
    assert rows[2]["test/dice/*"] == "[0.5 null]" and rows[0]["minutes"] == "4.0"


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
