# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The table of a run: exit codes, outputs that fail, and what somebody should look at."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.reports import rows_of
from monai.data import MetaTensor

from monai_fairfl.workflow import Case, CaseOutput, Cases, CheckBorderd

LPS = np.diag([-1.0, -1, 1, 1])


class Fails(CaseOutput):
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        raise OSError("disk full")


class Counts(CaseOutput):
    def write(self, case: Case, pred: MetaTensor) -> Mapping[str, Any]:
        return {"pixels": int(pred.sum())}


def prediction(image: str, mask: torch.Tensor | None = None, affine: Any = None) -> Any:
    pred = MetaTensor(torch.ones(1, 3, 3) if mask is None else mask, affine=affine)
    pred.meta["filename_or_obj"] = image
    return {"pred": pred}


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    both = [Case(name, f"in/{name}.png", image=f"in/{name}.png") for name in "ab"]
    return Cases(both, tmp_path / "out" / "table.json")


def table(cases: Cases) -> Any:
    return json.loads(cases.report.read_text())


def code_of(end: Any) -> object:
    with pytest.raises(SystemExit) as stopped:
        end()
    return stopped.value.code


# --- exit codes and failures


def test_a_run_leaves_its_table_after_each_case_and_returns_where_all_went_well(
    cases: Cases,
) -> None:
    for case, summary in zip(
        cases, ({"segmented": 1, "waiting": 1}, {"segmented": 2}), strict=True
    ):
        Counts("pred", cases)(prediction(case.image))
        assert table(cases)["summary"] == summary
    cases.require()
    cases.finish()
    assert table(cases)["cases"][1]["pixels"] == 9


def test_a_skipped_case_is_no_image_and_makes_the_code_3_and_all_of_them_2(cases: Cases) -> None:
    cases.cases[0].skip("cannot be read")
    assert cases.images == [{"image": "in/b.png"}]
    Counts("pred", cases)(prediction("in/b.png"))
    assert code_of(cases.finish) == 3
    assert table(cases)["cases"][0]["problems"] == ["cannot be read"]
    cases.cases[1].skip("cannot be read")
    cases.report.unlink()
    assert code_of(cases.require) == 2
    assert table(cases)["summary"] == {"skipped": 2}
    rows = rows_of(cases.report.with_suffix(".csv"))
    assert [row["status"] for row in rows] == ["skipped"] * 2


def test_an_output_that_fails_spoils_neither_its_case_nor_the_others(
    cases: Cases, caplog: pytest.LogCaptureFixture
) -> None:
    Fails("pred", cases)(prediction("in/a.png"))
    for case in cases:
        Counts("pred", cases)(prediction(case.image))
    assert code_of(cases.finish) == 3
    first, second = table(cases)["cases"]
    assert (first["status"], second["status"]) == ("incomplete", "segmented")
    for words in (first["problems"][0], caplog.text):
        assert "Fails" in words and "disk full" in words
    assert first["pixels"] == second["pixels"] == 9


def test_a_name_that_is_no_text_is_in_the_tables(tmp_path: Path) -> None:
    name = os.fsdecode(b"M\xfcller")
    cases = Cases([Case(name, source=name, status="segmented")], tmp_path / "table.json")
    cases.finish()
    assert table(cases)["cases"][0]["case"] == name
    assert "\nM" in cases.report.with_suffix(".csv").read_text()


# --- masks at the border


def flags_of(folder: Path, mask: torch.Tensor, affine: Any = LPS, share: float = 1) -> list[str]:
    case = Case("a", source="a", image="a")
    check = CheckBorderd("pred", Cases([case], folder / "table.json"), field_of_view=share)
    check(prediction("a", mask, affine))
    assert case.status == "segmented"
    return case.problems


def box(*where: slice) -> torch.Tensor:
    mask = torch.zeros(1, 20, 30, 6)
    mask[0][where] = 1
    return mask


def test_a_mask_at_the_border_is_flagged(tmp_path: Path) -> None:
    middle = (slice(8, 12), slice(12, 16), slice(2, 4))
    assert flags_of(tmp_path, box(*middle)) == []
    [problem] = flags_of(tmp_path, 0 * box(*middle))
    assert "nothing" in problem
    for where in ((middle[0], slice(0, 16), middle[2]), (*middle[:2], slice(0, 4))):
        assert len(flags_of(tmp_path, box(*where))) == 1
    # The network saw a part of the image.
    assert len(flags_of(tmp_path, box(*middle), share=0.2)) == 1
    # One slice is no stack.
    assert flags_of(tmp_path, box(*middle)[..., 2:3]) == []
    disc = torch.zeros(1, 40, 30)
    disc[0, :5, 25:] = 1
    assert len(flags_of(tmp_path, disc, None)) == 1
