# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files are read as they are stored, and what is wrong with them is named."""

from __future__ import annotations

import builtins
import errno
import gzip
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from PIL import ExifTags, Image

from monai_fairfl.data.layouts.image_files import forms_fault, grey, gzip_fault, images_in, read
from monai_fairfl.errors import DataError


def test_hidden_files_and_other_kinds_are_no_images(tmp_path: Path) -> None:
    for name in ("a.png", "._a.png", "Thumbs.db", "b.TIFF", "c.nii.gz", "d.gif", "e.jpeg"):
        (tmp_path / name).touch()
    assert [path.name for path in images_in(tmp_path)] == ["a.png", "b.TIFF", "c.nii.gz", "e.jpeg"]


def test_pixels_are_those_that_are_stored(tmp_path: Path) -> None:
    codes = made.mask(3, made.PALETTE)
    palette = Image.fromarray(codes).convert("P")
    palette.putdata(codes.ravel().tolist())
    palette.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    palette.save(tmp_path / "palette.png")
    assert np.array_equal(read(tmp_path / "palette.png"), codes)
    for ending in (".png", ".bmp", ".tif"):
        assert np.array_equal(
            read(made.write(tmp_path / f"x{ending}", made.photo(1))), made.photo(1)
        )
    Image.fromarray(codes > 0).save(tmp_path / "bits.png")
    bits = read(tmp_path / "bits.png")
    assert bits.dtype == np.uint8 and np.array_equal(bits, codes > 0)
    assert np.array_equal(read(made.write(tmp_path / "v.nii.gz", made.volume(1))), made.volume(1))


def test_equal_colours_are_grey_and_alpha_plays_no_part() -> None:
    plain = made.mask(1)
    alpha = np.full_like(plain, 200)
    for channels in ([plain], [plain, alpha], [plain] * 3, [plain] * 3 + [alpha]):
        assert np.array_equal(grey(np.stack(channels, axis=-1)), plain)  # type: ignore[arg-type]
    assert grey(plain) is plain and grey(made.photo(1)) is None


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    whole = made.write(tmp_path / "a.png", made.photo(1)).read_bytes()
    for content in (b"", b"text", whole[:-2000], whole[:8] + b"\0" * 40):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(DataError, match=r"a.png cannot be read as a picture \(.*copy it again"):
            read(tmp_path / "a.png")
    pages = [Image.fromarray(made.mask(n)) for n in range(3)]
    pages[0].save(tmp_path / "p.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match="p.tif has 3 pages; store one image"):
        read(tmp_path / "p.tif")


def test_files_damaged_in_their_first_bytes_are_named(tmp_path: Path) -> None:
    content = bytearray(made.write(tmp_path / "a.nii", made.volume(1)).read_bytes())
    # The header's field for where the voxels begin: nibabel raises OverflowError.
    content[108:112] = np.float32(np.inf).tobytes()
    (tmp_path / "a.nii").write_bytes(content)
    with pytest.raises(DataError, match=r"a.nii cannot be read as NIfTI \(.*copy it again"):
        read(tmp_path / "a.nii")
    content = bytearray(made.write(tmp_path / "a.tif", made.mask(1)).read_bytes())
    # The list of tags ends with the place of the next page. A page without tags is put there, for
    # which Pillow raises TypeError.
    num_tags = int.from_bytes(content[8:10], "little")
    end = 10 + 12 * num_tags
    content[end : end + 4] = len(content).to_bytes(4, "little")
    (tmp_path / "a.tif").write_bytes(content + bytes(8))
    with pytest.raises(DataError, match=r"a.tif cannot be read as a picture \(.*copy it again"):
        read(tmp_path / "a.tif")


@pytest.mark.slow
def test_a_compressed_file_with_a_changed_bit_is_named_although_nibabel_reads_it(
    tmp_path: Path,
) -> None:
    label = np.zeros((64, 64, 8), np.uint8)
    for n in range(6):
        label[20 - n : 40 + n, 15:45, n + 1] = np.arange(30 * (20 + 2 * n)).reshape(-1, 30) % 7 > 0
    file = made.write(tmp_path / "a.nii.gz", label)
    content = file.read_bytes()
    assert gzip_fault(file) == "" and np.array_equal(read(file), label)

    num_silent = 0
    for position in range(30, len(content) - 8, 3):
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        try:
            voxels = np.asanyarray(nib.load(file).dataobj)
        except Exception:
            # nibabel itself refuses it.
            voxels = label
        if not np.array_equal(voxels, label):
            num_silent += 1
            assert gzip_fault(file).startswith("is damaged (")
            with pytest.raises(DataError, match=r"a.nii.gz is damaged \(.*; copy it again from"):
                read(file)
    assert num_silent > 10

    # The length at the end, and an end that is missing, come after the last voxel, too.
    for damaged in (content[:-2], content[:-1] + b"\x7f", content + b"text"):
        file.write_bytes(damaged)
        assert np.array_equal(np.asanyarray(nib.load(file).dataobj), label)
        assert "copy it again" in gzip_fault(file)


@pytest.mark.parametrize(
    ("quaternion", "words"), [((1, 1), "is no rotation"), ((np.nan, 0), "is not finite")]
)
def test_a_qform_that_is_none_contradicts_the_sform(
    tmp_path: Path, quaternion: tuple[float, float], words: str
) -> None:
    nifti = nib.Nifti1Image(made.volume(1), np.eye(4))
    nifti.set_sform(np.eye(4), code=1)
    nifti.set_qform(np.eye(4), code=1)
    nifti.header["quatern_b"], nifti.header["quatern_c"] = quaternion
    file = tmp_path / "a.nii.gz"
    nib.save(nib.Nifti1Image(made.volume(1), None, nifti.header), file)
    assert words in forms_fault(nib.load(file))


def test_only_compressed_files_have_a_fault_of_compression(tmp_path: Path) -> None:
    assert gzip_fault(made.write(tmp_path / "a.nii", made.volume(1))) == ""
    # A file may be compressed in several pieces, and padded with zeros, as on a tape.
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"a") + gzip.compress(b"b") + bytes(512))
    assert gzip_fault(tmp_path / "b.gz") == ""
    with pytest.raises(DataError, match="c.nii.gz does not exist"):
        gzip_fault(tmp_path / "c.nii.gz")


@pytest.mark.parametrize("name", ["a.nii.gz", "a.png"])
def test_a_file_that_the_account_may_not_read_is_not_to_be_copied_again(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made.write(tmp_path / name, made.mask(1) if name == "a.png" else made.volume(1))
    opened = builtins.open

    # Permissions do not stop an administrator, who may run this test.
    def refuse(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path) == str(file):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(DataError) as caught:
        read(file)
    assert str(caught.value) == (
        f"{file} cannot be read, because this account may not read it; change the permissions"
    )


@pytest.mark.parametrize("name", ["a.nii", "a.png"])
def test_a_file_that_is_not_there_is_not_to_be_copied_again(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with pytest.raises(DataError) as caught:
        read(file)
    assert str(caught.value) == (
        f"{file} does not exist; restore its name, or correct the list that names it"
    )
    file.symlink_to(tmp_path / "archive" / name)
    with pytest.raises(DataError, match=f"{file} is a link to {tmp_path}/archive/{name}, which"):
        read(file)


@pytest.mark.parametrize("name", ["a.nii", "a.png"])
def test_an_error_has_the_path_of_a_damaged_file_once(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"^{tmp_path}/{name} cannot be read as") as caught:
        read(tmp_path / name)
    assert str(caught.value).count(str(tmp_path)) == 1


def test_a_picture_that_viewers_show_turned_is_refused(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for ending in ("jpg", "png", "tif"):
        Image.fromarray(made.mask(3)[:, :30]).save(tmp_path / f"a.{ending}", exif=exif)
        with pytest.raises(
            DataError,
            match=rf"a.{ending} is shown turned \(EXIF orientation 6\).*; save it upright",
        ):
            read(tmp_path / f"a.{ending}")
