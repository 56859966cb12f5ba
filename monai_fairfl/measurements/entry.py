# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Declares what a measurement is: its function, the model and the data that it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from monai_fairfl.messages import Measurement, Weights


@dataclass(frozen=True)
class Memory:
    """The models that a client stored after earlier trainings; ``None``: it has none.

    Args:
        previous: the weights that it trained in the previous round, exactly that one.
        present: the weights that it has trained in this round.

    >>> import torch
    >>> def moved(probe, weights, memory, context):
    ...     if memory.previous is None:
    ...         return None
    ...     return float((weights["w"] - memory.previous["w"]).norm())
    >>> memory = Memory(previous={"w": torch.tensor([1.0, 1.0])})
    >>> moved(None, {"w": torch.tensor([4.0, 5.0])}, memory, {})
    5.0
    """

    previous: Weights | None = None
    present: Weights | None = None


Context = Mapping[str, float]
"""The numbers that the server sent with its request."""

Function = Callable[[Any, Weights, Memory, Context], Measurement | None]
"""``(probe, weights, memory, context) -> value``, see :class:`Entry`."""


@dataclass(frozen=True)
class Entry:
    """One measurement.

    Args:
        of: the ``"received"`` model, before any training, the ``"trained"`` one, the
            ``"personal"`` one (Ditto), or a candidate of the last mile, one of
            :data:`~monai_fairfl.messages.CANDIDATES`.
        function: ``(probe, weights, memory, context) -> value``. ``probe`` runs weights on the
            client's data: a :class:`~monai_fairfl.measurements.TrainingProbe` for ``"training"``
            data, else a :class:`~monai_fairfl.measurements.Probe`. ``weights`` is the model in
            question. ``None`` means that it could not be measured; nothing is sent then.
        data: ``"validation"``, ``"test"`` or ``"training"``.
        needs: the field of :class:`Memory` that the client fills in; none when empty.
        training_key: context key that, at 1, moves it to the training data.

    >>> from monai_fairfl.measurements import MEASUREMENTS
    >>> MEASUREMENTS["test_score"].of, MEASUREMENTS["test_score"].data
    ('received', 'test')
    """

    of: str
    function: Function
    data: Literal["validation", "test", "training"] = "validation"
    needs: Literal["", "previous", "present"] = ""
    training_key: str = ""
