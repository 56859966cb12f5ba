# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every file of a folder is used, refused with the reason, or no image: by three commands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from helpers.command_line import TINY, Commands

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
ONE = ("--rounds", "1", "--local-epochs", "1")
COUNT = r"(\d+) file\(s\): (\d+) used, (\d+) image\(s\) refused, (\d+) not an image"


def test_every_file_is_counted_once(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(sites, data)
    for name, content in ADDED.items():
        path = data / "elm" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for words, folder in {
        ("doctor", data): data,
        ("infer", trained, data / "elm", "--out", out / "masks"): data / "elm",
        ("train", data, "--out", out / "run", *TINY, *ONE): data,
    }.items():
        _, said, _ = cli.shown(*words)
        if words[0] == "train":
            said = (out / "run" / "log.txt").read_text()
        total, *parts = map(int, re.findall(COUNT, said)[-1])
        assert total == sum(parts) == sum(path.is_file() for path in folder.rglob("*")), words
