# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each fault of a file is one problem that names it and its value; what looks alike is none."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.refusals import closed, folder_of_everybody, notes, refused
from monai.transforms import LoadImaged, Orientationd
from PIL import Image
from scipy.spatial.transform import Rotation

from monai_fairfl.data import check_cases, find_cases, grey_levels, overview
from monai_fairfl.errors import DataError

AFFINE = np.diag([0.6, 0.6, 3.6, 1.0])

Damage = Callable[[Path], object]
Fault = tuple[str, Damage, str]
"""Which file of a case is damaged and named, how, and the values and words, between commas."""


# Volumes


def save(
    path: Path,
    voxels: np.ndarray,
    sform: np.ndarray | None = AFFINE,
    qform: np.ndarray | None = None,
    scale: tuple[float, float] | None = None,
    **header: Any,
) -> Path:
    """A volume with these forms, then with these fields of its header, whatever they contradict."""
    nifti = nib.Nifti1Image(voxels, None)
    if qform is not None:
        nifti.set_qform(qform, code=1)
    if sform is not None:
        nifti.set_sform(sform, code=1)
        if qform is None:
            sizes = [*nib.affines.voxel_sizes(sform), 1.0]
            nifti.header.set_zooms(sizes[: voxels.ndim])
    for name, value in header.items():
        nifti.header[name] = value
    nifti = nib.Nifti1Image(voxels, None, nifti.header)
    if scale is not None:
        nifti.header.set_slope_inter(*scale)
    nib.save(nifti, path)
    return path


def numbers(value: float, factor: float = 1.0) -> np.ndarray:
    """A volume of positive float64 voxels, one of which has a value of its own."""
    voxels = factor * (np.abs(made.volume(1).astype(np.float64)) + 1)
    voxels[0, 0, 0] = value
    return voxels


def moved(x: float = 0.0, degrees: float = 0.0) -> np.ndarray:
    affine = AFFINE.copy()
    affine[:3, :3] = Rotation.from_euler("z", degrees, degrees=True).as_matrix() @ AFFINE[:3, :3]
    affine[0, 3] += x
    return affine


def oblique(degrees: float) -> np.ndarray:
    """An affine as of a scanner: axes to the left, the back and the head, and a little oblique."""
    affine = np.eye(4)
    turn = Rotation.from_euler("xyz", [degrees, 2 * degrees, -degrees], degrees=True).as_matrix()
    affine[:3] = np.c_[turn @ np.diag([-0.6, -0.6, 3.6]), [30, 20, -40]]
    return affine


def partner(image: Path) -> Path:
    return image.with_name(image.name.replace(".nii", "_segmentation.nii"))


def voxels(pixels: np.ndarray, *forms: Any, **header: Any) -> Damage:
    return lambda file: save(file, pixels, *forms, **header)


def forms(qform: np.ndarray, **header: Any) -> Damage:
    """A case of a scanner, whose image has this qform beside its sform."""

    def write(image: Path) -> None:
        save(partner(image), made.gland(1), oblique(0.5), oblique(0.5))
        save(image, made.volume(1), oblique(0.5), qform, **header)

    return write


def endless(file: Path) -> None:
    """Its header puts the voxels nowhere: nibabel raises OverflowError."""
    file.unlink()
    file = save(file.with_suffix(""), made.volume(1))
    data = bytearray(file.read_bytes())
    data[108:112] = np.float32(np.inf).tobytes()
    file.write_bytes(data)


def in_pieces(file: Path) -> None:
    """Compressed in two pieces, and padded with zeros, as on a tape."""
    content = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(content[:99]) + gzip.compress(content[99:]) + bytes(512))


GLAND, VOLUME = made.gland(1), made.volume(1)
INVERTED = 1 - GLAND
ORGAN = np.pad(np.ones((6, 6, 4), np.uint8), ((1, 1), (1, 1), (0, 0)))
APART = oblique(0.5)
APART[0, 3] += 20

VOLUMES: dict[str, Fault] = {
    "voxels that begin nowhere": ("image", endless, "read"),
    "moved": ("label", voxels(GLAND, moved(0.011)), "0.011 mm"),
    "below 0": ("label", voxels(-GLAND.astype(np.int16)), "-1"),
    "a rotation without a number": ("image", forms(oblique(0.5), quatern_b=np.nan), "qform"),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_a_fault_of_a_volume_is_named(name: str, tmp_path: Path) -> None:
    site = made.saml(tmp_path / "elm")
    named, damage, words = VOLUMES[name]
    file = site / {"image": "Case01.nii.gz", "label": "Case01_segmentation.nii.gz"}[named]
    damage(file)
    for cases in (None, find_cases(site)[1:]):
        with refused("1 problem(s)", str(file).partition(".")[0], *words.split(",")):
            check_cases(site, cases=cases)
    assert check_cases(site, cases=find_cases(site)[2:])["num_cases"] == 2


SOUND: dict[str, tuple[str, Damage, list[int]]] = {
    "rounded": ("label", voxels(GLAND, np.diag([0.6001, 0.6, 3.6, 1])), [0, 1]),
    "two structures": ("label", voxels(np.where(ORGAN, INVERTED + 1, 0)), [0, 1, 2]),
    "an organ that fills its crop": ("label", voxels(ORGAN), [0, 1]),
    "a whole scale": ("label", voxels(GLAND.astype(np.int16), scale=(2, 0)), [0, 1, 2]),
    "large numbers": ("image", voxels(numbers(-1e38, 1e30)), [0, 1]),
    "an sform alone": ("image", forms(APART, qform_code=0), [0, 1]),
    "in pieces": ("image", in_pieces, [0, 1]),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_looks_like_a_fault_of_a_volume_is_none(name: str, tmp_path: Path) -> None:
    site = made.saml(tmp_path / "elm")
    changed, change_file, labels = SOUND[name]
    change_file(site / {"image": "Case01.nii.gz", "label": "Case01_segmentation.nii.gz"}[changed])
    summary = check_cases(site)
    assert (summary["num_cases"], summary["labels"]) == (4, labels)


def stored_as(order: str, nifti: Any) -> Any:
    """The same volume, whose axes are stored to the right or left, and so on."""
    start = nib.io_orientation(nifti.affine)
    turn = nib.orientations.axcodes2ornt(order)
    return nifti.as_reoriented(nib.orientations.ornt_transform(start, turn))


@pytest.mark.parametrize("order", ["LPS", "PIR"])
def test_a_right_mask_in_another_order_of_axes_is_accepted(order: str, tmp_path: Path) -> None:
    """MONAI's orientation brings both to one grid; the image's header would mirror the mask."""
    site = made.saml(tmp_path / "elm")
    file = site / "Case01_segmentation.nii.gz"
    turned = stored_as(order, nib.load(file))
    nib.save(turned, file)
    assert check_cases(site)["num_cases"] == 4
    case = LoadImaged(["image", "label"], ensure_channel_first=True)(find_cases(site)[1])
    both = Orientationd(["image", "label"], axcodes="LPS", labels=None)(case)
    assert np.allclose(both["image"].affine, both["label"].affine, atol=1e-4)
    nib.save(nib.Nifti1Image(np.asarray(turned.dataobj), turned.affine + np.eye(4, k=3)), file)
    with refused(file):
        check_cases(site)


def test_a_mask_that_reorienting_turns_otherwise_than_its_image_is_refused(tmp_path: Path) -> None:
    """At 45 degrees, the axis that is nearest to the patient's depends on the order of storage."""
    turn = np.array([[2.0, 0, 0], [0, 1, -1], [0, 1, 1]])
    image = nib.Nifti1Image(made.volume(1), nib.affines.from_matvec(turn, [0, 0, 0]))
    label = nib.Nifti1Image(made.gland(1), image.affine)
    nib.save(image, tmp_path / "Case00.nii.gz")
    nib.save(label.as_reoriented([[0, 1], [2, 1], [1, 1]]), tmp_path / "Case00_segmentation.nii.gz")
    with refused("Case00_segmentation.nii.gz", "resample"):
        check_cases(tmp_path)


OUTSIDE: list[tuple[tuple[slice, slice], float, str]] = [
    # Columns and rows of the organ, the share of a side that a network sees, and of the organ.
    (np.s_[5:8, 3:5], 0.7, "67%"),
    (np.s_[2:6, 2:7], 0.5, "80%"),
    (np.s_[1:7, 1:7], 0.7, ""),
]


@pytest.mark.parametrize(("organ", "field", "share"), OUTSIDE)
def test_an_organ_outside_the_field_of_the_network_is_noted(
    organ: Any, field: float, share: str, tmp_path: Path
) -> None:
    site = made.saml(tmp_path / "elm")
    label = np.zeros((8, 8, 4), np.uint8)
    label[(*organ, slice(1, 3))] = 1
    for order in ("RAS", "SAL"):
        for name, voxels in (("Case01", made.volume(1)), ("Case01_segmentation", label)):
            nifti = stored_as(order, nib.Nifti1Image(voxels, AFFINE))
            nib.save(nifti, site / f"{name}.nii.gz")
        with notes() as found:
            check_cases(site, field_of_view=field)
        named = [note for note in found if "field_of_view" in note]
        assert bool(named) == bool(share)
        assert all(f"Case01_segmentation.nii.gz: {share}" in note for note in named)


def test_a_mask_that_lies_beside_its_image_at_a_corner_is_named(tmp_path: Path) -> None:
    """Each entry of the affine is the image's within 0.01 mm, and the corner lies 1.9 mm off."""
    label = np.zeros((160, 160, 4), np.uint8)
    label[60:90, 60:90, 1:3] = 1
    save(tmp_path / "Case00.nii.gz", label + 1)
    turned = moved(degrees=np.degrees(0.014))
    assert np.abs(turned - AFFINE).max() < 0.01
    file = save(tmp_path / "Case00_segmentation.nii.gz", label, turned)
    with refused(file, "1.89 mm"):
        check_cases(tmp_path)


def test_a_form_that_is_rounded_is_no_contradiction(tmp_path: Path) -> None:
    """A qform alone differs from the sform by up to 0.3 mm at a corner of such a volume."""
    affine = oblique(0.03)
    label = np.zeros((512, 512, 6), np.uint8)
    label[200:300, 200:300, 2:4] = 1
    save(tmp_path / "Case00.nii.gz", label + 1, affine, affine)
    save(tmp_path / "Case00_segmentation.nii.gz", label, None, affine)
    assert check_cases(tmp_path)["num_cases"] == 1


# Every file


def test_a_file_that_is_not_there_or_may_not_be_read_is_named() -> None:
    with folder_of_everybody() as root:
        site = made.saml(root / "elm")
        case = find_cases(site)[1]
        for file in case.values():
            with closed(Path(file)), pytest.raises(DataError) as caught:
                check_cases(site)
            assert f"{file} cannot be read" in str(caught.value)
            assert "permissions" in str(caught.value)
        os.unlink(case["label"])
        os.symlink("/archive", case["label"])
        with refused(case["label"], "No such file"):
            check_cases(site)


def test_all_problems_of_a_site_come_at_once_and_an_error_lists_three(tmp_path: Path) -> None:
    site = made.folders(tmp_path / "elm", cases=7)
    (site / "masks" / "eye06.png").unlink()
    files = [site / "images" / f"eye0{n}.png" for n in range(5)]
    for file in files:
        file.write_bytes(file.read_bytes()[:60])
    found, _ = overview({"elm": site})
    assert len(found["problems"]) == 6 and found["sites"]["elm"]["num_cases"] == 1
    assert all(str(file) in str(found["problems"]) for file in files)
    with refused("6 problem(s)", "eye06.png", files[0], files[1], "3 more"):
        check_cases(site)


def test_training_reads_a_mask_as_the_check_does(tmp_path: Path) -> None:
    """Of every mode of Pillow's that the check accepts."""
    stored = np.array([[0, 1, 0], [1, 1, 0]], np.uint8)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16", "I;16B"):
        deep = {"1": stored > 0, "I": stored * np.int32(30)}
        picture = Image.fromarray(deep.get(mode, stored))
        if mode.startswith("I;16"):
            wide = (stored * np.uint16(30)).astype(">u2" if mode.endswith("B") else "<u2")
            picture = Image.frombytes(mode, (3, 2), wide.tobytes())
        elif mode not in deep:
            picture = picture.convert(mode)
        site = tmp_path / mode
        for n in range(3):
            made.write(site / "images" / f"{n}.png", made.photo(n)[:2, :3])
            (site / "masks").mkdir(exist_ok=True)
            picture.save(site / "masks" / f"{n}.tif")
        with Image.open(site / "masks" / "0.tif") as opened:
            assert opened.mode == mode
            read = np.asarray(grey_levels(opened))
        assert read.dtype.isnative and np.array_equal(read > 0, stored > 0)
        assert check_cases(site)["labels"] == sorted({0, *np.unique(read).astype(int).tolist()})
