# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The files of a folder as cases: a folder that is none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from monai_fairfl.errors import DataError
from monai_fairfl.workflow import file_cases


@pytest.mark.parametrize("name", ["nowhere", "a.png"])
def test_a_folder_that_is_none_is_refused_and_not_taken_for_an_empty_one(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=f"{name} is not a folder: name the folder that holds"):
        list(file_cases(tmp_path / name, "*.png", lambda path: None))


def test_a_folder_that_may_not_be_read_is_refused_and_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Root could read it all the same.
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path}: no permission to read; change"):
        list(file_cases(tmp_path, "*.png", lambda path: None))


def test_a_folder_without_such_files_has_no_cases(tmp_path: Path) -> None:
    assert list(file_cases(tmp_path, "*.png", lambda path: None)) == []
