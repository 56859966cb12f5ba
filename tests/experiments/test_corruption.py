# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Images and labels that the studies damage: how much, where, and always alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy.stats import norm

from experiments.simulated.labels import CorruptLabeld, corrupted_cases
from experiments.simulated.quality import BLUR_LENGTH, CorruptQualityd


def loaded(array: np.ndarray, file: str = "SITE/Case00.nii.gz") -> MetaTensor:
    return MetaTensor(
        torch.as_tensor(array, dtype=torch.float32), meta={"filename_or_obj": f"/data/{file}"}
    )


def corrupt(image: Any, kind: str, severity: int) -> np.ndarray:
    return np.asarray(CorruptQualityd("image", kind, severity)({"image": image})["image"])


# quality


def test_noise_has_the_papers_standard_deviation() -> None:
    # 0.5 with some percent of zeros and ones, so that the intensity range is 0 to 1.
    image = np.full((1, 160, 128), 0.5, dtype=np.float32)
    image[:, :2], image[:, -2:] = 0, 1
    for severity, std in enumerate((0.0, 0.08, 0.12, 0.18, 0.26, 0.38)):
        damaged = corrupt(loaded(image), "gaussian_noise", severity)[:, 2:-2]
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


# labels


def cases_of(n: int, folder: str = "/data/SITE") -> list[dict[str, str]]:
    return [
        {"image": f"{folder}/Case{i:02d}.nii.gz", "label": f"{folder}/Case{i:02d}_mask.nii.gz"}
        for i in range(n)
    ]


def test_forty_percent_of_ten_labels_become_wrong() -> None:
    truth = np.zeros((1, 32, 32), np.float32)
    truth[:, 9:22, 7:24] = 1
    transform = CorruptLabeld("label", cases_of(10), share=0.4)
    changed = []
    for n in range(12):  # the last two are none of the cases
        label = transform({"label": loaded(truth, f"SITE/Case{n:02d}_mask.nii.gz")})["label"]
        changed += [n] if (np.asarray(label) != truth).any() else []
    assert len(changed) == 4 and max(changed) < 10
    moved = corrupted_cases(cases_of(10, "/moved/SITE"), 0.4)
    assert [case["image"][-9:-7] for case in moved] == [f"{n:02d}" for n in changed]


# in bundles
