# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_trainers import ONE_BATCH, Point, conv_net, image_batches, scaled, trainer_of
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.inferers import SimpleInferer
from monai.losses import DiceCELoss
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import SharpnessAware

QUADRATIC = GOLDEN["fedism"]["quadratic"]
CURVATURE = torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64)


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (CURVATURE * predicted.square()).sum()


def trained(
    *handlers: Any,
    prepare: Callable[[SupervisedTrainer], Any] = lambda trainer: None,
    **arguments: Any,
) -> dict[str, Any]:
    """State of the convolutional net, its optimizer and the random numbers after two epochs."""
    network = conv_net()
    optimizer = torch.optim.Adam(network.parameters(), 0.05, weight_decay=1e-3)
    trainer = trainer_of(
        network, image_batches(), DiceCELoss(sigmoid=True), optimizer, epochs=2, **arguments
    )
    prepare(trainer)
    for handler in handlers:
        handler.attach(trainer)
    torch.manual_seed(7)
    trainer.run()
    return {**network.state_dict(), "random": torch.random.get_rng_state()}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "name"), [(0.0, "grad_perturbed"), (0.1, "gsam_grad_alpha0_1")])
def test_one_step_on_a_quadratic_is_the_golden_direction(alpha: float, name: str) -> None:
    network = Point(QUADRATIC["w"])
    trainer = trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    SharpnessAware(QUADRATIC["rho"], alpha).attach(trainer)
    trainer.run()
    step = torch.tensor(QUADRATIC["w"], dtype=torch.float64) - network.w.detach()
    assert step.tolist() == pytest.approx(QUADRATIC[name], abs=1e-6)
    assert trainer.state.output["loss"].item() == pytest.approx(QUADRATIC["loss"])  # type: ignore[index, call-overload]


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_real_net_trains_as_in_a_loop_written_by_hand(alpha: float) -> None:
    network, rho = conv_net(), 0.1
    loss, optimizer = DiceCELoss(sigmoid=True), torch.optim.Adam(
        network.parameters(), 0.05, weight_decay=1e-3
    )
    torch.manual_seed(7)
    network.train()
    for _ in range(2):
        for batch in image_batches():
            start = torch.random.get_rng_state()
            optimizer.zero_grad()
            loss(network(batch["image"]), batch["label"]).backward()
            after = torch.random.get_rng_state()
            g = torch.cat([p.grad.flatten() for p in network.parameters()])  # type: ignore[union-attr]
            stored = {name: value.clone() for name, value in network.state_dict().items()}
            vector = nn.utils.parameters_to_vector(network.parameters()).detach()
            nn.utils.vector_to_parameters(vector + rho * g / g.norm(), network.parameters())
            torch.random.set_rng_state(start)
            optimizer.zero_grad()
            loss(network(batch["image"]), batch["label"]).backward()
            torch.random.set_rng_state(after)
            network.load_state_dict(stored)
            p = torch.cat([p.grad.flatten() for p in network.parameters()])  # type: ignore[union-attr]
            direction = p - alpha * (g - (g @ p) / (p @ p) * p)
            for parameter, part in zip(
                network.parameters(),
                direction.split([p.numel() for p in network.parameters()]),
                strict=True,
            ):
                parameter.grad = part.view_as(parameter)
            optimizer.step()
    ours = trained(SharpnessAware(rho, alpha))
    for name, value in network.state_dict().items():
        assert torch.allclose(ours[name], value, atol=1e-5), name
    assert not same({k: v for k, v in trained().items() if k in ours}, ours)


@pytest.mark.parametrize("rho", [0.0, 1e-30])
def test_without_a_perturbation_it_is_plain_training_to_the_bit(rho: float) -> None:
    """1e-30 is lost in rounding, yet runs the second pass.

    That has the same dropout and statistics, and the same random numbers follow.
    """
    assert same(trained(), trained(SharpnessAware(rho)))
    assert same(trained(), trained(SharpnessAware(0.0, alpha=0.5)))


def test_batchnorm_counts_and_averages_each_batch_once() -> None:
    plain, ours = trained(), trained(SharpnessAware(0.1))
    assert ours["1.num_batches_tracked"] == plain["1.num_batches_tracked"] == 6
    assert not torch.equal(plain["0.weight"], ours["0.weight"])
    first_step = [
        trainer_of(
            net, image_batches(1), DiceCELoss(sigmoid=True), torch.optim.SGD(net.parameters(), 0.1)
        )
        for net in (conv_net(), conv_net())
    ]
    SharpnessAware(0.5).attach(first_step[0])
    for trainer in first_step:
        trainer.run()
    statistics = [trainer.network.get_submodule("1").running_var for trainer in first_step]
    assert torch.equal(*statistics)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_loss_scale_changes_nothing(alpha: float) -> None:
    plain = trained(SharpnessAware(0.1, alpha))
    with_scale = trained(
        SharpnessAware(0.1, alpha), prepare=lambda trainer: scaled(trainer, 2.0**12)
    )
    for name in plain:
        assert torch.allclose(plain[name].float(), with_scale[name].float(), atol=1e-5), name


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("overflowing_pass", [1, 2])
def test_the_scaler_skips_a_step_whose_gradient_overflows_in_either_pass(
    overflowing_pass: int,
) -> None:
    calls = 0

    def overflows_once(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return quadratic(predicted, target) * (float("inf") if calls == overflowing_pass else 1.0)

    network = Point(QUADRATIC["w"])
    trainer = trainer_of(
        network, ONE_BATCH, overflows_once, torch.optim.SGD(network.parameters(), 1.0)
    )
    scaler = scaled(trainer, 1024.0)
    SharpnessAware(0.05, 0.1).attach(trainer)
    trainer.run()
    assert network.w.tolist() == QUADRATIC["w"] and scaler.get_scale() == 512
    assert calls == overflowing_pass  # nothing to perturb along after an overflow


def test_reduced_precision_inside_the_inferer_reaches_both_passes() -> None:
    class Reduced(SimpleInferer):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return super().__call__(*args, **kwargs).float()

    plain = trained(inferer=Reduced())
    assert same(plain, trained(SharpnessAware(1e-30), inferer=Reduced()))
    assert not same(plain, trained())


def test_the_second_pass_sees_the_prepared_images_and_the_networks_further_arguments() -> None:
    class Shifted(Point):
        def forward(
            self, images: torch.Tensor, shift: torch.Tensor, factor: float = 1.0
        ) -> torch.Tensor:
            seen.append((float(images.sum()), float(shift)))
            return factor * (self.w + shift)

    def prepare(batch: Any, *_: Any, **__: Any) -> Any:
        return batch["image"] + 1, batch["label"], (torch.tensor(0.5),), {"factor": 2.0}

    seen: list[tuple[float, float]] = []
    network = Shifted(QUADRATIC["w"])
    trainer = trainer_of(
        network,
        ONE_BATCH,
        quadratic,
        torch.optim.SGD(network.parameters(), 0.1),
        prepare_batch=prepare,
    )
    SharpnessAware(0.05).attach(trainer)
    trainer.run()
    assert seen == [(1.0, 0.5), (1.0, 0.5)]


def test_accumulated_gradients_and_negative_arguments_are_refused_with_the_fix() -> None:
    network = conv_net()
    trainer = trainer_of(
        network,
        image_batches(),
        DiceCELoss(),
        torch.optim.SGD(network.parameters(), 0.1),
        accumulation_steps=2,
    )
    SharpnessAware(0.05).attach(trainer)
    with pytest.raises(
        ConfigError, match="accumulates over 2 batches: set accumulation_steps to 1"
    ):
        trainer.run()
    with pytest.raises(ConfigError, match="rho must be at least 0, got -1"):
        SharpnessAware(-1)
    with pytest.raises(ConfigError, match="alpha must be at least 0, got nan"):
        SharpnessAware(1, float("nan"))


def test_detach_ends_it() -> None:
    handler = SharpnessAware(0.1)

    def attach_and_detach(trainer: SupervisedTrainer) -> None:
        handler.attach(trainer)
        handler.detach()

    assert same(trained(), trained(prepare=attach_and_detach))


def test_gradients_are_clipped_after_the_second_pass_whoever_came_first() -> None:
    def clip(engine: SupervisedTrainer) -> None:
        nn.utils.clip_grad_norm_(engine.network.parameters(), 1e-3)

    network = Point(QUADRATIC["w"])
    trainer = trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    trainer.add_event_handler(IterationEvents.BACKWARD_COMPLETED, clip)
    SharpnessAware(QUADRATIC["rho"]).attach(trainer)
    trainer.run()
    step = torch.tensor(QUADRATIC["w"], dtype=torch.float64) - network.w.detach()
    direction = torch.tensor(QUADRATIC["grad_perturbed"], dtype=torch.float64)
    assert torch.allclose(step, 1e-3 * direction / direction.norm(), atol=1e-8)


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_a_parameter_that_a_batch_does_not_use_has_a_gradient_of_zeros_as_without_it(
    alpha: float,
) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.bright = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.always(images) + (self.bright(images) if images.mean() > 0 else 0)

    gradients = []
    for handlers in ([], [SharpnessAware(0.05, alpha)]):
        network = Branches()
        batches = [
            {"image": sign * torch.ones(2, 1, 4, 4), "label": torch.ones(2, 1, 4, 4)}
            for sign in (1, -1)
        ]
        trainer = trainer_of(
            network, batches, nn.BCEWithLogitsLoss(), torch.optim.Adam(network.parameters(), 0.1)
        )
        for handler in handlers:
            handler.attach(trainer)
        trainer.run()
        gradients.append(network.bright.weight.grad)
    if alpha == 0:
        assert (
            gradients[1] is not None
            and torch.equal(gradients[0], gradients[1])
            and not gradients[1].any()
        )
    assert gradients[1] is not None and torch.isfinite(gradients[1]).all()
