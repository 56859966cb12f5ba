# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Photographs of a folder: the good ones are found, the others are named with their fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from monai_fairfl.errors import DataError
from monai_fairfl.workflow import find_photographs

COLOURS = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    COLOURS.save(path, exif=exif)


def deep(path: Path) -> None:
    Image.fromarray(np.asarray(COLOURS)[..., 0].astype(np.uint16) * 257).save(path)


def deep_and_big_endian(path: Path) -> None:
    Image.frombytes("I;16B", (60, 40), np.asarray(COLOURS)[..., :2].tobytes()).save(path, "TIFF")


def test_a_wide_photograph_is_noted_as_taken_for_a_stereo_pair_unless_it_is_said_what_it_is(
    tmp_path: Path,
) -> None:
    COLOURS.save(tmp_path / "single.png")
    COLOURS.resize((80, 40)).save(tmp_path / "wide.png")
    single, wide = find_photographs(tmp_path, tmp_path / "out" / "ratios.json")
    assert wide.image and not single.problems and "only the left half is used" in wide.problems[0]
    assert "--stereo False" in wide.problems[0]
    for stereo in (True, False):
        found = find_photographs(tmp_path, tmp_path / "out" / "ratios.json", stereo=stereo)
        assert not any(case.problems for case in found)


def test_photographs_that_are_passed_over_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "P1" / "out").mkdir(parents=True)
    for name in ("P1/left.jpg", "P1/right.png", "P1/right_segmentation.png", "P1/out/mask.png"):
        COLOURS.save(tmp_path / name)
    (tmp_path / "b.webp").touch()
    report = tmp_path / "P1" / "out" / "ratios.json"
    with pytest.raises(DataError, match=r"1 \.jpg, 2 \.png, 1 \.webp\. 1 \.webp file\(s\) are"):
        find_photographs(tmp_path, report)
    COLOURS.save(tmp_path / "a.png")
    [found] = find_photographs(tmp_path, report)
    assert found.name == "a"
    assert "1 .webp file(s) are passed over; convert them to PNG" in caplog.text
    assert f"2 picture(s) in subfolders, such as {tmp_path / 'P1'}, are passed over" in caplog.text


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "turned": (
        turned,
        "is shown turned (EXIF orientation 6), but read as it lies in the file; save it upright",
    ),
    "16 bits": (deep, "mode 'I;16' instead of colour of 8 bits; export the colour photograph"),
    "16 bits, big-endian": (deep_and_big_endian, "mode 'I;16B' instead of colour of 8 bits"),
    "for print": (lambda path: COLOURS.convert("CMYK").save(path, "TIFF"), "has the colours CMYK"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_photograph_that_would_be_read_wrongly_is_skipped_with_its_fault(
    fault: str, tmp_path: Path
) -> None:
    make, message = FAULTS[fault]
    make(tmp_path / "bad.png")
    COLOURS.save(tmp_path / "GOOD.PNG")
    good, bad = find_photographs(tmp_path, tmp_path / "out" / "ratios.json")
    assert (
        good.image
        and not good.problems
        and bad.status == "skipped"
        and bad.problems[0].startswith(message)
    )
