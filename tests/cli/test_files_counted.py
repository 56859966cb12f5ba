# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every file of a folder is used, refused with the reason, or no image: by four commands."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from helpers.command_line import Commands
from helpers.linear_federation import in_place_of_training

NAMES = ("notes.txt", "a.nrrd", "scan.dcm", "IM", ".hidden", "b.nii", "b", "c.png")
CONTENTS = (b"", b"x", b"NRRD0005", bytes(128) + b"DICM")
# A volume beside the pairs of a site would be one without a mask.
FOLDERS = (".", "elm/old", "elm/old/older", "alder/new")
QUICK = ("--rounds", "1", "--jobs", "1", "--report", "False")
COUNT = r"(\d+) file\(s\): (\d+) used, (\d+) image\(s\) refused, (\d+) not an image"


@pytest.mark.parametrize("seed", range(3))
def test_every_file_of_random_folders_is_counted_once(
    trained: Path,
    sites: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    # The images are read before that.
    in_place_of_training(monkeypatch)
    draw = random.Random(seed)
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(sites, data)
    for name in draw.sample(NAMES * 2, 9):
        path = data / draw.choice(FOLDERS) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.choice(CONTENTS))
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
