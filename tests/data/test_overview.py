# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""All sites side by side, also those that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import public_layouts as made

from monai_fairfl.data import site_folders
from monai_fairfl.data.overview import overview


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def row(text: str, site: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f" {site} ")]
    return line.split()


def test_every_site_has_a_row_with_what_it_holds(tmp_path: Path) -> None:
    made.saml(tmp_path / "birch")
    made.folders(tmp_path / "elm", cases=8)
    made.dofe(tmp_path / "Domain1")
    made.msd(tmp_path / "Task05", cases=5)
    data, text = overview(site_folders(tmp_path))
    assert data["problems"] == [] and list(data["sites"]) == ["Domain1", "Task05", "birch", "elm"]
    assert row(text, "birch") == "birch saml 4 8 x 8 x 4 1 0.6 x 0.6 x 3.6 0, 1 0 2/1/1".split()
    assert row(text, "elm") == "elm folders 8 48 x 48 3 0, 128, 255 0 4/2/2".split()
    assert row(text, "Domain1")[-1] == "5/1/2" and data["sites"]["Domain1"]["testing"] == 2
    assert any("0: T2, 1: ADC" in note and note in text for note in data["warnings"])


def test_structures_are_shown_with_their_values(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm", values=made.PALETTE)
    made.folders(tmp_path / "oak", values=(0, 255), first=10)
    data, text = overview(site_folders(tmp_path), ("disc", "cup"))
    assert data["sites"]["oak"]["values"] == {"disc": [128, 255]}
    assert "disc 1-2" in text and "cup 2-2" in text and "disc 128-255" in text


def test_a_site_with_problems_is_shown_beside_the_others(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm", first=10)
    made.folders(tmp_path / "oak")
    shutil.rmtree(tmp_path / "oak" / "masks")
    made.folders(tmp_path / "ash", cases=2, first=20)
    made.folders(tmp_path / "yew", first=30)
    made.write(tmp_path / "yew" / "masks" / "eye31.png", made.photo(1))
    data, text = overview(site_folders(tmp_path))
    problems = {line.split("'")[1]: line for line in data["problems"]}
    assert sorted(problems) == ["ash", "oak", "yew"]
    assert "masks/ is missing" in problems["oak"] and "eye31.png" in problems["yew"]
    assert "2 case(s) cannot be split" in problems["ash"]
    assert (
        row(text, "elm")[-1] == "2/1/1"
        and row(text, "oak")[1:3] == ["–", "0"]
        and row(text, "yew")[-1] == "–"
    )
    assert text.splitlines()[-1] == "4 site(s), 0 note(s), 3 problem(s) that would stop a training"


def test_copies_across_sites_are_notes(tmp_path: Path) -> None:
    made.folders(tmp_path / "elm", cases=3)
    made.folders(tmp_path / "oak", cases=3, first=2)
    data, text = overview(site_folders(tmp_path))
    (note,) = data["warnings"]
    assert (
        "the same image occurs 2 times" in note
        and f"note: {note}" in text
        and data["problems"] == []
    )
