# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The parts that every strategy takes: weightings, caps, clipped reports, training, and rewards."""

from __future__ import annotations

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

from monai_fairfl import compose
from monai_fairfl.strategies import (
    BySamples,
    FedAvg,
    Proportional,
    QFedAvg,
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
    assert weights_by(Proportional(0), dict.fromkeys(CLIENTS, 0.5)) == pytest.approx([1 / 3] * 3)


# ---- compositions


def test_a_training_that_no_client_could_do_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prox_mo": 0.1}, "prox_mo.*prox_mu"),
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


def test_what_is_above_the_cap_goes_to_the_others_in_proportion() -> None:
    """Equal shares are 0.25; of three clients without weight, each gets a third of what is cut."""
    for most, shares, expected in (
        (1.5, [0.6, 0.2, 0.1, 0.1], [0.375, 0.3125, 0.15625, 0.15625]),
        (0.3, [0.7, 0.28, 0.01, 0.01], [0.3, 0.3, 0.2, 0.2]),
        (0.1, [0.4, 0.3, 0.2, 0.1], [0.25] * 4),
        (1.6, [1.0, 0.0, 0.0, 0.0], [0.4, 0.2, 0.2, 0.2]),
    ):
        given = dict(zip("ABCD", shares, strict=True))
        strategy = compose(Given(given), cap=most)
        (result,) = play(strategy, [dict.fromkeys("ABCD", [1.0])], [{}], [0.0])
        assert values(result.aggregation, "ABCD") == pytest.approx(expected)


def test_clipped_reports_are_noted_and_weigh_as_the_band_allows() -> None:
    reports = reported("global_loss", [0.5, 0.6, 50.0])
    strategy = QFedAvg(q=1.0, variant="released", clip_reports=2.0)
    (result,) = play(strategy, [UPDATES], [reports])
    # The median is 0.6, the median distance to it 0.1.
    assert values(result.aggregation) == pytest.approx(np.array([0.5, 0.6, 0.8]) / 1.9)
    assert set(result.notes) == {"3"} and "0.8" in result.notes["3"]
