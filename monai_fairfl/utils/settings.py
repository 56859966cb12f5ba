# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen dataclasses: all that is known of one stands in its row.

From the rows come ``federate.json``, the options of commands, what a job may set, the checks, what
a resumed run must have again, and the page of keys.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from typing_extensions import Self

from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.arguments import Checked, check_value


def one_or_several(given: Any) -> list[Any]:
    """What is in a list, or a single value that was given without one.

    >>> one_or_several("FedCE"), one_or_several(["FedAvg", "FedCE"])
    (['FedCE'], ['FedAvg', 'FedCE'])
    """
    return list(given) if isinstance(given, (list, tuple)) else [given]


def plain_value(name: str, given: Any, kind: str, allowed: Any = None) -> Any:
    """A copy of a setting that is a mapping or a list; ``None`` is an empty mapping.

    Args:
        name: of the setting.
        given: its value.
        kind: its type, as the row has it.
        allowed: range of the numbers in it.

    Raises:
        ConfigError: naming the setting and its value, when it is something else.

    >>> plain_value("groups", {"small": ["HK"]}, "Mapping[str, Sequence[str]]")
    {'small': ['HK']}
    >>> plain_value("groups", {"small": "HK"}, "Mapping[str, Sequence[str]]")
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: groups: 'small' must be a list of names, got 'HK'
    """
    if kind.startswith("Mapping"):
        if given and not isinstance(given, Mapping):
            raise ConfigError(f"{name} must be a mapping, got {given!r}")
        inner = kind.removeprefix("Mapping[str, ").removesuffix("]")
        items = (given or {}).items()
        return {key: plain_value(f"{name}: {key!r}", one, inner, allowed) for key, one in items}
    if kind == "Sequence[str]":
        # One text would be a name for each of its letters.
        if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
            raise ConfigError(f"{name} must be a list of names, got {given!r}")
        return list(given)
    if allowed is not None:
        check_value(name, given, kind, allowed)
    return given


LEAD, SITE, JOB, BUNDLE = "lead", "site", "job", "bundle"
"""Who may set a row: the lead of a federation, a hospital in its own file, an engine's job; and the
bundle's ``federate.json`` has a value of its own."""


def setting(
    default: Any,
    group: str = "",
    *marks: str,
    allowed: str | tuple[Any, ...] | None = None,
    by: tuple[str, ...] = (LEAD, JOB),
    written: Any = MISSING,
) -> Any:
    """A row of a settings class, whose docstring has its meaning.

    Args:
        default: its value where none is given; a ``dict`` is copied for every object.
        group: heading under which the page of keys has it.
        marks: what follows from changing it.
        allowed: its range, as of :func:`~monai_fairfl.utils.arguments.argument`.
        by: who may set it.
        written: what ``federate.json`` has in place of the default, such as an expression.
    """
    metadata = {"group": group, "marks": marks, "allowed": allowed, "by": by}
    metadata["written"] = default if written is MISSING else written
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def meanings(kind: type) -> dict[str, str]:
    """Name -> meaning of the settings of a class, from the ``Args`` of its docstring.

    >>> class Oven:
    ...     '''Bakes.
    ...
    ...     Args:
    ...         degrees: of the air,
    ...             not of the bread.
    ...     '''
    >>> meanings(Oven)
    {'degrees': 'of the air, not of the bread'}
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        args = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
        for row in re.split(r"\n    (?=\w)", f"\n{args}")[1:]:
            name, _, meaning = row.partition(": ")
            # Links are those of docs/, and the reference has its pages one folder below.
            found[name] = " ".join(meaning.split()).removesuffix(".").replace("](../", "](")
    return found


def marked(settings: Any, mark: str) -> dict[str, Any]:
    """Name -> value of the settings whose field has ``mark``.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Oven:
    ...     degrees: int = setting(180, "Heat", "decides")
    ...     light: bool = setting(True)
    >>> marked(Oven(200), "decides")
    {'degrees': 200}
    """
    found = {}
    for entry in fields(settings):
        if mark in entry.metadata.get("marks", ()):
            found[entry.name] = getattr(settings, entry.name)
    return found


class CheckedSettings(Checked):
    """The base of the settings classes, which are frozen dataclasses."""

    def __post_init__(self) -> None:
        for row in fields(self):  # type: ignore[arg-type]
            if str(row.type).startswith(("Mapping", "Sequence[str]")):
                allowed = row.metadata["allowed"]
                value = plain_value(row.name, getattr(self, row.name), str(row.type), allowed)
                object.__setattr__(self, row.name, value)
        super().__post_init__()

    @classmethod
    def of(cls, owner: str, given: Mapping[str, Any]) -> Self:
        """Settings from keywords.

        Args:
            owner: what the user gave them to, for the message.
            given: name -> value.

        Raises:
            ConfigError: for a name that is no setting, with the one that looks most like it; or for
                a value that the class refuses.

        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Oven(CheckedSettings):
        ...     degrees: int = setting(180)
        >>> Oven.of("the baker", {"degres": 200})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the baker has no setting 'degres'; did you mean 'degrees'?
        """
        known = [entry.name for entry in fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise ConfigError(f"{owner} has no setting {name!r}{did_you_mean(name, known)}")
        return cls(**given)
