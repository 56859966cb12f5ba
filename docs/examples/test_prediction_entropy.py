# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A measurement on validation data is tested on an evaluator whose outputs are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.small_evaluators import Scaled, cases_of, evaluator_of
from monai.transforms import Activationsd, AsDiscreted
from prediction_entropy import prediction_entropy
from scipy import special, stats

from monai_fairfl.measurements import Memory, Probe
from monai_fairfl.messages import Estimate, Measurement

IMAGES = [
    torch.tensor([[[0.3, -1.0]], [[2.0, 0.0]], [[0.7, 5.0]]]),
    torch.tensor([[[0.1]], [[-0.4]], [[0.0]]]),
]
"""Of two voxels and of one voxel; three channels."""

SOFTMAX = Activationsd("pred", softmax=True)
SIGMOID = Activationsd("pred", sigmoid=True)


def measured(scale: float, postprocessing: object) -> Measurement | None:
    """The entropy of a network whose logits are the images times ``scale``."""
    probe = Probe(evaluator_of(Scaled(), cases_of(IMAGES), postprocessing=postprocessing))
    return prediction_entropy(probe, {"scale": torch.tensor(scale)}, Memory(), {})


def entropy(scale: float, postprocessing: object) -> Estimate:
    """The same, which must be there."""
    found = measured(scale, postprocessing)
    assert isinstance(found, Estimate)
    return found


def test_of_classes_it_is_scipys_entropy_of_their_softmax() -> None:
    means = []
    for image in IMAGES:
        probabilities = special.softmax(2 * image.double().numpy(), axis=0)
        means.append(stats.entropy(probabilities, axis=0).mean())
    found = entropy(2.0, SOFTMAX)
    assert found.value == pytest.approx(np.mean(means))
    assert found.stderr == pytest.approx(stats.sem(means))
    assert found.n == 2


def test_of_structures_it_is_the_sum_of_scipys_entropies_of_their_sigmoids() -> None:
    means = []
    for image in IMAGES:
        inside = special.expit(2 * image.double().numpy())
        entropies = stats.entropy(np.stack([inside, 1 - inside]), axis=0)
        means.append(entropies.sum(0).mean())
    assert entropy(2.0, SIGMOID).value == pytest.approx(np.mean(means))


def test_an_undecided_model_has_the_largest_and_a_certain_one_none() -> None:
    assert entropy(0.0, SOFTMAX).value == pytest.approx(math.log(3))
    assert entropy(0.0, SIGMOID).value == pytest.approx(3 * math.log(2))
    assert entropy(1e6, SOFTMAX).value == pytest.approx(0)


def test_a_model_that_has_diverged_has_no_entropy() -> None:
    assert math.isnan(entropy(math.nan, SOFTMAX).value)


def test_it_is_not_measured_where_nothing_makes_probabilities_of_the_outputs() -> None:
    assert measured(1.0, AsDiscreted("pred", threshold=0.5)) is None
