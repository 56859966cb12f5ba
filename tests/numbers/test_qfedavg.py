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


def test_a_negative_loss_is_refused() -> None:
    with pytest.raises(FederationError, match="-0.8"):
        play(QFedAvg(), [UPDATES], [reported("global_loss", [0.1, -0.8, 0.3])])
