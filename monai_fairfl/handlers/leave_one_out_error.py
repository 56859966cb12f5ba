# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures FedCE's error of the received model without this client, as an ignite handler."""

from __future__ import annotations

import logging

from ignite.engine import Events
from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.measuring import ScoreHandler
from monai_fairfl.measurements.entry import Memory
from monai_fairfl.measurements.leave_one_out import LARGEST_WEIGHT
from monai_fairfl.utils.tensors import on_cpu

logger = logging.getLogger(__name__)


class LeaveOneOutError(ScoreHandler):
    """FedCE's 1 - Dice of the model without this client, as ``fairfl/leave_one_out_error``.

    Source: Jiang et al., CVPR 2023, Eq. 3. The model without this client needs the weight with
    which its last update entered: the server's ``context["previous_weight"]`` where a
    ``MeasurementsFilter`` among ``pre_filters`` brings it, else ``previous_weight``. Nothing is
    measured in the first round, nor without either weight: the received model would pass for the
    one without this client.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        previous_weight: used when the server sends none, at least 0 and below 1, for example 1 /
            (number of clients).
        board: name that the filter has, too.

    Raises:
        ConfigError: when ``previous_weight`` is outside of this range. Of a client of weight 1,
            which was alone in the average, there is no model without it.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LeaveOneOutError", "evaluator": "@validate#evaluator"}

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator, SupervisedTrainer
    >>> from monai.handlers import MeanDice, from_engine
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> data = [dict.fromkeys(("image", "label"), torch.ones(1, 1, 4, 1))]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> evaluator = SupervisedEvaluator(cpu, data, net, key_val_metric=dice)
    >>> handler = LeaveOneOutError(evaluator, previous_weight=0.5, board="alder")
    >>> sgd = torch.optim.SGD(net.parameters(), 0.5)
    >>> trainer = SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler])
    >>> for received in (0.0, 0.5):  # trained to 1, then averaged with another site's 0
    ...     _ = torch.nn.init.constant_(net.weight, received)
    ...     trainer.run()
    >>> handler.board.take_values()["leave_one_out_error"].value  # without this site: 0
    1.0
    """

    name = "leave_one_out_error"

    def __init__(
        self,
        evaluator: SupervisedEvaluator,
        previous_weight: float | None = None,
        board: str = "default",
    ):
        super().__init__(evaluator, board)
        if previous_weight is not None and not 0 <= previous_weight <= LARGEST_WEIGHT:
            raise ConfigError(
                "LeaveOneOutError previous_weight must be at least 0 and below 1, got "
                f"{previous_weight!r}: give this client's share of the average, not in percent, "
                "such as 1 / (number of clients)"
            )
        self.previous_weight = previous_weight

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure when a run starts, and store the trained model when it ends."""
        super().attach(engine)
        self._handles.append(engine.add_event_handler(Events.COMPLETED, self._store_model))

    def context(self) -> dict[str, float]:
        context = dict(super().context())
        if self.previous_weight is not None:
            context.setdefault("previous_weight", self.previous_weight)
        return context

    def _measure(self, engine: SupervisedTrainer) -> None:
        if self.memory.previous is None:
            return
        if "previous_weight" not in self.context():
            logger.warning(
                "no leave_one_out_error: neither the server nor the configuration gives "
                "previous_weight"
            )
            return
        super()._measure(engine)

    def _store_model(self, engine: SupervisedTrainer) -> None:
        self.memory = Memory(previous=on_cpu(engine.network.state_dict()))
