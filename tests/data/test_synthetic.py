# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from monai_fairfl.data import SITES, Site, find_cases, make_case, site_folders, write_sites
from monai_fairfl.errors import DataError

SMALL = (32, 32, 8)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*.*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_whatever_the_number_of_threads(tmp_path):
    write_sites(tmp_path / "a", sites=SITES[:2], seed=5, size=SMALL, cases=2)
    write_sites(tmp_path / "b", sites=SITES[:2], seed=5, size=SMALL, cases=2, workers=3)
    write_sites(tmp_path / "c", sites=SITES[:2], seed=6, size=SMALL, cases=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    image = "alder/Case00.nii.gz"
    assert contents(tmp_path / "a")[image] != contents(tmp_path / "c")[image]


def test_a_site_does_not_depend_on_the_other_sites(tmp_path):
    write_sites(tmp_path / "both", sites=SITES[:2], size=SMALL, cases=1)
    write_sites(tmp_path / "one", sites=SITES[1:2], size=SMALL, cases=1)
    for path in (tmp_path / "one/birch").iterdir():
        assert path.read_bytes() == (tmp_path / "both/birch" / path.name).read_bytes()


def test_the_layout_is_that_of_the_public_set(tmp_path):
    assert (
        write_sites(tmp_path, sites=SITES[2:4], size=SMALL, cases=2)
        == ["cedar", "elm"]
        == list(site_folders(tmp_path))
    )
    for site in ("cedar", "elm"):
        assert [Path(case["image"]).name for case in find_cases(tmp_path / site)] == [
            "Case00.nii.gz",
            "Case01.nii.gz",
        ]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_files_hold_int16_images_binary_masks_and_millimetres(tmp_path, site):
    write_sites(tmp_path, sites=[site], size=(48, 40, 12), cases=1)
    image = nib.load(tmp_path / site.name / "Case00.nii.gz")
    mask = nib.load(tmp_path / site.name / "Case00_segmentation.nii.gz")
    assert image.get_data_dtype() == np.int16 and mask.get_data_dtype() == np.uint8
    assert set(np.unique(mask.dataobj)) == {0, 1}
    assert np.array_equal(image.affine, mask.affine)
    assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
    spacing = (site.fov / 48, site.fov / 40, 16 * site.thickness / 12)
    assert (
        np.allclose(image.header.get_zooms(), spacing) and image.header.get_xyzt_units()[0] == "mm"
    )
    assert np.asarray(image.dataobj).max() < 32767  # not clipped


def test_sizes_are_as_uneven_as_the_federation_of_fedce():
    published = np.array([381, 238, 278, 242, 389, 814])  # Jiang et al., CVPR 2023, table 5
    cases = np.array([site.cases for site in SITES])
    assert 40 <= cases.sum() <= 48
    assert np.abs(cases - published / published.sum() * cases.sum()).max() < 1
    assert len({site.name for site in SITES}) == 6


@pytest.mark.slow
def test_glands_are_one_piece_of_believable_size_and_taper_towards_the_apex():
    from scipy.ndimage import label

    for site in SITES:
        _, mask, affine = make_case(site, 0, size=(64, 64, 16))
        _, pieces = label(mask)
        largest = np.bincount(label(mask)[0].ravel())[1:].max()
        assert largest > 0.99 * mask.sum(), (site.name, pieces)
        millilitres = mask.sum() * abs(np.linalg.det(affine[:3, :3])) / 1000
        assert 0.7 * 20 * site.volume < millilitres < 1.3 * 90 * site.volume
        areas = mask.sum(axis=(0, 1))
        assert areas.max() > 2 * areas[areas > 0][0]  # the apex is the first slice, feet first


def test_anatomy_does_not_change_with_the_number_of_voxels():
    volumes = []
    for size in ((48, 48, 16), (96, 96, 16)):
        _, mask, affine = make_case(SITES[0], 3, size=size)
        volumes.append(mask.sum() * abs(np.linalg.det(affine[:3, :3])))
    assert volumes[0] == pytest.approx(volumes[1], rel=0.1)


def test_a_coil_brightens_what_is_near_the_rectum():
    def behind_over_before(site: Site) -> float:
        image = make_case(site, 0, size=(48, 48, 8))[0].astype(float)
        return image[12:36, 30:40].mean() / image[12:36, 6:16].mean()

    birch = SITES[1]
    assert behind_over_before(birch) > 1.5 * behind_over_before(replace(birch, coil=1e-9))


def test_noise_in_air_has_the_mean_of_a_rayleigh_distribution():
    # With a gamma of 3 air gives no signal.
    site = replace(SITES[2], noise=0.2, scale=10000, bias=0.0, gamma=3.0)
    corner = make_case(site, 0, size=(64, 64, 8))[0][:, :6]
    assert corner.mean() / 10000 == pytest.approx(0.2 * np.sqrt(np.pi / 2), rel=0.05)


def test_gamma_is_an_exponent_on_the_signal():
    plain = replace(SITES[0], scale=20000, gamma=1.0, bias=0.0, noise=0.0)
    signal = make_case(plain, 0, size=SMALL)[0] / 20000
    assert np.allclose(
        make_case(replace(plain, gamma=2.0), 0, size=SMALL)[0] / 20000, signal**2, atol=2e-4
    )


@pytest.mark.slow
def test_zones_are_inverted_where_the_site_says_so():
    def outer_minus_inner(zones: float) -> float:
        from scipy.ndimage import binary_erosion

        site = replace(SITES[0], zones=zones, noise=0.0, bias=0.0, blur=0.1)
        differences = []
        for number in range(3):
            image, mask, _ = make_case(site, number, size=(64, 64, 12))
            inner = binary_erosion(mask, np.ones((5, 5, 1)))
            outer = (mask > 0) & ~binary_erosion(mask, np.ones((3, 3, 1)))
            outer[:, :32] = False  # the peripheral zone is posterior
            differences.append(image[outer].mean() - image[inner].mean())
        return float(np.mean(differences))

    assert outer_minus_inner(1.0) > 0 > outer_minus_inner(-1.0)


def test_whole_cases_are_kept_and_broken_ones_made_anew(tmp_path):
    write_sites(tmp_path, sites=SITES[:1], size=SMALL, cases=2)
    before = contents(tmp_path)
    whole, broken = tmp_path / "alder/Case00.nii.gz", tmp_path / "alder/Case01.nii.gz"
    stamp = whole.stat().st_mtime_ns
    broken.write_bytes(broken.read_bytes()[:200])
    write_sites(tmp_path, sites=SITES[:1], size=SMALL, cases=2)
    assert whole.stat().st_mtime_ns == stamp and contents(tmp_path) == before
    assert gzip.decompress(broken.read_bytes())


def test_sites_json_describes_each_shift_and_grows_with_the_sites(tmp_path):
    write_sites(tmp_path, sites=SITES[:1], size=SMALL, cases=2)
    write_sites(tmp_path, sites=SITES[1:2], size=SMALL, cases=1)
    write_sites(tmp_path, sites=SITES[:1], size=SMALL, cases=1)
    described = json.loads((tmp_path / "sites.json").read_text())
    assert described["seed"] == 0 and described["size"] == list(SMALL)
    assert described["sites"]["alder"]["cases"] == 2
    assert (
        described["sites"]["birch"]["coil"] > 0 and "coil" in described["sites"]["birch"]["words"]
    )


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"size": (32, 32, 9)}, {"sites": [replace(SITES[0], noise=0.5)]}],
    ids=["seed", "size", "noise"],
)
def test_other_images_are_not_mixed_into_a_folder(tmp_path, other):
    write_sites(tmp_path, sites=SITES[:1], size=SMALL, cases=1)
    before = contents(tmp_path)
    with pytest.raises(DataError, match="Delete .* or name another folder with --out"):
        write_sites(tmp_path, **{"sites": SITES[:1], "size": SMALL, "cases": 1, **other})
    assert contents(tmp_path) == before
