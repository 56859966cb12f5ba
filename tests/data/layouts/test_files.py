# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and masks are paired by their names; files are read as they are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import public_layouts as made
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from monai_fairfl.data.layouts.image_files import grey, images_in, read
from monai_fairfl.data.layouts.left_out import left_out
from monai_fairfl.data.layouts.pairing import as_cases, pair, patients_of
from monai_fairfl.errors import DataError


def names(images: list[str], masks: list[str]) -> list[tuple[str, str]]:
    pairs = pair(
        [Path("images", name) for name in images], [Path("masks", name) for name in masks], "elm"
    )
    return [(image.name, mask.name) for image, mask in pairs]


@settings(max_examples=50)
@given(
    stems=st.lists(
        st.from_regex(r"[a-z]{1,4}(_[0-9]{1,2})?", fullmatch=True), min_size=1, unique=True
    ),
    suffix=st.sampled_from(["", "_mask", "_segmentation", "_OD", "-seg", "_cup_disc"]),
    endings=st.sampled_from(
        [(".png", ".png"), (".jpg", ".tif"), (".nii.gz", ".nii"), (".JPG", ".bmp")]
    ),
)
def test_every_image_meets_the_mask_made_for_it(
    stems: list[str], suffix: str, endings: tuple[str, str]
) -> None:
    expected = [(f"{stem}{endings[0]}", f"{stem}{suffix}{endings[1]}") for stem in sorted(stems)]
    assert (
        names([image for image, _ in expected], [mask for _, mask in reversed(expected)])
        == expected
    )


def test_a_longer_name_does_not_take_the_mask_of_a_shorter_one() -> None:
    assert names(["a.png", "a_b.png"], ["a_b_mask.png", "a_mask.png"]) == [
        ("a.png", "a_mask.png"),
        ("a_b.png", "a_b_mask.png"),
    ]


@pytest.mark.parametrize(
    ("images", "masks", "words"),
    [
        (["7.png", "8.png"], ["7.png"], "images/8.png has no mask; add it"),
        (["7.png"], ["7.png", "8.png"], "masks/8.png has no image; add it"),
        (["7.png", "7.jpg"], ["7.png"], "7 has 2 images, 7.png and 7.jpg; keep one"),
        (["7.png"], ["7.png", "7_mask.png"], "7 has 2 masks"),
        (["7.png"], ["7_2.png"], "images/7.png has no mask.*masks/7_2.png has no image"),
        (
            ["7.png"],
            ["7_disc.png", "7_cup.png"],
            "elm: masks end differently, 7_cup.png and 7_disc.png. Keep",
        ),
    ],
)
def test_files_that_do_not_pair_are_named(images: list[str], masks: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        names(images, masks)


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


def test_folders_with_images_beside_those_of_the_cases_are_noted(tmp_path: Path) -> None:
    for name in ("images/7.png", "images/batch2/8.png", "images/.cache/9.png", "masks/7.png"):
        made.write(tmp_path / name, made.mask(1))
    (tmp_path / "masks" / "notes").mkdir()
    cases = as_cases([(tmp_path / "images" / "7.png", tmp_path / "masks" / "7.png")])
    assert left_out(cases) == [
        f"1 image(s) in {tmp_path}/images/batch2 are left out; move them to the cases"
    ]
    for name in (
        "images_2024/8.png",
        "batch2/images/8.png",
        "batch2/masks/8.png",
        "imagesTs/9.png",
    ):
        made.write(tmp_path / name, made.mask(1))
    for name in ("8.webp", "9.WEBP", "9.mha", "._9.mha", "Thumbs.db"):
        (tmp_path / "images" / name).touch()
    expected = []
    for folder in ("batch2/images", "batch2/masks", "images/batch2", "images_2024"):
        expected.append(f"1 image(s) in {tmp_path}/{folder} are left out; move them to the cases")
    expected.append(f"1 MHA file(s) in {tmp_path}/images are left out; convert them")
    expected.append(f"2 WEBP file(s) in {tmp_path}/images are left out; convert them")
    assert left_out(cases, tmp_path) == expected


@pytest.mark.parametrize(
    ("left", "right"), [("G-1-L", "G-1-R"), ("p7_OD", "p7_OS"), ("p7 left", "p7 right")]
)
def test_both_eyes_are_of_one_patient(left: str, right: str) -> None:
    cases = [{"image": f"im/{name}.jpg"} for name in (left, right, "V0001", "model")]
    found = patients_of(cases)
    assert len(found) == 2 and len(set(found.values())) == 1
