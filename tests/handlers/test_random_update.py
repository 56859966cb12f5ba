# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.small_trainers import half_mean_square, least_squares, trainer_of
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import RandomUpdate

X, Y = least_squares()


def update_of(handler: RandomUpdate | None, seed: int = 0) -> torch.Tensor:
    """What one training changes."""
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(network.weight, 2.0)
    optimizer = torch.optim.SGD(network.parameters(), 0.2)
    trainer = trainer_of(network, [{"image": X, "label": Y}], half_mean_square, optimizer, 3)
    if handler is not None:
        handler.attach(trainer)
    torch.manual_seed(seed)
    trainer.run()
    return network.weight.detach() - 2.0


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_the_update_has_the_honest_length_and_a_random_direction(factor: float) -> None:
    honest = update_of(None)
    sent = update_of(RandomUpdate(factor))
    assert torch.linalg.norm(sent) == pytest.approx(factor * float(torch.linalg.norm(honest)))
    assert not torch.allclose(sent, factor * honest)
    torch.manual_seed(0)
    noise = torch.randn_like(honest)
    torch.testing.assert_close(sent / torch.linalg.norm(sent), noise / torch.linalg.norm(noise))


def test_a_frozen_layer_stays_as_it_is_and_takes_nothing_of_the_length() -> None:
    def trained(handler: RandomUpdate | None) -> nn.Sequential:
        torch.manual_seed(1)
        frozen = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)
        network = nn.Sequential(frozen, nn.Linear(3, 1, bias=False, dtype=torch.float64))
        nn.init.zeros_(network[1].weight)
        optimizer = torch.optim.SGD(network[1].parameters(), 0.2)
        trainer = trainer_of(network, [{"image": X, "label": Y}], half_mean_square, optimizer)
        if handler is not None:
            handler.attach(trainer)
        trainer.run()
        return network

    honest, sent = trained(None), trained(RandomUpdate())
    assert torch.equal(sent[0].weight, honest[0].weight)
    length = float(torch.linalg.norm(honest[1].weight.detach()))
    assert torch.linalg.norm(sent[1].weight.detach()) == pytest.approx(length)


def test_the_same_seed_sends_the_same() -> None:
    assert torch.equal(update_of(RandomUpdate(), 3), update_of(RandomUpdate(), 3))
    assert not torch.equal(update_of(RandomUpdate(), 3), update_of(RandomUpdate(), 4))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_no_length_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="factor must be above 0"):
        RandomUpdate(factor)
