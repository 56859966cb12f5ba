# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from scipy.stats import norm

from experiments.simulated.labels import CorruptLabeld, corrupted_cases
from experiments.simulated.quality import BLUR_LENGTH, NOISE_STD, CorruptQualityd
from monai_fairfl.data import find_cases
from monai_fairfl.errors import ConfigError, DataError

BUNDLE = Path(__file__).parents[2] / "bundles" / "prostate_mri_segmentation"
OVERLAYS = Path(__file__).parents[2] / "experiments" / "overlays"
SHAPES = {"grey": (1, 160, 128), "colour": (3, 96, 96), "volume": (1, 64, 64, 9)}


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
    label: np.ndarray, file: str = "SITE/Case00.nii.gz", seed: int = 0, **more: Any
) -> np.ndarray:
    case = {"label": f"/data/{file}"}
    transform = CorruptLabeld("label", [case], share=1.0, seed=seed, **more)
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


def test_severity_zero_leaves_everything_as_it_is():
    data = {"image": loaded(picture((1, 8, 8))), "label": 3}
    for kind in ("gaussian_noise", "motion_blur"):
        unchanged = CorruptQualityd("image", kind, severity=0)(data)
        assert unchanged["image"] is data["image"] and unchanged["label"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "fog"},
        {"severity": 6},
        {"severity": -1},
        {"severity": 2.5},
    ],
    ids=str,
)
def test_quality_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        CorruptQualityd("image", **arguments)


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


def test_blobs_have_the_area_of_the_structure_and_its_dice_by_chance():
    truth = ellipse((48, 48), (24, 20), (12, 10))[None]
    blobs = [wrong(truth, seed=seed) for seed in range(200)]
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


def test_disc_and_cup_move_together():
    label = np.stack([ellipse((64, 64), (30, 32), (12, 11)), ellipse((64, 64), (30, 32), (6, 5))])
    for seed in range(6):
        changed = wrong(label, seed=seed)
        assert (
            (changed[1] <= changed[0]).all() and changed[1].any() and (changed[0] != label[0]).any()
        )


def test_volumes_stay_connected_and_empty_slices_empty():
    planes = [
        ellipse((40, 40), (20, 20), (r, r)) if r else np.zeros((40, 40), np.float32)
        for r in (0, 4, 7, 8, 5, 0)
    ]
    label = np.stack(planes, axis=-1)[None]
    changed = wrong(label)
    assert [bool(changed[..., d].any()) for d in range(6)] == [False, True, True, True, True, False]
    assert all((changed[..., d] * changed[..., d + 1]).any() for d in range(1, 4))
    assert 0 <= dice(label, changed) < 0.6


def test_what_is_not_labelled_or_empty_stays():
    disc = ellipse((32, 32), (15, 15), (6, 6))
    label = np.stack([disc, -np.ones_like(disc)])
    changed = wrong(label)
    assert (changed[1] == -1).all() and (changed[0] != disc).any()
    assert not wrong(np.zeros((1, 8, 8))).any()
    assert (wrong(-np.ones((2, 8, 8))) == -1).all()


def test_only_the_chosen_structures_are_made_wrong_and_as_if_all_were():
    disc, cup = (ellipse((32, 32), (15, 15), radii) for radii in ((9, 8), (4, 5)))
    label = np.stack([disc, cup])
    both, one = wrong(label), wrong(label, channels=[1])
    assert (one[0] == disc).all() and (one[1] == both[1]).all() and (one[1] != cup).any()


def test_label_faults_are_explained():
    with pytest.raises(ConfigError, match="the channels 0 to 0"):
        wrong(np.ones((1, 4, 4)), channels=[1])
    with pytest.raises(ConfigError, match="share"):
        CorruptLabeld("label", cases_of(3), share=1.5)
    with pytest.raises(ConfigError, match="no 'label'"):
        CorruptLabeld("label", [{"image": "a"}])
    with pytest.raises(DataError, match="LoadImaged"):
        CorruptLabeld("label", cases_of(3))({"label": torch.zeros(1, 4, 4)})
    with pytest.raises(DataError, match="values such as 2"):
        wrong(np.full((1, 4, 4), 2))
    with pytest.raises(DataError, match="axes|EnsureChannelFirstd"):
        wrong(np.ones((4, 4)))


# in bundles


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
