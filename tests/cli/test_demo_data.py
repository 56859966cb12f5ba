# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl demo-data``: synthetic hospitals, and the sizes and seeds that it refuses."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import pytest
from helpers.command_line import run_json

from monai_fairfl.cli import main


@pytest.mark.slow
def test_demo_data_writes_six_hospitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = run_json(capsys, "demo-data", "--out", tmp_path, "--size", 24, 24, 6)
    assert len(written["sites"]) == 6
    for site in written["sites"]:
        assert nib.load(tmp_path / site / "Case00.nii.gz").shape == (24, 24, 6)


@pytest.mark.slow
def test_demo_data_writes_the_hospitals_of_the_demo_with_their_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("demo-data", "--out", tmp_path, "--hospitals", "demo", "--size", 24, 24, 6)
    written = run_json(capsys, *words)
    sites = run_json(capsys, "datalist", tmp_path)["sites"]
    assert written["sites"] == ["ash", "beech", "maple", "willow"]
    assert sorted(sites) == written["sites"]
    training = {"ash": 8, "beech": 8, "maple": 8, "willow": 2}
    for name, site in sites.items():
        assert site["training"] == training[name]
        assert site["validation"] == 2
        assert site["testing"] == 8


def test_the_demo_has_no_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("demo-data", "--out", tmp_path / "x", "--kind", "fundus", "--hospitals", "demo")
    error = run_json(capsys, *words, code=2)["error"]
    assert "leave out --kind fundus" in error
    assert not (tmp_path / "x").exists()


def test_sizes_of_zero_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["demo-data", "--out", str(tmp_path), "--size", "48", "0", "8"])
    assert left.value.code == 2
    assert "'0' is not a whole number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["demo-data", "--out", "x"], ["datalist", "x"]])
def test_seeds_below_zero_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--seed", "-1"])
    assert left.value.code == 2
    assert "'-1' is not a whole number from 0" in capsys.readouterr().err


@pytest.mark.parametrize("size", [["--kind", "fundus", "--size", "1"], ["--size", "48", "4", "8"]])
def test_sizes_that_show_no_structure_are_refused(
    size: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run_json(capsys, "demo-data", "--out", tmp_path / "x", *size, code=2)["error"]
    assert "at least" in error
    assert not (tmp_path / "x").exists()
