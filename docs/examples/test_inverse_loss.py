# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy needs no engine to be tested: send its generator replies, look at its result."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from inverse_loss import InverseLoss
from monai.bundle import ConfigParser

from monai_fairfl.protocol import ModelSpec, Replies, Reply, Request
from monai_fairfl.strategies import RoundResult, Strategy

SPEC = ModelSpec(parameters=("w",), layers={"w": ""})
LOSS = {"A": 0.2, "B": 0.6, "C": 0.6}
UPDATE = {"A": 1.0, "B": 2.0, "C": 4.0}


def answer(request: Request) -> Reply:
    measured = {name: LOSS[request.client] for name in request.measure}
    return Reply(
        request.client, {"w": torch.tensor([UPDATE[request.client]])}, 10, measured, id=request.id
    )


def one_round(strategy: Strategy) -> RoundResult:
    strategy.start({"w": torch.tensor([10.0])}, sorted(LOSS), SPEC)
    generator = strategy.round(sorted(LOSS))
    requests = [replace(request, id=number) for number, request in enumerate(next(generator))]
    with pytest.raises(StopIteration) as stop:
        generator.send(Replies(map(answer, requests), requests, SPEC))
    return stop.value.value


def test_a_third_of_the_loss_is_three_times_the_weight() -> None:
    result = one_round(InverseLoss())
    assert result.aggregation == pytest.approx({"A": 0.6, "B": 0.2, "C": 0.2})
    assert result.weights["w"].item() == pytest.approx(10 + 0.6 * 1 + 0.2 * 2 + 0.2 * 4)


def test_a_config_reaches_it_by_its_dotted_path() -> None:
    config = ConfigParser({"strategy": {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}})
    result = one_round(config.get_parsed_content("strategy"))
    assert result.aggregation == pytest.approx({"A": 6 / 16, "B": 5 / 16, "C": 5 / 16})
