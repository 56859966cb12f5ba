# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows of a quiet run, and what goes into its log alone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from monai_fairfl.cli.running import quietly
from monai_fairfl.data import CLINICS, site_datalist, site_folders, write_clinics
from monai_fairfl.errors import DataWarning
from monai_fairfl.utils.terminal import data_notes_shown_once


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "clinics"
    write_clinics(root, clinics=CLINICS[:1], size=64, cases=4)
    return next(iter(site_folders(root).values()))


def test_a_case_that_came_after_the_data_list_is_named_in_the_terminal_once(
    site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "datalist.json"
    site_datalist(site, file)
    for folder in ("images", "masks"):
        first = sorted((site / folder).iterdir())[0]
        (site / folder / f"later{first.suffix}").write_bytes(first.read_bytes())
    with quietly(tmp_path / "log.txt"):
        site_datalist(site, file)
        site_datalist(site, file)
    shown = " ".join(capfd.readouterr().err.split())
    assert shown.count("1 case(s) of") == 1
    assert "not used" in shown and "later.png" in shown


def test_a_note_that_the_command_has_shown_is_not_shown_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with data_notes_shown_once():
        for _ in range(2):
            warnings.warn("elm: its label is empty", DataWarning, stacklevel=1)
        with quietly(tmp_path / "log.txt"):
            warnings.warn("elm: its label is empty", DataWarning, stacklevel=1)
    assert capfd.readouterr().err == "note: elm: its label is empty\n"


def test_a_warning_of_another_package_goes_where_it_went_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(UserWarning, match="of another package"), quietly(tmp_path / "log.txt"):
        warnings.warn("of another package", UserWarning, stacklevel=1)
    assert "of another package" not in capfd.readouterr().err


def test_warnings_are_as_before_after_a_quiet_run(tmp_path: Path) -> None:
    before = warnings.showwarning, list(warnings.filters)
    with quietly(tmp_path / "log.txt"):
        pass
    assert (warnings.showwarning, list(warnings.filters)) == before
    with pytest.warns(DataWarning, match="its label is empty"):
        warnings.warn("its label is empty", DataWarning, stacklevel=1)


def test_a_path_that_is_no_utf_8_is_written_to_the_log_with_escapes(tmp_path: Path) -> None:
    folder = os.fsdecode("höspital".encode("latin-1"))
    with quietly(tmp_path / "log.txt"):
        print(f"Report: {folder}/report.html")
    assert (tmp_path / "log.txt").read_text() == "Report: h\\udcf6spital/report.html\n"
