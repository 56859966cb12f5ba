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

from ignite.engine import Engine

from monai_fairfl.messages import Measurement

logger = logging.getLogger(__name__)


class Board:
    """The measurements of one client's round, and what the server sent for it.

    Args:
        name: by which handlers and filters find it.

    Attributes:
        values: measurements that were not sent yet.

    >>> from ignite.engine import Engine
    >>> site, trainer = Board("alder"), Engine(lambda engine, batch: None)
    >>> site.write(trainer, "train_loss", 0.25)
    >>> site.take_values(), site.take_values()
    ({'train_loss': 0.25}, {})
    >>> site.context = {"previous_weight": 0.5}
    >>> site.begin(trainer)  # as a training begins
    >>> site.drop_used_context()  # as weights came without a context
    >>> site.context
    {}
    """

    def __init__(self, name: str):
        self.name = name
        self.values: dict[str, Measurement] = {}
        self._context: dict[str, float] = {}
        self._context_is_used = False
        self._writer: weakref.ReferenceType[Engine] | None = None

    @property
    def context(self) -> dict[str, float]:
        """The server's numbers for this round."""
        return self._context

    @context.setter
    def context(self, context: dict[str, float]) -> None:
        self._context = context
        self._context_is_used = False

    def begin(self, engine: Engine) -> None:
        """A training begins under the context: weights that come later are of another round.

        Values of another engine are dropped, as in :meth:`write`: this training may measure nothing
        that would take their place.
        """
        self._drop_those_of_another(engine)
        self._context_is_used = True

    def drop_used_context(self) -> None:
        """Weights came without a context: that of an earlier round is not theirs."""
        if self._context_is_used:
            self.context = {}

    def write(self, engine: Engine, name: str, value: Measurement) -> None:
        """Store a measurement that a handler of ``engine`` made.

        Values of another engine that were not sent by then are dropped with a warning, so that no
        client sends another client's numbers.
        """
        self._drop_those_of_another(engine)
        self._writer = weakref.ref(engine)
        self.values[name] = value

    def _drop_those_of_another(self, engine: Engine) -> None:
        of_other_engine = self._writer is not None and self._writer() is not engine
        if self.values and of_other_engine:
            logger.warning(
                "the board %r holds %s of another training, which were not sent and are dropped; "
                "clients that train at the same time in one process need names of their own: "
                "give their handlers and filters different board arguments",
                self.name,
                ", ".join(sorted(self.values)),
            )
            self.values = {}

    def take_values(self) -> dict[str, Measurement]:
        """The measurements, which are not stored any longer: each is sent once."""
        values = self.values
        self.values = {}
        return values


_boards: weakref.WeakValueDictionary[str, Board] = weakref.WeakValueDictionary()


def board(name: str) -> Board:
    """The board ``name``, which lives as long as somebody has it.

    Several stock clients in one process need a name each.

    >>> mine = board("doctest")
    >>> board("doctest") is mine
    True
    """
    found = _boards.get(name)
    if found is None:
        found = Board(name)
        _boards[name] = found
    return found
