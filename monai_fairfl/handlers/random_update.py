# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replaces what a site learnt by random numbers: an attack, for exercises of a federation."""

from __future__ import annotations

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from torch.nn.utils import get_total_norm

from monai_fairfl.handlers.detachable import Callbacks, Detachable
from monai_fairfl.utils.arguments import check_value


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
