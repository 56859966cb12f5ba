# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Data lists of sites from the lists that a bundle's own configuration makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.data import listed_datalist
from monai_fairfl.errors import DataError

PARTS = ("training", "validation", "testing")


def cases_in(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """Cases with these images in a folder; the files are empty."""
    cases = []
    for name in names:
        image = folder / f"{name}.png"
        label = folder / f"{name}_seg.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.touch()
        label.touch()
        cases.append({"image": str(image), "label": str(label), "fold": 0})
    return cases


def names_in(parts: dict[str, list[dict[str, Any]]], part: str) -> set[str]:
    return {Path(case["image"]).stem for case in parts[part]}


def test_a_split_by_position_is_made_anew_from_all_cases(tmp_path: Path) -> None:
    cases = cases_in(tmp_path, list("abcdefgh"))
    # As a bundle with [:-9] and [-9:] lists a site with eight cases.
    parts = listed_datalist(cases[:-9], cases[-9:], True, tmp_path)
    assert [len(parts[part]) for part in PARTS] == [4, 2, 2]
    everything = set().union(*(names_in(parts, part) for part in PARTS))
    assert everything == set("abcdefgh")


def test_a_split_that_came_with_the_data_stays(tmp_path: Path) -> None:
    training = cases_in(tmp_path, list("abcdefghij"))
    validation = cases_in(tmp_path, ["v", "w"])
    parts = listed_datalist(training, validation, False, tmp_path)
    assert names_in(parts, "validation") == {"v", "w"}
    assert len(parts["testing"]) == 2
    assert names_in(parts, "training") | names_in(parts, "testing") == set("abcdefghij")


def test_the_images_of_one_folder_stay_in_one_part(tmp_path: Path) -> None:
    cases = []
    for patient in range(6):
        cases += cases_in(tmp_path / f"patient{patient}", ["1", "2", "3"])
    parts = listed_datalist(cases, [], True, tmp_path)
    folders = [{Path(case["image"]).parent for case in parts[part]} for part in PARTS]
    assert [len(found) for found in folders] == [3, 2, 1]
    assert not folders[0] & folders[1] and not folders[1] & folders[2]


def test_of_a_list_of_all_sites_those_cases_count_that_the_site_has(tmp_path: Path) -> None:
    here = cases_in(tmp_path / "A", list("abcd"))
    elsewhere = [{"image": "/other/site/x.png", "label": "/other/site/y.png"}]
    parts = listed_datalist([*here, *elsewhere], [], True, tmp_path / "A")
    assert sum(len(parts[part]) for part in PARTS) == 4

    with pytest.raises(DataError, match="none of the 1 cases of the bundle's lists"):
        listed_datalist(elsewhere, [], True, tmp_path / "A")


def test_a_list_that_was_written_is_read_with_all_that_a_case_has(tmp_path: Path) -> None:
    cases = cases_in(tmp_path, list("abcdefgh"))
    file = tmp_path / "datalist.json"
    written = listed_datalist(cases, [], True, tmp_path, file)
    more = cases_in(tmp_path, ["new"])
    assert listed_datalist([*cases, *more], [], True, tmp_path, file) == written
    assert written["training"][0]["fold"] == 0
    with pytest.raises(DataError, match="was made with"):
        listed_datalist(cases, [], True, tmp_path, file, seed=1)


def test_items_that_are_no_cases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="training list is not one of cases"):
        listed_datalist([{"image": ["a", "b"], "label": "c"}], [], True, tmp_path)
