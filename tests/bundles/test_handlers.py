# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The handlers that change a training, against closed forms and a loop written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    conv_net,
    half_mean_square,
    image_batches,
    least_squares,
    trainer_of,
)
from monai.engines.utils import IterationEvents
from monai.losses import DiceCELoss
from torch import nn

from monai_fairfl.handlers import Proximal, RandomUpdate, SharpnessAware

QUADRATIC = GOLDEN["fedism"]["quadratic"]
CURVATURE = torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64)
X, Y = least_squares()
MU = 0.7


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (CURVATURE * predicted.square()).sum()


def step_on_quadratic(*handlers: Any, clip: float = 0.0) -> torch.Tensor:
    """What one plain step along the gradient changes."""
    network = Point(QUADRATIC["w"])
    trainer = trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    if clip:
        trainer.add_event_handler(
            IterationEvents.BACKWARD_COMPLETED,
            lambda: nn.utils.clip_grad_norm_(network.parameters(), clip),
        )
    for handler in handlers:
        handler.attach(trainer)
    trainer.run()
    return torch.tensor(QUADRATIC["w"], dtype=torch.float64) - network.w.detach()


def trained(*handlers: Any) -> dict[str, Any]:
    """State of a convolutional net and of the random numbers after two epochs."""
    network = conv_net()
    optimizer = torch.optim.Adam(network.parameters(), 0.05, weight_decay=1e-3)
    loss = DiceCELoss(sigmoid=True)
    trainer = trainer_of(network, image_batches(), loss, optimizer, epochs=2)
    for handler in handlers:
        handler.attach(trainer)
    torch.manual_seed(7)
    trainer.run()
    return {**network.state_dict(), "random": torch.random.get_rng_state()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# --- sharpness-aware minimisation


@pytest.mark.parametrize(("alpha", "name"), [(0.0, "grad_perturbed"), (0.1, "gsam_grad_alpha0_1")])
def test_one_step_on_a_quadratic_is_the_golden_direction(alpha: float, name: str) -> None:
    step = step_on_quadratic(SharpnessAware(QUADRATIC["rho"], alpha))
    assert step.tolist() == pytest.approx(QUADRATIC[name], abs=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_real_net_trains_as_in_a_loop_written_by_hand(alpha: float) -> None:
    network, rho = conv_net(), 0.1
    loss = DiceCELoss(sigmoid=True)
    optimizer = torch.optim.Adam(network.parameters(), 0.05, weight_decay=1e-3)

    def gradient(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()
        return torch.cat([p.grad.flatten() for p in network.parameters()])  # type: ignore[union-attr]

    torch.manual_seed(7)
    network.train()
    for _ in range(2):
        for batch in image_batches():
            start = torch.random.get_rng_state()
            first = gradient(batch)
            following = torch.random.get_rng_state()
            stored = {name: value.clone() for name, value in network.state_dict().items()}
            # At the worst point within rho, with the same dropout.
            vector = nn.utils.parameters_to_vector(network.parameters()).detach()
            worst = vector + rho * first / first.norm()
            nn.utils.vector_to_parameters(worst, network.parameters())
            torch.random.set_rng_state(start)
            second = gradient(batch)
            torch.random.set_rng_state(following)
            network.load_state_dict(stored)
            # GSAM: less of what the first gradient has beside the second.
            beside = first - (first @ second) / (second @ second) * second
            direction = second - alpha * beside
            sizes = [p.numel() for p in network.parameters()]
            for parameter, part in zip(network.parameters(), direction.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
    ours = trained(SharpnessAware(rho, alpha))
    for name, value in network.state_dict().items():
        torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=0, msg=name)
    assert not same(trained(), ours)


def test_without_a_perturbation_it_is_plain_training_to_the_bit() -> None:
    plain = trained()
    assert same(plain, trained(SharpnessAware(0.0, alpha=0.5)))
    # It is lost in rounding, yet the second pass runs: with the same dropout and statistics.
    assert same(plain, trained(SharpnessAware(1e-30)))


def test_gradients_are_clipped_after_the_second_pass() -> None:
    step = step_on_quadratic(SharpnessAware(QUADRATIC["rho"]), clip=1e-3)
    direction = torch.tensor(QUADRATIC["grad_perturbed"], dtype=torch.float64)
    torch.testing.assert_close(step, 1e-3 * direction / direction.norm(), atol=1e-8, rtol=0)


# --- the proximal term


def linear(start: float) -> nn.Linear:
    network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(network.weight, start)
    return network


def fitted(handler: Any, start: float = 0.0, epochs: int = 300) -> torch.Tensor:
    """Weights after a training on the rows of a least-squares problem."""
    network = linear(start)
    loader = [{"image": X, "label": Y}]
    optimizer = torch.optim.SGD(network.parameters(), 0.2)
    trainer = trainer_of(network, loader, half_mean_square, optimizer, epochs)
    handler.attach(trainer)
    trainer.run()
    return network.weight.detach()


def ridge(anchor: float) -> torch.Tensor:
    """Minimiser of the mean square / 2 + mu / 2 ||w - anchor||^2."""
    n = len(X)
    return torch.linalg.solve(X.T @ X / n + MU * torch.eye(3), X.T @ Y / n + MU * anchor).T


def test_training_ends_at_the_closed_form_around_its_anchor() -> None:
    for start in (0.0, 2.0):
        torch.testing.assert_close(fitted(Proximal(MU), start), ridge(start), atol=1e-7, rtol=0)
    anchor = {"weight": torch.full((1, 3), 5.0)}
    torch.testing.assert_close(fitted(Proximal(MU, anchor)), ridge(5.0), atol=1e-7, rtol=0)
    # A tensor that the anchor does not name is not pulled.
    unpulled = fitted(Proximal(MU, {}), epochs=5)
    assert torch.equal(fitted(Proximal(0.0), epochs=5), unpulled)


@pytest.mark.parametrize("order", [1, -1])
def test_beside_a_sharpness_aware_pass_the_pull_is_from_the_unperturbed_weights(order: int) -> None:
    """The loss is c x^2 / 2 per axis, whose gradient at the perturbed w is golden."""
    start = torch.tensor(QUADRATIC["w"], dtype=torch.float64)
    proximal = Proximal(MU, {"w": torch.ones_like(start)})
    handlers = [SharpnessAware(QUADRATIC["rho"]), proximal]
    step = step_on_quadratic(*handlers[::order])
    perturbed = torch.tensor(QUADRATIC["grad_perturbed"], dtype=torch.float64)
    torch.testing.assert_close(step, perturbed + MU * (start - 1), atol=1e-6, rtol=0)


# --- a free rider's update, and what a training counts


def update_of(handler: RandomUpdate | None, seed: int = 0) -> torch.Tensor:
    """What three steps change."""
    network = linear(2.0)
    optimizer = torch.optim.SGD(network.parameters(), 0.2)
    trainer = trainer_of(network, [{"image": X, "label": Y}], half_mean_square, optimizer, 3)
    if handler is not None:
        handler.attach(trainer)
    torch.manual_seed(seed)
    trainer.run()
    return network.weight.detach() - 2.0


def test_a_random_update_has_the_honest_length_and_the_seeds_direction() -> None:
    honest = update_of(None)
    sent = update_of(RandomUpdate(10.0))
    assert sent.norm() == pytest.approx(10 * float(honest.norm()))
    torch.manual_seed(0)
    noise = torch.randn_like(honest)
    torch.testing.assert_close(sent / sent.norm(), noise / noise.norm())
    assert torch.equal(update_of(RandomUpdate(), 3), update_of(RandomUpdate(), 3))
    assert not torch.equal(update_of(RandomUpdate(), 3), update_of(RandomUpdate(), 4))
