# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and masks are paired by their names, and so are the eyes of a patient."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import public_layouts as made
from helpers.refusals import noted, notes, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_fairfl.data import check_cases, find_cases, site_datalist


def write_names(site: Path, images: Sequence[str], masks: Sequence[str]) -> Path:
    """Empty files: a pairing looks at names alone."""
    for folder, names in (("images", images), ("masks", masks)):
        (site / folder).mkdir(parents=True)
        for name in names:
            (site / folder / name).touch()
    return site


def paired(site: Path) -> list[tuple[str, str]]:
    return [(Path(case["image"]).name, Path(case["label"]).name) for case in find_cases(site)]


@settings(max_examples=30)
@given(
    stems=st.lists(
        st.from_regex(r"[a-z]{1,4}(_[0-9]{1,2})?", fullmatch=True), min_size=1, unique=True
    ),
    suffix=st.sampled_from(["", "_mask", "_segmentation", "_OD", "-seg", "_cup_disc"]),
    endings=st.sampled_from(
        [(".png", ".png"), (".jpg", ".tif"), (".nii.gz", ".nii"), (".JPEG", ".bmp")]
    ),
)
def test_every_image_meets_the_mask_made_for_it(
    stems: list[str], suffix: str, endings: tuple[str, str]
) -> None:
    expected = [(f"{stem}{endings[0]}", f"{stem}{suffix}{endings[1]}") for stem in stems]
    with tempfile.TemporaryDirectory() as folder:
        images, masks = zip(*expected, strict=True)
        assert paired(write_names(Path(folder, "elm"), images, masks)) == sorted(expected)


@pytest.mark.parametrize("names", [("image", "mask"), ("Images", "Labels"), ("imgs", "labels")])
def test_folders_go_by_several_names_and_only_images_count(
    names: tuple[str, str], tmp_path: Path
) -> None:
    site = write_names(tmp_path, ["a.png", "a_b.TIFF"], ["a_b_mask.png", "a_mask.png"])
    for name in ("._a.png", "Thumbs.db", "notes.txt"):
        (site / "images" / name).touch()
    for former, name in zip(("images", "masks"), names, strict=True):
        (site / former).rename(site / name)
    assert paired(site) == [("a.png", "a_mask.png"), ("a_b.TIFF", "a_b_mask.png")]


@pytest.mark.parametrize(
    ("images", "masks", "words"),
    [
        ("7 8", "7", ["images/8.png", "no mask"]),
        ("7", "7 8", ["masks/8.png", "no image"]),
        ("7", "7 7_mask", ["2 masks", "7.png and 7_mask.png"]),
        ("7", "7_2", ["images/7.png", "masks/7_2.png"]),
        ("7", "7_disc 7_cup", ["7_cup.png and 7_disc.png"]),
    ],
)
def test_files_that_do_not_pair_are_named(
    images: str, masks: str, words: list[str], tmp_path: Path
) -> None:
    site = write_names(
        tmp_path / "elm", [f"{n}.png" for n in images.split()], [f"{n}.png" for n in masks.split()]
    )
    with refused(site, *words):
        find_cases(site)
    (site / "images" / "7.jpg").touch()
    with refused(site):
        find_cases(site)


def test_volumes_pair_by_both_published_spellings_and_all_faults_come_at_once(
    tmp_path: Path,
) -> None:
    names = ["Case00.nii.gz", "Case00_segmentation.nii.gz", "Case01.nii", "Case01_Segmentation.nii"]
    for name in (*names, "notes.txt", "._Case00.nii.gz"):
        (tmp_path / name).touch()
    pairs = [(Path(case["image"]).name, Path(case["label"]).name) for case in find_cases(tmp_path)]
    assert pairs == [(names[0], names[1]), (names[2], names[3])]
    more = ("Case01_segmentation.nii", "Case2.nii", "Case26.nii.gz", "Case26_seg.nii.gz")
    for name in (*more, "Case261.nii.gz", "Case3_segmentation.nii.gz"):
        (tmp_path / name).touch()
    named = ["Case01 has 2 masks", "Case2_segmentation.nii.gz", "Case3.nii.gz"]
    # Another number is another case, and other letters are a mask of another name.
    named += ["Case26_seg.nii.gz", "Case26_segmentation.nii.gz", "Case261_segmentation.nii.gz"]
    with refused(tmp_path, *named):
        find_cases(tmp_path)


EYES = [
    ("G-1-L", "G-1-R"),
    ("p7 left", "p7 right"),
    ("P0_left_2020", "P0_right_2020"),
    ("OS_P0", "OD_P0"),
    ("RET002os", "RET002od"),
    ("L_7_OS", "L_7_OD"),
]
OTHERS = [
    ("Case12R", "Case12L"),
    ("pods", "poss"),
    ("7_Lens", "7_Rens"),
    ("left", "right"),
    ("P0_left_2020", "P0_right_2021"),
    ("P1OD", "P10OS"),
    ("IDRiD_03", "IDRiD_04"),
]


@pytest.mark.parametrize(("first", "second"), EYES + OTHERS)
def test_both_eyes_are_of_one_patient_and_other_names_are_not(
    first: str, second: str, tmp_path: Path
) -> None:
    names = [f"{name}.png" for name in (first, second, "V0001")]
    site = write_names(tmp_path / "elm", names, names)
    if (first, second) in EYES:
        with refused(site, "2 patient"):  # of three, which a split needs
            site_datalist(site)
    else:
        assert [len(cases) for cases in site_datalist(site).values()] == [1, 1, 1]


def test_both_eyes_are_in_one_part_of_every_split(tmp_path: Path) -> None:
    names = [f"G-{number}-{eye}.png" for number in range(6) for eye in "LR"]
    site = write_names(tmp_path, names, names)
    for seed in range(3):
        parts = site_datalist(site, seed=seed)
        assert [len(cases) for cases in parts.values()] == [6, 4, 2]
        for cases in parts.values():
            patients = [Path(case["image"]).name.split("-")[1] for case in cases]
            assert len(set(patients)) == len(patients) / 2


def test_images_that_belong_to_no_case_are_notes(tmp_path: Path) -> None:
    site = made.folders(tmp_path / "elm")
    empty = ["images/batch2/8.png", "images_2024/9.png", "imagesTs/9.png", "batch3/a/b/c.png"]
    empty += ["images/.cache/9.png", "images/8.webp", "images/9.WEBP", "old/Case00.nrrd"]
    for name in (*empty, "masks/notes/x.txt", "images/Case00.nii.gz"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    (site / "masks" / "Case00.nii.gz").touch()
    with refused():  # the volumes' bytes are none
        check_cases(site)
    for folder in ("images", "masks"):
        (site / folder / "Case00.nii.gz").unlink()
    with noted("3 image(s)", site / "batch3/a/b", site / "images/batch2", site / "images_2024"):
        check_cases(site)
    with notes() as found:
        assert check_cases(site)["num_cases"] == 4
    assert sorted(note.split(": ")[1].split(" ")[1] for note in found) == [
        "NRRD",
        "WEBP",
        "image(s)",
    ]
    volumes = made.saml(tmp_path / "oak")
    (volumes / "report.jpg").touch()
    with noted("1 image(s)", volumes, "report.jpg"):
        check_cases(volumes)
