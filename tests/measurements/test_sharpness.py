# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.driving import GOLDEN, vector
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.measurements.sharpness import gsam_direction, perturbation, total_norm

NUMBERS = st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(vector)


def test_golden_perturbation_and_direction() -> None:
    golden = GOLDEN["fedism"]["gsam"]
    clean = vector(golden["g"])
    perturbed = vector(golden["g_p"])
    assert perturbation([clean], 0.05)[0].tolist() == pytest.approx(
        GOLDEN["fedism"]["sam_eps"], abs=1e-9
    )
    # What a share of 1 takes out of the direction.
    sam = gsam_direction([clean], [perturbed], 0.0)[0]
    orthogonal = sam - gsam_direction([clean], [perturbed], 1.0)[0]
    assert orthogonal.tolist() == pytest.approx(golden["vertical"], abs=1e-6)
    step = gsam_direction([clean], [perturbed], golden["alpha"])[0]
    assert step.tolist() == pytest.approx(golden["update_gradient"], abs=1e-6)


def test_norm_and_products_are_over_all_tensors_as_one_vector() -> None:
    whole = vector([3.0, 4.0, 12.0])
    whole_perturbed = vector([1.0, -2.0, 5.0])
    parts = list(whole.split([1, 2]))
    parts_perturbed = list(whole_perturbed.split([1, 2]))
    assert float(total_norm(parts)) == pytest.approx(13)
    assert torch.allclose(torch.cat(perturbation(parts, 0.1)), perturbation([whole], 0.1)[0])
    together = gsam_direction([whole], [whole_perturbed], 0.3)[0]
    assert torch.allclose(torch.cat(gsam_direction(parts, parts_perturbed, 0.3)), together)


@pytest.mark.slow
@given(NUMBERS, NUMBERS, st.floats(0, 2))
def test_the_direction_keeps_the_part_along_the_perturbed_gradient(
    clean: torch.Tensor, perturbed: torch.Tensor, alpha: float
) -> None:
    perturbed = perturbed + torch.sign(perturbed) + 1e-3  # not tiny
    direction = gsam_direction([clean], [perturbed], alpha)[0]
    assert float(direction @ perturbed) == pytest.approx(
        float(perturbed @ perturbed), rel=1e-6, abs=1e-6
    )


def test_a_zero_gradient_perturbs_nothing_and_a_loss_scale_cancels() -> None:
    assert perturbation([torch.zeros(3)], 0.05)[0].tolist() == [0, 0, 0]
    gradient = torch.tensor([3e-10, 4e-10], dtype=torch.float64)
    plain = perturbation([gradient], 0.05)[0]
    large = perturbation([gradient * 2**16], 0.05, scale=2**16)[0]
    assert torch.allclose(plain, large, rtol=1e-12)
