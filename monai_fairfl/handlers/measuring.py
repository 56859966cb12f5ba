# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Makes a measurement an ignite handler, for bundles that a stock ``MonaiAlgo`` runs."""

from __future__ import annotations

from ignite.engine import Events
from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers import boards
from monai_fairfl.handlers.base import Detachable
from monai_fairfl.measurements.entry import Memory
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.utils.tensors import on_cpu


class MeasurementHandler(Detachable):
    """Measures the trainer's network: the received model when a run starts, the trained at its end.

    A subclass names an entry of :data:`~monai_fairfl.measurements.MEASUREMENTS` in :attr:`name`.
    It is made on the training data; :class:`ScoreHandler` takes an evaluator's data.

    Args:
        board: name that the :class:`~monai_fairfl.handlers.MeasurementsFilter` has, too.

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> cpu, net, loss = torch.device("cpu"), torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> _ = torch.nn.init.zeros_(net.weight)
    >>> data = [{"image": torch.ones(1, 1), "label": torch.full((1, 1), 2.0)}]
    >>> class WideSharpness(MeasurementHandler):
    ...     name = "sharpness"
    ...     def context(self):
    ...         return {"sam_rho": 0.5}
    >>> sgd, handler = torch.optim.SGD(net.parameters(), 0.25), WideSharpness("alder")
    >>> SupervisedTrainer(cpu, 1, data, net, sgd, loss, train_handlers=[handler]).run()
    >>> round(handler.board.take_values()["sharpness"], 4)  # (-0.5 - 2) ** 2 - (0 - 2) ** 2
    2.25
    """

    name: str
    memory = Memory()

    def __init__(self, board: str = "default"):
        self.board = boards.board(board)

    def probe(self, engine: SupervisedTrainer) -> Probe | TrainingProbe:
        """What runs the measured weights: the trainer on its own data."""
        return TrainingProbe(engine)

    def attach(self, engine: SupervisedTrainer) -> None:
        """Measure in every run of ``engine``.

        Raises:
            ConfigError: when :attr:`name` is no measurement's.
        """
        name = getattr(self, "name", None)
        if name not in MEASUREMENTS:
            raise ConfigError(
                f"{type(self).__name__}: name must be that of a measurement, such as "
                f"{', '.join(sorted(MEASUREMENTS))}; got {name!r}"
            )
        if MEASUREMENTS[self.name].of == "received":
            event = Events.STARTED
        else:
            event = Events.COMPLETED
        self._handles = [
            engine.add_event_handler(Events.STARTED, self._begin),
            engine.add_event_handler(event, self._measure),
        ]

    def context(self) -> dict[str, float]:
        """The numbers that the server sent for this round."""
        return self.board.context

    def _begin(self, engine: SupervisedTrainer) -> None:
        # Not the board's method itself: ignite takes those of all handlers of a board for the same.
        self.board.begin(engine)

    def _measure(self, engine: SupervisedTrainer) -> None:
        function = MEASUREMENTS[self.name].function
        weights = on_cpu(engine.network.state_dict())
        value = function(self.probe(engine), weights, self.memory, self.context())
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

    def __init__(self, evaluator: SupervisedEvaluator, board: str = "default"):
        super().__init__(board)
        self.evaluator = evaluator

    def probe(self, engine: SupervisedTrainer) -> Probe:
        """The evaluator on its own data."""
        return Probe(self.evaluator)
