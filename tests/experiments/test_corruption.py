# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and labels that the studies damage: how much, where, and always alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from scipy.stats import norm

from experiments.simulated.labels import CorruptLabeld, corrupted_cases
from experiments.simulated.quality import BLUR_LENGTH, CorruptQualityd
from monai_fairfl.errors import ConfigError, DataError

BUNDLE = Path(__file__).parents[2] / "bundles" / "prostate_mri_segmentation"
KINDS = ("gaussian_noise", "motion_blur")
OVERLAYS = Path(__file__).parents[2] / "experiments" / "overlays"


def loaded(array: np.ndarray, file: str = "SITE/Case00.nii.gz") -> MetaTensor:
    return MetaTensor(
        torch.as_tensor(array, dtype=torch.float32), meta={"filename_or_obj": f"/data/{file}"}
    )


def picture(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def corrupt(
    image: Any, kind: str = "gaussian_noise", severity: int = 3, **arguments: Any
) -> np.ndarray:
    return np.asarray(
        CorruptQualityd("image", kind, severity, **arguments)({"image": image})["image"]
    )


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


def test_noise_has_the_papers_standard_deviation() -> None:
    # 0.5 with some percent of zeros and ones, so that the intensity range is 0 to 1.
    image = np.full((1, 160, 128), 0.5, dtype=np.float32)
    image[:, :2], image[:, -2:] = 0, 1
    for severity, std in enumerate((0.0, 0.08, 0.12, 0.18, 0.26, 0.38)):
        damaged = corrupt(loaded(image), severity=severity)[:, 2:-2]
        # The noise is clipped to 0 and 1.
        variance = norm(scale=max(std, 1e-12)).expect(lambda n: np.clip(n, -0.5, 0.5) ** 2)
        spread = pytest.approx(variance**0.5, rel=4 / np.sqrt(2 * damaged.size), abs=1e-9)
        assert damaged.std() == spread
        assert damaged.min() >= 0 and damaged.max() <= 1


def test_blur_spreads_a_point_over_the_stated_share_of_the_shorter_side() -> None:
    image = np.zeros((1, 224, 254), dtype=np.float32)
    image[0, 112, 112] = 1
    rows, columns = np.indices(image[0].shape) - 112
    for severity in range(1, 6):
        spread = corrupt(loaded(image), "motion_blur", severity)[0].astype(np.float64)
        assert spread.sum() == pytest.approx(1, abs=1e-4)
        assert (spread * rows).sum() == pytest.approx(0, abs=1e-2) == (spread * columns).sum()
        # Less the spread of the pixels themselves.
        variance = (spread * (rows**2 + columns**2)).sum()
        pixels = np.sqrt(max(12 * variance - 4, 0))
        assert pixels == pytest.approx(BLUR_LENGTH[severity] * 224, rel=0.05, abs=1)


def test_damage_is_a_fixed_property_of_the_case() -> None:
    image = picture((1, 48, 48))
    moved = torch.as_tensor(image)
    elsewhere = MetaTensor(moved, meta={"filename_or_obj": "/elsewhere/SITE/Case00.nii.gz"})
    for kind in KINDS:
        transform = CorruptQualityd("image", kind)
        first = np.asarray(transform({"image": loaded(image)})["image"])
        other = np.asarray(transform({"image": loaded(image, "SITE/Case01.nii.gz")})["image"])
        assert (np.asarray(transform({"image": loaded(image)})["image"]) == first).all()
        assert (corrupt(elsewhere, kind) == first).all() and (other != first).any()
        assert (corrupt(loaded(image, "OTHER/Case00.nii.gz"), kind) != first).any()
        assert (corrupt(loaded(image), kind, seed=1) != first).any()
        untouched = {"image": loaded(image)}
        unchanged = CorruptQualityd("image", kind, severity=0)(untouched)
        assert unchanged["image"] is untouched["image"]


def test_arguments_out_of_range_are_refused() -> None:
    for wrong_quality in ({"kind": "fog"}, {"severity": 6}, {"severity": 2.5}):
        with pytest.raises(ConfigError, match="|".join(wrong_quality)):
            CorruptQualityd("image", **wrong_quality)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the channels 0 to 0"):
        wrong(np.ones((1, 4, 4)), channels=[1])
    with pytest.raises(ConfigError, match="share"):
        CorruptLabeld("label", cases_of(3), share=1.5)
    with pytest.raises(ConfigError, match="no 'label'"):
        CorruptLabeld("label", [{"image": "a"}])
    with pytest.raises(DataError, match="values such as 2"):
        wrong(np.full((1, 4, 4), 2))


# labels


def cases_of(n: int, folder: str = "/data/SITE") -> list[dict[str, str]]:
    return [
        {"image": f"{folder}/Case{i:02d}.nii.gz", "label": f"{folder}/Case{i:02d}_mask.nii.gz"}
        for i in range(n)
    ]


def test_forty_percent_of_ten_labels_become_wrong() -> None:
    truth = ellipse((32, 32), (15, 15), (6, 8))[None]
    transform = CorruptLabeld("label", cases_of(10), share=0.4)
    changed = []
    for n in range(12):  # the last two are none of the cases
        label = transform({"label": loaded(truth, f"SITE/Case{n:02d}_mask.nii.gz")})["label"]
        changed += [n] if (np.asarray(label) != truth).any() else []
    assert len(changed) == 4 and max(changed) < 10
    moved = corrupted_cases(cases_of(10, "/moved/SITE"), 0.4)
    assert [case["image"][-9:-7] for case in moved] == [f"{n:02d}" for n in changed]


def test_blobs_have_the_area_of_the_structure_and_its_dice_by_chance() -> None:
    truth = ellipse((48, 48), (24, 20), (12, 10))[None]
    found = []
    for seed in range(200):
        blob = wrong(truth, seed=seed)
        assert blob.sum() == truth.sum()
        found.append(float(2 * (truth * blob).sum() / (truth.sum() + blob.sum())))
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(truth.mean(), abs=4 * error)


def test_structures_move_together_and_only_the_chosen_ones() -> None:
    disc, cup = (ellipse((64, 64), (30, 32), radii) for radii in ((12, 11), (6, 5)))
    label = np.stack([disc, cup])
    for seed in range(6):
        changed = wrong(label, seed=seed)
        assert (changed[1] <= changed[0]).all() and changed[1].any()
        assert (changed[0] != disc).any()
        one = wrong(label, seed=seed, channels=[1])
        assert (one[0] == disc).all() and (one[1] == changed[1]).all()


def test_what_is_not_labelled_or_empty_stays() -> None:
    disc = ellipse((32, 32), (15, 15), (6, 6))
    changed = wrong(np.stack([disc, -np.ones_like(disc)]))
    assert (changed[1] == -1).all() and (changed[0] != disc).any()
    assert not wrong(np.zeros((1, 8, 8))).any()
    assert (wrong(-np.ones((2, 8, 8))) == -1).all()


# in bundles


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


def test_overlays_damage_a_groups_images_and_training_labels_alone(
    hospitals: Path, tmp_path: Path
) -> None:
    plain = datasets(hospitals / "alder", None, tmp_path)
    quality = json.loads((OVERLAYS / "corrupted_images.json").read_text())
    for group in ("corrupted", "clean"):
        shifted = datasets(hospitals / "alder", {**quality, "group": group}, tmp_path)
        for one, other in zip(plain, shifted, strict=True):
            assert set(changed("image", one, other)) == {group == "corrupted"}
            assert set(changed("label", one, other)) == {False}
    training, validation = datasets(hospitals / "alder", WRONG_LABELS, tmp_path)
    assert sorted(changed("label", plain[0], training)) == [False, True]
    assert not any(changed("label", plain[1], validation))


def changed(key: str, one: Any, other: Any) -> list[bool]:
    """For each case of two data sets, whether these tensors differ."""
    return [bool((a[key] != b[key]).any()) for a, b in zip(one, other, strict=True)]
