# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Where handlers of a stock ``MonaiAlgo`` leave measurements, and the one filter that sends them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from monai.fl.utils.exchange_object import ExchangeObject
from monai.fl.utils.filters import Filter

from monai_fairfl.protocol.values import Measurement, value_of

PREFIX = "fairfl/"


@dataclass
class Board:
    """Measurements of the last round (``values``) and what the server sent for it (``context``)."""

    values: dict[str, Measurement] = field(default_factory=dict)
    context: dict[str, float] = field(default_factory=dict)


_boards: defaultdict[str, Board] = defaultdict(Board)


def board(name: str) -> Board:
    """The board ``name`` of this process; several stock clients in one process use one name each.

    >>> board("doctest") is board("doctest")
    True
    """
    return _boards[name]


class MeasurementsFilter(Filter):
    """Sends what the handlers measured in ``statistics``, as ``fairfl/<measurement>``: numbers that
    adapters forward.

    Put it among ``post_weight_filters``. Put it among ``pre_filters`` too and it takes in what the
    server sent as ``data["context"]``, for example ``{"previous_weight": 0.25}``.

    Args:
        board: name that the handlers were given.

    Example, ``configs/fl_filters.json``::

        {"post_weight_filters": [{"_target_": "monai_fairfl.handlers.MeasurementsFilter"}]}
    """

    def __init__(self, board: str = "default"):
        self.board = board

    def __call__(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Add the measurements to outgoing weights, or read the context of incoming ones."""
        mine = board(self.board)
        if isinstance(data.get("context"), dict):
            mine.context = {str(name): float(value) for name, value in data["context"].items()}
        if data.statistics is not None:
            data.statistics |= {
                PREFIX + name: value_of(value) for name, value in mine.values.items()
            }
            mine.values = {}
        return data
