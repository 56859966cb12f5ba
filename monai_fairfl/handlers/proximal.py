# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Pulls the weights towards given ones during training: FedProx, Ditto's personal objective."""

from __future__ import annotations

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents

from monai_fairfl.handlers.detachable import Callbacks, Detachable, loss_scale_of
from monai_fairfl.messages import Weights
from monai_fairfl.utils.arguments import check_value


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
