# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Connects the handlers of a stock ``MonaiAlgo`` with its ``MeasurementsFilter``, by name.

A stock ``MonaiAlgo`` gives its filters no way to its trainer. It builds them from
``fl_filters.json`` with a parser of its own, so ``"@board"`` cannot refer to an object of
``train.json``; it builds one filter for incoming and another for outgoing weights; and it hands
them the weights and the engine's ``extra``, neither of which leads to the trainer or names the
client. What the handlers and the filters of a client have in common is the name that the site's
configuration gives to both: ``board="..."``.

So there is a registry of names, and nothing else is shared by a process. It holds boards weakly: a
board lives as long as a handler or a filter that has it, and ends with its client.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from ignite.engine import Engine
from monai.fl.utils.exchange_object import ExchangeObject
from monai.fl.utils.filters import Filter

from monai_fairfl.messages import Measurement, value_of

logger = logging.getLogger(__name__)

PREFIX = "fairfl/"


class Board:
    """The measurements of one client's round, and what the server sent for it.

    Args:
        name: by which handlers and filters find it.

    Attributes:
        values: measurements that were not sent yet.
        context: the server's numbers for this round; empty where weights came without any.

    >>> from ignite.engine import Engine
    >>> site, trainer = Board("alder"), Engine(lambda engine, batch: None)
    >>> site.write(trainer, "train_loss", 0.25)
    >>> site.take_values(), site.take_values()
    ({'train_loss': 0.25}, {})
    """

    def __init__(self, name: str):
        self.name = name
        self.values: dict[str, Measurement] = {}
        self.context: dict[str, float] = {}
        self._writer: Engine | None = None

    def write(self, engine: Engine, name: str, value: Measurement) -> None:
        """Store a measurement that a handler of ``engine`` made.

        Values of another engine that were not sent by then are dropped with a warning, so that no
        client sends another client's numbers.
        """
        if self.values and self._writer not in (None, engine):
            logger.warning(
                "the board %r drops %s of another training: give clients of one process different "
                "board arguments",
                self.name,
                sorted(self.values),
            )
            self.values = {}
        self._writer = engine
        self.values[name] = value

    def take_values(self) -> dict[str, Measurement]:
        """The measurements, which are not stored any longer: each is sent once."""
        values, self.values = self.values, {}
        return values


_boards: weakref.WeakValueDictionary[str, Board] = weakref.WeakValueDictionary()


def board(name: str) -> Board:
    """The board ``name``, which lives as long as somebody has it.

    Several stock clients in one process need a name each.

    >>> mine = board("doctest")
    >>> board("doctest") is mine
    True
    """
    return _boards.setdefault(name, Board(name))


class MeasurementsFilter(Filter):
    """Sends what the handlers measured in ``statistics``, as ``fairfl/<measurement>``.

    Adapters of FL engines forward the numbers in ``statistics``. Put the filter among
    ``post_weight_filters``. Put it among ``pre_filters`` too, and the handlers get what the server
    sent as ``data["context"]``, for example ``{"previous_weight": 0.25}``. Where weights come
    without a context, the handlers get an empty one, and not that of an earlier round.

    Args:
        board: name that the handlers have, too.

    Example, ``configs/fl_filters.json``::

        {"post_weight_filters": [{"_target_": "monai_fairfl.handlers.MeasurementsFilter"}]}

    >>> from monai.fl.utils.exchange_object import ExchangeObject
    >>> from monai_fairfl.handlers import board
    >>> site, filter_weights = board("birch"), MeasurementsFilter("birch")
    >>> site.values["train_loss"] = 0.25  # as a handler stores it
    >>> filter_weights(ExchangeObject(statistics={})).statistics
    {'fairfl/train_loss': 0.25}
    >>> incoming = ExchangeObject(weights={})
    >>> incoming["context"] = {"previous_weight": 0.5}
    >>> _ = filter_weights(incoming)
    >>> site.context
    {'previous_weight': 0.5}
    """

    def __init__(self, board: str = "default"):
        self.board = _boards.setdefault(board, Board(board))

    def __call__(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Add the measurements to outgoing weights, or read the context of incoming ones."""
        # Incoming weights have no statistics; those of outgoing ones are the trainer's.
        if data.statistics is None:
            self.board.context = dict(data.get("context") or {})
        else:
            data.statistics = dict(data.statistics)
            for name, value in self.board.take_values().items():
                data.statistics[PREFIX + name] = value_of(value)
        return data
