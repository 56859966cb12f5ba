# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN, vector
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from monai_fairfl.measurements.cka import (
    centred_gram,
    cka_of_grams,
    hsic,
    hsic_unbiased,
    minibatch_cka,
)

FEDLWR = GOLDEN["fedlwr"]
U = vector(FEDLWR["U"])
V = vector(FEDLWR["V"])


def random_features(seed: int, n: int, z: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, z)))


def cka(one: torch.Tensor, two: torch.Tensor) -> float:
    return cka_of_grams(centred_gram(one), centred_gram(two))


def textbook(one: torch.Tensor, two: torch.Tensor) -> float:
    """Kornblith et al., written out with the centring matrix."""
    n = len(one)
    one = one.double()
    two = two.double()
    centring = np.eye(n) - np.ones((n, n)) / n
    k = centring @ (one @ one.T).numpy() @ centring
    v = centring @ (two @ two.T).numpy() @ centring
    return float(np.sum(k * v) / (np.linalg.norm(k) * np.linalg.norm(v)))


def textbook_unbiased(one: torch.Tensor, two: torch.Tensor) -> float:
    """HSIC_1 as the mean over ordered quadruples of different samples (Gretton's U-statistic)."""
    k = one @ one.T
    v = two @ two.T
    terms = []
    for i, j, q, r in permutations(range(len(k)), 4):
        terms.append(float(k[i, j] * v[i, j] + k[i, j] * v[q, r] - 2 * k[i, j] * v[i, q]))
    return sum(terms) / len(terms)


def test_golden_values() -> None:
    k, v = centred_gram(U), centred_gram(V)
    assert float(hsic(k, v)) == pytest.approx(FEDLWR["hsic_biased_KL"], abs=1e-6)
    assert cka(U, V) == pytest.approx(FEDLWR["cka_biased"], abs=1e-6)
    assert float(hsic_unbiased(k, v)) == pytest.approx(FEDLWR["hsic_unbiased_KL"], abs=1e-6)
    assert minibatch_cka(k, v, batch=5) == pytest.approx(FEDLWR["cka_unbiased"], abs=1e-6)


def test_golden_minibatch_estimator() -> None:
    generator = np.random.default_rng(0)
    one = generator.normal(size=(8, 5))
    two = one + 0.5 * generator.normal(size=(8, 5))
    k, v = centred_gram(torch.from_numpy(one)), centred_gram(torch.from_numpy(two))
    assert minibatch_cka(k, v, batch=4) == pytest.approx(
        FEDLWR["cka_minibatch_unbiased_2x4"], abs=1e-6
    )
    assert minibatch_cka(k, v, batch=8) == pytest.approx(FEDLWR["cka_unbiased_full_8"], abs=1e-6)
    assert cka_of_grams(k, v) == pytest.approx(FEDLWR["cka_biased_full_8"], abs=1e-6)


@given(st.integers(0, 1000), st.integers(2, 9), st.integers(1, 12), st.integers(1, 12))
def test_it_is_that_of_the_textbook(seed: int, n: int, first: int, second: int) -> None:
    one, two = random_features(seed, n, first) + 3, random_features(seed + 1, n, second)
    expected = textbook(one, two)
    assert cka(one, two) == pytest.approx(expected, abs=1e-9)
    assert -1e-9 <= expected <= 1 + 1e-9


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_turning_shifting_and_scaling_features_changes_nothing(seed: int, scale: float) -> None:
    one, two = random_features(seed, 6, 4), random_features(seed + 1, 6, 5)
    turn = torch.from_numpy(ortho_group.rvs(4, random_state=seed))
    assert cka(scale * one @ turn + 7, two) == pytest.approx(cka(one, two), abs=1e-7)
    assert cka(one, scale * one @ turn) == pytest.approx(1, abs=1e-9)
    assert cka(1e-6 * one, 1e-6 * two) == pytest.approx(cka(one, two), abs=1e-9)


@pytest.mark.slow
@given(st.integers(0, 1000))
def test_the_unbiased_criterion_is_the_mean_over_quadruples(seed: int) -> None:
    one, two = random_features(seed, 5, 3) + 2, random_features(seed + 1, 5, 2)
    expected = textbook_unbiased(one, two)
    assert float(hsic_unbiased(one @ one.T, two @ two.T)) == pytest.approx(expected, abs=1e-9)
    assert float(hsic_unbiased(centred_gram(one), centred_gram(two))) == pytest.approx(
        expected, abs=1e-9
    )


def test_unrelated_features_are_alike_by_the_biased_estimator_only() -> None:
    grams = [centred_gram(random_features(seed, 32, 200)) for seed in (1, 2)]
    assert cka_of_grams(*grams) > 0.5 and abs(minibatch_cka(*grams, batch=32)) < 0.1


def test_grams_of_pieces_add_up_to_the_gram_of_all_in_float32_over_many_columns() -> None:
    features = (random_features(3, 4, 200_000) + 10).float()
    exact = features.double() - features.double().mean(0)
    gram = exact @ exact.T
    assert (centred_gram(features) - gram).norm() < 5e-7 * gram.norm()
    assert torch.allclose(centred_gram(features.double()), gram, rtol=1e-10)
    pieces = sum(centred_gram(piece) for piece in features.split(70_000, dim=1))
    assert (pieces - gram).norm() < 5e-7 * gram.norm()


@pytest.mark.parametrize("level", [0.0, 1.0, 1000.0])
def test_products_in_float32_change_cka_by_less_than_a_millionth(level: float) -> None:
    first = random_features(4, 24, 40_000)
    second = first + 0.7 * random_features(5, 24, 40_000)
    # One sample lies far from the others, as a slice without the organ.
    first[0] += 5
    pair = [(level + features).float() for features in (first, second)]
    expected = textbook(*(features - features.double().mean(0) for features in pair))
    assert 0.1 < expected < 0.999
    assert cka(*pair) == pytest.approx(expected, abs=1e-6)


def test_features_that_are_too_large_for_float32_give_nan_and_not_a_likeness() -> None:
    large = 1e22 * random_features(1, 6, 9).float()
    assert np.isnan(cka(large, large))


@pytest.mark.parametrize(
    "alike", [cka, lambda a, b: minibatch_cka(centred_gram(a), centred_gram(b))]
)
def test_features_that_do_not_vary(alike) -> None:  # type: ignore[no-untyped-def]
    # No more noise than a forward pass's rounding.
    constant = torch.full((6, 3), 0.1) + 1e-9 * random_features(1, 6, 3)
    other = torch.tensor([7.3, -1e4, 0.3]).expand(6, 3)
    varied = random_features(0, 6, 3)
    assert alike(constant, other) == 1.0
    assert alike(constant, varied) == alike(varied, constant) == 0.0


def test_a_diverged_models_features_give_nan_not_a_number_that_looks_right() -> None:
    broken = random_features(0, 6, 3)
    broken[2, 1] = torch.nan
    assert np.isnan(cka(broken, random_features(1, 6, 9)))


def test_too_few_samples_are_an_error_and_a_small_last_batch_is_dropped() -> None:
    with pytest.raises(ValueError, match="at least 4 samples, got 3"):
        minibatch_cka(centred_gram(U)[:3, :3], centred_gram(V)[:3, :3])
    one, two = random_features(0, 11, 3), random_features(1, 11, 3)
    whole = minibatch_cka(centred_gram(one), centred_gram(two))
    assert whole == pytest.approx(minibatch_cka(centred_gram(one[:8]), centred_gram(two[:8])))
