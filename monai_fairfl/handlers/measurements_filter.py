# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sends the measurements of a stock ``MonaiAlgo``'s handlers along with its weights."""

from __future__ import annotations

from typing import Any

from monai.fl.utils.exchange_object import ExchangeObject
from monai.fl.utils.filters import Filter

from monai_fairfl.handlers import boards
from monai_fairfl.messages import value_of

PREFIX = "fairfl/"


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
        self.board = boards.board(board)

    def __call__(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Add the measurements to outgoing weights, or read the context of incoming ones."""
        # Incoming weights have no statistics; those of outgoing ones are the trainer's.
        is_incoming = data.statistics is None
        context = data.get("context")
        if isinstance(context, dict):
            self.board.context = {str(name): float(value) for name, value in context.items()}
        elif is_incoming:
            self.board.drop_used_context()

        if data.statistics is not None:
            statistics = dict(data.statistics)
            for name, value in self.board.take_values().items():
                statistics[PREFIX + name] = value_of(value)
            data.statistics = statistics
        return data
