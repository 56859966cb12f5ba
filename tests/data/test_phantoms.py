# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals and clinics: their files, their numbers, and what one sees in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.refusals import refused
from PIL import Image

from monai_fairfl.data import (
    CLINICS,
    DEMO_SITES,
    SITES,
    find_cases,
    make_case,
    make_photograph,
    site_datalist,
    site_folders,
    write_clinics,
    write_demo,
    write_sites,
)

SMALL = (32, 32, 8)


def write_prostates(root: Path, sites: Any, **arguments: Any) -> list[str]:
    return write_sites(root, sites, **{"size": SMALL, **arguments})


def write_fundus(root: Path, clinics: Any, **arguments: Any) -> list[str]:
    return write_clinics(root, clinics, **{"size": 48, **arguments})


Write = Callable[..., list[str]]
of_both_kinds = pytest.mark.parametrize(
    ("write", "sites"), [(write_prostates, SITES), (write_fundus, CLINICS)], ids=["mri", "fundus"]
)


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in sorted(root.rglob("*.*")) if path.name != "dataset.json"]
    files = [path for path in files if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


# Files


@of_both_kinds
def test_the_same_seed_gives_the_same_bytes_whatever_the_other_sites(
    write: Write, sites: Any, tmp_path: Path
) -> None:
    assert write(tmp_path / "a", sites[1::-1], seed=5, cases=1) == [s.name for s in sites[:2]]
    write(tmp_path / "b", sites[:2], seed=6, cases=1)
    write(tmp_path / "one", sites[1:2], seed=5, cases=1)
    a, b, one = (contents(tmp_path / name) for name in ("a", "b", "one"))
    described = [json.loads(each.pop("sites.json")) for each in (a, b, one)]
    assert [each["seed"] for each in described] == [5, 6, 5] and len(set(a.values())) == 4
    assert all(a[name] != b[name] for name in a) and {name: a[name] for name in one} == one


def test_whole_cases_are_kept_and_other_images_are_not_mixed_in(tmp_path: Path) -> None:
    first, second, *_ = SITES
    write_prostates(tmp_path, [first, second], cases=2)
    before = contents(tmp_path)
    whole, broken = find_cases(tmp_path / first.name)
    stamp = Path(whole["image"]).stat().st_mtime_ns
    for part in ("image", "label"):
        Path(broken[part]).unlink()
        write_prostates(tmp_path, [first, second], cases=2)
        assert contents(tmp_path) == before
    assert Path(whole["image"]).stat().st_mtime_ns == stamp
    changed = [replace(first, noise=0.5), second]
    for other in ({"seed": 1}, {"size": (32, 32, 9)}, {"sites": changed}, {"sites": [first]}):
        with refused(tmp_path / "sites.json"):
            write_prostates(tmp_path, other.pop("sites", [first, second]), cases=2, **other)
    assert contents(tmp_path) == before


def test_files_are_of_the_formats_that_hospitals_have(tmp_path: Path) -> None:
    write_sites(tmp_path, SITES[:2], size=(24, 20, 8), cases=1)
    for site in SITES[:2]:
        [case] = find_cases(tmp_path / site.name)
        image, mask = nib.load(case["image"]), nib.load(case["label"])
        assert image.get_data_dtype() == np.int16 and mask.get_data_dtype() == np.uint8
        assert set(np.unique(mask.dataobj)) == {0, 1} and np.array_equal(image.affine, mask.affine)
        assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
        spacing = (site.fov / 24, site.fov / 20, 16 * site.thickness / 8)
        assert np.allclose(image.header.get_zooms(), spacing)
        assert image.header.get_xyzt_units()[0] == "mm"
    formats = set()
    # Of each format, with and without a cup.
    write_clinics(tmp_path / "fundus", CLINICS[:4], size=48, cases=1)
    for clinic in CLINICS[:4]:
        expected, labels = make_photograph(clinic, 0, size=48)
        [case] = find_cases(tmp_path / "fundus" / clinic.name)
        with Image.open(case["image"]) as picture, Image.open(case["label"]) as drawn:
            formats.add(picture.format)
            error = np.abs(np.asarray(picture).astype(float) - expected).mean()
            assert error == 0 if picture.format != "JPEG" else 0 < error < 8
            assert (picture.mode, drawn.mode) == ("RGB", "L") and np.array_equal(drawn, labels)
        assert set(np.unique(labels)) == ({0, 128, 255} if clinic.cup else {0, 255})
    assert formats == {"PNG", "JPEG", "TIFF", "BMP"}


# Numbers

VOXELS = [122, 417, 127, 47, 135, 90, 138, 107, 255, 187]
BRIGHTNESS = [153.83, 3167.96, 385.25, 56.86, 1611.77, 392.65, 167.02, 333.23, 599.09, 3239.42]
PIXELS = [226, 204, 45, 69, 1532, 120]
LIGHT = [49.719, 87.461, 28.058, 63.197, 117.964, 47.773]
"""Labelled voxels and pixels of small cases, and the means of their images."""


def test_the_images_of_the_studies_are_those_of_every_release() -> None:
    volumes = [make_case(site, 1, seed=3, size=SMALL) for site in (*SITES, *DEMO_SITES)]
    assert [int(mask.sum()) for _, mask, _ in volumes] == VOXELS
    assert [image.mean() for image, *_ in volumes] == pytest.approx(BRIGHTNESS, rel=2e-4)
    photographs = [make_photograph(clinic, 1, seed=3, size=64) for clinic in CLINICS]
    assert [int((labels > 0).sum()) for _, labels in photographs] == PIXELS
    assert [photo.mean() for photo, _ in photographs] == pytest.approx(LIGHT, rel=2e-4)


def test_sizes_are_as_uneven_as_the_federations_of_fedce() -> None:
    # Jiang et al., CVPR 2023, table 5; of the photographs their roots.
    published = np.array([381, 238, 278, 242, 389, 814])
    cases = np.array([site.cases for site in SITES])
    assert np.abs(cases - published / published.sum() * cases.sum()).max() < 1
    photographs = np.sqrt([50, 98, 47, 230, 80, 400]).astype(int)
    assert [clinic.cases for clinic in CLINICS] == photographs.tolist()
    # Anatomy does not change with the number of voxels.
    coarse, fine = (make_case(SITES[0], 3, size=(size, size, 16))[1].mean() for size in (48, 96))
    assert coarse == pytest.approx(fine, rel=0.1)


def test_every_hospital_of_the_demonstration_tests_eight_cases(tmp_path: Path) -> None:
    names = write_demo(tmp_path / "a", size=(16, 16, 4))
    assert names == ["ash", "beech", "maple", "willow"] == list(site_folders(tmp_path / "a"))
    for name, folder in site_folders(tmp_path / "a").items():
        parts = [[case["image"] for case in cases] for cases in site_datalist(folder).values()]
        assert [len(images) for images in parts] == [2 if name == "willow" else 8, 2, 8]
        every = sorted(str(path) for path in (tmp_path / "a" / name).glob("Case??.nii.gz"))
        assert sorted(sum(parts, [])) == every  # no case is in two parts


def test_the_unusual_hospital_is_seen_in_its_images_and_none_is_clipped() -> None:
    brightness: dict[str, list[float]] = {}
    width: dict[str, list[float]] = {}
    for site in DEMO_SITES:
        for number in range(4):
            image, mask, _ = make_case(site, number, seed=0, size=(48, 48, 8))
            assert image.max() < 32767, (site.name, number)
            columns, rows, _ = np.nonzero(mask)
            across = slice(columns.min(), columns.max() + 1)
            before = image[across, max(rows.min() - 8, 0) : rows.min()].astype(float)
            behind = image[across, rows.max() + 1 : rows.max() + 9].astype(float)
            brightness.setdefault(site.name, []).append(behind.mean() / before.mean())
            width.setdefault(site.name, []).append(across.stop - across.start)
    for seen in (brightness, width):
        means = {name: np.mean(values) for name, values in seen.items()}
        willow, alike = means.pop("willow"), list(means.values())
        assert max(alike) < 1.3 * min(alike) and willow > 1.3 * max(alike)
