# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measurements as ignite handlers, for bundles that a stock ``MonaiAlgo`` runs.

One more measurement is a class of one line: it names its entry of
:data:`~monai_fairfl.messages.MEASUREMENTS`.
"""

from __future__ import annotations

import logging

from ignite.engine import Events
from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.handlers import boards
from monai_fairfl.handlers.training import Callbacks, Detachable
from monai_fairfl.measurements import Probe, TrainingProbe
from monai_fairfl.measurements.functions import SAM_RADIUS, Memory
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.tensors import on_cpu

logger = logging.getLogger(__name__)


class MeasurementHandler(Detachable):
    """Measures the trainer's network: the received model when a run starts, the trained at its end.

    A subclass names an entry of :data:`~monai_fairfl.messages.MEASUREMENTS` in :attr:`name`.
    It is made on the training data; :class:`ScoreHandler` takes an evaluator's data.

    Args:
        board: name that the :class:`~monai_fairfl.handlers.MeasurementsFilter` has, too.
        context: numbers for the measurement that hold where the server sends none.

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> class AnySharpness(MeasurementHandler):
    ...     name = "sharpness"
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), AnySharpness("alder", sam_rho=0.5)
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> round(handler.board.take_values()["sharpness"], 4)  # (-0.5 - 2) ** 2 - (0 - 2) ** 2
    2.25
    """

    name: str
    memory = Memory()

    def __init__(self, board: str = "default", **context: float):
        self.board = boards.board(board)
        self._context = context

    def probe(self, engine: SupervisedTrainer) -> Probe | TrainingProbe:
        """What runs the measured weights: the trainer on its own data."""
        return TrainingProbe(engine)

    def context(self) -> dict[str, float]:
        """The numbers for the measurement of this round."""
        return {**self._context, **self.board.context}

    def callbacks(self) -> Callbacks:
        """Measure when a run starts or when it ends."""
        is_received = MEASUREMENTS[self.name].of == "received"
        return {Events.STARTED if is_received else Events.COMPLETED: self._measure}

    def _measure(self, engine: SupervisedTrainer) -> None:
        weights = on_cpu(engine.network.state_dict())
        measure = MEASUREMENTS[self.name]
        value = measure(self.probe(engine), weights, self.memory, self.context())
        if value is not None:
            self.board.write(engine, self.name, value)


class ScoreHandler(MeasurementHandler):
    """Measures on an evaluator's data, in the same way.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the :class:`~monai_fairfl.handlers.MeasurementsFilter` has, too.

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator, SupervisedTrainer
    >>> from monai.handlers import MeanDice, from_engine
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> data = [dict.fromkeys(("image", "label"), torch.ones(1, 1, 4, 1))]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> evaluator = SupervisedEvaluator(cpu, data, net, key_val_metric=dice)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> class TestScore(ScoreHandler):
    ...     name = "test_score"
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.5), TestScore(evaluator, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["test_score"]["mean"].value  # at 0, the received weight
    0.0
    """

    def __init__(self, evaluator: SupervisedEvaluator, board: str = "default", **context: float):
        super().__init__(board, **context)
        self.evaluator = evaluator

    def probe(self, engine: SupervisedTrainer) -> Probe:
        """The evaluator on its own data."""
        return Probe(self.evaluator)


class GlobalScore(ScoreHandler):
    """Mean Dice of the received model on the validation data, as ``fairfl/global_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalScore", "evaluator": "@validate#evaluator"}

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator, SupervisedTrainer
    >>> from monai.handlers import MeanDice, from_engine
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> data = [dict.fromkeys(("image", "label"), torch.ones(1, 1, 4, 1))]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> evaluator = SupervisedEvaluator(cpu, data, net, key_val_metric=dice)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.5), GlobalScore(evaluator, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["global_score"]["mean"].value, net.weight.item()  # scored at 0
    (0.0, 1.0)
    """

    name = "global_score"


class LocalScore(ScoreHandler):
    """Mean Dice of the trained model on the validation data, as ``fairfl/local_score``.

    Args:
        evaluator: the bundle's evaluator, ``"@validate#evaluator"``.
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalScore", "evaluator": "@validate#evaluator"}

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator, SupervisedTrainer
    >>> from monai.handlers import MeanDice, from_engine
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> data = [dict.fromkeys(("image", "label"), torch.ones(1, 1, 4, 1))]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> evaluator = SupervisedEvaluator(cpu, data, net, key_val_metric=dice)
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.5), LocalScore(evaluator, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["local_score"]["mean"].value, net.weight.item()  # scored at 1
    (1.0, 1.0)
    """

    name = "local_score"


class GlobalLoss(MeasurementHandler):
    """The bundle's loss of the received model on the training data, as ``fairfl/global_loss``.

    It is q-FedAvg's F.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.GlobalLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), GlobalLoss("alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["global_loss"].value, net.weight.item()  # (0 - 2) ** 2
    (4.0, 1.0)
    """

    name = "global_loss"


class LocalLoss(MeasurementHandler):
    """The bundle's loss of the trained model on the training data, as ``fairfl/local_loss``.

    Args:
        board: name that the filter has, too.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.LocalLoss"}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), LocalLoss("alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> handler.board.take_values()["local_loss"].value, net.weight.item()  # (1 - 2) ** 2
    (1.0, 1.0)
    """

    name = "local_loss"


class Sharpness(MeasurementHandler):
    """FedISM's sharpness of the received model on the training data, as ``fairfl/sharpness``.

    Args:
        rho: radius in which the loss may rise, in the unit of the weights; a ``sam_rho`` that the
            server sends takes its place.
        board: name that the filter has, too.

    Raises:
        ConfigError: when ``rho`` is not above 0, or not finite.

    Example, in ``train#handlers``::

        {"_target_": "monai_fairfl.handlers.Sharpness", "rho": 0.05}

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), Sharpness(0.05, "alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> round(handler.board.take_values()["sharpness"], 4)  # (-0.05 - 2) ** 2 - (0 - 2) ** 2
    0.2025
    """

    name = "sharpness"

    def __init__(self, rho: float = SAM_RADIUS, board: str = "default"):
        super().__init__(board, sam_rho=rho)
        check_value("Sharpness: rho", rho, "float", "(0, inf)")


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
        if previous_weight is not None:
            check_value("previous_weight", previous_weight, "float", "[0, 1)")
            self._context = {"previous_weight": previous_weight}

    def callbacks(self) -> Callbacks:
        """Measure when a run starts, and remember what it has trained."""
        return {**super().callbacks(), Events.COMPLETED: self._remember}

    def _remember(self, engine: SupervisedTrainer) -> None:
        self.memory = Memory(previous=on_cpu(engine.network.state_dict()))

    def _measure(self, engine: SupervisedTrainer) -> None:
        if self.memory.previous is None:
            return
        if "previous_weight" in self.context():
            super()._measure(engine)
        else:
            logger.warning("no leave_one_out_error: nobody gives previous_weight")
