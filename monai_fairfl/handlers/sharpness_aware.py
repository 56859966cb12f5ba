# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sharpness-aware training (SAM, GSAM) as an ignite handler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.base import Detachable
from monai_fairfl.measurements.sharpness import gsam_direction, perturbation, total_norm


class SharpnessAware(Detachable):
    r"""Every step follows the gradient at the worst weights nearby: SAM (Foret et al., ICLR 2021),
    GSAM (ICLR 2022).

    .. math:: \epsilon = \rho \frac{g}{\lVert g \rVert}, \quad g_p = \nabla L(w + \epsilon), \quad
        \text{step} = g_p - \alpha \Bigl(g - \frac{g \cdot g_p}{\lVert g_p \rVert^2} g_p\Bigr)

    The trainer's own optimizer takes the step at the unperturbed weights, so any optimizer will do,
    and weight decay is no part of the perturbation. The second pass uses the trainer's inferer and
    loss on the same images with the same random numbers (dropout); buffers such as BatchNorm's
    statistics count once. Under mixed precision all gradients keep the loss scale, which the
    direction respects; one that overflowed stays, and the scaler skips the step. Whatever else acts
    on gradients (clipping, :class:`~monai_fairfl.handlers.Proximal`) comes after it, wherever it
    stands among the handlers.

    Args:
        rho: radius of the neighbourhood, in the unit of the weights; 0 is plain training.
        alpha: GSAM's share of the orthogonal gradient; 0 is SAM.

    Raises:
        ConfigError: when an argument is negative, or the trainer accumulates gradients over several
            batches, whose gradient is not yet known when the second pass must be made.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.SharpnessAware", "rho": 0.05, "alpha": 0.1}
    """

    def __init__(self, rho: float, alpha: float = 0.0):
        for name, value in (("rho", rho), ("alpha", alpha)):
            if not value >= 0:
                raise ConfigError(f"SharpnessAware {name} must be at least 0, got {value!r}")
        self.rho, self.alpha = float(rho), float(alpha)

    def attach(self, engine: SupervisedTrainer) -> None:
        """Act in every iteration of ``engine``."""
        self._handles = [
            engine.add_event_handler(Events.STARTED, self._check),
            engine.add_event_handler(Events.ITERATION_STARTED, self._remember_random_state),
            engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self._replace_gradients),
        ]
        after_backward = engine._event_handlers[IterationEvents.BACKWARD_COMPLETED]
        after_backward.insert(0, after_backward.pop())

    def _check(self, engine: SupervisedTrainer) -> None:
        if (
            engine.accumulation_steps > 1
        ):  # not known yet when a bundle's trainer attaches its handlers
            raise ConfigError(
                f"sharpness-aware training needs the whole gradient in every iteration, but this trainer accumulates "
                f"over {engine.accumulation_steps} batches: set accumulation_steps to 1 in the bundle's trainer"
            )

    def _remember_random_state(self, engine: SupervisedTrainer) -> None:
        devices = _cuda_devices(engine)
        self._random = torch.random.get_rng_state(), [
            torch.cuda.get_rng_state(device) for device in devices
        ]

    def _replace_gradients(self, engine: SupervisedTrainer) -> None:
        parameters = [
            p
            for group in engine.optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        clean = [parameter.grad for parameter in parameters]
        if self.rho == 0 or not torch.isfinite(total_norm(clean)):
            return
        scale = (
            float(engine.scaler.get_scale()) if engine.amp and engine.scaler is not None else 1.0
        )
        with (
            torch.no_grad(),
            _unchanged([*parameters, *engine.network.buffers()]),
            self._same_random_state(engine),
        ):
            for parameter, step in zip(
                parameters, perturbation(clean, self.rho, scale), strict=True
            ):
                parameter.add_(step)
                parameter.grad = None
            with torch.enable_grad():
                _backward(engine)
        for parameter in parameters:
            if parameter.grad is None:  # not used by this batch
                parameter.grad = torch.zeros_like(parameter)
        if self.alpha:
            perturbed = [parameter.grad for parameter in parameters]
            for parameter, direction in zip(
                parameters, gsam_direction(clean, perturbed, self.alpha), strict=True
            ):
                parameter.grad = direction

    @contextmanager
    def _same_random_state(self, engine: SupervisedTrainer) -> Iterator[None]:
        """The random numbers of this iteration's first pass again; after it, those that would have
        come next.
        """
        devices = _cuda_devices(engine)
        with torch.random.fork_rng(devices=devices):
            torch.random.set_rng_state(self._random[0])
            for device, state in zip(devices, self._random[1], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def _backward(engine: SupervisedTrainer) -> None:
    """Loss and gradients of the present weights on the present images, as
    ``SupervisedTrainer._iteration`` makes them.

    The images are those that the network saw (a handler or ``iteration_update`` may have changed
    the batch); only the network's further arguments are prepared again.
    """
    output = engine.state.output
    prepared = engine.prepare_batch(
        engine.state.batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
    )
    args, kwargs = prepared[2:] if len(prepared) > 2 else ((), {})
    scaler = engine.scaler if engine.amp else None
    with torch.autocast("cuda", **engine.amp_kwargs) if scaler is not None else nullcontext():
        predicted = engine.inferer(output[CommonKeys.IMAGE], engine.network, *args, **kwargs)
        loss = engine.loss_function(predicted, output[CommonKeys.LABEL]).mean()
    (scaler.scale(loss) if scaler is not None else loss).backward()


@contextmanager
def _unchanged(tensors: list[torch.Tensor]) -> Iterator[None]:
    """The values of ``tensors`` are afterwards what they were before, to the bit."""
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


def _cuda_devices(engine: SupervisedTrainer) -> list[torch.device]:
    device = engine.state.device
    return [device] if device is not None and device.type == "cuda" else []
