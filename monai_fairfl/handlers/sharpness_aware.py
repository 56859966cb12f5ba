# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes training sharpness-aware (SAM, GSAM), as an ignite handler."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.detachable import Callbacks, Detachable, loss_scale_of
from monai_fairfl.measurements.forward import inferred
from monai_fairfl.measurements.sharpness import gsam_direction, perturbation, total_norm
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.engine_internals import put_last_handler_first


class SharpnessAware(Detachable):
    r"""Every step follows the gradient at the worst weights nearby.

    SAM is by Foret et al., ICLR 2021; GSAM by Zhuang et al., ICLR 2022.

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

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd = torch.optim.SGD(net.parameters(), 0.25)
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[SharpnessAware(0.5)]).run()
    >>> net.weight.item()  # 0.25 times the slope at -0.5, which is 5; the one at 0 is 4
    1.25
    """

    def __init__(self, rho: float, alpha: float = 0.0):
        for name, value in (("rho", rho), ("alpha", alpha)):
            check_value(f"SharpnessAware: {name}", value, "float", "[0, inf]")
        self.rho = float(rho)
        self.alpha = float(alpha)

    def callbacks(self) -> Callbacks:
        """Replace the gradients of every iteration."""
        return {
            Events.STARTED: self._check,
            Events.ITERATION_STARTED: self._store_random_state,
            IterationEvents.BACKWARD_COMPLETED: self._replace_gradients,
        }

    def attach(self, engine: SupervisedTrainer) -> None:
        """Act in every run of ``engine``, before whatever else acts on gradients."""
        super().attach(engine)
        # What clips gradients or adds to them acts on the gradients that this handler makes.
        put_last_handler_first(engine, IterationEvents.BACKWARD_COMPLETED)

    def _check(self, engine: SupervisedTrainer) -> None:
        # When a bundle's trainer attaches its handlers, it does not know this number yet.
        if engine.accumulation_steps > 1:
            raise ConfigError(
                "sharpness-aware training needs the whole gradient in every iteration: set the "
                "trainer's accumulation_steps to 1"
            )

    def _store_random_state(self, engine: SupervisedTrainer) -> None:
        device = engine.state.device
        self._devices = [device] if device is not None and device.type == "cuda" else []
        self._cpu_state = torch.random.get_rng_state()
        self._cuda_states = [torch.cuda.get_rng_state(device) for device in self._devices]

    def _replace_gradients(self, engine: SupervisedTrainer) -> None:
        if self.rho == 0:
            return
        parameters = []
        for group in engine.optimizer.param_groups:
            parameters += [one for one in group["params"] if one.grad is not None]
        clean = [parameter.grad for parameter in parameters]
        # The scaler skips the step of a gradient that overflowed: it stays as it is. Without a
        # scale nothing is asked of the gradient here, for which a GPU would have to wait.
        loss_scale = loss_scale_of(engine)
        if loss_scale != 1 and not torch.isfinite(total_norm(clean)):
            return

        # Gradient at w + epsilon, with the random numbers of this iteration's first pass.
        unchanged = [*parameters, *engine.network.buffers()]
        values = [tensor.detach().clone() for tensor in unchanged]
        steps = perturbation(clean, self.rho, loss_scale)
        with torch.random.fork_rng(devices=self._devices):
            torch.random.set_rng_state(self._cpu_state)
            for device, state in zip(self._devices, self._cuda_states, strict=True):
                torch.cuda.set_rng_state(state, device)
            with torch.no_grad():
                torch._foreach_add_(parameters, steps)
            for parameter in parameters:
                parameter.grad = None
            _backward(engine)

        # Weights and buffers are w's again, to the bit.
        with torch.no_grad():
            for tensor, value in zip(unchanged, values, strict=True):
                tensor.copy_(value)
        for parameter in parameters:
            # The second pass did not use this parameter.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

        # GSAM: take out a share of what is orthogonal to the perturbed gradient.
        if self.alpha:
            perturbed = [parameter.grad for parameter in parameters]
            directions = gsam_direction(clean, perturbed, self.alpha)
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.grad = direction


def _backward(engine: SupervisedTrainer) -> None:
    """Loss and gradients of the present weights on the present images.

    They are computed as ``SupervisedTrainer`` computes them. The images are those that the network
    saw (a handler or ``iteration_update`` may have changed the batch); only the network's further
    arguments are prepared again.
    """
    output = engine.state.output
    scaler = engine.scaler if engine.amp else None
    precision = nullcontext() if scaler is None else torch.autocast("cuda", **engine.amp_kwargs)
    with precision:
        predicted, _, _ = inferred(engine, engine.state.batch, images=output[CommonKeys.IMAGE])
        loss = engine.loss_function(predicted, output[CommonKeys.LABEL]).mean()
    if scaler is not None:
        loss = scaler.scale(loss)
    loss.backward()
