# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every file of a folder is used, refused with the reason, or no image: by four commands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from helpers.command_line import Commands
from helpers.linear_federation import in_place_of_training

ADDED = {
    "notes.txt": b"dear colleague",
    "old/a.nrrd": b"NRRD0005",
    "scan.dcm": b"no image",
    "IM": bytes(128) + b"DICM",
    ".hidden": b"",
    "deeper/b.nii": b"cut",
    "b": b"x",
    "../loose.nii": b"of no site",
}
QUICK = ("--rounds", "1", "--jobs", "1", "--report", "False")
COUNT = r"(\d+) file\(s\): (\d+) used, (\d+) image\(s\) refused, (\d+) not an image"


def test_every_file_is_counted_once(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The images are read before that.
    in_place_of_training(monkeypatch)
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(sites, data)
    for name, content in ADDED.items():
        path = data / "elm" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for words, folder in {
        ("doctor", data): data,
        ("infer", trained, data / "elm", "--out", out / "masks", "--no-pictures"): data / "elm",
        ("evaluate", trained, data, "--out", out / "scores"): data,
        ("train", data, "--out", out / "run", *QUICK): data,
    }.items():
        _, said, _ = cli.shown(*words)
        if words[0] == "train":
            said = (out / "run" / "log.txt").read_text()
        total, *parts = map(int, re.findall(COUNT, said)[-1])
        assert total == sum(parts) == sum(path.is_file() for path in folder.rglob("*")), words
