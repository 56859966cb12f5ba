# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards as users name them, and the guards of a federation that names none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl import guards
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.base import Guard
from monai_fairfl.utils.named_classes import TARGET, as_mapping, find, made

DEFAULT: tuple[Guard, ...] = (
    guards.NonFinite(),
    guards.BatchStatistics(),
    guards.Outsized(),
    guards.Copies(),
    guards.TooLong(),
    guards.Empty(),
    guards.Noise(),
    guards.Replayed(),
    guards.Opposed(),
)
"""The guards of a federation that names none, in their order.

Copies come before all that compares a client with the others, so that one hospital under several
names cannot be "the others". What is too long is cut before anybody counts as empty beside it. Each
is here because it touched no honest client in any round of the real trainings that
``docs/guards.md`` lists.
"""

Given = Sequence[Guard | str | Mapping[str, Any]] | None
"""Guards as a user gives them; ``None``: the default ones."""


def guards_of(given: Given) -> tuple[Guard, ...]:
    """Guards from themselves, their names, dotted paths or configurations.

    Args:
        given: in order; ``None``: the default ones; an empty list: none.

    Raises:
        ConfigError: when it is no list, there is none of a name or path, or its arguments are
            wrong.

    >>> guards_of([{"_target_": "monai_fairfl.guards.TooLong", "times": 8.0}, "NonFinite"])[0].times
    8.0
    >>> guards_of(None) is DEFAULT, guards_of([])
    (True, ())
    """
    if given is None:
        return DEFAULT
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise ConfigError(
            "guards must be a list of guards, their names or configurations with _target_, or "
            f"null for the default ones; got {given!r}"
        )
    found = []
    for one in given:
        if not isinstance(one, Guard):
            arguments = dict(one) if isinstance(one, Mapping) else {TARGET: one}
            one = made(find(arguments.pop(TARGET, None), guards, Guard), [], arguments)
        if not isinstance(one, Guard):
            raise ConfigError(f"{one!r} is no guard: name one of {guards.__all__}")
        found.append(one)
    return tuple(found)


def config_of(chosen: Sequence[Guard]) -> list[dict[str, Any]]:
    """The configurations of some guards, plain JSON; :func:`guards_of` makes the same guards of it.

    Raises:
        ConfigError: when a guard does not store an argument under its name.

    >>> config_of(guards_of(["Empty"]))
    [{'_target_': 'monai_fairfl.guards.Empty', 'share': 0.001}]
    """
    return [as_mapping(guard, guards, Guard) for guard in chosen]
