# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy is tested without an engine: its generator is sent replies of plain tensors."""

from __future__ import annotations

import pytest
from helpers.driving import CLIENTS, play, reported, vector
from inverse_loss import InverseLoss
from monai.bundle import ConfigParser

from monai_fairfl.strategies.base import RoundResult, Strategy

UPDATES = {"1": [1.0], "2": [2.0], "3": [4.0]}
LOSSES = reported("train_loss", [0.2, 0.6, 0.6])


def one_round(strategy: Strategy) -> RoundResult:
    """A round of clients "1", "2" and "3", whose model is one number, which is 10 at the start."""
    [result] = play(strategy, [UPDATES], [LOSSES], start=[10.0])
    return result


def test_a_third_of_the_loss_is_three_times_the_weight() -> None:
    result = one_round(InverseLoss())
    assert result.aggregation == pytest.approx(dict(zip(CLIENTS, (0.6, 0.2, 0.2))))
    assert result.contributions == result.aggregation
    expected = vector([10 + 0.6 * 1 + 0.2 * 2 + 0.2 * 4])
    assert result.weights["w"] == pytest.approx(expected)


def test_a_config_reaches_it_by_its_dotted_path() -> None:
    config = ConfigParser({"strategy": {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}})
    result = one_round(config.get_parsed_content("strategy"))
    assert result.aggregation == pytest.approx(dict(zip(CLIENTS, (6 / 16, 5 / 16, 5 / 16))))
