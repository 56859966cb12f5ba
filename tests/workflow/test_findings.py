# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What an inference run asks somebody to look at, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import CenterScaleCrop

from monai_fairfl.workflow import Case, Cases, CheckBorderd, MeasureVolumed, answer_text
from monai_fairfl.workflow.answer import answer_csv
from monai_fairfl.workflow.findings import _field, flag_volumes


def case_of(mask: torch.Tensor, tmp_path: Path, affine: Any = None) -> tuple[Case, MetaTensor]:
    case = Case("a", source="a.nii", image="a.nii")
    pred = MetaTensor(mask, affine=torch.eye(4) if affine is None else affine)
    pred.meta["filename_or_obj"] = "a.nii"
    return case, pred


def flags_of(mask: torch.Tensor, tmp_path: Path, affine: Any = None, **given: Any) -> list[str]:
    case, pred = case_of(mask, tmp_path, affine)
    CheckBorderd("pred", Cases([case], tmp_path / "volumes.json"), **given)({"pred": pred})
    assert case.status == "segmented"
    return list(case.results.get("flags", []))


def volume(*where: slice) -> torch.Tensor:
    mask = torch.zeros(1, 20, 30, 6)
    mask[(0, *where)] = 1
    return mask


@pytest.mark.parametrize(("side", "share"), [(20, 0.7), (21, 0.7), (33, 0.5), (8, 1.0), (7, 0.99)])
def test_the_field_is_that_which_the_network_saw(side: int, share: float) -> None:
    line = torch.arange(side)[None, :, None]
    seen = CenterScaleCrop([share, 1.0])(line)[0, :, 0]
    assert _field(side, share) == (int(seen[0]), int(seen[-1]))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ((slice(8, 12), slice(12, 16), slice(2, 4)), []),
        # RAS: the first axis runs from left to right, the second towards anterior.
        ((slice(3, 12), slice(12, 16), slice(2, 4)), ["border of the field (left), the central"]),
        ((slice(8, 17), slice(12, 16), slice(2, 4)), ["border of the field (right)"]),
        ((slice(8, 12), slice(12, 30), slice(2, 4)), ["border of the field (anterior)"]),
        ((slice(8, 12), slice(12, 16), slice(0, 4)), ["reaches the lowest slice"]),
        ((slice(8, 12), slice(12, 16), slice(0, 6)), ["the lowest and the highest slice"]),
    ],
)
def test_a_mask_at_the_border_is_named_with_its_side(
    where: tuple[slice, ...], words: list[str], tmp_path: Path
) -> None:
    found = flags_of(volume(*where), tmp_path, field_of_view=0.7)
    assert len(found) == len(words)
    assert all(word in flag for word, flag in zip(words, found, strict=True))


def test_sides_are_the_patients_however_the_file_is_stored(tmp_path: Path) -> None:
    stored_otherwise = torch.diag(torch.tensor([-1.0, -1.0, -1.0, 1.0]))
    found = flags_of(volume(slice(0, 9), slice(9, 12), slice(0, 3)), tmp_path, stored_otherwise)
    assert "(right)" in found[0] and "highest slice" in found[1]


def test_an_empty_mask_touches_nothing_and_a_photograph_has_four_sides(tmp_path: Path) -> None:
    assert flags_of(torch.zeros(1, 20, 30, 6), tmp_path) == []
    disc = torch.zeros(2, 40, 30)
    disc[0, :5, 25:] = 1
    [flag] = flags_of(disc, tmp_path)
    assert "border of the image (left, lower)" in flag


def measured(millilitres: float, spacing: float = 0.6) -> Case:
    results = {"millilitres": millilitres, "share": millilitres / 1e3}
    return Case("a", "a", results={**results, "voxel_size_mm": [spacing, spacing, spacing]})


def test_one_volume_unlike_the_others_is_found_and_a_wide_batch_is_left_alone() -> None:
    cases = [measured(size) for size in (31, 36, 40, 43, 47, 300)]
    assert flag_volumes(cases) == "Volumes are compared with the median of this batch, 41.5 ml."
    assert [index for index, case in enumerate(cases) if "flags" in case.results] == [5]
    assert "300.0 ml is far above the median" in cases[5].results["flags"][0]
    wide = [measured(size) for size in (20, 35, 60, 100, 170)]
    flag_volumes(wide)
    assert not any("flags" in case.results for case in wide)
    # Wide as it is, three times the median is worth a look.
    wide = [measured(size) for size in (20, 36, 54.8, 95, 165)]
    flag_volumes(wide)
    assert [index for index, case in enumerate(wide) if "flags" in case.results] == [4]
    alike = [measured(size) for size in (40, 40, 40, 40, 44)]
    flag_volumes(alike)
    assert not any("flags" in case.results for case in alike)


def test_a_skipped_series_does_not_turn_millilitres_into_shares() -> None:
    cases = [measured(size) for size in (31, 36, 40, 43, 47)]
    localiser = Case("b", "b", series="1.2.3", results={"series_description": "localizer"})
    localiser.skip("ImageType LOCALIZER; leave the series out")
    found = flag_volumes([*cases, localiser])
    assert found == "Volumes are compared with the median of this batch, 40.0 ml."
    assert "flags" not in localiser.results


def test_without_a_spacing_shares_are_compared_and_empty_masks_are_left_out() -> None:
    cases = [measured(size, spacing=1) for size in (31, 36, 40, 43, 0, 2)]
    assert flag_volumes(cases) == "Sizes are compared with the median of this batch, 3.60 %."
    assert [index for index, case in enumerate(cases) if "flags" in case.results] == [5]
    assert "not compared: that takes 5 masks or more, here are 4" in flag_volumes(cases[:5])


@pytest.mark.parametrize(("side", "flagged"), [(2.0, False), (30.0, True), (1.0, False)])
def test_a_volume_that_no_such_organ_has_is_reported(
    side: float, flagged: bool, tmp_path: Path
) -> None:
    affine = torch.diag(torch.tensor([side, side, side, 1.0]))
    case, pred = case_of(volume(slice(5, 15), slice(5, 15), slice(1, 5)), tmp_path, affine)
    cases = Cases([case], tmp_path / "volumes.json")
    MeasureVolumed("pred", cases, plausible=[2, 200])({"pred": pred})
    # Voxels of 1 mm are what files without a spacing have.
    assert ("flags" in case.results) is flagged
    assert case.results["share"] == pytest.approx(400 / 3600, abs=1e-6)


def test_the_table_is_safe_in_a_spreadsheet_and_reads_in_columns() -> None:
    hostile = {"case": "=cmd()", "status": "skipped", "problems": ["one", "two"]}
    plain = {"case": "b", "status": "segmented", "share": 0.01, "vertical_cup_to_disc_ratio": None}
    text = answer_csv([hostile, plain])
    assert text.splitlines()[1].startswith("'=cmd(),skipped,one; two")
    shown = answer_text({"cases": [hostile, plain]})
    assert "b       1.00 %  –            segmented" in shown and "1 of 2 cases" in shown
