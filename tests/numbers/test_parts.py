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
from monai.bundle import ConfigParser

from monai_fairfl import Strategy, compose, normalise
from monai_fairfl.strategies import (
    BySamples,
    FedAvg,
    FedCE,
    Proportional,
    QFedAvg,
    Uniform,
    Weighting,
)

START = COMMON["w0"]


def weights_by(weighting: Weighting, contributions: dict[str, float]) -> list[float]:
    strategy = compose(equal(CLIENTS, contributions), weighting=weighting)
    (result,) = play(strategy, [UPDATES], [{}], START, SAMPLES)
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
    # Powers that are 0 as a float leave all to the greatest.
    tiny = {"1": 1e-3, "2": 2e-3, "3": 0.0}
    assert weights_by(Proportional(500.0), tiny) == pytest.approx([0, 1, 0])


# ---- compositions


def test_fedces_contribution_with_cgsvs_reward_as_config() -> None:
    config = {
        "strategy": {
            "_target_": "monai_fairfl.strategies.compose",
            "strategy": {"_target_": "monai_fairfl.strategies.FedCE", "mode": "cos"},
            "reward": {"_target_": "monai_fairfl.strategies.Sparsified", "beta": 1.0},
        }
    }
    strategy: Strategy = ConfigParser(config).get_parsed_content("strategy")
    (result,) = play(strategy, [UPDATES], [{}], START)
    (plain,) = play(FedCE("cos"), [UPDATES], [{}], START)
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
        ({"prox_mu": "0.1"}, "prox_mu"),
        ({"prox_mu": -1.0}, "prox_mu"),
        ({"sam_rho": math.nan}, "sam_rho"),
        ({"gsam_alpha": 0.1}, "sam_rho"),
        ({"reset_optimizer": 2}, "reset_optimizer"),
        ({"local_epochs": 2.7}, "local_epochs"),
        ({"local_epochs": 0}, "local_epochs"),
    ]
    for training, words in wrong:
        with pytest.raises(ValueError, match=words):
            FedAvg(training=training)
    inner = FedAvg(training={"sam_rho": 0.05, "reset_optimizer": True})
    outer = compose(inner, training={"gsam_alpha": 0.1, "local_epochs": 2})
    assert set(outer.parts.training) == {"sam_rho", "gsam_alpha", "reset_optimizer", "local_epochs"}


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
    if max(shares.values()) <= limit:
        assert found == values(shares, names)
    ranked = sorted(range(len(names)), key=lambda number: shares[names[number]])
    for lower, higher in zip(ranked, ranked[1:]):
        assert found[lower] <= found[higher] * (1 + 1e-9)


def test_clipped_reports_are_noted_and_weigh_as_the_band_allows() -> None:
    reports = reported("global_loss", [0.5, 0.6, 50.0])
    strategy = QFedAvg(q=1.0, variant="released", clip_reports=2.0)
    (result,) = play(strategy, [UPDATES], [reports], START)
    # The median is 0.6, the median distance to it 0.1.
    assert values(result.aggregation) == pytest.approx(np.array([0.5, 0.6, 0.8]) / 1.9)
    assert set(result.notes) == {"3"} and "0.8" in result.notes["3"]
