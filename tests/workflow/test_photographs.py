# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Photographs of a folder: the good ones are cases, and the others are named with their fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from monai_fairfl.workflow import find_photographs

PIXELS = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
COLOURS = Image.fromarray(PIXELS)


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    COLOURS.save(path, exif=exif)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "turned": (turned, "orientation 6"),
    "deep": (lambda path: Image.fromarray(PIXELS[..., 0] * np.uint16(257)).save(path), "I;16"),
    "grey": (lambda path: COLOURS.convert("L").save(path), "no colour"),
    "flat": (lambda path: Image.new("RGB", (60, 40), "red").save(path), "same colour"),
    "small": (lambda path: COLOURS.resize((30, 20)).save(path), "30 x 20"),
    "two": (lambda path: COLOURS.save(path, "TIFF", save_all=True, append_images=[COLOURS]), "2"),
    "text": (lambda path: path.write_text("no image"), "read"),
}


def test_a_photograph_that_would_be_read_wrongly_is_skipped_with_its_fault(tmp_path: Path) -> None:
    for name, (make, _) in FAULTS.items():
        make(tmp_path / f"{name}.png")
    COLOURS.save(tmp_path / "GOOD.PNG")
    good, *faulty = find_photographs(tmp_path, tmp_path / "out" / "ratios.json")
    assert (good.name, good.problems) == ("GOOD", []) and good.image
    assert sorted(case.name for case in faulty) == sorted(FAULTS)
    for case in faulty:
        assert case.status == "skipped" and FAULTS[case.name][1] in case.problems[0], case.name


def test_a_wide_photograph_is_noted_as_taken_for_a_stereo_pair_unless_it_is_said_what_it_is(
    tmp_path: Path,
) -> None:
    COLOURS.save(tmp_path / "single.png")
    COLOURS.resize((80, 40)).save(tmp_path / "wide.png")
    report = tmp_path / "out" / "ratios.json"
    single, wide = find_photographs(tmp_path, report)
    assert wide.image and "--stereo" in wide.problems[0] and not single.problems
    for stereo in (True, False):
        assert not any(case.problems for case in find_photographs(tmp_path, report, stereo=stereo))
