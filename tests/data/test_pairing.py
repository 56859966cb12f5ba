# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and masks are paired by their names, and so are the eyes of a patient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import public_layouts as made
from helpers.refusals import refused

from monai_fairfl.data import find_cases, overview, site_datalist


def with_names(site: Path, images: Sequence[str], masks: Sequence[str]) -> Path:
    return made.touch(
        site, *(f"images/{name}" for name in images), *(f"masks/{name}" for name in masks)
    )


def paired(site: Path) -> list[tuple[str, str]]:
    return [(Path(case["image"]).name, Path(case["label"]).name) for case in find_cases(site)]


STEMS = ["a", "a_1", "a_12", "ab", "b_2"]


@pytest.mark.parametrize("endings", [".png .png", ".jpg _mask.tif", ".nii.gz _cup_disc.nii"])
def test_every_image_meets_the_mask_made_for_it(endings: str, tmp_path: Path) -> None:
    expected = [tuple(f"{stem}{ending}" for ending in endings.split()) for stem in STEMS]
    assert paired(with_names(tmp_path, *zip(*expected, strict=True))) == expected


@pytest.mark.parametrize("names", [("image", "mask"), ("Images", "Labels"), ("imgs", "Segs")])
def test_folders_go_by_several_names(names: tuple[str, str], tmp_path: Path) -> None:
    site = with_names(tmp_path, ["a.png", "a_b.TIFF"], ["a_b_mask.png", "a_mask.png"])
    made.touch(site, "images/._a.png", "images/Thumbs.db", "images/notes.txt")
    for former, name in zip(("images", "masks"), names, strict=True):
        (site / former).rename(site / name)
    assert paired(site) == [("a.png", "a_mask.png"), ("a_b.TIFF", "a_b_mask.png")]


UNPAIRED = [
    (["7.png"], ["7.png", "8.png"], ["masks/8.png", "0 image"]),
    (["7.png", "7.jpg"], ["7.png"], ["2 image", "images/7.jpg, images/7.png"]),
    (["7.png"], ["7_disc.png", "7_cup.png"], ["2 mask", "7_cup.png"]),
    (["7.png"], ["7_2.png"], ["images/7.png", "masks/7_2.png"]),
    (["7.png", "8.png"], ["7_disc.png", "8_cup.png"], ["differently, 7_disc.png, 8_cup.png"]),
]


def test_files_that_do_not_pair_are_named(tmp_path: Path) -> None:
    for number, (images, masks, words) in enumerate(UNPAIRED):
        site = with_names(tmp_path / str(number), images, masks)
        with refused(site, *words):
            find_cases(site)


def test_volumes_pair_by_both_spellings_and_all_faults_come_at_once(tmp_path: Path) -> None:
    names = ["Case00.nii.gz", "Case00_segmentation.nii.gz", "Case01.nii", "Case01_Segmentation.nii"]
    made.touch(tmp_path, *names, "notes.txt", "._Case00.nii.gz")
    assert paired(tmp_path) == [(names[0], names[1]), (names[2], names[3])]
    made.touch(
        tmp_path, "Case01_segmentation.nii", "Case2.nii", "Case26.nii.gz", "Case26_seg.nii.gz"
    )
    made.touch(tmp_path, "Case261.nii.gz", "Case3_segmentation.nii.gz")
    # Another number is another case, and other letters are a mask of another name.
    named = ["Case01 has 1 image(s) and 2 mask(s)", "Case2.nii", "Case3_segmentation.nii.gz"]
    named += ["Case26_seg.nii.gz to Case26_segmentation.nii.gz", "Case261.nii.gz"]
    with refused(tmp_path, *named):
        find_cases(tmp_path)


EYES = ["G-1-L G-1-R", "P0_left_2020 P0_right_2020", "OS_P0 OD_P0", "RET002os RET002od"]
OTHERS = ["Case12R Case12L", "pods poss", "left right", "P0_left_2020 P0_right_2021", "P1OD P10OS"]


def test_both_eyes_are_of_one_patient_and_other_names_are_not(tmp_path: Path) -> None:
    for pair in EYES + OTHERS:
        names = [f"{name}.png" for name in (*pair.split(), "V0001")]
        site = with_names(tmp_path / pair, names, names)
        if pair in EYES:
            with refused(site, "2 patient"):  # of three, which a split needs
                site_datalist(site)
        else:
            assert [len(cases) for cases in site_datalist(site).values()] == [1, 1, 1]
    names = [f"G-{number}-{eye}.png" for number in range(6) for eye in "LR"]
    site = with_names(tmp_path / "elm", names, names)
    for seed in range(3):
        parts = site_datalist(site, seed=seed)
        assert [len(cases) for cases in parts.values()] == [6, 4, 2]
        for cases in parts.values():
            patients = {Path(case["image"]).name.split("-")[1] for case in cases}
            assert len(patients) == len(cases) / 2


def test_images_that_belong_to_no_case_are_refused(tmp_path: Path) -> None:
    site = made.folders(tmp_path / "elm")
    names = ["images/batch2/8.png", "images_2024/9.WEBP", "DICOM/P1/study/1.dcm", "a.nrrd"]
    made.touch(site, *names, "images/.cache/9", "x/y")
    files = overview({"elm": site})[0]["files"]
    assert sorted(files["refused"]) == sorted(str(site / name) for name in names)
    assert (files["used"], files["not_images"]) == (8, 3)
