# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Measurements as ignite handlers, for bundles that a stock ``MonaiAlgo`` runs."""

from __future__ import annotations

from ignite.engine import Events, RemovableEventHandle
from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.client_state import on_cpu
from monai_fairfl.handlers.board import board
from monai_fairfl.measurements import MEASUREMENTS, Memory
from monai_fairfl.messages import Measurement
from monai_fairfl.probe import Probe

__all__ = ["GlobalScore", "LeaveOneOutError", "LocalScore"]


class _MeasurementHandler:
    """Makes one measurement of the trainer's network when a run starts (received model) or ends (trained model)."""

    name: str

    def __init__(self, evaluator: SupervisedEvaluator, board: str = "default"):
        self.probe, self.board, self.memory = Probe(evaluator), board, Memory()

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure in every run of ``engine``."""
        event = Events.STARTED if MEASUREMENTS[self.name].of == "received" else Events.COMPLETED
        self._handles: list[RemovableEventHandle] = [engine.add_event_handler(event, self._measure)]

    def detach(self) -> None:
        """Take all callbacks off the engine."""
        for handle in self._handles:
            handle.remove()

    def context(self) -> dict[str, float]:
        """The numbers the server sent for this round."""
        return board(self.board).context

    def _measure(self, engine: SupervisedTrainer) -> None:
        value = MEASUREMENTS[self.name].function(
            self.probe, on_cpu(engine.network.state_dict()), self.memory, self.context()
        )
        if value is not None:
            self._publish(value)

    def _publish(self, value: Measurement) -> None:
        board(self.board).values[self.name] = value


class GlobalScore(_MeasurementHandler):
    """Mean Dice of the received model on the validation data, as ``fairfl/global_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter was given.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalScore", "evaluator": "@validate#evaluator"}
    """

    name = "global_score"


class LocalScore(_MeasurementHandler):
    """Mean Dice of the trained model on the validation data, as ``fairfl/local_score``."""

    name = "local_score"


class LeaveOneOutError(_MeasurementHandler):
    """FedCE's 1 - Dice of the received model without this client (CVPR 2023, Eq. 3), as ``fairfl/leave_one_out_error``.

    The model without this client needs the weight with which its last update entered: the server's
    ``context["previous_weight"]`` where a ``MeasurementsFilter`` among ``pre_filters`` brings it, else
    ``previous_weight``. Nothing is measured in the first round.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        previous_weight: used when the server sends none, for example 1 / (number of clients).
        board: name that the filter was given.
    """

    name = "leave_one_out_error"

    def __init__(self, evaluator: SupervisedEvaluator, previous_weight: float = 0.0, board: str = "default"):
        super().__init__(evaluator, board)
        self.previous_weight = previous_weight

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure when a run starts, and remember the trained model when it ends."""
        super().attach(engine)
        self._handles.append(engine.add_event_handler(Events.COMPLETED, self._remember))

    def context(self) -> dict[str, float]:
        return {"previous_weight": self.previous_weight, **super().context()}

    def _measure(self, engine: SupervisedTrainer) -> None:
        if self.memory.local is not None:
            super()._measure(engine)

    def _remember(self, engine: SupervisedTrainer) -> None:
        self.memory = Memory(on_cpu(engine.network.state_dict()))
