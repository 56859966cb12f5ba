# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings as frozen dataclasses: a field declares its default and what follows from changing it.

What follows is a mark, a name in the field's metadata. :func:`marked` gives all settings with a
mark, so that their names stand in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeGuard, TypeVar

from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.arguments import Checked

AnySettings = TypeVar("AnySettings", bound="Settings")


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number; ``True`` and ``False`` are none.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


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


def setting(default: Any, *marks: str, allowed: str | tuple[Any, ...] | None = None) -> Any:
    """A field of a settings class.

    Args:
        default: its value where none is given; a ``dict`` is copied for every object.
        marks: what follows from changing it.
        allowed: its range, as of :func:`~monai_fairfl.utils.arguments.argument`.
    """
    metadata = {"marks": marks, "allowed": allowed}
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


class Settings(Checked):
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
        ... class Oven(Settings):
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
