# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of a run and its exit codes, and outputs that fail without stopping a run."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.data import MetaTensor

from monai_fairfl.workflow import Case, CaseOutput, Cases


class Fails(CaseOutput):
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        raise OSError("disk full")


class Counts(CaseOutput):
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        return {"pixels": int(pred.sum())}


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    return Cases(
        [Case(name, f"in/{name}.png", image=f"in/{name}.png") for name in "ab"],
        tmp_path / "out/table.json",
    )


def prediction(of: str) -> dict[str, MetaTensor]:
    pred = MetaTensor(torch.ones(1, 3, 3))
    pred.meta["filename_or_obj"] = of
    return {"pred": pred}


def table(cases: Cases) -> Any:
    return json.loads(cases.report.read_text())


def test_a_run_that_went_well_returns_and_leaves_its_table(cases: Cases) -> None:
    for case in cases:
        Counts("pred", cases)(prediction(case.image))
    cases.require()
    cases.finish()
    assert table(cases)["summary"] == {"segmented": 2}
    assert table(cases)["cases"][1] == {
        "case": "b",
        "status": "segmented",
        "source": "in/b.png",
        "pixels": 9,
    }


def test_a_skipped_case_is_not_an_image_and_makes_the_exit_code_3(cases: Cases) -> None:
    cases.cases[0].skip("cannot be read; copy it again")
    assert cases.images == [{"image": "in/b.png"}]
    Counts("pred", cases)(prediction("in/b.png"))
    with pytest.raises(SystemExit) as stopped:
        cases.finish()
    assert stopped.value.code == 3
    assert table(cases)["cases"][0]["problems"] == ["cannot be read; copy it again"]


def test_nothing_usable_makes_the_exit_code_2(cases: Cases) -> None:
    for case in cases:
        case.skip("cannot be read; copy it again")
    with pytest.raises(SystemExit) as stopped:
        cases.require()
    assert stopped.value.code == 2
    assert table(cases)["summary"] == {"skipped": 2}
    rows = cases.report.with_suffix(".csv").read_text().splitlines()[1:]
    assert [row.split(",")[:2] for row in rows] == [["a", "skipped"], ["b", "skipped"]]


def test_an_output_that_fails_spoils_neither_the_case_nor_the_others(
    cases: Cases, caplog: pytest.LogCaptureFixture
) -> None:
    for case in cases:
        outputs = [Fails("pred", cases)] if case.name == "a" else []
        for output in [*outputs, Counts("pred", cases)]:
            output(prediction(case.image))
    with pytest.raises(SystemExit) as stopped:
        cases.finish()
    assert stopped.value.code == 3
    first, second = table(cases)["cases"]
    assert first["status"] == "incomplete" and first["problems"] == ["Fails failed: disk full"]
    assert first["pixels"] == second["pixels"] == 9
    assert "a: Fails failed: disk full" in caplog.text


def test_an_aborted_run_leaves_what_it_had(cases: Cases) -> None:
    Counts("pred", cases)(prediction("in/a.png"))
    assert table(cases)["summary"] == {"segmented": 1, "waiting": 1}


def test_the_end_of_a_run_is_written_whatever_standard_output_can_show(tmp_path: Path) -> None:
    name = os.fsdecode(b"M\xfcller")
    cases = Cases([Case(name, source=name, status="segmented")], tmp_path / "table.json")
    shown = io.BytesIO()
    # As a terminal of a Latin-1 locale. The table has a dash, which is not in it.
    terminal = io.TextIOWrapper(shown, "latin-1", write_through=True)
    with redirect_stdout(terminal):
        cases.finish()
    assert b"M?ller" in shown.getvalue()
    assert "compared" in table(cases) and cases.report.with_suffix(".csv").exists()


def test_the_end_of_a_run_is_written_before_it_is_printed(cases: Cases, tmp_path: Path) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with redirect_stdout(Closed()), pytest.raises(BrokenPipeError):
        cases.finish()
    assert "compared" in table(cases) and cases.report.with_suffix(".csv").exists()


def test_a_file_name_that_is_no_utf_8_does_not_cost_the_table(tmp_path: Path) -> None:
    name = os.fsdecode(b"M\xfcller")
    Cases([Case(name, source=name)], tmp_path / "table.json").save()
    assert json.loads((tmp_path / "table.json").read_text())["cases"][0]["case"] == name
