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
from typing import Any, TypeVar

from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.arguments import Checked

AnySettings = TypeVar("AnySettings", bound="CheckedSettings")


def one_or_several(given: Any) -> list[Any]:
    """What is in a list, or a single value that was given without one.

    >>> one_or_several("FedCE"), one_or_several(["FedAvg", "FedCE"])
    (['FedCE'], ['FedAvg', 'FedCE'])
    """
    return list(given) if isinstance(given, (list, tuple)) else [given]


def checked_mapping(name: str, given: Any) -> dict[str, Any]:
    """A copy of a setting that is a mapping; ``None`` and what is empty are an empty one.

    Args:
        name: of the setting.
        given: its value.

    Raises:
        ConfigError: naming the setting and its value, when it is something else.

    >>> checked_mapping("overrides", ["size"])
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: overrides must be a mapping, got ['size']
    """
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a mapping, got {given!r}")
    return dict(given)


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

    def row_called(self, name: str) -> str:
        """How an error calls a setting."""
        return name

    @classmethod
    def of(cls: type[AnySettings], owner: str, given: Mapping[str, Any]) -> AnySettings:
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
