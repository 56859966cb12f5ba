# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a check tells of a sound site, what it only notes, and copies of cases across sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.refusals import noted, notes, refused
from PIL import Image

from monai_fairfl.cli import main
from monai_fairfl.data import check_cases, find_cases, overview, site_datalist, site_folders

STRUCTURES = ("disc", "cup")


def notes_on(site: Path, *arguments: Any, **named: Any) -> list[str]:
    with notes() as found:
        check_cases(site, *arguments, **named)
    return found


def test_a_sound_site_is_summarised_for_json(tmp_path: Path) -> None:
    summary = check_cases(made.folders(tmp_path / "elm"), STRUCTURES)
    assert json.loads(json.dumps(summary)) == {
        "site": "elm",
        "layout": "folders",
        "num_cases": 4,
        "labels": [0, 128, 255],
        "names": {"background": [0, 0], "disc": [128, 255], "cup": [255, 255]},
        "values": {"disc": [128, 255], "cup": [255, 255]},
    }


def test_only_the_cases_of_a_list_are_checked(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    cases = find_cases(site)
    made.write(site / "masks" / "eye02.png", made.mask(2, size=40))
    made.write(site / "images" / "unlabelled.png", made.photo(9))
    made.write(site / "masks" / "eye00.png", np.zeros((48, 48), np.uint8))
    # All labels of one part may be empty, but not all of a site.
    for number in (1, 2):
        [found] = notes_on(site, STRUCTURES, cases=cases[:number])
        assert "eye00.png" in found and "empty" in found
    with refused("1 problem(s)", "eye02.png"):
        check_cases(site, cases=cases[1:])


def test_photographs_that_stereo_does_not_fit_are_noted(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    with noted(site, "4 photograph", "images/eye00.png", "right half"):
        check_cases(site, STRUCTURES, stereo=True)
    for file in site.glob("*/*.png"):
        made.write(file, np.hstack([np.asarray(Image.open(file))] * 2))
    with noted(site, "4 photograph", "images/eye00.png", "stereo"):
        check_cases(site, STRUCTURES)
    for arguments in ({}, {"structures": STRUCTURES, "stereo": False}):
        assert not notes_on(site, **arguments)


def test_a_structure_that_some_masks_lack_is_noted(tmp_path: Path) -> None:
    """Until a list by hand says that nobody drew it."""
    site = made.folders(tmp_path / "elm", cases=6)
    for n in range(4):
        made.write(site / "masks" / f"eye{n:02d}.png", made.mask(n, made.GREY[:2]))
    cases = sum(site_datalist(site, structures=STRUCTURES).values(), [])
    cases.sort(key=lambda case: str(case["image"]))
    for listed in (None, cases):
        with noted(site, "cup counts as absent in 4", "eye00.png", "1 more"):
            check_cases(site, STRUCTURES, cases=listed)
    for case in cases[:4]:
        case["values"] = {"disc": case["values"]["disc"]}
    for name in ("cases", "listed"):
        assert not notes_on(site, STRUCTURES, **{name: cases})


def test_sites_whose_masks_have_several_labels_are_noted(tmp_path: Path) -> None:
    for site, factor in (("ash", 1), ("elm", 255)):
        made.saml(tmp_path / site)
        for n in range(4):
            file = tmp_path / site / f"Case0{n}_segmentation.nii.gz"
            made.write(file, made.gland(n) * factor)

    def found() -> list[str]:
        warned = overview(site_folders(tmp_path))[0]["warnings"]
        return [note for note in warned if "several labels" in note]

    assert not found()  # one writes 255 where the other writes 1
    made.write(file, made.gland(3) * 7)
    assert "ash has 1; elm has 7, 255" in found()[0]


# Copies


def copies(root: Path) -> list[str]:
    noticed = overview(site_folders(root))[0]["warnings"]
    return [note for note in noticed if "times" in note]


def test_a_copy_is_found_in_another_format_of_the_same_pixels(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm", cases=6)
    made.folders(tmp_path / "oak", cases=6, endings=(".tif", ".bmp"), first=6)
    assert copies(tmp_path) == []
    made.write(tmp_path / "oak" / "images" / "new.bmp", made.photo(3))
    made.write(tmp_path / "oak" / "masks" / "new.png", made.mask(3))
    [line] = copies(tmp_path)
    assert "elm/images/eye03.png" in line and "oak/images/new.bmp" in line and "2 times" in line


def test_a_copied_volume_is_found_though_its_number_type_differs(tmp_path: Path) -> None:
    for name in ("elm", "oak"):
        made.saml(tmp_path / name, cases=3)
    for n in range(3):
        whole = np.round(100 * made.volume(n)).astype(np.int16)
        made.write(tmp_path / "elm" / f"Case{n:02d}.nii.gz", whole)
        other = whole.astype(np.float64) * np.where(whole == 0, -1, 1)  # -0 is 0
        made.write(tmp_path / "oak" / f"Case{n:02d}.nii.gz", other + (n != 1))
    assert [line.count("Case01.nii.gz") for line in copies(tmp_path)] == [2]


# All sites side by side


def test_the_command_shows_the_numbers_of_every_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.folders(tmp_path / "elm", cases=8, first=10)
    made.saml(tmp_path / "birch")
    made.folders(tmp_path / "ash", cases=2, first=20)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["doctor", str(tmp_path)]) == 2
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["birch"] == "saml 4 8 x 8 x 4 0.6 x 0.6 x 3.6 0, 1 2/1/1".split()
    assert rows["elm"] == "folders 8 48 x 48 0, 128 (disc), 255 (disc, cup) 4/2/2".split()
    assert "2 patient" in text


def test_a_structure_that_is_lost_where_the_network_resamples_is_a_note(tmp_path: Path) -> None:
    site = made.saml(tmp_path / "elm")
    mask = np.zeros((8, 8, 4), np.uint8)
    mask[2, 2, 1] = 1
    mask[:, 3:5, 2] = 2
    made.write(site / "Case01_segmentation.nii.gz", mask)
    # At 4 x 4 it is between the pixels; of the central quarter, outside.
    for share, size, is_lost in ((1, (), False), (1, (4, 4), True), (0.25, (), True)):
        found = notes_on(site, field_of_view=share, size=size)
        assert any("Case01_segmentation.nii.gz: 1" in note for note in found) is is_lost
    site = made.folders(tmp_path / "oak")
    assert "eye00.png: cup" in "".join(notes_on(site, STRUCTURES, working_size=4))
