# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measurements as ignite handlers, for bundles that a stock ``MonaiAlgo`` runs."""

from __future__ import annotations

import logging

from ignite.engine import Events
from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.handlers.base import Detachable
from monai_fairfl.handlers.stock_client import board
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS, Memory
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.protocol.values import Measurement
from monai_fairfl.utils.tensors import on_cpu

logger = logging.getLogger(__name__)


class _MeasurementHandler(Detachable):
    """Makes one measurement of the trainer's network when a run starts (received model) or ends
    (trained model).
    """

    name: str
    memory = Memory()

    def __init__(self, board: str = "default"):
        self.board = board

    def probe(self, engine: SupervisedTrainer) -> Probe | TrainingProbe:
        """What runs the measured weights: the trainer on its own data."""
        return TrainingProbe(engine)

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure in every run of ``engine``."""
        event = Events.STARTED if MEASUREMENTS[self.name].of == "received" else Events.COMPLETED
        self._handles = [engine.add_event_handler(event, self._measure)]

    def context(self) -> dict[str, float]:
        """The numbers the server sent for this round."""
        return board(self.board).context

    def _measure(self, engine: SupervisedTrainer) -> None:
        value = MEASUREMENTS[self.name].function(
            self.probe(engine), on_cpu(engine.network.state_dict()), self.memory, self.context()
        )
        if value is not None:
            self._publish(value)

    def _publish(self, value: Measurement) -> None:
        board(self.board).values[self.name] = value


class _ScoreHandler(_MeasurementHandler):
    def __init__(self, evaluator: SupervisedEvaluator, board: str = "default"):
        super().__init__(board)
        self.evaluator = evaluator

    def probe(self, engine: SupervisedTrainer) -> Probe:
        """The evaluator on the validation data."""
        return Probe(self.evaluator)


class GlobalScore(_ScoreHandler):
    """Mean Dice of the received model on the validation data, as ``fairfl/global_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter was given.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalScore", "evaluator": "@validate#evaluator"}
    """

    name = "global_score"


class LocalScore(_ScoreHandler):
    """Mean Dice of the trained model on the validation data, as ``fairfl/local_score``."""

    name = "local_score"


class LeaveOneOutError(_ScoreHandler):
    """FedCE's 1 - Dice of the received model without this client (CVPR 2023, Eq. 3), as
    ``fairfl/leave_one_out_error``.

    The model without this client needs the weight with which its last update entered: the server's
    ``context["previous_weight"]`` where a ``MeasurementsFilter`` among ``pre_filters`` brings it,
    else ``previous_weight``. Nothing is measured in the first round, nor without either: the
    received model would pass for the one without this client.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        previous_weight: used when the server sends none, for example 1 / (number of clients).
        board: name that the filter was given.
    """

    name = "leave_one_out_error"

    def __init__(
        self,
        evaluator: SupervisedEvaluator,
        previous_weight: float | None = None,
        board: str = "default",
    ):
        super().__init__(evaluator, board)
        self.previous_weight = previous_weight

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure when a run starts, and remember the trained model when it ends."""
        super().attach(engine)
        self._handles.append(engine.add_event_handler(Events.COMPLETED, self._remember))

    def context(self) -> dict[str, float]:
        own = {} if self.previous_weight is None else {"previous_weight": self.previous_weight}
        return {**own, **super().context()}

    def _measure(self, engine: SupervisedTrainer) -> None:
        if self.memory.previous is None:
            return
        if "previous_weight" in self.context():
            super()._measure(engine)
        else:
            logger.warning(
                "no leave_one_out_error: neither the server nor the configuration gives previous_weight"
            )

    def _remember(self, engine: SupervisedTrainer) -> None:
        self.memory = Memory(on_cpu(engine.network.state_dict()))


class GlobalLoss(_MeasurementHandler):
    """The bundle's training loss of the received model on the training data, as
    ``fairfl/global_loss`` (q-FedAvg's F).

    Args:
        board: name that the filter was given.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalLoss"}
    """

    name = "global_loss"


class LocalLoss(_MeasurementHandler):
    """The bundle's training loss of the trained model on the training data, as
    ``fairfl/local_loss``.
    """

    name = "local_loss"


class Sharpness(_MeasurementHandler):
    """FedISM's sharpness of the received model on the training data, as ``fairfl/sharpness``.

    Args:
        rho: radius in which the loss may rise, in the unit of the weights.
        board: name that the filter was given.
    """

    name = "sharpness"

    def __init__(self, rho: float = 0.05, board: str = "default"):
        super().__init__(board)
        self.rho = rho

    def context(self) -> dict[str, float]:
        return {"sam_rho": self.rho, **super().context()}
