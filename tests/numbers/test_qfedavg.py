# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: steps weighed by powers of the losses."""

from __future__ import annotations

import pytest
from helpers.driving import (
    GOLDEN,
    UPDATES,
    agree,
    play,
    reported,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import QFedAvg

WORKED = GOLDEN["qffl"]
LOSSES = reported("global_loss", WORKED["losses"])


def test_the_step_is_the_worked_one() -> None:
    for q in (0, 1, 2):
        strategy = QFedAvg(q=q, learning_rate=WORKED["eta"])
        (result,) = play(strategy, [UPDATES], [LOSSES])
        agree(result.weights["w"], WORKED[f"q{q}"]["new_global"])


def test_the_released_variant_is_a_plain_average() -> None:
    for q in (1, 2):
        (result,) = play(QFedAvg(q=q, variant="released"), [UPDATES], [LOSSES])
        expected = WORKED[f"ffl4mia_weights_q{q}"]
        agree(result.aggregation, expected)


def test_one_clients_negative_loss_counts_as_absent_and_negative_losses_alone_are_refused() -> None:
    given = [reported("global_loss", [0.1, -0.8, 0.3])]
    (result,) = play(QFedAvg(variant="released"), [UPDATES], given)
    assert result.aggregation == pytest.approx({"1": 1 / 6, "2": 1 / 3, "3": 1 / 2})
    assert set(result.notes) == {"2"} and "-0.8" in result.notes["2"]
    negative = [reported("global_loss", [-0.1, -0.8, -0.2])]
    with pytest.raises(FederationError, match="'2' is -0.8"):
        play(QFedAvg(), [UPDATES], negative)
