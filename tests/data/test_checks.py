# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What would stop or spoil a training is found in sites of every kind; copies are found across
sites.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import weakref
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import public_layouts as made
from monai.data import NibabelReader
from monai.transforms import LoadImage
from PIL import Image
from scipy.spatial.transform import Rotation

from monai_fairfl.bundle.preflight import check_sites
from monai_fairfl.data import (
    check_cases,
    check_duplicates,
    file_facts,
    find_cases,
    site_datalist,
    site_folders,
)
from monai_fairfl.data.checks import check_label_values
from monai_fairfl.data.inspection import inspect_cases, inspect_site
from monai_fairfl.data.layouts.base import all_cases
from monai_fairfl.data.layouts.image_files import WORKERS, forms_fault, header_fault
from monai_fairfl.data.overview import overview
from monai_fairfl.data.structures import LabelStructuresd
from monai_fairfl.errors import DataError, DataWarning

STRUCTURES = ("disc", "cup")


def problem_of(site: Path, *arguments: object) -> str:
    with pytest.raises(DataError, match=r"1 problem\(s\)") as caught:
        check_cases(site, *arguments)  # type: ignore[arg-type]
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("- ")]
    return line


def test_a_sound_site_of_pictures_is_summarised_for_json(tmp_path: Path) -> None:
    summary = check_cases(made.folders(tmp_path / "elm"), STRUCTURES)
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["site"], summary["layout"], summary["num_cases"]) == ("elm", "folders", 4)
    assert summary["labels"] == [0, 128, 255] and summary["gland_slices"] == 4
    assert summary["values"] == {"disc": [64, 255], "cup": [192, 255]}
    assert summary["cases"][0] == {
        "image": "images/eye00.png",
        "shape": [48, 48],
        "channels": 3,
        "labels": [0, 128, 255],
        "gland_slices": 1,
    }
    assert "values" not in check_cases(tmp_path / "elm")


def test_masks_of_jpeg_have_the_labels_they_were_made_of(tmp_path: Path) -> None:
    for n in range(3):
        made.write(tmp_path / "images" / f"{n}.jpg", made.photo(n, 96))
        made.write(tmp_path / "masks" / f"{n}.jpg", made.mask(n, (0, 255), 96, 30), quality=80)
    assert check_cases(tmp_path)["labels"] == [0, 255]


def test_a_mask_of_another_size_is_a_problem(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    made.write(site / "masks" / "eye02.png", made.mask(2, size=40))
    line = problem_of(site)
    assert "masks/eye02.png has shape (40, 40) but its image (48, 48); resample" in line


def test_only_the_cases_of_a_list_are_checked(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    cases = find_cases(site)
    made.write(site / "masks" / "eye02.png", made.mask(2, size=40))
    made.write(site / "images" / "unlabelled.png", made.photo(9))
    made.write(site / "masks" / "eye00.png", np.zeros((48, 48), np.uint8))
    with pytest.warns(DataWarning, match="eye00.png: its label is empty"):
        summary = check_cases(site, STRUCTURES, cases=cases[:2])
    assert [case["image"] for case in summary["cases"]] == ["images/eye00.png", "images/eye01.png"]
    # All labels of one part may be empty.
    with pytest.warns(DataWarning, match="eye00.png: its label is empty"):
        check_cases(site, STRUCTURES, cases=cases[:1])
    with pytest.raises(DataError, match=r"1 problem\(s\)\n- .*eye02.png has shape"):
        check_cases(site, STRUCTURES, cases=cases[1:])


def test_sites_with_different_numbers_of_labels_are_named(tmp_path: Path) -> None:
    for site, values in (("ash", (0, 1)), ("beech", (0, 1, 2)), ("elm", (0, 255))):
        for number in range(2):
            label = made.gland(number) * values[1]
            label[0, 0, 0] = values[-1] if number else 0
            made.write(tmp_path / site / f"Case0{number}.nii.gz", made.volume(number))
            made.write(tmp_path / site / f"Case0{number}_segmentation.nii.gz", label)
    sites = {site: inspect_site(tmp_path / site) for site in ("ash", "beech", "elm")}
    [note] = check_label_values(sites)
    second = tmp_path / "beech" / "Case01_segmentation.nii.gz"
    assert (
        f"ash has 1 in 2 of 2 cases; beech has 1 in 2 of 2 cases, 2 in 1 of 2 cases ({second}); elm"
        in note
    )
    assert note in overview({site: tmp_path / site for site in sites})[0]["warnings"]
    with pytest.warns(DataWarning, match="takes every label above 0 for the gland"):
        check_sites({site: str(tmp_path / site) for site in sites}, check_cases)
    # One writes 255 where the other writes 1.
    assert check_label_values({site: sites[site] for site in ("ash", "elm")}) == []


def test_the_masks_with_a_rare_code_are_named(
    tmp_path: Path,
) -> None:
    made.saml(tmp_path / "ash")
    site = made.saml(tmp_path / "Koeln Sued", cases=9)
    sites = {name: inspect_site(tmp_path / name) for name in ("ash", "Koeln Sued")}
    assert check_label_values(sites) == []
    masks = [site / f"Case0{number}_segmentation.nii.gz" for number in range(4)]
    made.write(masks[3], made.gland(3) * 255)
    sites["Koeln Sued"] = inspect_site(site)
    [note] = check_label_values(sites)
    assert f"Koeln Sued has 1 in 8 of 9 cases, 255 in 1 of 9 cases ({masks[3]}). Check" in note
    for number in range(3):
        made.write(masks[number], made.gland(number) * 255)
    sites["Koeln Sued"] = inspect_site(site)
    [note] = check_label_values(sites)
    assert f"255 in 4 of 9 cases ({masks[0]}, {masks[1]}, {masks[2]}, and 1 more)" in note


def test_an_image_in_the_place_of_its_mask_is_a_problem(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    made.write(site / "masks" / "eye02.png", made.photo(7))
    assert "eye02.png has 2" in problem_of(
        site
    ) and "colours, as photographs have; give its label" in problem_of(site)
    made.write(
        site / "masks" / "eye02.png",
        np.random.default_rng(0).integers(0, 256, (48, 48), dtype=np.uint8),
    )
    assert "grey levels that do not gather at a few" in problem_of(site)
    red = np.zeros((48, 48, 3), np.uint8)
    red[..., 0] = made.mask(2)
    made.write(site / "masks" / "eye02.png", red)
    assert "eye02.png has 3 colours; store a label in one channel of grey levels" in problem_of(
        site
    )
    made.write(site / "images" / "eye02.png", made.mask(2))
    made.write(site / "masks" / "eye02.png", np.repeat(made.mask(2)[..., None], 3, axis=2))
    assert "masks/eye02.png has the very pixels of its image" in problem_of(site)


def test_a_volume_in_the_place_of_its_label_is_a_problem(tmp_path: Path) -> None:
    site = made.saml(tmp_path)
    counts = np.arange(256 + 4, dtype=np.int16).reshape(13, 5, 4)
    made.write(site / "Case01.nii.gz", counts.astype(np.float32) + 1)
    made.write(site / "Case01_segmentation.nii.gz", counts)
    assert (
        "Case01_segmentation.nii.gz has 260 different values, so it seems to be an image"
        in problem_of(site)
    )
    made.write(site / "Case01.nii.gz", made.gland(1))
    made.write(site / "Case01_segmentation.nii.gz", made.gland(1).astype(np.int16))
    assert "Case01_segmentation.nii.gz has the very pixels of its image" in problem_of(site)


def test_a_mask_that_labels_its_background_is_a_problem(tmp_path: Path) -> None:
    site = made.saml(tmp_path)
    file = site / "Case01_segmentation.nii.gz"
    inside = np.ones((8, 8, 4), np.uint8)
    inside[0] = inside[-1] = inside[:, 0] = inside[:, -1] = 0
    inverted = 1 - made.gland(1)
    for label, words in (
        (inverted, "labels 100% of the voxels at the sides of its slices, and 93% of all"),
        (np.where(inverted, 255, 0).astype(np.int16), "and 93% of all"),
        (np.ones_like(inverted), "and 100% of all, so its background seems to be labelled; give"),
    ):
        made.write(file, label)
        line = problem_of(site)
        assert "Case01_segmentation.nii.gz labels 100%" in line and words in line
    # An organ that fills its crop, or goes on beyond the first and the last slice, is none.
    made.write(file, inside)
    assert check_cases(site)["num_cases"] == 4
    # A whole site may have exchanged the two values.
    for number in range(4):
        made.write(site / f"Case0{number}_segmentation.nii.gz", 1 - made.gland(number))
    with pytest.raises(DataError, match=r"4 problem\(s\)"):
        check_cases(site)


def test_an_image_that_shows_nothing_is_a_problem(tmp_path: Path) -> None:
    site = made.saml(tmp_path / "ash")
    made.write(site / "Case01.nii.gz", np.full((8, 8, 4), 7, np.int16))
    assert "Case01.nii.gz has the value 7 in all its voxels; convert or" in problem_of(site)
    site = made.folders(tmp_path / "elm")
    colour = np.full((48, 48, 3), 9, np.uint8)
    colour[..., 1] = 12
    made.write(site / "images" / "eye02.png", colour)
    assert "eye02.png has the value [ 9 12  9] in all its pixels; convert or" in problem_of(site)
    colour[0, 0, 2] = 10
    made.write(site / "images" / "eye02.png", colour)
    assert check_cases(site)["num_cases"] == 4


def test_values_that_are_not_finite_where_a_training_reads_them_are_a_problem(
    tmp_path: Path,
) -> None:
    site = made.saml(tmp_path)
    voxels = np.abs(made.volume(1).astype(np.float64)) + 1
    file = site / "Case01.nii.gz"
    for factor, words in (
        (1e300, "has 256 values beyond 3.4e+38, such as "),
        (1e-300, "has the value 0 in all its voxels"),
    ):
        made.write(file, factor * voxels)
        assert f"Case01.nii.gz {words}" in problem_of(site)
        loaded = LoadImage(image_only=True)(file)
        assert not loaded.isfinite().any() or not loaded.any()
    made.write(file, 1e30 * voxels)
    assert check_cases(site)["num_cases"] == 4
    voxels[0, 0, 0] = np.inf
    made.write(file, voxels)
    assert "Case01.nii.gz has 1 values that are not finite" in problem_of(site)
    voxels[0, 0, 0] = 1e39
    made.write(file, -voxels)
    assert "has 1 values beyond 3.4e+38, such as 1e+39, which become" in problem_of(site)


def test_a_mask_that_lies_beside_its_image_at_a_corner_is_a_problem(tmp_path: Path) -> None:
    """Each entry of the affine is the image's within 0.01 mm, and the corner lies 1.9 mm off."""
    affine = np.diag([0.6, 0.6, 3.6, 1])
    for number in range(2):
        noise = np.random.default_rng(number).normal(size=(160, 160, 4)).astype(np.float32)
        label = np.zeros((160, 160, 4), np.uint8)
        label[60:90, 60:90, 1:3] = 1
        nib.save(nib.Nifti1Image(noise, affine), tmp_path / f"Case0{number}.nii.gz")
        nib.save(nib.Nifti1Image(label, affine), tmp_path / f"Case0{number}_segmentation.nii.gz")
    file = tmp_path / "Case01_segmentation.nii.gz"
    turned = affine.copy()
    turned[:3, :3] = Rotation.from_rotvec([0, 0, 0.014]).as_matrix() @ affine[:3, :3]
    nib.save(nib.Nifti1Image(label, turned), file)
    assert np.abs(turned - affine).max() < 0.01
    line = problem_of(tmp_path)
    assert "Case01_segmentation.nii.gz lies up to 1.89 mm from its image" in line
    assert "give it the image's header" in line
    # 0.011 mm at the first voxel is too much, too.
    affine[0, 3] = 0.011
    nib.save(nib.Nifti1Image(label, affine), file)
    assert "lies up to 0.011 mm from its image" in problem_of(tmp_path)


def test_a_mask_whose_header_has_a_qform_alone_lies_where_its_image_does(tmp_path: Path) -> None:
    """It differs by rounding: up to 0.3 mm at the corner of this volume."""
    affine = oblique(0.03)
    affine[:3, 3] = 0
    shape = (512, 512, 6)
    label = np.zeros(shape, np.uint8)
    label[200:300, 200:300, 2:4] = 1
    image = np.zeros(shape, np.uint8)
    image[100:400, 100:400] = 1
    nib.save(nib.Nifti1Image(image, affine), tmp_path / "Case00.nii.gz")
    nifti = nib.Nifti1Image(label, None)
    nifti.set_qform(affine, code=1)
    nib.save(nifti, tmp_path / "Case00_segmentation.nii.gz")
    assert check_cases(tmp_path)["num_cases"] == 1


def test_a_mask_that_its_header_scales_is_refused_with_all_digits_and_the_scale(
    tmp_path: Path,
) -> None:
    site = made.saml(tmp_path)
    file = site / "Case01_segmentation.nii.gz"
    scaled = nib.Nifti1Image((made.gland(1) * 100).astype(np.int16), nib.load(file).affine)
    scaled.header.set_slope_inter(0.01, 0)
    nib.save(scaled, file)
    line = problem_of(site)
    assert "has label values such as 0.9999999776482582, because its header scales" in line
    assert "(scl_slope 0.01, scl_inter 0); labels are whole numbers from 0, stored without" in line
    # A scale with whole numbers is no fault.
    scaled = nib.Nifti1Image(made.gland(1).astype(np.int16), scaled.affine)
    scaled.header.set_slope_inter(2, 0)
    nib.save(scaled, file)
    assert check_cases(site)["labels"] == [0, 1, 2]


@pytest.mark.parametrize("colours", [1, 3])
def test_a_mask_that_is_drawn_by_its_transparency_is_a_problem(
    tmp_path: Path, colours: int
) -> None:
    site = made.folders(tmp_path)
    drawn = made.mask(2)
    opaque = np.full_like(drawn, 255)
    made.write(site / "masks" / "eye02.png", np.stack([opaque] * colours + [drawn], axis=-1))
    assert "masks/eye02.png is drawn in its alpha channel" in problem_of(site)
    made.write(site / "masks" / "eye02.png", np.stack([drawn] * colours + [drawn], axis=-1))
    assert check_cases(site)["labels"] == [0, 128, 255]


@pytest.mark.parametrize("turn", [0.0, 0.2])
def test_a_header_that_contradicts_itself_is_a_problem_until_it_is_written_again(
    tmp_path: Path, turn: float
) -> None:
    site = made.saml(tmp_path)
    file = site / "Case01_segmentation.nii.gz"
    cosines = np.array(
        [[1, 0, 0], [0, np.cos(turn), -np.sin(turn)], [0, np.sin(turn), np.cos(turn)]]
    )
    affine = np.diag([0.6, 0.6, 3.6, 1])
    affine[:3] = np.c_[cosines @ affine[:3, :3], [30, 20, -40]]
    for case in (site / "Case01.nii.gz", file):
        nifti = nib.load(case)
        nib.save(nib.Nifti1Image(np.asarray(nifti.dataobj), affine), case)
    label = nib.load(file)
    assert check_cases(site)["num_cases"] == 4
    bad = nib.Nifti1Image(np.asarray(label.dataobj), None)
    bad.header.set_sform(affine if not turn else np.round(affine, 3), code=1)
    bad.header["pixdim"][1:4] = (1, 1, 1) if not turn else (0.6, 0.6, 3.6)
    nib.save(bad, file)
    # nibabel sees the right affine, but training would read the missing qform.
    assert np.abs(nib.load(file).affine - affine).max() < 1e-3
    moved = np.linalg.norm(NibabelReader().read(file).affine[:3, 3] - affine[:3, 3])
    line = problem_of(site)
    assert (
        moved > 50
        and "Case01_segmentation.nii.gz has voxels of" in line
        and "write the header again" in line
    )
    mended = nib.load(file)
    mended.set_qform(mended.affine)
    mended.set_sform(mended.affine)
    nib.save(nib.Nifti1Image(np.asarray(mended.dataobj), None, mended.header), file)
    assert check_cases(site)["num_cases"] == 4


def oblique(degrees: float) -> np.ndarray:
    """An affine as of a scanner: axes to the left, the back and the head, and a little oblique."""
    affine = np.eye(4)
    turn = Rotation.from_euler("xyz", [degrees, 2 * degrees, -degrees], degrees=True).as_matrix()
    affine[:3, :3] = turn @ np.diag([-0.6, -0.6, 3.6])
    affine[:3, 3] = [30, 20, -40]
    return affine


def save_with_forms(path: Path, sform: np.ndarray, qform: np.ndarray) -> None:
    nifti = nib.Nifti1Image(np.asarray(nib.load(path).dataobj), None)
    nifti.set_qform(qform, code=1)
    nifti.set_sform(sform, code=1)
    nib.save(nifti, path)


def test_an_sform_and_a_qform_that_contradict_each_other_are_a_problem(tmp_path: Path) -> None:
    site = made.saml(tmp_path)
    image, label = site / "Case01.nii.gz", site / "Case01_segmentation.nii.gz"
    affine = oblique(0.5)
    moved, turned_over = affine.copy(), affine @ np.diag([1, -1, -1, 1])
    moved[0, 3] += 20
    for qform, words in ((moved, "up to 20 mm apart"), (turned_over, "up to 23.2 mm apart")):
        save_with_forms(image, affine, qform)
        save_with_forms(label, affine, affine)
        # MONAI reads the sform, and ITK may read the qform.
        assert np.abs(NibabelReader().read(str(image)).affine - affine).max() < 1e-4
        line = problem_of(site)
        assert f"Case01.nii.gz has an sform and a qform that place it {words}" in line
        assert "image.set_qform(affine), image.set_sform(affine)" in line
    # One of the two alone is no contradiction.
    for forms in ({"sform_code": 0}, {"qform_code": 0}):
        for file in (image, label):
            save_with_forms(file, affine, affine)
        nifti = nib.load(image)
        for code, value in forms.items():
            nifti.header[code] = value
        nib.save(nib.Nifti1Image(np.asarray(nifti.dataobj), None, nifti.header), image)
        assert check_cases(site)["num_cases"] == 4


@pytest.mark.parametrize("degrees", [0.0, 0.03, 0.5, 1.0, 5.0, 20.0, 120.0])
def test_a_qform_that_is_rounded_is_no_contradiction(tmp_path: Path, degrees: float) -> None:
    file = made.write(tmp_path / "a.nii.gz", np.zeros((512, 512, 20), np.uint8))
    affine = oblique(degrees)
    save_with_forms(file, affine, affine)
    assert header_fault(file) == "" and forms_fault(nib.load(file)) == ""


def test_a_volume_that_stores_no_orientation_is_noted_with_the_one_that_is_assumed(
    tmp_path: Path,
) -> None:
    site = made.saml(tmp_path)
    files = [site / "Case01.nii.gz", site / "Case01_segmentation.nii.gz"]
    for file in files:
        nifti = nib.Nifti1Image(np.asarray(nib.load(file).dataobj), None)
        nifti.header.set_zooms((0.6, 0.6, 3.6))
        nib.save(nifti, file)
    words = (
        f"2 volume(s) store no orientation, neither sform nor qform ({files[0]}, {files[1]}). It"
        " is taken for LAS: axes to the left, to the front and to the head."
    )
    for cases in (None, find_cases(site)[1:2]):
        with pytest.warns(DataWarning, match=re.escape(words)):
            check_cases(site, cases=cases)
    assert "".join(nib.aff2axcodes(NibabelReader().read(str(files[0])).affine)) == "LAS"


def test_a_label_whose_axes_are_not_at_right_angles_is_noted(tmp_path: Path) -> None:
    site = made.saml(tmp_path)
    files = [site / "Case01.nii.gz", site / "Case01_segmentation.nii.gz"]
    # The last axis leans towards the first, 10 degrees away from a right angle.
    sheared = np.diag([0.6, 0.6, 3.6, 1.0])
    sheared[0, 2] = 3.6 * np.tan(np.radians(10))
    for file in files:
        nib.save(nib.Nifti1Image(np.asarray(nib.load(file).dataobj), sheared), file)
    words = f"1 label(s) have axes up to 10 degrees away from right angles ({files[1]})."
    for cases in (None, find_cases(site)[1:2]):
        with pytest.warns(DataWarning, match=re.escape(words)):
            check_cases(site, cases=cases)


def test_pictures_that_cannot_be_read_are_named_all_at_once(tmp_path: Path) -> None:
    site = made.folders(tmp_path, cases=5)
    for file in ("images/eye01.png", "masks/eye01.png", "masks/eye03.png"):
        (site / file).write_bytes((site / file).read_bytes()[:60])
    with pytest.raises(DataError, match=r"3 problem\(s\)") as caught:
        check_cases(site)
    for file in ("images/eye01.png", "masks/eye01.png", "masks/eye03.png"):
        assert file in str(caught.value)


def test_of_many_problems_an_error_has_three_and_says_how_to_see_all(tmp_path: Path) -> None:
    site = made.folders(tmp_path, cases=5)
    for file in site.glob("images/*.png"):
        file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(DataError, match=r"5 problem\(s\)") as caught:
        check_cases(site)
    *problems, others = str(caught.value).splitlines()[1:]
    assert len(problems) == 3 and all("cannot be read as" in line for line in problems)
    assert others == f"- and 2 more; monai-fairfl datalist {site} --check lists all"


@pytest.mark.parametrize("layout", ["saml", "folders"])
def test_links_to_an_archive_that_is_not_mounted_are_problems_and_take_no_case_away(
    tmp_path: Path, layout: str
) -> None:
    site = made.ONE_SITE[layout](tmp_path / "HK")
    files = sorted(path for path in site.rglob("*.*") if path.is_file())
    for file in files[2:4]:
        file.unlink()
        file.symlink_to(tmp_path / "archive" / file.name)
    with pytest.raises(DataError, match=r"2 problem\(s\)") as caught:
        check_cases(site)
    assert all(
        f"{file} is a link to {tmp_path}/archive" in str(caught.value) for file in files[2:4]
    )
    for file in files:
        file.unlink()
        file.symlink_to(tmp_path / "archive" / file.name)
    assert site_folders(tmp_path) == {"HK": site} and len(find_cases(site)) == 4


def test_masks_that_disagree_are_a_problem_where_structures_are_asked_for(tmp_path: Path) -> None:
    site = made.folders(tmp_path, values=made.PALETTE)
    made.write(site / "masks" / "eye02.png", made.mask(2, (0, 255)))
    assert check_cases(site)["labels"] == [0, 1, 2, 255]
    assert "masks/eye02.png has the values [0, 255], where the other masks" in problem_of(
        site, STRUCTURES
    )
    assert check_cases(site, STRUCTURES, {"disc": [1, 255]})["values"] == {"disc": [1, 255]}
    assert "values of 'cup' are [3, 9], which no mask has: found are [0, 1, 2, 255]" in problem_of(
        site, STRUCTURES, {"disc": [1, 255], "cup": [3, 9]}
    )
    assert "values name 'disk'" in problem_of(site, STRUCTURES, {"disk": [1, 255]})


def test_a_structure_that_some_masks_lack_is_noted_until_a_list_says_that_nobody_drew_it(
    tmp_path: Path,
) -> None:
    site = made.folders(tmp_path / "elm", cases=16)
    for number in range(8):
        made.write(site / "masks" / f"eye{number:02d}.png", made.mask(number, made.GREY[:2]))
    masks = [site / "masks" / f"eye0{number}.png" for number in range(3)]
    words = (
        f"{site}: cup in 8 of 16 masks; where it is missing, it counts as absent"
        f" ({masks[0]}, {masks[1]}, {masks[2]}, and 5 more). Where nobody drew"
    )
    cases = all_cases(site_datalist(site, structures=STRUCTURES))
    cases.sort(key=lambda case: str(case["image"]))
    for given in (None, cases):
        with pytest.warns(DataWarning, match=re.escape(words)):
            check_cases(site, STRUCTURES, cases=given)
    assert not inspect_site(site).notes

    # As the note says: a list by hand, whose first cases have no values of the cup.
    listed = []
    for number, case in enumerate(cases):
        values = dict(case["values"])
        if number < 8:
            del values["cup"]
        listed.append({"image": case["image"], "label": case["label"], "values": values})
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"training": listed[4:], "validation": [], "testing": listed[:4]}))
    parts = site_datalist(site, file, STRUCTURES)
    assert not inspect_cases(site, all_cases(parts), STRUCTURES).notes
    label = LabelStructuresd("label", STRUCTURES)
    pixels = torch.tensor(np.asarray(Image.open(masks[0])))[None]
    channels = label({**parts["testing"][0], "label": pixels})["label"]
    assert channels[0].sum() > 0 and (channels[1] == -1).all()


def test_masks_that_mix_classes_and_grey_levels_are_a_problem_until_their_values_are_given(
    tmp_path: Path,
) -> None:
    site = made.folders(tmp_path, values=(0, 1, 255))
    assert (
        "masks/eye00.png has the values [0, 1, 255], of which 1 could be the noise"
        in problem_of(site, STRUCTURES)
    )
    by_hand = {"disc": [1, 255], "cup": [255, 255]}
    assert check_cases(site, STRUCTURES, by_hand)["values"] == by_hand
    assert check_cases(site, STRUCTURES, {"disc": [1, 1]})["labels"] == [0, 1, 255]


def test_photographs_that_a_training_in_colour_would_cut_off_are_a_problem(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    made.write(site / "images" / "eye02.png", made.photo(2)[..., 0].astype(np.uint16) * 257)
    assert (
        "eye02.png has more than 8 bits a channel, which a training in colour cuts"
        in problem_of(site, STRUCTURES)
    )
    with pytest.warns(UserWarning, match="differ in their channels"):
        assert check_cases(site)["num_cases"] == 4  # grey slices of 16 bits are no fault


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_wide_photographs_are_noted_and_labels_in_the_half_that_is_cut_off_are_a_problem(
    tmp_path: Path, ending: str
) -> None:
    for n in range(4):
        left, right = made.mask(n, (0, 128, 255), 96, 30, 14), np.zeros((96, 96), np.uint8)
        made.write(tmp_path / "images" / f"{n}.png", np.hstack([made.photo(n, 96)] * 2))
        made.write(tmp_path / "masks" / f"{n}{ending}", np.hstack([left, right]))
    with pytest.warns(
        UserWarning, match=r"4 photograph\(s\), .*images/0.png first, taken for a stereo pair"
    ):
        check_cases(tmp_path, STRUCTURES)
    made.write(tmp_path / "masks" / f"2{ending}", np.hstack([right, left]))
    assert f"masks/2{ending} has its labels in the right half alone" in problem_of(
        tmp_path, STRUCTURES
    )
    assert "set stereo to False" in problem_of(tmp_path, STRUCTURES)
    assert (
        not inspect_site(tmp_path, STRUCTURES, stereo=False).notes
        and check_cases(tmp_path)["num_cases"] == 4
    )
    assert check_cases(tmp_path, STRUCTURES, stereo=False)["num_cases"] == 4


def test_images_in_folders_beside_the_cases_are_a_warning(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    made.write(site / "images" / "batch2" / "eye09.png", made.photo(9))
    with pytest.warns(UserWarning, match=r"1 image\(s\) in .*images/batch2 are left out"):
        assert check_cases(site)["num_cases"] == 4
    made.write(site / "images_2024" / "eye09.png", made.photo(9))
    (site / "images" / "eye08.webp").touch()
    with (
        pytest.warns(UserWarning, match=r"2 image\(s\) in .*/images_2024 are left out"),
        pytest.warns(
            UserWarning, match=r"1 WEBP file\(s\) in .*/images are left out; convert them"
        ),
    ):
        assert check_cases(site)["num_cases"] == 4


@pytest.mark.parametrize("values", [made.GREY, made.DOFE])
def test_an_empty_mask_is_a_warning_and_only_empty_ones_are_a_problem(
    tmp_path: Path, values: tuple[int, ...]
) -> None:
    site = made.folders(tmp_path, values=values)
    empty = np.full((48, 48), values[0], np.uint8)
    made.write(site / "masks" / "eye02.png", empty)
    with pytest.warns(UserWarning, match="images/eye02.png: its label is empty; the case is kept"):
        assert check_cases(site)["gland_slices"] == 3
    for n in range(4):
        made.write(site / "masks" / f"eye{n:02d}.png", empty)
    assert "all 4 labels are empty" in problem_of(site)


def test_many_empty_masks_are_named_up_to_a_point(tmp_path: Path) -> None:
    site = made.folders(tmp_path, cases=26)
    for n in range(25):
        made.write(site / "masks" / f"eye{n:02d}.png", np.zeros((48, 48), np.uint8))
    notes = inspect_site(site).notes
    assert len(notes) == 21 and notes[-1].endswith("5 more labels are empty")


def test_channels_that_need_a_choice_are_named_with_their_axis(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match=r"images have 2 channels on axis 3 \(0: T2, 1: ADC\); the training must choose",
    ):
        summary = check_cases(made.msd(tmp_path / "Task05"))
    assert summary["cases"][0]["channels"] == 2 and summary["cases"][0]["shape"] == [8, 8, 4]
    with pytest.warns(UserWarning, match=r"channels are in files of their own \(0: T2, 1: ADC\)"):
        assert "channels" not in check_cases(made.nnunet(tmp_path / "nnunet"))["cases"][0]
    about = tmp_path / "nnunet" / "dataset.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "channel_names": ["T2", "ADC"]}))
    with pytest.warns(UserWarning, match=r"channels are in files of their own \(0: T2, 1: ADC\)"):
        check_cases(about.parent)
    assert check_cases(made.msd(tmp_path / "one", channels=0))["num_cases"] == 4


def test_images_that_differ_in_their_channels_are_a_warning(tmp_path: Path) -> None:
    site = made.folders(tmp_path)
    made.write(site / "images" / "eye02.png", made.photo(2)[..., 0])
    with pytest.warns(
        UserWarning, match=r"differ in their channels \(1 of 1 channel\(s\), 3 of 3 channel\(s\)\)"
    ):
        check_cases(site)


# copies


def test_a_copy_is_found_at_another_site_in_another_format(
    tmp_path: Path,
) -> None:
    made.folders(tmp_path / "elm", cases=6)
    made.folders(tmp_path / "oak", cases=6, endings=(".tif", ".bmp"), first=6)
    assert check_duplicates(site_folders(tmp_path)) == []
    made.write(tmp_path / "oak" / "images" / "new.bmp", made.photo(3))
    made.write(tmp_path / "oak" / "masks" / "new.png", made.mask(3))
    first = str(tmp_path / "elm" / "images" / "eye03.png")
    second = str(tmp_path / "oak" / "images" / "new.bmp")
    inspections = {name: inspect_site(path) for name, path in site_folders(tmp_path).items()}
    for given in (site_folders(tmp_path), inspections):
        (line,) = check_duplicates(given)
        assert f"2 times, elm: {first}, oak: {second}" in line


def test_a_copy_at_the_same_site_is_found(tmp_path: Path) -> None:
    site = made.dofe(tmp_path / "Domain1")
    shutil.copy(site / "train/ROIs/image/V0001.png", site / "test/ROIs/image/V0006.png")
    (line,) = check_duplicates({"Domain1": site})
    assert "V0001.png" in line and "V0006.png" in line
    with pytest.warns(UserWarning, match="the same image occurs 2 times"):
        check_cases(site)


def test_a_copied_volume_is_found_though_its_number_type_differs(tmp_path: Path) -> None:
    for name in ("elm", "oak"):
        made.saml(tmp_path / name, cases=3)
    for n in range(3):
        whole = np.round(100 * made.volume(n)).astype(np.int16)
        made.write(tmp_path / "elm" / f"Case{n:02d}.nii.gz", whole)
        made.write(
            tmp_path / "oak" / f"Case{n:02d}.nii.gz",
            (whole if n == 1 else whole + 1).astype(np.float64),
        )
    copies = check_duplicates(site_folders(tmp_path))
    assert len([line for line in copies if "same image" in line]) == 1
    # Cases 0 and 2 share their labels only.
    assert len([line for line in copies if "same label" in line]) == 2


def test_one_label_for_different_images_is_suspicious_and_empty_ones_are_not(
    tmp_path: Path,
) -> None:
    site = made.folders(tmp_path)
    shutil.copy(site / "masks" / "eye01.png", site / "masks" / "eye02.png")
    (line,) = check_duplicates({"elm": site})
    assert (
        "different images have the same label" in line
        and "eye01.png" in line
        and "eye02.png" in line
    )
    for n in (1, 2):
        made.write(site / "masks" / f"eye{n:02d}.png", np.zeros((48, 48), np.uint8))
    assert check_duplicates({"elm": site}) == []


def test_files_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, most, lock = [0], [0], threading.Lock()
    real = file_facts.read

    class Counted(np.ndarray):
        def __array_finalize__(self, _: object) -> None:
            pass

    def counting(path: str) -> np.ndarray:
        pixels = real(path).view(Counted)
        with lock:
            alive[0] += 1
            most[0] = max(most[0], alive[0])
        weakref.finalize(pixels, lambda: alive.__setitem__(0, alive[0] - 1))
        return pixels

    monkeypatch.setattr(file_facts, "read", counting)
    assert len(inspect_site(made.folders(tmp_path, cases=12)).files) == 12
    assert most[0] <= WORKERS and alive[0] == 0


# real images


@pytest.mark.slow
def test_real_prostate_sites_have_no_copies_and_state_their_spacing(realdata: Path) -> None:
    sites = site_folders(realdata / "prostate")
    found = {name: inspect_site(folder) for name, folder in sites.items()}
    assert all(not site.problems and site.layout == "saml" for site in found.values())
    stated = set()
    for site in found.values():
        stated.update(tuple(line["spacing"]) for line in site.lines)
    in_headers = set()
    for folder in sites.values():
        for case in find_cases(folder):
            voxel_sizes = nib.load(case["image"]).header.get_zooms()[:3]
            in_headers.add(tuple(round(float(mm), 4) for mm in voxel_sizes))
    assert stated == in_headers
    assert check_duplicates(found) == []


FUNDUS = {
    "DRIONS": (78, {"disc": [128, 255]}),
    "DrishtiGS1": (72, {"disc": [1, 2], "cup": [2, 2]}),
    "IDRiD": (15, {"disc": [128, 255]}),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", FUNDUS)
def test_a_real_fundus_site_is_recognised_checked_and_its_structures_are_found(
    realdata: Path, tmp_path: Path, name: str
) -> None:
    site = realdata / "fundus" / name
    if not site.is_dir():
        pytest.skip(f"no real images in {site}: put images/ and masks/ of {name} there")
    cases, values = FUNDUS[name]
    found = inspect_site(site, STRUCTURES)
    assert (found.layout, len(found.lines), found.values) == ("folders", cases, values)
    assert found.problems == [] == check_duplicates({name: found})
    parts = site_datalist(site, tmp_path / "list.json", STRUCTURES, found.values)
    assert sum(map(len, parts.values())) == cases
    written = json.loads((tmp_path / "list.json").read_text())
    assert written["testing"][0]["values"] == values and written["testing"][0]["image"].startswith(
        "images/"
    )
