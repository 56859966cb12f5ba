# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedGA: weights grow where averaging cost most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.clipping import Clip
from helpers.driving import CLIENTS, GOLDEN, UPDATES, agree, play, values
from helpers.fixed_sites import federate, vectors

from monai_fairfl.strategies import FedGA

WORKED = GOLDEN["fedga"]
LOCAL = dict(zip(CLIENTS, WORKED["loss_local"], strict=True))
GLOBAL = dict(zip(CLIENTS, WORKED["loss_global"], strict=True))

# The local loss of round 0 belongs to the average that is measured at the start of round 1.
ROUNDS = [
    {c: {"global_loss": 9.0, "local_loss": LOCAL[c]} for c in CLIENTS},
    {c: {"global_loss": GLOBAL[c], "local_loss": 9.0} for c in CLIENTS},
]


def test_weights_grow_where_averaging_cost_most() -> None:
    for strategy, key in (
        (FedGA(), "orig_step0_2"),
        (FedGA(variant="released"), "paper_centred_d0_05"),
    ):
        strategy.rounds_planned = 10
        first, second = play(strategy, [UPDATES] * 2, ROUNDS)
        assert values(first.aggregation) == pytest.approx([1 / 3] * 3)
        agree(second.details["gap"], WORKED["gap"])
        agree(second.aggregation, WORKED[key])


def test_the_steps_shrink_to_the_end_of_the_run() -> None:
    """Round r moves by d / N (1 - r / R) of the largest gap."""
    even = {c: {"global_loss": 0.5, "local_loss": 0.5} for c in CLIENTS}
    one = {**even, "1": {"global_loss": 0.6, "local_loss": 0.5}}
    strategy = FedGA()
    strategy.rounds_planned = 10
    results = play(strategy, [UPDATES] * 7, [even] * 6 + [one])
    moved = np.array([1 / 3 + 0.2 / 3 * (1 - 5 / 10), 1 / 3, 1 / 3])
    assert values(results[5].aggregation) == pytest.approx([1 / 3] * 3)
    assert values(results[6].aggregation) == pytest.approx(moved / moved.sum())


def test_a_gap_is_of_the_model_that_went_into_the_average(tmp_path: Path) -> None:
    ranges = {"global_loss": [0, 10], "local_loss": [0, 10]}
    given: dict[str, Any] = {"guards": [Clip({0: ["1"]})], "ranges": ranges}
    played = federate(FedGA(), tmp_path, [vectors(UPDATES)] * 2, ROUNDS, **given)
    gaps = {c: GLOBAL[c] - LOCAL[c] for c in CLIENTS if c != "1"}
    assert played.rounds[1]["details"]["gap"] == pytest.approx(gaps)
