# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A folder in which nothing can be written is named before the plan is printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from monai_fairfl.cli import main


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that this account cannot change: for root, who may all, a read-only mount."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("root can write everywhere here, and may not mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


COMMANDS = {
    "train": "--out",
    "try": "--out",
    "compare": "--out",
    "simulate-flare": "--workspace",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["", "runs/first"])
def test_a_read_only_folder_is_named_with_the_fix_and_nothing_else_is_printed(
    name: str,
    command: str,
    read_only: Path,
    hospitals: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = read_only / name
    option = COMMANDS[command]
    words = [command, str(hospitals), option, str(out)]
    if command == "simulate-flare":
        words = [command, "--bundle", "prostate_mri_segmentation", "--sites-root", *words[1:]]
    if command == "compare":
        words += ["--strategies", "FedAvg"]

    assert main(words) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    verb = "made" if name else "written to"
    assert shown.err == (
        f"monai-fairfl: {out} cannot be {verb}: {read_only} is read-only for this account, or its "
        f"file system is; name another folder with {option}\n"
    )


def test_a_file_in_the_way_is_named_too(
    tmp_path: Path, hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").touch()
    out = tmp_path / "runs" / "first"
    assert main(["train", str(hospitals), "--out", str(out)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{out} cannot be made: {tmp_path / 'runs'} is a file; name another" in shown.err
