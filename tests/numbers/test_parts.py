# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The parts that every strategy takes: weightings, caps, clipped reports, training, and rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    SAMPLES,
    UPDATES,
    play,
    reported,
    values,
)
from helpers.given_strategy import Given, equal
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl import compose, normalise
from monai_fairfl.strategies import (
    BySamples,
    FedAvg,
    FedCE,
    Proportional,
    QFedAvg,
    Sparsified,
    Uniform,
    Weighting,
)


def weights_by(weighting: Weighting, contributions: dict[str, float]) -> list[float]:
    strategy = compose(equal(CLIENTS, contributions), weighting=weighting)
    (result,) = play(strategy, samples=SAMPLES)
    assert dict(result.contributions) == contributions
    return values(result.aggregation)


def test_weightings() -> None:
    contributions = {"1": 0.1, "2": 0.3, "3": -0.2}
    assert weights_by(Uniform(), contributions) == pytest.approx([1 / 3] * 3)
    assert weights_by(BySamples(), contributions) == pytest.approx(COMMON["p"])
    assert weights_by(Proportional(2.0), contributions) == pytest.approx([0.1, 0.9, 0.0])
    for power in (0, np.float64(0.5)):
        equal_ones = dict.fromkeys(CLIENTS, 0.5)
        assert weights_by(Proportional(power), equal_ones) == pytest.approx([1 / 3] * 3)


# ---- compositions


def test_fedces_contribution_with_cgsvs_reward() -> None:
    strategy = compose(FedCE("cos"), reward=Sparsified(beta=1.0))
    (result,) = play(strategy)
    (plain,) = play(FedCE("cos"))
    assert values(result.aggregation) == values(plain.aggregation)
    assert result.weights["w"].equal(plain.weights["w"]) and result.rewards is not None
    worth = [math.tanh(w) for w in values(plain.aggregation)]
    kept = [4 * share for share in values(result.details["kept"])]
    assert kept == [math.ceil(4 * w / max(worth)) for w in worth]
    best = CLIENTS[int(np.argmax(worth))]
    np.testing.assert_allclose(result.rewards[best]["w"], result.weights["w"])


def test_a_training_that_no_client_could_do_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prox_mo": 0.1}, "prox_mo.*prox_mu"),
        ({"previous_weight": 0.1}, "previous_weight"),
        ({"prox_mu": -1.0}, "prox_mu"),
        ({"gsam_alpha": 0.1}, "sam_rho"),
        ({"local_epochs": 2.7}, "local_epochs"),
    ]
    for training, words in wrong:
        with pytest.raises(ValueError, match=words):
            FedAvg(training=training)
    outer = compose(FedAvg(training={"sam_rho": 0.05}), training={"gsam_alpha": 0.1})
    assert set(outer.exchanged.training) == {"sam_rho", "gsam_alpha"}


# ---- limits of weights and reports


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda found: sum(found) > 1e-6),
    st.floats(0.05, 4),
)
def test_capped_weights_keep_their_sum_their_order_and_the_limit(
    numbers: list[float], most: float
) -> None:
    shares = {str(row): share for row, share in enumerate(normalise(numbers).tolist())}
    names = tuple(shares)
    strategy = compose(Given(shares), cap=most)
    (result,) = play(strategy, [dict.fromkeys(names, [1.0])], [{}], [0.0])
    found = values(result.aggregation, names)
    limit = most / len(names) if most >= 1 else max(most, 1 / len(names))
    assert sum(found) == pytest.approx(1)
    assert max(found) <= limit * (1 + 1e-9)
    ranked = sorted(range(len(names)), key=lambda number: shares[names[number]])
    for lower, higher in zip(ranked, ranked[1:]):
        assert found[lower] <= found[higher] * (1 + 1e-9)


def test_clipped_reports_are_noted_and_weigh_as_the_band_allows() -> None:
    reports = reported("global_loss", [0.5, 0.6, 50.0])
    strategy = QFedAvg(q=1.0, variant="released", clip_reports=2.0)
    (result,) = play(strategy, [UPDATES], [reports])
    # The median is 0.6, the median distance to it 0.1.
    assert values(result.aggregation) == pytest.approx(np.array([0.5, 0.6, 0.8]) / 1.9)
    assert set(result.notes) == {"3"} and "0.8" in result.notes["3"]
