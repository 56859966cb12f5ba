# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import binary_dilation, black_tophat, gaussian_filter, label, laplace

from monai_fairfl.data.synthetic_fundus import CLINICS, Clinic, make_photograph, write_clinics
from monai_fairfl.errors import DataError

ACACIA, BEECH, CYPRESS, DOGWOOD, EBONY, FIR = CLINICS
SMALL = 48
CLOSE = Clinic("close", 1, fov=5.0, aim=0.0)
SPOTLESS = replace(CLOSE, vignette=0.0, uneven=0.0, blur=0.0, noise=0.0)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*.*"))
        if path.is_file()
    }


def height(mask: np.ndarray) -> int:
    return int(np.ptp(np.flatnonzero(mask.any(axis=1)))) + 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_whatever_the_number_of_threads(tmp_path):
    write_clinics(tmp_path / "a", clinics=CLINICS[:2], seed=5, size=SMALL, cases=2)
    write_clinics(tmp_path / "b", clinics=CLINICS[:2], seed=5, size=SMALL, cases=2, workers=3)
    write_clinics(tmp_path / "c", clinics=CLINICS[:2], seed=6, size=SMALL, cases=2)
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b and len(a) == 9
    assert all(a[name] != c[name] for name in a)
    assert a["acacia/images/Case00.png"] != a["acacia/images/Case01.png"]


@pytest.mark.slow
def test_a_clinic_does_not_depend_on_the_other_clinics(tmp_path):
    write_clinics(tmp_path / "both", clinics=CLINICS[:2], size=SMALL, cases=1)
    write_clinics(tmp_path / "one", clinics=CLINICS[1:2], size=SMALL, cases=1)
    both, one = contents(tmp_path / "both/beech"), contents(tmp_path / "one/beech")
    assert both == one and len(one) == 2
    assert not np.array_equal(
        *(make_photograph(replace(ACACIA, name=name), 0, size=SMALL)[1] for name in ("a", "b"))
    )


@pytest.mark.slow
def test_every_format_reads_back_as_colour_with_a_grey_mask_of_the_same_size(tmp_path):
    names = write_clinics(tmp_path, clinics=CLINICS[::-1], size=SMALL, cases=1)
    assert names == ["acacia", "beech", "cypress", "dogwood", "ebony", "fir"]
    formats = set()
    for clinic in CLINICS:
        expected, labels = make_photograph(clinic, 0, size=SMALL)
        with Image.open(tmp_path / clinic.name / f"images/Case00{clinic.suffix}") as image:
            formats.add(image.format)
            assert image.mode == "RGB"
            error = np.abs(np.asarray(image).astype(float) - expected).mean()
            assert error == 0 if image.format != "JPEG" else 0 < error < 8
        with Image.open(tmp_path / clinic.name / "masks/Case00.png") as mask:
            assert mask.mode == "L" and mask.size == image.size
            assert np.array_equal(mask, labels)
    assert formats == {"PNG", "JPEG", "TIFF", "BMP"}


def test_sizes_are_the_roots_of_those_of_the_federation_of_fedce():
    published = np.array([50, 98, 47, 230, 80, 400])
    assert [clinic.cases for clinic in CLINICS] == np.sqrt(published).astype(int).tolist()
    assert len({clinic.name for clinic in CLINICS}) == 6


@pytest.mark.slow
def test_masks_name_disc_and_cup_and_the_cup_only_where_the_clinic_labels_it():
    for clinic in CLINICS:
        values = set(np.unique(make_photograph(clinic, 0, size=96)[1]))
        assert values == ({0, 128, 255} if clinic.cup else {0, 255})
    assert [clinic.name for clinic in CLINICS if not clinic.cup] == ["cypress"]
    labelled, only_disc = (
        make_photograph(replace(CYPRESS, cup=cup), 0, size=96)[1] for cup in (True, False)
    )
    assert np.array_equal(labelled > 0, only_disc == 255)


@pytest.mark.slow
def test_the_cup_lies_inside_the_disc_and_both_have_the_size_of_human_ones():
    ratios, millimetres = [], SPOTLESS.fov / SPOTLESS.frame / 96
    for number in range(12):
        mask = make_photograph(SPOTLESS, number, size=96)[1]
        disc, cup = mask > 0, mask == 255
        assert label(disc)[1] == label(cup)[1] == 1
        padded = np.pad(mask, 1)
        around = [np.roll(padded, step, axis) for step in (-1, 1) for axis in (0, 1)]
        # A rim all around the cup.
        assert all(neighbour[padded == 255].min() > 0 for neighbour in around)
        ratios.append(height(cup) / height(disc))
        assert 1.4 < height(disc) * millimetres < 2.0 and 1.4 < height(disc.T) * millimetres < 2.0
    assert 0.22 < min(ratios) < 0.45 and 0.6 < max(ratios) < 0.83


@pytest.mark.slow
def test_the_disc_is_brighter_than_the_retina_and_the_cup_brighter_than_the_rim():
    for number in range(4):
        image, mask = make_photograph(SPOTLESS, number, size=96)
        beside = binary_dilation(mask > 0, iterations=6) & (mask == 0)
        retina, rim, cup = (image[where, 1].mean() for where in (beside, mask == 128, mask == 255))
        assert 1.15 * retina < rim < cup


@pytest.mark.slow
def test_left_and_right_eyes_occur_and_the_macula_is_the_darker_side():
    sides = []
    for number in range(8):
        image, mask = make_photograph(replace(DOGWOOD, uneven=0.0), number, size=64)
        columns = np.flatnonzero(mask.any(axis=0))
        # The disc lies on the nasal side of a picture aimed at the middle.
        temporal = -1 if columns.mean() > 32 else 1
        macula = round(columns.mean() + temporal * 4.5 / 11.5 * 0.96 * 64)
        row = round(np.flatnonzero(mask.any(axis=1)).mean()) + 2
        red = gaussian_filter(image[..., 0].astype(float), 2)
        assert red[row, macula] < np.median(red[mask > 0])
        sides.append(temporal)
    assert set(sides) == {-1, 1}


@pytest.mark.slow
def test_dark_vessels_leave_the_disc_upwards_and_downwards():
    for number in range(4):
        image, mask = make_photograph(SPOTLESS, number, size=96)
        disc, middle = mask > 0, round(np.argwhere(mask)[:, 0].mean())
        thin = black_tophat(image[..., 1].astype(float), size=9)
        around = binary_dilation(disc, iterations=8) & ~binary_dilation(disc, iterations=2)
        for half in (slice(None, middle), slice(middle, None)):
            assert thin[half][around[half]].max() > 15


def test_anatomy_does_not_change_with_the_number_of_pixels():
    small, large = (make_photograph(SPOTLESS, 3, size=size) for size in (64, 128))
    for value in (128, 255):
        assert (small[1] == value).mean() == pytest.approx((large[1] == value).mean(), rel=0.1)
    halved = large[0].reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))
    assert np.corrcoef(small[0].ravel(), halved.ravel())[0, 1] > 0.98
    assert make_photograph(replace(SPOTLESS, resolution=0.75), 3, size=64)[0].shape == (48, 48, 3)


def test_a_stereo_pair_shows_one_eye_twice_and_its_cup_displaced():
    image, mask = make_photograph(EBONY, 0, size=96)
    assert image.shape == (96, 192, 3) and label(mask > 0)[1] == 2
    centres = []
    for view in (mask[:, :96], mask[:, 96:]):
        assert label(view > 0)[1] == 1
        centres.append([np.argwhere(view >= value).mean(axis=0) for value in (128, 255)])
    (disc, cup), (other_disc, other_cup) = centres
    assert disc[0] == pytest.approx(other_disc[0], abs=1)  # the views differ sideways only
    assert abs(disc[1] - other_disc[1]) > 4
    assert abs((cup - disc - other_cup + other_disc)[1]) > 0.5
    assert make_photograph(replace(EBONY, stereo=False), 0, size=96)[0].shape == (96, 96, 3)


@pytest.mark.slow
def test_clinics_differ_in_colour_and_sharpness():
    colours, sharpness = {}, {}
    for clinic in CLINICS:
        images = np.stack(
            [make_photograph(replace(clinic, noise=0.0), number, size=64)[0] for number in range(3)]
        )
        colours[clinic.name] = images[images.max(axis=-1) > 20].mean(axis=0)
        sharpness[clinic.name] = np.std([laplace(image[..., 1].astype(float)) for image in images])
    brightness = {name: colour.sum() for name, colour in colours.items()}
    assert min(np.abs(a - b).max() for a, b in combinations(colours.values(), 2)) > 5
    assert (
        max(brightness, key=brightness.get) == "ebony"
        and min(brightness, key=brightness.get) == "cypress"
    )
    assert sharpness["fir"] > 1.3 * sharpness["ebony"]


def test_blur_is_a_gaussian_point_spread_in_millimetres():
    sharp, blurred = (
        make_photograph(replace(SPOTLESS, frame=1.45, blur=blur), 0, size=96)[0]
        for blur in (0.0, 0.1)
    )
    expected = gaussian_filter(sharp.astype(float), (0.1 / (5.0 / 1.45 / 96),) * 2 + (0,))
    assert np.abs(blurred - expected).max() < 1.1 < np.abs(sharp - expected).max()


def test_gains_and_gamma_act_on_each_channel():
    dim = replace(SPOTLESS, red=0.5, green=0.5, blue=0.5)  # nothing is clipped
    signal = make_photograph(dim, 0, size=SMALL)[0] / 255
    cast = make_photograph(replace(dim, red=0.25), 0, size=SMALL)[0] / 255
    assert np.allclose(cast, signal * (0.5, 1, 1), atol=0.005)
    darker = make_photograph(replace(dim, gamma=2.0), 0, size=SMALL)[0] / 255
    lit = np.hypot(*np.indices((SMALL, SMALL)) - (SMALL - 1) / 2) < 0.4 * SMALL
    assert np.allclose(darker[lit], signal[lit] ** 2, atol=0.005)


def test_noise_has_the_standard_deviation_it_says_and_none_falls_outside_the_field_of_view():
    plain, noisy = (
        make_photograph(replace(SPOTLESS, noise=noise), 0, size=96)[0] / 255
        for noise in (0.0, 0.05)
    )
    lit = (plain > 0.2) & (plain < 0.8)
    assert (noisy - plain)[lit].std() == pytest.approx(0.05, rel=0.1)
    assert noisy[:5, :5].max() == 0


def test_frame_cuts_the_field_of_view_and_the_vignette_darkens_its_rim():
    whole, cut = (
        make_photograph(replace(SPOTLESS, frame=frame), 0, size=96)[0] for frame in (0.8, 1.45)
    )
    assert (whole.max(axis=-1) > 60).mean() == pytest.approx(np.pi / 4 * 0.8**2, rel=0.05)
    assert (cut.max(axis=-1) > 0).all()
    plain, dark = (
        make_photograph(replace(SPOTLESS, vignette=v), 0, size=96)[0].astype(float)
        for v in (0.0, 0.4)
    )
    assert dark[5, 48, 0] / plain[5, 48, 0] == pytest.approx(1 - 0.4 * (42.5 / 46.1) ** 2, abs=0.02)


@pytest.mark.slow
def test_uneven_light_is_smooth_and_of_the_spread_it_says():
    dim = replace(SPOTLESS, red=0.5, green=0.5, blue=0.5, frame=1.45)
    logs = []
    for number in range(6):
        plain, uneven = (
            make_photograph(replace(dim, uneven=u), number, size=64)[0][..., 0] / 255.0
            for u in (0, 0.3)
        )
        logs.append(np.log((uneven + 1e-3) / (plain + 1e-3)))
    assert 0.15 < np.std(logs) < 0.45
    assert np.abs(np.diff(logs, axis=2)).max() < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "clinic", [ACACIA, BEECH, CYPRESS, DOGWOOD], ids=lambda clinic: clinic.suffix
)
def test_whole_cases_are_kept_and_broken_ones_made_anew(tmp_path, clinic):
    write_clinics(tmp_path, clinics=[clinic], size=SMALL, cases=2)
    before = contents(tmp_path)
    folder = tmp_path / clinic.name
    whole, broken = (folder / f"images/Case{number:02d}{clinic.suffix}" for number in (0, 1))
    stamp = whole.stat().st_mtime_ns
    for length in (0, 5, 60, len(broken.read_bytes()) // 2):
        broken.write_bytes(broken.read_bytes()[:length])
        write_clinics(tmp_path, clinics=[clinic], size=SMALL, cases=2)
        assert contents(tmp_path) == before
    (folder / "masks/Case01.png").unlink()
    write_clinics(tmp_path, clinics=[clinic], size=SMALL, cases=2)
    assert contents(tmp_path) == before and whole.stat().st_mtime_ns == stamp


def test_sites_json_describes_each_shift_and_grows_with_the_clinics(tmp_path):
    write_clinics(tmp_path, clinics=[EBONY], size=SMALL, cases=2)
    write_clinics(tmp_path, clinics=[CYPRESS], size=SMALL, cases=1)
    write_clinics(tmp_path, clinics=[EBONY], size=SMALL, cases=1)
    described = json.loads((tmp_path / "sites.json").read_text())
    assert described["seed"] == 0 and described["size"] == [SMALL, SMALL]
    assert described["sites"]["ebony"]["cases"] == 2
    assert (
        described["sites"]["ebony"]["stereo"] and "stereo" in described["sites"]["ebony"]["words"]
    )
    assert (
        described["sites"]["cypress"]["cup"] is False
        and described["sites"]["cypress"]["suffix"] == ".bmp"
    )


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"size": 50}, {"clinics": [replace(ACACIA, noise=0.5)]}],
    ids=["seed", "size", "noise"],
)
def test_other_photographs_are_not_mixed_into_a_folder(tmp_path, other):
    write_clinics(tmp_path, clinics=[ACACIA], size=SMALL, cases=1)
    before = contents(tmp_path)
    with pytest.raises(DataError, match="Delete .* or name another folder with --out"):
        write_clinics(tmp_path, **{"clinics": [ACACIA], "size": SMALL, "cases": 1, **other})
    assert contents(tmp_path) == before
