# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl datalist``: the lists of a root's sites, their folds and their check."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.command_line import run_json

from monai_fairfl.cli import main


def counts(site: dict[str, Any]) -> tuple[int, int, int]:
    """Cases of a site for training, validation and testing."""
    return site["training"], site["validation"], site["testing"]


def site_names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_datalist_of_a_root_checks_and_splits_every_site(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = run_json(capsys, "datalist", hospitals, "--out", tmp_path)["sites"]
    assert sorted(sites) == site_names(hospitals)
    for name, site in sites.items():
        assert counts(site) == (2, 1, 1)
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert len(written["training"]) == 2


@pytest.mark.slow
def test_a_list_that_is_there_is_read_and_not_said_to_be_written(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        {"image": f"Case0{n}.nii.gz", "label": f"Case0{n}_segmentation.nii.gz"} for n in range(4)
    ]
    parts = {"training": cases[:1], "validation": cases[1:2], "testing": cases[2:]}
    (tmp_path / "elm.json").write_text(json.dumps(parts))
    before = (tmp_path / "elm.json").read_bytes()
    assert main(["datalist", str(hospitals), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"kept as they are, and read: {tmp_path / 'elm.json'}\nwritten: {tmp_path}" in printed
    assert "elm: 4 cases, 1 training, 1 validation, 2 testing" in printed
    assert main(["datalist", str(hospitals), "--out", str(tmp_path)]) == 0
    assert "written" not in capsys.readouterr().out
    assert (tmp_path / "elm.json").read_bytes() == before


def test_datalist_folds_of_a_site_test_every_case_once(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for fold in range(4):
        words = ("datalist", hospitals / "elm", "--folds", 4, "--fold", fold)
        sites = run_json(capsys, *words)["sites"]
        assert sites["elm"]["testing"] == 1


def test_a_fold_without_the_number_of_folds_is_refused(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run_json(capsys, "datalist", hospitals / "elm", "--fold", 1, code=2)["error"]
    assert error == "--fold 1 needs --folds, the number of folds"
    with pytest.raises(SystemExit):
        main(["datalist", str(hospitals / "elm"), "--folds", "0"])
    assert "'0' is not a whole number above 0" in capsys.readouterr().err


def test_datalist_names_the_problems_of_all_sites_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = nib.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4))
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        nib.save(image, tmp_path / name / "Case00.nii.gz")
    assert main(["datalist", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'A'" in error
    assert "'B'" in error
    assert "Case00_segmentation.nii.gz" in error


def test_datalist_check_shows_every_site(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["datalist", str(hospitals), "--check"]) == 0
    shown = capsys.readouterr().out
    for name in site_names(hospitals):
        assert re.search(rf"^ {name} ", shown, re.MULTILINE), name


def test_datalist_check_fails_only_where_a_training_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.folders(tmp_path / "elm")
    made.folders(tmp_path / "oak", first=10)
    (tmp_path / "oak" / "masks" / "eye11.png").unlink()
    words = ("datalist", tmp_path, "--check", "--structures", "disc", "cup")
    found = run_json(capsys, *words, code=2)
    assert found["sites"]["elm"]["values"] == {"disc": [64, 255], "cup": [192, 255]}
    (problem,) = found["problems"]
    assert "site 'oak'" in problem
    assert "images/eye11.png has no mask" in problem
    assert found["sites"]["oak"]["num_cases"] == found["sites"]["elm"]["num_cases"] - 1

    alone = run_json(capsys, "datalist", tmp_path / "elm", "--check")
    assert alone["sites"]["elm"]["testing"] == 1


def test_a_hospital_whose_folder_cannot_be_its_name_is_a_problem_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.folders(tmp_path / "elm")
    made.folders(tmp_path / "Köln Süd", first=10)
    words = ("--check", "--structures", "disc", "cup")
    (problem,) = run_json(capsys, "datalist", tmp_path, *words, code=2)["problems"]
    assert "the name of the hospital's folder 'Köln Süd' cannot be used" in problem
    assert "A to Z, without accents" in problem
    # Alone it is no name in a federation.
    assert run_json(capsys, "datalist", tmp_path / "Köln Süd", *words)["problems"] == []


def test_a_missing_mask_hides_no_other_fault_of_its_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = nib.Nifti1Image(np.ones((4, 4, 4), np.int16), np.eye(4))
    for number in range(5):
        nib.save(image, tmp_path / f"Case{number:02}.nii.gz")
        nib.save(image, tmp_path / f"Case{number:02}_segmentation.nii.gz")
    (tmp_path / "Case00_segmentation.nii.gz").unlink()
    (tmp_path / "Case01.nii.gz").write_text("no volume")
    other = nib.Nifti1Image(np.ones((4, 4, 3), np.int16), np.eye(4))
    nib.save(other, tmp_path / "Case02_segmentation.nii.gz")
    found = run_json(capsys, "datalist", tmp_path, "--check", code=2)
    text = "\n".join(found["problems"])
    assert "Case00.nii.gz has no mask" in text
    assert "Case01.nii.gz cannot be read" in text
    assert "Case02_segmentation.nii.gz has shape (4, 4, 3)" in text


def test_datalist_check_writes_nothing(hospitals: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["datalist", str(hospitals), "--check", "--out", str(tmp_path / "lists")])
    assert left.value.code == 2
    assert not (tmp_path / "lists").exists()


def write_stereo_pairs(site: Path, first: int) -> None:
    """Write four photographs that show the same eye twice, with a mask of the left half."""
    for number in range(first, first + 4):
        photo = made.photo(number, 96)
        mask = made.mask(number, (0, 128, 255), 96, 30, 14)
        empty = np.zeros((96, 96), np.uint8)
        made.write(site / "images" / f"{number}.png", np.hstack([photo, photo]))
        made.write(site / "masks" / f"{number}.png", np.hstack([mask, empty]))


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["lists", "check"])
def test_stereo_pairs_are_recognised_and_folders_that_are_no_site_are_notes(
    check: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stereo_pairs(tmp_path / "elm", first=0)
    write_stereo_pairs(tmp_path / "oak", first=4)
    (tmp_path / "ash").mkdir()
    (tmp_path / "ash" / "eye.nrrd").touch()
    words = ["datalist", tmp_path, "--structures", "disc", "cup", *check]

    by_shape = run_json(capsys, *words, "--stereo", "auto")["warnings"]
    assert len(by_shape) == 3, by_shape
    assert sum("taken for a stereo pair" in note for note in by_shape) == 2

    given = run_json(capsys, *words, "--stereo", "no")["warnings"]
    assert len(given) == 1, given
    assert f"{tmp_path / 'ash'} holds images but is no site" in given[0]


def test_datalist_writes_the_values_of_structures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = made.folders(tmp_path / "elm")
    file = tmp_path / "elm.json"
    run_json(capsys, "datalist", site, "--structures", "disc", "--out", file)
    first_case = json.loads(file.read_text())["testing"][0]
    assert first_case["values"] == {"disc": [64, 255]}


def test_datalist_takes_lists_as_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = made.nvflare(tmp_path / "flare")
    lists = tmp_path / "lists"
    sites = run_json(capsys, "datalist", root, "--out", lists)["sites"]
    assert sorted(sites) == ["client_I2CVB", "client_MSD"]
    assert sites["client_I2CVB"]["training"] == 4
    assert sites["client_MSD"]["training"] == 4
    written = sorted(path.name for path in lists.iterdir())
    assert written == ["client_I2CVB.json", "client_MSD.json"]

    one = run_json(capsys, "datalist", root / "datalist_2D" / "client_MSD.json")["sites"]
    assert one["client_MSD"]["testing"] == 2
