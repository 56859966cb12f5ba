# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedGA: weights grow where averaging cost most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.clipping import Clip
from helpers.driving import CLIENTS, COMMON, GOLDEN, UPDATES, play, values
from helpers.fixed_sites import federate, vectors

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedGA, Mixed

WORKED = GOLDEN["fedga"]
LOCAL = dict(zip(CLIENTS, WORKED["loss_local"], strict=True))
GLOBAL = dict(zip(CLIENTS, WORKED["loss_global"], strict=True))

# The local loss of round 0 belongs to the average that is measured at the start of round 1.
ROUNDS = [
    {c: {"global_loss": 9.0, "local_loss": LOCAL[c]} for c in CLIENTS},
    {c: {"global_loss": GLOBAL[c], "local_loss": 9.0} for c in CLIENTS},
]


def of_ten_rounds(strategy: FedGA | None = None) -> FedGA:
    strategy = strategy or FedGA()
    strategy.rounds_planned = 10
    return strategy


def test_weights_grow_where_averaging_cost_most() -> None:
    for strategy, key in (
        (FedGA(), "orig_step0_2"),
        (FedGA(variant="released"), "paper_centred_d0_05"),
    ):
        of_ten_rounds(strategy)
        first, second = play(strategy, [UPDATES] * 2, ROUNDS, COMMON["w0"])
        assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
        np.testing.assert_allclose(values(second.details["gap"]), WORKED["gap"], atol=2e-6)
        np.testing.assert_allclose(values(second.aggregation), WORKED[key], atol=2e-6)


def test_the_steps_shrink_to_the_end_of_the_run() -> None:
    """Round r moves by d / N (1 - r / R) of the largest gap."""
    even = {c: {"global_loss": 0.5, "local_loss": 0.5} for c in CLIENTS}
    one = {**even, "1": {"global_loss": 0.6, "local_loss": 0.5}}
    results = play(of_ten_rounds(), [UPDATES] * 7, [even] * 6 + [one], COMMON["w0"])
    moved = np.array([1 / 3 + 0.2 / 3 * (1 - 5 / 10), 1 / 3, 1 / 3])
    assert values(results[5].aggregation) == pytest.approx([1 / 3] * 3)
    assert values(results[6].aggregation) == pytest.approx(moved / moved.sum())


def test_a_gap_is_of_the_model_that_went_into_the_average(tmp_path: Path) -> None:
    updates = [vectors(UPDATES)] * 2
    ranges = {"global_loss": [0, 10], "local_loss": [0, 10]}
    clip = Clip({0: ["1"]})
    played = federate(FedGA(), tmp_path, updates, ROUNDS, guards=[clip], ranges=ranges)
    first, second = played.rounds
    assert "guard" in first["notes"]["1"]
    gaps = {c: GLOBAL[c] - LOCAL[c] for c in CLIENTS if c != "1"}
    assert second["details"]["gap"] == pytest.approx(gaps)


def test_a_gap_needs_clients_that_receive_the_average() -> None:
    with pytest.raises(ConfigError, match="FedGA.*reward"):
        FedGA(reward=Mixed())
    assert FedGA(cap=1.5).parts.cap == 1.5
