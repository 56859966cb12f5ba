# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The file of a data list: written once, read by every later run, refused where it is not right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import public_layouts as made
from helpers.refusals import noted, notes, refused

from monai_fairfl.data import site_datalist

STRUCTURES = ("disc", "cup")
ONE = {"image": "Case02.nii.gz", "label": "Case02_segmentation.nii.gz"}
OTHER = {"image": "Case00.nii.gz", "label": "Case00_segmentation.nii.gz"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return made.saml(tmp_path / "SITE")


def write(file: Path, **parts: Any) -> Path:
    file.write_text(json.dumps({"training": [], "validation": [], "testing": [], **parts}))
    return file


def test_a_list_is_written_once_for_its_owner_and_reused(site: Path, tmp_path: Path) -> None:
    file, mask = tmp_path / "lists/site.json", os.umask(0o022)
    first = site_datalist(site, file, seed=1)
    os.umask(mask)
    assert [len(cases) for cases in first.values()] == [2, 1, 1]
    for case in sum(first.values(), []):
        assert all(Path(path).is_absolute() and Path(path).is_file() for path in case.values())
    content = json.loads(file.read_text())
    assert content["training"][0]["image"].startswith("Case")
    more = {"folds": None, "fold": 0, "validation": 0.2}
    assert content["split"] == {"fractions": [0.5, 0.25, 0.25], "seed": 1} | more
    assert [path.name for path in file.parent.iterdir()] == ["site.json"]
    # It names cases, so others cannot read it.
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o755]
    made.write(site / "Case09.nii.gz", made.volume(9))
    made.write(site / "Case09_segmentation.nii.gz", made.gland(9))
    with noted(site, file, "1 case", "Case09.nii.gz"):
        assert site_datalist(site, file, seed=1) == first
    assert site_datalist(site, seed=1) != first


def test_a_list_of_other_split_arguments_is_refused(site: Path, tmp_path: Path) -> None:
    file = tmp_path / "site.json"
    site_datalist(site, file, folds=2)
    for name, value in (("fold", 1), ("validation", 0.3), ("seed", 2)):
        with refused(file, "'fold': 0", f"'{name}': {value}"):
            site_datalist(site, file, folds=2, **{name: value})


def test_a_list_made_by_hand_is_used_as_it_is(site: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "hand.json", training=[ONE, ONE], validation=[OTHER])
    with notes() as found:  # a list made by hand leaves cases out on purpose
        parts = site_datalist(site, file, seed=7)
    used = {key: str(site / path) for key, path in ONE.items()}
    assert not found and parts["training"] == [used, used] and parts["testing"] == []
    # Of a site that is a list, paths begin from its folder.
    listed = made.ONE_SITE["nvflare"](tmp_path / "flare")
    path = "../dataset_2D/MSD/Image/Case0/0.png"
    write(file, training=[{"image": path, "label": path.replace("Image", "Mask")}])
    [one] = site_datalist(listed, file)["training"]
    assert one["image"] == f"{tmp_path}/flare/dataset_2D/MSD/Image/Case0/0.png"


# Pixel values of structures


def test_a_list_whose_masks_are_coded_in_another_way_later_is_refused(tmp_path: Path) -> None:
    site, file = made.folders(tmp_path / "elm", 12, values=made.GREY), tmp_path / "elm.json"
    assert not any("values" in case for case in site_datalist(site)["training"])
    parts = site_datalist(site, file, STRUCTURES)
    made.folders(site, 12, values=made.PALETTE)
    with refused(file, "'disc': [128, 255]", "'disc': [1, 2]"):
        site_datalist(site, file, STRUCTURES)
    # Values given by hand are on purpose.
    by_hand = parts["training"][0]["values"]
    assert site_datalist(site, file, STRUCTURES, by_hand) == parts
    file.unlink()
    again = site_datalist(site, file, STRUCTURES)
    assert [c["image"] for c in again["testing"]] == [c["image"] for c in parts["testing"]]


def test_values_by_hand_stand_above_those_of_the_site(tmp_path: Path) -> None:
    site, file = made.folders(tmp_path / "elm", values=made.PALETTE), tmp_path / "elm.json"
    for _ in range(2):  # written, then read
        parts = site_datalist(site, file, STRUCTURES, {"disc": (1, 255)})
        assert [case["values"] for case in sum(parts.values(), [])] == [{"disc": [1, 255]}] * 4
    with refused(file, "eye00.png", "[1, 255]", "[1, 2]"):
        site_datalist(site, file, STRUCTURES)
    for bounds in ([1], "12", [0.5, 255], [None, 255]):
        with refused(site, "disc", bounds):
            site_datalist(site, structures=STRUCTURES, values={"disc": bounds})
