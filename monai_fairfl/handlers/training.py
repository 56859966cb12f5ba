# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What acts while a bundle's trainer runs: counts, terms of an objective, other gradients.

Every handler of this package can be detached, which MONAI's handlers cannot be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from ignite.engine import Engine, Events, RemovableEventHandle
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys, convert_to_tensor
from torch.nn.utils import get_total_norm

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import boards
from monai_fairfl.measurements.probe import inferred
from monai_fairfl.measurements.sharpness import gsam_direction, perturbation
from monai_fairfl.messages import Weights
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.engine_internals import put_last_handler_first
from monai_fairfl.utils.tensors import labelled_channels

Callbacks = dict[Any, Callable[..., None]]
"""Event of an engine -> what a handler does then."""


class Detachable(ABC):
    """An ignite handler: a subclass says in :meth:`callbacks` when it does what.

    >>> from ignite.engine import Engine, Events
    >>> class Hello(Detachable):
    ...     def callbacks(self):
    ...         return {Events.STARTED: lambda engine: print("hello")}
    >>> engine, hello = Engine(lambda engine, batch: None), Hello()
    >>> hello.attach(engine)
    >>> _ = engine.run([0])
    hello
    >>> hello.detach()
    >>> _ = engine.run([0])
    """

    _handles: Sequence[RemovableEventHandle] = ()

    @abstractmethod
    def callbacks(self) -> Callbacks:
        """What the handler does when."""

    def attach(self, engine: Any) -> None:
        """Act in every run of ``engine``."""
        callbacks = self.callbacks().items()
        self._handles = [engine.add_event_handler(event, act) for event, act in callbacks]

    def detach(self) -> None:
        """Act no longer; nothing happens before ``attach``."""
        for handle in self._handles:
            handle.remove()


def loss_scale_of(engine: Any) -> float:
    """The factor of mixed precision by which the gradients of ``engine`` are too large."""
    has_scale = engine.amp and engine.scaler is not None
    return float(engine.scaler.get_scale()) if has_scale else 1.0


class TrainLoss(Detachable):
    r"""Mean training loss over the images of a round, :math:`\sum_b n_b L_b / \sum_b n_b`.

    It also counts images and optimizer steps, and records for each channel of the label whether any
    image labels it: a channel below 0 is one that this site does not label
    (:class:`~monai_fairfl.losses.LabelledLoss`). A label with other channels than the prediction
    has indices of classes, from which this cannot be read.

    No number is read while the training runs, so that a GPU never waits for the processor's next
    step: the losses stay where they are until somebody asks for one of the sums.

    Args:
        board: name under which :class:`~monai_fairfl.handlers.MeasurementsFilter` finds the value,
            for a stock ``MonaiAlgo``; ``None``: the value stays in :attr:`value`.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.TrainLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> batches = [(torch.ones(1, 1), 2.0), (torch.ones(3, 1), 1.0)]
    >>> data = [{"image": image, "label": label * image} for image, label in batches]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.0), TrainLoss(board=None)
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.value, handler.images, handler.steps  # (1 * 4 + 3 * 1) / 4
    (1.75, 4, 2)
    """

    def __init__(self, board: str | None = "default"):
        self.board = None if board is None else boards.board(board)
        self.reset()

    def reset(self) -> None:
        """Begin a new round."""
        self.images = 0
        self.steps = 0
        # Of each batch: its loss, where it was computed, and its number of images.
        self._batches: list[tuple[torch.Tensor, int]] = []
        # Which channels any batch so far labels.
        self._labelled: torch.Tensor | None = None

    @property
    def labelled(self) -> tuple[bool, ...]:
        """For each channel of the label, whether any image so far labels it."""
        return () if self._labelled is None else tuple(self._labelled.tolist())

    @property
    def value(self) -> float | None:
        """The mean so far; ``None`` before the first step."""
        total = 0.0
        for loss, images in self._batches:
            total += loss.item() * images
        return total / self.images if self.images else None

    def callbacks(self) -> Callbacks:
        """Count from the start of every run."""
        found: Callbacks = {Events.STARTED: self.reset}
        found[IterationEvents.LOSS_COMPLETED] = self._count
        return found if self.board is None else {**found, Events.COMPLETED: self._publish}

    def _count(self, engine: Engine) -> None:
        output: Any = engine.state.output
        images = len(output[CommonKeys.IMAGE])
        loss = convert_to_tensor(output[CommonKeys.LOSS].detach(), track_meta=False)
        self._batches.append((loss.mean(), images))
        self.images += images

        # MONAI's trainer steps with the last batch of each group of accumulated batches, and of
        # each epoch.
        batches_per_step = getattr(engine, "accumulation_steps", 1)
        epoch_length = engine.state.epoch_length
        batch = engine.state.iteration
        if epoch_length is not None:
            batch = (batch - 1) % epoch_length + 1
        self.steps += batch % batches_per_step == 0 or batch == epoch_length

        label = output.get(CommonKeys.LABEL)
        predicted = output.get(CommonKeys.PRED)
        # With deep supervision there are several predictions: a list, the finest first, or one
        # tensor (B, S, C, ...).
        if isinstance(predicted, (list, tuple)):
            predicted = predicted[0]
        if isinstance(label, torch.Tensor) and label.ndim > 2:
            shape = tuple(getattr(predicted, "shape", ()))
            axis = 2 if len(shape) == label.ndim + 1 else 1
            if tuple(label.shape[1:2]) == shape[axis : axis + 1]:
                labelled = labelled_channels(convert_to_tensor(label, track_meta=False)).any(0)
                self._labelled = labelled if self._labelled is None else self._labelled | labelled

    def _publish(self, engine: Engine) -> None:
        if self.board is not None and self.value is not None:
            self.board.write(engine, "train_loss", self.value)


class Proximal(Detachable):
    r"""Trains :math:`L(w) + \frac{\mu}{2} \lVert w - a \rVert^2` instead of :math:`L(w)`.

    Every gradient gets :math:`\mu (w - a)` added. With the received weights as anchor a it is
    FedProx (Li et al., MLSys 2020, Eq. 2); with Ditto's lambda, on the personal model, it is Ditto
    (Li et al., ICML 2021, Algorithm 1). Trainable parameters only; one that the anchor does not
    name (it stays at the site) is not pulled. Loss scaling and accumulated batches are respected.

    Args:
        mu: strength of the pull, at least 0; 0 is plain training.
        anchor: a; ``None``: the weights with which each run begins.

    Raises:
        ConfigError: when ``mu`` is negative.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.Proximal", "mu": 0.01}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd = torch.optim.SGD(net.parameters(), 0.25)
    >>> SupervisedTrainer(cpu, 9, data, net, sgd, loss, train_handlers=[Proximal(2.0)]).run()
    >>> net.weight.item()  # where (w - 2) ** 2 + (w - 0) ** 2 is least
    1.0
    """

    def __init__(self, mu: float, anchor: Weights | None = None):
        check_value("Proximal: mu", mu, "float", "[0, inf]")
        self.mu = float(mu)
        self.anchor = anchor

    def callbacks(self) -> Callbacks:
        """Take the anchor when a run starts, and act on the gradients of every iteration."""
        return {Events.STARTED: self._take_anchor, IterationEvents.BACKWARD_COMPLETED: self._pull}

    def _take_anchor(self, engine: SupervisedTrainer) -> None:
        """Pair each trainable parameter with its anchor."""
        self._pairs: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        for name, parameter in engine.network.named_parameters():
            if not parameter.requires_grad:
                continue
            if self.anchor is None:
                self._pairs.append((parameter, parameter.detach().clone()))
            elif name in self.anchor:
                self._pairs.append((parameter, self.anchor[name].to(parameter)))

    def _pull(self, engine: SupervisedTrainer) -> None:
        if self.mu == 0:
            return
        # Each accumulated batch adds its share, as the loss does, and has the loss's scale.
        strength = self.mu * loss_scale_of(engine) / engine.accumulation_steps
        pulled = [(one, anchor) for one, anchor in self._pairs if one.grad is not None]
        if not pulled:
            return
        parameters, anchors = zip(*pulled, strict=True)
        gradients = [parameter.grad for parameter in parameters]
        with torch.no_grad():
            # For the whole model at once: on a GPU few kernels, and not some for each parameter.
            distances = torch._foreach_sub(parameters, anchors)
            torch._foreach_add_(gradients, distances, alpha=strength)


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
        if loss_scale != 1 and not torch.isfinite(get_total_norm(clean)):
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


class RandomUpdate(Detachable):
    r"""Ends each training at :math:`w + c\, \lVert \Delta \rVert\, z / \lVert z \rVert`.

    w are the weights with which the training begins, :math:`\Delta` is what it changes, and z are
    independent standard normal numbers. So the update has the length of an honest one, times c, and
    no direction. The numbers come from torch's generator, which a site seeds for each round: a run
    from the same seed sends the same.

    It is meant for exercises, in which a consortium sees what its guards do. ``make demo-attack``
    uses it.

    Args:
        factor: c, above 0.

    Raises:
        ConfigError: when ``factor`` is not above 0, or not finite.

    Example, in a bundle's ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.RandomUpdate"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(3, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 3), "label": torch.full((1, 1), 2.0)}]
    >>> sgd = torch.optim.SGD(net.parameters(), 0.25)
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[RandomUpdate(10)]).run()
    >>> round(net.weight.norm().item() / 3**0.5, 4)  # the honest update is [1, 1, 1]
    10.0
    """

    def __init__(self, factor: float = 1.0):
        check_value("RandomUpdate: factor", factor, "float", "(0, inf)")
        self.factor = float(factor)

    def callbacks(self) -> Callbacks:
        """Replace what a run has learnt when it ends."""
        return {Events.STARTED: self._remember_start, Events.COMPLETED: self._replace}

    def _remember_start(self, engine: SupervisedTrainer) -> None:
        # A frozen parameter is no part of the update.
        parameters = engine.network.parameters()
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._start = [parameter.detach().clone() for parameter in self._trained]

    def _replace(self, engine: SupervisedTrainer) -> None:
        with torch.no_grad():
            pairs = zip(self._trained, self._start, strict=True)
            learnt = [parameter - start for parameter, start in pairs]
            noise = [torch.randn_like(start) for start in self._start]
            length = get_total_norm([change.double() for change in learnt])
            of_noise = get_total_norm([numbers.double() for numbers in noise])
            scale = float(self.factor * length / of_noise)
            for parameter, start, numbers in zip(self._trained, self._start, noise, strict=True):
                parameter.copy_(start + scale * numbers)
