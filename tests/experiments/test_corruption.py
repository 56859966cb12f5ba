# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.bundle import ConfigParser
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd, Transposed
from PIL import Image
from scipy.stats import norm

from experiments.simulated.labels import CorruptLabeld, corrupted_cases
from experiments.simulated.quality import BLUR_LENGTH, NOISE_STD, CorruptQualityd, motion_kernel
from monai_fairfl.data import find_cases
from monai_fairfl.errors import ConfigError, DataError

BUNDLE = Path(__file__).parents[2] / "bundles" / "prostate_mri_segmentation"
OVERLAYS = Path(__file__).parents[2] / "experiments" / "overlays"
SHAPES = {"grey": (1, 160, 128), "colour": (3, 96, 96), "volume": (1, 64, 64, 9)}
KINDS = ["random_blob", "shift", "erode_dilate"]


def loaded(array: np.ndarray, file: str = "SITE/Case00.nii.gz") -> MetaTensor:
    return MetaTensor(
        torch.as_tensor(array, dtype=torch.float32), meta={"filename_or_obj": f"/data/{file}"}
    )


def picture(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def mid_grey(shape: tuple[int, ...]) -> np.ndarray:
    """0.5 with some percent of zeros and ones, so that the intensity range is 0 to 1."""
    image = np.full(shape, 0.5, dtype=np.float32)
    image[:, :2], image[:, -2:] = 0, 1
    return image


def corrupt(
    image: Any, kind: str = "gaussian_noise", severity: int = 3, **arguments: Any
) -> np.ndarray:
    return np.asarray(
        CorruptQualityd("image", kind, severity, **arguments)({"image": image})["image"]
    )


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one * other).sum() / (one.sum() + other.sum()))


def ellipse(
    shape: tuple[int, int], centre: tuple[float, float], radii: tuple[float, float]
) -> np.ndarray:
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    inside = ((rows - centre[0]) / radii[0]) ** 2 + ((columns - centre[1]) / radii[1]) ** 2 <= 1
    return inside.astype(np.float32)


def wrong(
    label: np.ndarray, kind: str, file: str = "SITE/Case00.nii.gz", seed: int = 0, **more: Any
) -> np.ndarray:
    case = {"label": f"/data/{file}"}
    transform = CorruptLabeld("label", [case], kind, share=1.0, seed=seed, **more)
    return np.asarray(transform({"label": loaded(label, file)})["label"])


# quality


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("severity, std", list(enumerate(NOISE_STD)))
def test_noise_has_the_stated_standard_deviation(shape, severity, std):
    damaged = corrupt(loaded(mid_grey(shape)), severity=severity)[:, 2:-2]
    # The noise is clipped to 0 and 1.
    variance = norm(scale=max(std, 1e-12)).expect(lambda n: np.clip(n, -0.5, 0.5) ** 2)
    censored = variance**0.5
    assert damaged.std() == pytest.approx(censored, rel=4 / np.sqrt(2 * damaged.size), abs=1e-9)
    assert damaged.min() >= 0 and damaged.max() <= 1


def test_severities_are_those_of_the_paper():
    assert NOISE_STD == (0.0, 0.08, 0.12, 0.18, 0.26, 0.38)


def test_noise_of_pixels_and_channels_is_independent():
    noise = corrupt(loaded(mid_grey((3, 128, 128))), severity=1)[:, 2:-2] - 0.5
    pairs = [(noise[0], noise[1]), (noise[:, 1:], noise[:, :-1]), (noise[..., 1:], noise[..., :-1])]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(one.size)


@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur"])
@given(scale=st.floats(0.1, 1000), offset=st.floats(-1000, 1000), seed=st.integers(0, 9))
@settings(max_examples=20)
def test_it_makes_no_difference_whether_images_were_normalised_before(kind, scale, offset, seed):
    image = picture((1, 24, 20), seed)
    expected = scale * corrupt(loaded(image), kind) + offset
    np.testing.assert_allclose(
        corrupt(loaded(scale * image + offset), kind),
        expected,
        atol=1e-5 * (scale + abs(offset) + 1),
    )


def test_a_given_range_is_the_papers_definition():
    image = np.full((3, 96, 96), 0.4, dtype=np.float32)
    damaged = corrupt(loaded(image), severity=3, intensity_range=(0, 1))
    censored = norm(0.4, 0.18).expect(lambda x: (np.clip(x, 0, 1) - 0.4) ** 2) ** 0.5
    assert np.sqrt(((damaged - 0.4) ** 2).mean()) == pytest.approx(censored, rel=0.03)
    assert damaged.min() == 0 and damaged.max() <= 1
    # Without intensity_range the image's own is taken, which is 0 here.
    assert (corrupt(loaded(image), severity=3) == image).all()


@pytest.mark.parametrize("angle", [0.0, 0.4, np.pi / 4, np.pi / 2, 3.0])
@pytest.mark.parametrize("length", [6.72, 11.2, 30.2])
def test_a_kernel_is_a_centred_line_of_its_length(length, angle):
    kernel = motion_kernel(length, angle)
    rows, columns = np.indices(kernel.shape) - len(kernel) // 2
    along = columns * np.cos(angle) + rows * np.sin(angle)
    across = rows * np.cos(angle) - columns * np.sin(angle)
    assert kernel.sum() == pytest.approx(1) and kernel.min() >= 0
    assert (kernel * along).sum() == pytest.approx(0, abs=1e-9)
    # A uniform distribution of length L has the variance L^2 / 12.
    assert np.sqrt(12 * (kernel * along**2).sum()) == pytest.approx(length, rel=0.03)
    assert np.sqrt((kernel * across**2).sum()) < 0.5  # pixels


@pytest.mark.parametrize(
    "severity, radius, sigma",
    [(1, 10, 3), (2, 15, 5), (3, 15, 8), (4, 15, 12), (5, 20, 15)],
    ids=str,
)
def test_lengths_match_the_spread_of_imagenet_c(severity, radius, sigma):
    """Its kernel, of ImageMagick, is one half of a Gaussian, 2 radius + 1 pixels long, made for 224
    pixels.
    """
    place = np.arange(2 * radius + 1)
    half = norm.pdf(place, scale=sigma) / norm.pdf(place, scale=sigma).sum()
    spread = np.sqrt((half * place**2).sum() - (half * place).sum() ** 2)
    assert 224 * BLUR_LENGTH[severity] / np.sqrt(12) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("side", [64, 224])
def test_blur_spreads_a_point_over_the_stated_share_of_the_shorter_side(severity, side):
    image = np.zeros((1, side, side + 30), dtype=np.float32)
    image[0, side // 2, side // 2] = 1
    spread = corrupt(loaded(image), "motion_blur", severity)[0].astype(np.float64)
    rows, columns = np.indices(spread.shape) - side // 2
    assert spread.sum() == pytest.approx(1, abs=1e-4)
    assert (spread * rows).sum() == pytest.approx(0, abs=1e-2) == (spread * columns).sum()
    # Less the spread of the pixels themselves.
    variance = (spread * (rows**2 + columns**2)).sum()
    pixels = np.sqrt(max(12 * variance - 4, 0))
    assert pixels == pytest.approx(BLUR_LENGTH[severity] * side, rel=0.05, abs=1)


def test_volumes_are_blurred_plane_by_plane_and_colours_alike():
    volume = picture((1, 40, 36, 5))
    blurred = corrupt(loaded(volume), "motion_blur")
    colours = corrupt(loaded(np.moveaxis(volume[0], -1, 0)), "motion_blur")
    np.testing.assert_allclose(np.moveaxis(blurred[0], -1, 0), colours, atol=1e-6)
    assert blurred.std() < 0.8 * volume.std()


def test_blur_continues_images_at_their_edges():
    np.testing.assert_allclose(
        corrupt(loaded(np.full((1, 30, 20), 7.0)), "motion_blur", 5), 7, rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur"])
def test_damage_is_a_fixed_property_of_the_case(kind):
    image = picture((1, 48, 48))
    transform = CorruptQualityd("image", kind)
    first = [
        np.asarray(transform({"image": loaded(image, f"SITE/Case{n:02d}.nii.gz")})["image"])
        for n in range(4)
    ]
    again = [
        np.asarray(transform({"image": loaded(image, f"SITE/Case{n:02d}.nii.gz")})["image"])
        for n in (3, 2, 1, 0)
    ]
    for one, other in zip(first, reversed(again)):
        assert (one == other).all()
    assert all((first[0] != other).any() for other in first[1:])
    assert (corrupt(loaded(image), kind, seed=1) != first[0]).any()
    moved = MetaTensor(
        torch.as_tensor(image), meta={"filename_or_obj": "/elsewhere/SITE/Case00.nii.gz"}
    )
    assert (corrupt(moved, kind) == first[0]).all()
    assert (corrupt(loaded(image, "OTHER/Case00.nii.gz"), kind) != first[0]).any()


def test_an_image_without_a_file_is_known_by_its_content():
    image = picture((1, 24, 24))
    assert (corrupt(image) == corrupt(image.copy())).all()
    other = picture((1, 24, 24), seed=1)
    assert (corrupt(other) - other != corrupt(image) - image).any()


SCRIPT = """
import hashlib, torch
from monai.data import MetaTensor
from experiments.simulated.labels import CorruptLabeld
from experiments.simulated.quality import CorruptQualityd
image = torch.linspace(0, 1, 900).reshape(1, 30, 30)
label = ((image > 0.4) & (image < 0.6)).float()
digest = hashlib.sha256()
for kind in ("gaussian_noise", "motion_blur"):
    data = {"image": MetaTensor(image, meta={"filename_or_obj": "/data/SITE/a.png"})}
    digest.update(CorruptQualityd("image", kind)(data)["image"].numpy().tobytes())
for kind in ("random_blob", "shift", "erode_dilate"):
    data = {"label": MetaTensor(label, meta={"filename_or_obj": "/data/SITE/a.png"})}
    corrupt = CorruptLabeld("label", [{"label": "/data/SITE/a.png"}], kind, 1.0)
    digest.update(corrupt(data)["label"].numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.long
@pytest.mark.slow
def test_another_process_damages_alike(capsys):
    other = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(BUNDLE.parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    exec(SCRIPT)
    assert capsys.readouterr().out == other.stdout != ""


def test_severity_zero_leaves_everything_as_it_is():
    data = {"image": loaded(picture((1, 8, 8))), "label": 3}
    for kind in ("gaussian_noise", "motion_blur"):
        unchanged = CorruptQualityd("image", kind, severity=0)(data)
        assert unchanged["image"] is data["image"] and unchanged["label"] == 3


@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur"])
def test_type_and_metadata_stay_and_the_input_is_not_touched(kind):
    image = loaded(picture((1, 16, 16)))
    image.meta["note"] = "kept"
    before = image.clone()
    damaged = CorruptQualityd("image", kind)({"image": image})["image"]
    assert (
        isinstance(damaged, MetaTensor)
        and damaged.dtype == torch.float32
        and damaged.meta["note"] == "kept"
    )
    assert bool((image == before).all()) and (damaged != image).any()


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "fog"},
        {"severity": 6},
        {"severity": -1},
        {"severity": 2.5},
        {"intensity_range": (1, 0)},
    ],
    ids=str,
)
def test_quality_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        CorruptQualityd("image", **arguments)


def test_an_image_without_channels_is_explained():
    with pytest.raises(DataError, match="EnsureChannelFirstd"):
        CorruptQualityd("image")({"image": np.zeros((4, 4))})


# labels


def cases_of(n: int, folder: str = "/data/SITE") -> list[dict[str, str]]:
    return [
        {"image": f"{folder}/Case{i:02d}.nii.gz", "label": f"{folder}/Case{i:02d}_mask.nii.gz"}
        for i in range(n)
    ]


@given(n=st.integers(0, 60), share=st.floats(0, 1), seed=st.integers(0, 99), shuffled=st.randoms())
def test_the_share_of_corrupted_cases_is_the_stated_one(n, share, seed, shuffled):
    cases = cases_of(n)
    chosen = corrupted_cases(cases, share, seed)
    assert len(chosen) == (min(n, max(1, int(share * n + 0.5))) if share else 0)
    shuffled.shuffle(cases)
    assert sorted(map(str, corrupted_cases(cases, share, seed))) == sorted(map(str, chosen))
    assert {str(case) for case in chosen} <= {
        str(case) for case in corrupted_cases(cases, min(1, share + 0.2), seed)
    }


@pytest.mark.parametrize("share, count", [(0.2, 2), (0.4, 4), (0.6, 6)])
def test_twenty_forty_and_sixty_percent_of_ten_labels_become_wrong(share, count):
    truth = ellipse((32, 32), (15, 15), (6, 8))[None]
    transform = CorruptLabeld("label", cases_of(10), share=share)
    labels = [
        transform({"label": loaded(truth, f"SITE/Case{n:02d}_mask.nii.gz")})["label"]
        for n in range(12)
    ]
    changed = [n for n, label in enumerate(labels) if (np.asarray(label) != truth).any()]
    assert len(changed) == count and max(changed) < 10  # the last two are none of the cases
    moved = corrupted_cases(cases_of(10, "/moved/SITE"), share)
    assert [case["image"][-9:-7] for case in moved] == [f"{n:02d}" for n in changed]


@pytest.mark.parametrize("radii", [(24, 24), (16, 36), (40, 25)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_a_shifted_ellipse_has_a_dice_of_039(radii, seed):
    truth = ellipse((200, 200), (100, 99), radii)[None]
    shifted = wrong(truth, "shift", seed=seed)
    theory = (4 * np.pi / 3 - np.sqrt(3)) / (2 * np.pi)  # two unit circles one radius apart
    assert theory == pytest.approx(0.391, abs=1e-3)
    # Rounding is up to 1.5 pixels, and Dice falls by 0.551 a radius.
    rounding = 0.551 * 1.5 * np.hypot(1 / radii[0], 1 / radii[1])
    assert theory - rounding < dice(truth, shifted) < theory + 0.01 and shifted.sum() == truth.sum()


@pytest.mark.parametrize("seed", range(3))
def test_a_shifted_ellipsoid_has_a_dice_of_031(seed):
    depth = np.linspace(-1, 1, 23)[1:-1]
    truth = np.stack(
        [ellipse((160, 160), (80, 79), (30 * r, 36 * r)) for r in np.sqrt(1 - depth**2)], axis=-1
    )[None]
    theory = 5 / 16  # two unit balls one radius apart
    assert theory - 0.06 < dice(truth, wrong(truth, "shift", seed=seed)) < theory + 0.01


@given(
    top=st.integers(0, 20),
    left=st.integers(0, 20),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
)
@settings(max_examples=40)
def test_a_shifted_rectangle_has_a_dice_of_at_most_one_half(top, left, height, width):
    truth = np.zeros((1, 32, 32), dtype=np.float32)
    truth[0, top : top + height, left : left + width] = 1
    assert dice(truth, wrong(truth, "shift", seed=height)) <= 0.5 + 1e-9


def test_a_label_in_a_corner_is_shifted_into_the_image():
    truth = np.zeros((1, 32, 32), dtype=np.float32)
    truth[0, :8, 22:] = 1
    assert all(wrong(truth, "shift", seed=seed).sum() == truth.sum() for seed in range(8))


@pytest.mark.parametrize("shape", [(48, 40), (40, 48, 3)], ids=str)
def test_too_small_and_too_large_labels_have_a_dice_of_one_half(shape):
    truth = ellipse((shape[0], shape[1]), (20, 19), (10, 8))
    truth = truth[None] if len(shape) == 2 else np.stack([truth, 0 * truth, truth], axis=-1)[None]
    changed = [wrong(truth, "erode_dilate", seed=seed) for seed in range(12)]
    sizes = {round(float(each.sum() / truth.sum()), 2) for each in changed}
    assert sizes == {0.33, 3.0}
    for each in changed:
        assert dice(truth, each) == pytest.approx(0.5, abs=0.01)
        assert ((each * truth).sum() == min(each.sum(), truth.sum())) and each.shape == truth.shape
        if len(shape) == 3:
            assert not each[..., 1].any()


def test_a_label_too_large_to_grow_becomes_too_small():
    truth = ellipse((20, 20), (10, 10), (9, 9))[None]
    assert {
        round(float(wrong(truth, "erode_dilate", seed=s).sum() / truth.sum()), 1) for s in range(8)
    } == {0.3}


def test_blobs_have_the_area_of_the_structure_and_its_dice_by_chance():
    truth = ellipse((48, 48), (24, 20), (12, 10))[None]
    blobs = [wrong(truth, "random_blob", seed=seed) for seed in range(200)]
    assert all(blob.sum() == truth.sum() for blob in blobs)
    found = [dice(truth, blob) for blob in blobs]
    assert np.mean(found) == pytest.approx(
        truth.mean(), abs=4 * np.std(found) / np.sqrt(len(found))
    )
    edges = []
    for blob in blobs:
        across_rows = np.abs(np.diff(blob[0], axis=0)).sum()
        across_columns = np.abs(np.diff(blob[0], axis=1)).sum()
        edges.append(across_rows + across_columns)
    # Smooth: a disc has 4 / pi perimeters of such edges.
    assert np.mean(edges) < 6 * np.sqrt(np.pi * truth.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_disc_and_cup_move_together(kind):
    label = np.stack([ellipse((64, 64), (30, 32), (12, 11)), ellipse((64, 64), (30, 32), (6, 5))])
    for seed in range(6):
        changed = wrong(label, kind, seed=seed)
        assert (
            (changed[1] <= changed[0]).all() and changed[1].any() and (changed[0] != label[0]).any()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_volumes_stay_connected_and_empty_slices_empty(kind):
    planes = [
        ellipse((40, 40), (20, 20), (r, r)) if r else np.zeros((40, 40), np.float32)
        for r in (0, 4, 7, 8, 5, 0)
    ]
    label = np.stack(planes, axis=-1)[None]
    changed = wrong(label, kind)
    assert [bool(changed[..., d].any()) for d in range(6)] == [False, True, True, True, True, False]
    assert all((changed[..., d] * changed[..., d + 1]).any() for d in range(1, 4))
    assert 0 <= dice(label, changed) < 0.6


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_labelled_or_empty_stays(kind):
    disc = ellipse((32, 32), (15, 15), (6, 6))
    label = np.stack([disc, -np.ones_like(disc)])
    changed = wrong(label, kind)
    assert (changed[1] == -1).all() and (changed[0] != disc).any()
    assert not wrong(np.zeros((1, 8, 8)), kind).any()
    assert (wrong(-np.ones((2, 8, 8)), kind) == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_labels_type_and_metadata_stay_and_the_input_is_not_touched(kind):
    truth = loaded(ellipse((32, 32), (15, 15), (6, 8))[None]).to(torch.uint8)
    before = truth.clone()
    transform = CorruptLabeld("label", [{"label": "/data/SITE/Case00.nii.gz"}], kind, share=1.0)
    one, other = transform({"label": truth})["label"], transform({"label": truth})["label"]
    assert isinstance(one, MetaTensor) and one.dtype == torch.uint8 and one.meta == truth.meta
    assert (
        bool((one == other).all()) and bool((truth == before).all()) and bool((one != truth).any())
    )
    assert (wrong(np.asarray(truth), kind, "SITE/Case01.nii.gz") != np.asarray(one)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_chosen_structures_are_made_wrong_and_as_if_all_were(kind):
    disc, cup = (ellipse((32, 32), (15, 15), radii) for radii in ((9, 8), (4, 5)))
    label = np.stack([disc, cup])
    both, one = wrong(label, kind), wrong(label, kind, channels=[1])
    assert (one[0] == disc).all() and (one[1] == both[1]).all() and (one[1] != cup).any()


def test_label_faults_are_explained():
    with pytest.raises(ConfigError, match="the channels 0 to 0"):
        wrong(np.ones((1, 4, 4)), "shift", channels=[1])
    for arguments in ({"kind": "none"}, {"share": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            CorruptLabeld("label", cases_of(3), **arguments)
    with pytest.raises(ConfigError, match="no 'label'"):
        CorruptLabeld("label", [{"image": "a"}])
    with pytest.raises(DataError, match="LoadImaged"):
        CorruptLabeld("label", cases_of(3))({"label": torch.zeros(1, 4, 4)})
    with pytest.raises(DataError, match="values such as 2"):
        wrong(np.full((1, 4, 4), 2), "shift")
    with pytest.raises(DataError, match="axes|EnsureChannelFirstd"):
        wrong(np.ones((4, 4)), "shift")


# ---- in pipelines, configs and bundles
# --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("fundus") / "EYES"
    folder.mkdir()
    rng = np.random.default_rng(0)
    cases = []
    for n in range(4):
        disc, cup = ellipse((40, 48), (20, 24), (9, 9)), ellipse((40, 48), (20, 24), (4, 5))
        case = {"image": str(folder / f"{n}.png"), "label": str(folder / f"{n}_mask.png")}
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(case["image"])
        Image.fromarray(np.stack([disc, cup, 0 * cup], axis=-1).astype(np.uint8)).save(
            case["label"]
        )
        cases.append(case)
    return cases


def chain(cases: list[dict[str, str]], *after: Any) -> Compose:
    keys = ["image", "label"]
    load = [LoadImaged(keys), EnsureChannelFirstd(keys)]
    return Compose(
        [
            *load,
            CorruptQualityd("image"),
            CorruptLabeld("label", cases, share=0.5),
            Transposed(keys, (0, 2, 1)),
            *after,
        ]
    )


@pytest.mark.slow
def test_photographs_are_damaged_alike_with_and_without_cache_and_in_workers(photographs):
    plain = Dataset(photographs, chain(photographs[:4]))
    cached = CacheDataset(
        photographs, chain(photographs[:4], RandFlipd(["image"], prob=0.0)), progress=False
    )
    workers = list(DataLoader(plain, batch_size=1, num_workers=2))
    for n in range(4):
        for key in ("image", "label"):
            assert (plain[n][key] == cached[n][key]).all() and (
                plain[n][key] == workers[n][key][0]
            ).all()
        assert (cached._cache[n]["image"] == plain[n]["image"]).all()  # the damage is in the cache
    truth = np.asarray(LoadImaged("label")(photographs[0])["label"]).transpose(2, 1, 0)
    assert sum(bool((np.asarray(plain[n]["label"]) != truth).any()) for n in range(4)) == 2


def quality_shift(group: str) -> dict[str, Any]:
    """The overlay of the studies, at a site of this group."""
    overlay: dict[str, Any] = json.loads((OVERLAYS / "corrupted_images.json").read_text())
    return {**overlay, "group": group}


WRONG_LABELS = {
    "+train#deterministic_transforms": [
        {
            "_target_": "experiments.simulated.labels.CorruptLabeld",
            "keys": "label",
            "cases": "$@datalist['training']",
            "share": 0.5,
        }
    ]
}


def datasets(site: Path, overlay: dict[str, Any] | None, folder: Path) -> tuple[Any, Any]:
    """Training and validation data of the prostate bundle with an overlay."""
    files = [str(BUNDLE / "configs" / "train.json")]
    if overlay is not None:
        (folder / "overlay.json").write_text(json.dumps(overlay))
        files.append(str(folder / "overlay.json"))
    parser = ConfigParser()
    parser.read_config(files)
    parser.update(
        {"dataset_dir": str(site), "size": [32, 32], "empty_rate": 0.0, "slices_per_volume": "all"}
    )
    parser["datalist_file"] = None
    parser["train#preprocessing#transforms"] = "@train#deterministic_transforms"
    return parser.get_parsed_content("train#dataset"), parser.get_parsed_content("validate#dataset")


@pytest.mark.slow
def test_the_overlay_damages_sites_of_its_group_only(hospitals, tmp_path):
    for group, damaged in (("corrupted", True), ("clean", False), ("", False)):
        shifted = datasets(hospitals / "alder", quality_shift(group), tmp_path)
        unshifted = datasets(hospitals / "alder", None, tmp_path)
        for dataset, shifted_dataset in zip(unshifted, shifted):
            assert len(dataset) == len(shifted_dataset) > 0
            for one, other in zip(dataset, shifted_dataset):
                assert bool((one["label"] == other["label"]).all())
                assert bool((one["image"] == other["image"]).all()) is not damaged
                assert other["image"].shape == one["image"].shape == (1, 32, 32, 8)


def changed_labels(dataset: Any, other_dataset: Any) -> list[bool]:
    """For each case of two data sets, whether the labels differ."""
    changed = []
    for one, other in zip(dataset, other_dataset):
        changed.append(bool((one["label"] != other["label"]).any()))
    return changed


@pytest.mark.slow
def test_an_overlay_makes_training_labels_wrong_and_no_others(hospitals, tmp_path):
    training, validation = datasets(hospitals / "alder", None, tmp_path)
    wrong_training, wrong_validation = datasets(hospitals / "alder", WRONG_LABELS, tmp_path)
    changed_training = changed_labels(training, wrong_training)
    assert sum(changed_training) == 1 and len(changed_training) == 2
    assert not any(changed_labels(validation, wrong_validation))
    assert len(find_cases(hospitals / "alder")) == 4


@pytest.mark.slow
@pytest.mark.long
def test_in_a_federation_the_overlay_reaches_the_sites_of_the_group_only(hospitals, tmp_path):
    from monai_fairfl.bundle.federation import BundleFederation
    from monai_fairfl.strategies import FedISM

    names = ["alder", "birch"]

    def sharpness(run: str, *corrupted: str) -> dict[str, float]:
        def groups(sites: list[str]) -> dict[str, list[str]]:
            clean = [site for site in sites if site not in corrupted]
            return {"corrupted": list(corrupted), "clean": clean}

        BundleFederation(
            str(BUNDLE),
            str(hospitals),
            FedISM(),
            rounds=1,
            run_dir=str(tmp_path / run),
            site_names=names,
            config=["configs/train.json", str(OVERLAYS / "corrupted_images.json")],
            groups=groups,
            overrides={"size": [32, 32], "channels": [4, 8, 8], "slices_per_volume": 2},
            report=False,
        ).run()
        lines = (tmp_path / run / "ledger.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        rounds = [record for record in records if record["kind"] == "round"]
        return rounds[0]["details"]["sharpness"]

    clean = sharpness("clean")
    shifted = sharpness("shifted", "birch")
    assert [clean[name] != shifted[name] for name in names] == [False, True]
