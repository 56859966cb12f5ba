# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each faulty image is skipped with its fault; who follows the fix to the letter has it segmented.

The faulty image lies beside a good one, which goes on.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("pydicom")
pytest.importorskip("highdicom")

from helpers.dicom_series import (  # noqa: E402
    OWN_UIDS,
    SAGITTAL,
    VOLUME,
    found,
    write_enhanced,
    write_series,
)
from helpers.proposed_fixes import without_a_row  # noqa: E402
from PIL import ExifTags, Image  # noqa: E402
from pydicom.uid import generate_uid  # noqa: E402

from monai_fairfl.workflow import find_photographs  # noqa: E402

Change = Callable[[Path], object]
VALUES = np.random.default_rng(0).normal(100, 20, (12, 10, 5)).astype(np.float32)
AFFINE = np.diag([0.6, 0.6, 3.0, 1.0])
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
COLOURS = Image.fromarray(PIXELS)


def removed(path: Path) -> None:
    shutil.rmtree(path)


# --- series, each in a folder


def series(volume: np.ndarray = VOLUME, **tags: Any) -> Change:
    def write(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        write_series(folder, volume, **tags)

    return write


def frames(files: int = 1, **tags: Any) -> Change:
    """A series in one file of several frames, or in several such files."""

    def write(folder: Path) -> None:
        sent = write_series(folder.parents[1] / "single", **tags)
        uid = generate_uid()
        for number in range(files):
            write_enhanced(folder / f"{number}.dcm", sent, series_instance_uid=uid)

    return write


def changed(change: Callable[[Any], object], *numbers: int) -> Change:
    """A series of which the images of these numbers are changed."""

    def write(folder: Path) -> None:
        sent = write_series(folder)
        for number in numbers:
            change(sent[number])
            sent[number].save_as(sent[number].filename)

    return write


def with_value(name: str, value: Any) -> Change:
    return changed(lambda dataset: setattr(dataset, name, value), 2)


def with_pixels(pixels: np.ndarray, kind: str = "MONOCHROME2", bits: int = 16) -> Change:
    return changed(lambda dataset: dataset.set_pixel_data(pixels, kind, bits), 1)


def side_by_side(dataset: Any) -> None:
    dataset.ImagePositionPatient = [80, *dataset.ImagePositionPatient[1:]]


def interleaved(tag: str, *values: str) -> Change:
    """Two series, each with slices between those of the other, which share all UIDs but this."""

    def write(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        common = dict.fromkeys(OWN_UIDS, generate_uid())
        for first, value in enumerate(values):
            own = {**common, tag: value or generate_uid()}
            write_series(folder, places=range(first, 12, 2), names=f"{first}_{{}}.dcm", **own)

    return write


def cut_short(folder: Path) -> None:
    write_series(folder)
    file = folder / "IM0004.dcm"
    file.write_bytes(file.read_bytes()[:-40])


WHOLE = series()
APART = interleaved("SeriesInstanceUID", "", "")
OUT, AGAIN, OR_OUT = "leave the series out", "send the series again", "or leave it out"
SINGLE = "export it again, uncompressed, an image a file"
EACH = "export each as its own"
Rows = dict[str, tuple[Change, tuple[str, ...], Change]]
SERIES: Rows = {
    "modality": (series(Modality="CT"), ("CT, not MR", OUT), removed),
    "localiser": (series(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]), (OUT,), removed),
    "few": (series(VOLUME[:2]), ("2 slice", OUT), removed),
    "colour": (with_pixels(np.zeros((10, 14, 3), np.uint8), "RGB", 8), ("RGB", OUT), removed),
    "gap": (series(places=[0, 1, 2, 4, 5, 6]), ("IM0003.dcm to IM0004.dcm are 6 mm", AGAIN), WHOLE),
    "uneven": (series(places=[0, 1, 2, 3.4, 4.4, 5.4]), ("4.2 mm", OR_OUT), removed),
    "side": (changed(side_by_side, 3, 4, 5), ("line", AGAIN), WHOLE),
    "twice": (series(places=[0, 1, 2, 2, 3, 4]), ("IM0004.dcm are 0 mm", AGAIN), WHOLE),
    "place": (
        with_value("ImagePositionPatient", None),
        ("lacks ImagePos", AGAIN, ", with its geometry"),
        WHOLE,
    ),
    "constant": (series(np.full_like(VOLUME, 3)), ("all the same", "export it again"), WHOLE),
    "turned": (
        with_value("ImageOrientationPatient", list(SAGITTAL)),
        ("different ImageOrientation", "send one series for each"),
        WHOLE,
    ),
    "spacing": (with_value("PixelSpacing", [0.75, 0.9]), ("different PixelSpacing",), WHOLE),
    "size": (with_pixels(VOLUME[1, :8, :8].copy()), ("different Rows",), WHOLE),
    "skew": (series(ImageOrientationPatient=[1, 0, 0] * 2), (SINGLE,), WHOLE),
    "frames_twice": (frames(places=[0, 1, 2, 2, 3, 4]), (SINGLE,), WHOLE),
    "frames_files": (frames(2), ("files", "keep one"), lambda f: (f / "1.dcm").unlink()),
    "patients": (
        interleaved("PatientID", "SMITH-1", "JONES-2"),
        ("2 values of PatientID", EACH),
        APART,
    ),
    "studies": (interleaved("StudyInstanceUID", "", ""), ("StudyInstanceUID", EACH), APART),
    "cut": (cut_short, ("cannot be read", SINGLE), WHOLE),
    "unreadable": (
        lambda folder: folder.mkdir() or (folder / "IM1.dcm").write_bytes(b"\0" * 300),
        ("SeriesInstanceUID", "copy it again from its source"),
        WHOLE,
    ),
}

# --- volumes and photographs, each a file


def volume(values: np.ndarray = VALUES, affine: np.ndarray | None = AFFINE) -> Change:
    return lambda path: nib.save(nib.Nifti1Image(values, affine), path)


def flipped_bit(path: Path) -> None:
    """One bit of a voxel is another one; all blocks of the compressed file are whole."""
    stored = bytearray(gzip.compress(nib.Nifti1Image(VALUES, AFFINE).to_bytes(), compresslevel=0))
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)


def with_sform(*spacing: float) -> Change:
    """A file of voxels of 1 mm whose sform says something else."""

    def write(path: Path) -> None:
        image = nib.Nifti1Image(VALUES, None)
        image.header.set_sform(np.diag([*spacing, 1]), code=1)
        nib.save(image, path)

    return write


def picture(image: Image.Image = COLOURS, **options: Any) -> Change:
    return lambda path: image.save(path, **options)


TURNED = Image.Exif()
TURNED[ExifTags.Base.Orientation] = 6
STORED, LINK = volume(), "restore it"
CONVERT, ONE_3D = "export it again", "store one 3D volume of numbers"
VOLUMES: Rows = {
    "4D": (volume(np.stack([VALUES] * 2, axis=-1)), ("(12, 10, 5, 2)", ONE_3D), STORED),
    "rgb": (volume(np.zeros((6, 6, 4), [(c, "u1") for c in "RGB"])), ("u1", ONE_3D), STORED),
    "infinite": (volume(np.where(VALUES > 150, np.nan, VALUES)), ("finite", "mend it"), STORED),
    "beyond": (volume(VALUES.astype(float) * 1e300), ("finite",), STORED),
    "below": (volume(VALUES.astype(float) * 1e-300), ("all the same", CONVERT), STORED),
    "bit": (flipped_bit, ("CRC", "copy it again"), STORED),
    "link": (
        lambda path: path.symlink_to(path.parents[1] / "disk"),
        ("No such file", LINK),
        Path.unlink,
    ),
    "contradicted": (
        with_sform(0.5, 0.5, 3),
        ("[0.5 0.5 3. ]", "Nifti1Image(voxels, affine)"),
        STORED,
    ),
    "flat": (with_sform(1, 1, 0), ("affine", "Nifti1Image(voxels, affine)"), STORED),
}
PICTURES: Rows = {
    "turned": (picture(exif=TURNED), ("orientation 6", "save it upright"), picture()),
    "deep": (
        picture(Image.fromarray(PIXELS[..., 0] * np.uint16(257))),
        ("no colour", "export one photograph of 8 bits"),
        picture(),
    ),
    "grey": (picture(COLOURS.convert("L")), ("no colour",), picture()),
    "two": (
        picture(format="TIFF", save_all=True, append_images=[COLOURS]),
        ("2 picture(s)",),
        picture(),
    ),
    "text": (lambda path: path.write_text("no image"), ("copy it again",), picture()),
}


def photographs(folder: Path) -> Any:
    return find_photographs(folder, folder.parent / "out" / "ratios.json")


def follow(rows: Rows, good: Change, find: Any, folder: Path, ending: str = "") -> None:
    """Write all faulty images at once; then follow the fix of each."""
    folder.mkdir()
    for name, (harm, _, _) in rows.items():
        harm(folder / f"{name}{ending}")
    good(folder / f"good{ending}")
    cases = {case.name: case for case in find(folder)}
    kept = cases.pop("good")
    assert kept.image and kept.problems == []
    assert sorted(name.split("_IM1")[0] for name in cases) == sorted(rows)
    for name, case in cases.items():
        [problem] = case.problems
        assert case.status == "skipped" and not case.image
        for word in rows[name.split("_IM1")[0]][1]:
            assert word in problem, (name, problem)
        # Of a patient nothing is in the table or the log.
        assert "SMITH" not in problem and "\n" not in problem
    for name, (_, _, fix) in rows.items():
        fix(folder / f"{name}{ending}")
    for case in find(folder):
        assert case.image and case.problems == [], case


def test_a_fix_of_a_series_is_followed(tmp_path: Path) -> None:
    # Headers are rounded, by less than a hundredth of a step.
    noise = np.random.default_rng(0).uniform(-0.01, 0.01, 6)
    good = series(places=list(np.arange(6) + noise))
    follow(SERIES, good, found, tmp_path / "in")


def test_a_fix_of_a_volume_is_followed(tmp_path: Path) -> None:
    follow(VOLUMES, STORED, found, tmp_path / "in", ".nii.gz")


def test_a_fix_of_a_photograph_is_followed(tmp_path: Path) -> None:
    follow(PICTURES, picture(), photographs, tmp_path / "in", ".png")


OTHERS = (
    # Followed by a test beside this one, or in tests/bundles and tests/cli.
    "name another (--out, output_dir)|name another one (dataset_dir)|for single views"
    "|name the folder that holds them|move or rename it|convert it to|give finite numbers|add it"
    "|give them|name another file, or delete|export the file that"
    "|use the model's bundle|train first, or name one|leave out what changes it"
    "|give the values of its"
    # No fix, or an installation.
    "|look at the overlay|look at it|the sform is used|pip install|slices are|beside it"
    "|the bundle's own|Before you use|see %s|where it was trained"
)


def test_every_fix_that_the_room_proposes_is_in_a_table() -> None:
    words = [
        word for rows in (SERIES, VOLUMES, PICTURES) for row in rows.values() for word in row[1]
    ]
    assert without_a_row("workflow", words, OTHERS) == []
