# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a refusal or a note names: files, values and one word of the cause, in any sentence."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monai_fairfl.errors import DataError, DataWarning

NOBODY = 65534
"""The account that owns nothing, on Linux and macOS."""


@contextmanager
def refused(
    *words: object, by: type[Exception] = DataError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Inside, an error is raised that names all of these."""
    with pytest.raises(by) as caught:
        yield caught
    for word in words:
        assert str(word) in str(caught.value)


@contextmanager
def notes() -> Iterator[list[str]]:
    """Collects the notes on data that are made inside."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(each.message) for each in caught if issubclass(each.category, DataWarning)]


@contextmanager
def noted(*words: object) -> Iterator[None]:
    """Inside, one note is made that names all of these."""
    with notes() as found:
        yield
    assert [note for note in found if all(str(word) in note for word in words)], found


@contextmanager
def folder_of_everybody() -> Iterator[Path]:
    """A folder that every account may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """Inside, this process may not read ``path``; an administrator's takes another account."""
    mode, account = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    try:
        if account == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(account)
        path.chmod(mode)
