# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What only the account that made it can read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monai_fairfl.data import SITES, site_datalist, write_sites
from monai_fairfl.utils.private import private_file, private_folder


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    """The mask of most systems, under which all users may read a new file."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_folder_and_a_file_are_for_their_owner_and_what_exists_keeps_its_mode(
    tmp_path: Path,
) -> None:
    assert mode(private_folder(tmp_path / "above" / "own")) == "700"
    assert mode(tmp_path / "above") == "755"
    assert mode(private_file(tmp_path / "list.json")) == "600"

    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    assert mode(private_folder(shared)) == "750"
    (shared / "list.json").touch(mode=0o640)
    assert mode(private_file(shared / "list.json")) == "640"


def test_a_data_list_names_cases_so_others_cannot_read_it(tmp_path: Path) -> None:
    write_sites(tmp_path, sites=SITES[:1], size=(24, 24, 6), cases=4)
    site_datalist(tmp_path / SITES[0].name, tmp_path / "lists" / "alder.json")
    assert mode(tmp_path / "lists" / "alder.json") == "600"
    assert [path.name for path in (tmp_path / "lists").iterdir()] == ["alder.json"]
