# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen dataclasses: a field declares its default and what follows from changing it.

What follows is a mark, a name in the field's metadata. Whoever needs all settings with a mark asks
:func:`marked`, so that nobody repeats their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, fields
from typing import Any

from monai_fairfl.errors import ConfigError, did_you_mean


def setting(default: Any, *marks: str) -> Any:
    """A field of a settings class.

    Args:
        default: its value where none is given; a ``dict`` is copied for every object.
        marks: what follows from changing it.
    """
    metadata = {"marks": marks}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def marked(settings: Any, mark: str) -> dict[str, Any]:
    """Name -> value of the settings whose field has ``mark``.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Oven:
    ...     degrees: int = setting(180, "decides")
    ...     light: bool = setting(True)
    >>> marked(Oven(200), "decides")
    {'degrees': 200}
    """
    found = {}
    for entry in fields(settings):
        if mark in entry.metadata.get("marks", ()):
            found[entry.name] = getattr(settings, entry.name)
    return found


def check_names(kind: type, given: Iterable[str], owner: str) -> None:
    """Refuse a name that is no field of the settings class ``kind``.

    Args:
        kind: the settings class.
        given: names of the settings that a user gave.
        owner: what the user gave them to, for the message.

    Raises:
        ConfigError: naming the first unknown setting and the one that looks most like it.
    """
    known = [entry.name for entry in fields(kind)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{owner} has no setting {name!r}{did_you_mean(name, known)}")
