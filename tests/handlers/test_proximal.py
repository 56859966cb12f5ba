# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    half_mean_square,
    least_squares,
    scaled,
    trainer_of,
)
from monai.engines import SupervisedTrainer
from torch import nn

from monai_fairfl.client.training import chosen_handlers
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import Proximal

MU = 0.7
X, Y = least_squares()


def linear(start: float = 0.0) -> nn.Linear:
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(network.weight, start)
    return network


def fitted(  # type: ignore[no-untyped-def]
    handler: Proximal,
    start: float = 0.0,
    batches: int = 1,
    epochs: int = 300,
    scale: float = 0,
    **arguments,
):
    network = linear(start)
    loader = [
        {"image": x, "label": y} for x, y in zip(X.chunk(batches), Y.chunk(batches), strict=True)
    ]
    optimizer = torch.optim.SGD(network.parameters(), 0.2)
    trainer = trainer_of(network, loader, half_mean_square, optimizer, epochs, **arguments)
    if scale:
        scaled(trainer, scale)
    handler.attach(trainer)
    trainer.run()
    return network.weight.detach()


def ridge(anchor: float) -> torch.Tensor:
    """Minimiser of the mean square / 2 + mu / 2 ||w - anchor||^2."""
    n = len(X)
    return torch.linalg.solve(X.T @ X / n + MU * torch.eye(3), X.T @ Y / n + MU * anchor).T


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_training_ends_at_the_closed_form_with_the_start_as_anchor(start: float) -> None:
    assert torch.allclose(fitted(Proximal(MU), start), ridge(start), atol=1e-8)


def test_another_anchor_may_be_named() -> None:
    anchor = {"weight": torch.full((1, 3), 5.0)}
    assert torch.allclose(fitted(Proximal(MU, anchor)), ridge(5.0), atol=1e-8)


@pytest.mark.slow
def test_a_tensor_that_the_anchor_does_not_name_is_not_pulled() -> None:
    plain = torch.linalg.lstsq(X, Y).solution.T
    assert torch.allclose(fitted(Proximal(MU, {}), epochs=3000), plain, atol=1e-6)
    assert torch.equal(fitted(Proximal(0.0), epochs=5), fitted(Proximal(MU, {}), epochs=5))


def test_accumulated_batches_are_pulled_once_per_step() -> None:
    whole = fitted(Proximal(MU), 1.0, epochs=5)
    assert torch.allclose(
        fitted(Proximal(MU), 1.0, batches=3, epochs=5, accumulation_steps=3), whole, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_pull_is_multiplied_by_the_loss_scale() -> None:
    assert torch.allclose(
        fitted(Proximal(MU), 1.0, epochs=5, scale=2.0**10), fitted(Proximal(MU), 1.0, epochs=5)
    )


@pytest.mark.parametrize("order", [1, -1])
def test_after_a_sharpness_aware_pass_the_pull_is_from_the_unperturbed_weights(order: int) -> None:
    """The loss is x^2 / 2 per axis.

    At w the perturbed gradient is w (1 + rho / ||w||), and the pull adds mu (w - a).
    """

    def step(*handlers: object) -> torch.Tensor:
        network = Point([3.0, 4.0])
        trainer: SupervisedTrainer = trainer_of(
            network,
            ONE_BATCH,
            lambda p, _: 0.5 * p.square().sum(),
            torch.optim.SGD(network.parameters(), 1.0),
        )
        for handler in handlers:
            handler.attach(trainer)  # type: ignore[attr-defined]
        trainer.run()
        return torch.tensor([3.0, 4.0]) - network.w.detach()

    sharpness_aware, proximal = chosen_handlers({"prox_mu": MU, "sam_rho": 0.5})
    assert isinstance(proximal, Proximal)
    proximal.anchor = {"w": torch.tensor([1.0, 1.0])}
    expected = torch.tensor([3.0, 4.0]) * (1 + 0.5 / 5) + MU * (torch.tensor([3.0, 4.0]) - 1)
    assert torch.allclose(step(*[sharpness_aware, proximal][::order]).float(), expected, atol=1e-6)


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ConfigError, match="mu must be at least 0, got -0.1"):
        Proximal(-0.1)
