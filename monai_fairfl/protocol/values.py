# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Plain values that cross the wire: model weights, and numbers with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]
"""A ``state_dict``: tensor name -> tensor."""


@dataclass(frozen=True)
class Estimate:
    """A mean of several observations, such as of the Dice of a site's cases, with its uncertainty.

    Args:
        value: the mean, in the unit of the observations.
        stderr: the standard error of the mean, in the same unit; ``None``: not known.
        n: the number of observations.

    >>> dice = Estimate(0.81, 0.02, 5)
    >>> dice.stderr, float(dice)
    (0.02, 0.81)
    """

    value: float
    stderr: float | None = None
    n: int = 1

    def __float__(self) -> float:
        return float(self.value)


Measurement = float | Estimate | Mapping[str, float | Estimate]
"""A number, an estimate, or a mapping of these: ``"mean"``, and one entry per class or layer."""


def value_of(measurement: Measurement) -> float:
    """The one number of a measurement: its value, or the ``"mean"`` of a mapping.

    >>> value_of({"mean": Estimate(0.8), "gland": 0.8})
    0.8
    """
    if isinstance(measurement, Mapping):
        return float(measurement["mean"])
    return float(measurement)


def is_finite_or_unchanged(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    """Whether a tensor is finite, but for entries that were the same before.

    Args:
        tensor: of a model.
        before: the same tensor of the model that this one was made of; ``None``: there was none.

    >>> mask = torch.tensor([0.0, -math.inf])
    >>> is_finite_or_unchanged(mask, mask), is_finite_or_unchanged(mask, None)
    (True, False)
    """
    if not tensor.is_floating_point():
        return True
    # One pass: a sum is finite only if all its terms are. It may overflow by itself, so that only
    # a finite one decides.
    if bool(torch.isfinite(tensor.sum())):
        return True
    good = torch.isfinite(tensor)
    if before is not None and before.shape == tensor.shape:
        is_unchanged = (tensor == before) | (torch.isnan(tensor) & torch.isnan(before))
        good |= is_unchanged
    return bool(good.all())


def plain_number(value: Any) -> Any:
    """A number of NumPy or PyTorch without dimensions as Python's; anything else as it is.

    >>> plain_number(torch.tensor(0.5)), plain_number([0.5])
    (0.5, [0.5])
    """
    return value.item() if getattr(value, "ndim", None) == 0 else value


def plain_numbers(value: Any) -> Any:
    """A measurement or contribution whose numbers are Python's, see :func:`plain_number`.

    >>> plain_numbers({"mean": Estimate(torch.tensor(0.5), None, 2), "cup": torch.tensor(0.25)})
    {'mean': Estimate(value=0.5, stderr=None, n=2), 'cup': 0.25}
    """
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, Estimate):
        return Estimate(*map(plain_number, (value.value, value.stderr, value.n)))
    return plain_number(value)


OWN_MODEL_PREFIXES = ("local_", "personal_", "adapted_", "averaged_", "alone_", "fused_")
"""How the name of a measurement begins that is of a model which the client itself trained in that
round. All others are of the model that the client was sent. The server dates a score by that.
"""


def is_of_own_model(measurement: str) -> bool:
    """Whether a measurement of this name is of a model which the client itself trained.

    >>> is_of_own_model("local_score"), is_of_own_model("global_score")
    (True, False)
    """
    return measurement.startswith(OWN_MODEL_PREFIXES)


def add_note(notes: dict[str, str], client: str, text: str) -> None:
    """Add a note on a client to those that it has; a text that is already there is not repeated.

    >>> notes = {"elm": "late"}
    >>> add_note(notes, "elm", "no score")
    >>> add_note(notes, "elm", "late")
    >>> notes
    {'elm': 'late; no score'}
    """
    earlier = notes.get(client)
    if not earlier:
        notes[client] = text
    elif text != earlier and text not in earlier.split("; "):
        notes[client] = f"{earlier}; {text}"


def to_json(value: Any) -> Any:
    """Measurements and contributions as plain JSON.

    An :class:`Estimate` becomes an object of its fields, a number that is not finite ``None``.

    >>> to_json({"A": Estimate(0.5, None, 2), "B": [1.0, float("nan")]})
    {'A': {'value': 0.5, 'stderr': None, 'n': 2}, 'B': [1.0, None]}
    """
    if isinstance(value, Estimate):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def is_plain_estimate(plain: object) -> bool:
    """Whether a value of a record is what :func:`to_json` makes of an :class:`Estimate`.

    A site's classes and layers may be called ``"value"`` or ``"stderr"``, too: then there is also a
    ``"mean"``.

    >>> is_plain_estimate({"value": 0.5, "stderr": None, "n": 2})
    True
    >>> is_plain_estimate({"mean": 0.5, "value": 0.4, "stderr": 0.6})
    False
    """
    return isinstance(plain, Mapping) and set(plain) == {"value", "stderr", "n"}


def measurement_of_json(plain: Any) -> Any:
    """A measurement of a record or a file: the inverse of :func:`to_json`.

    A number that was not finite stays ``None``.

    >>> measurement_of_json({"mean": {"value": 0.5, "stderr": None, "n": 2}, "cup": 0.25})
    {'mean': Estimate(value=0.5, stderr=None, n=2), 'cup': 0.25}
    """
    if not isinstance(plain, Mapping):
        return plain
    if is_plain_estimate(plain):
        return Estimate(plain["value"], plain["stderr"], plain["n"])
    return {name: measurement_of_json(value) for name, value in plain.items()}


IN_VALIDATION = "test_cases_in_validation"
"""Sent in place of a test score: how many of the client's test cases are validation cases, too."""

IN_TRAINING = "test_cases_in_training"
"""Sent in place of a test score: how many of the client's test cases are training cases, too."""
