# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Arguments and settings: rows of dataclasses, each with its type, default and range.

From the rows of settings come ``federate.json``, the options of commands, what a job may set, what
a resumed run must have again, and the page of keys.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from numbers import Real
from typing import Any, TypeGuard

from typing_extensions import dataclass_transform

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.named_classes import arguments_of


def argument(default: Any, allowed: str | tuple[Any, ...] | type, **more: Any) -> Any:
    """A row of a :class:`Component`: an argument with its default, always allowed, and range.

    A row of the type ``int`` takes whole numbers only, and one of ``float | None`` also ``None``.
    :class:`Checked` refuses other values. A row of the type ``bool`` needs no range.

    Args:
        default: of the argument.
        allowed: an interval in mathematical notation, ``"[0, 1)"`` or ``"(0, inf)"``; or its
            possible values; or a class, of which a value must be.
        more: arguments of :func:`dataclasses.field`, such as ``kw_only``.

    >>> from monai_fairfl.strategies import Weighting
    >>> class Power(Weighting):
    ...     q: float = argument(1.0, "[0, inf)")
    ...     def __call__(self, replies, contributions):
    ...         return contributions**self.q
    >>> Power(2.0).q
    2.0
    >>> Power("0,5")
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: Power: q must be a number in [0, inf), got '0,5'
    """
    return field(default=default, metadata={"allowed": allowed}, **more)


def remembered(kind: type) -> Any:
    """A row of a :class:`Component` that is no argument: what it keeps from round to round.

    Args:
        kind: of its value, which JSON can hold, and which is empty at first.

    >>> from monai_fairfl.guards import Guard
    >>> class Seen(Guard):
    ...     rounds: dict[str, int] = remembered(dict)
    ...     def check(self, replies):
    ...         return {}
    >>> Seen().state_dict()
    {'rounds': {}}
    """
    return field(init=False, default_factory=kind, metadata={"remembered": kind})


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
        default: its value where none is given; a dictionary or list is copied for every object.
        group: heading under which the page of keys has it.
        marks: what follows from changing it.
        allowed: its range, as of :func:`argument`.
        by: who may set it.
        written: what ``federate.json`` has in place of the default, such as an expression.
    """
    metadata = {"group": group, "marks": marks, "allowed": allowed, "by": by}
    metadata["written"] = default if written is MISSING else written
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


class Checked:
    """A dataclass whose rows are checked when it is made, see :func:`check_value`."""

    prefix = ""
    """Of a row's name in an error."""

    def __post_init__(self) -> None:
        for row in fields(self):  # type: ignore[arg-type]
            kind, value = str(row.type), getattr(self, row.name, None)
            is_free = value is row.default or (value is None and kind.endswith("| None"))
            if row.init and not is_free:
                called = f"{self.prefix}{row.name}"
                found = check_value(called, value, kind, row.metadata.get("allowed"))
                object.__setattr__(self, row.name, found)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it, plain JSON: the rows by :func:`remembered`."""
        names = [row.name for row in fields(self) if "remembered" in row.metadata]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name, value in self.state_dict().items():
            kind = type(value)
            setattr(self, name, kind(state[name]) if issubclass(kind, dict) else state[name])


@dataclass_transform(eq_default=False, field_specifiers=(field,))
class Component(Checked):
    """A strategy, a part of one, a guard or a valuation: its subclasses are dataclasses.

    Each annotated row in a subclass's body is an argument of its constructor, unless it is
    :func:`remembered`; no decorator is needed, and two instances are equal only if they are one.

    >>> class Shrunk(Component):
    ...     factor: float = argument(0.5, "(0, 1]")
    >>> Shrunk(0.25).factor, Shrunk() == Shrunk()
    (0.25, False)
    """

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.prefix = f"{cls.__name__}: "
        # A class without rows of its own may inherit a constructor that was written by hand.
        if inspect.get_annotations(cls) or not is_dataclass(cls):
            dataclass(eq=False, repr=False, init="__init__" not in vars(cls))(cls)


def check_value(called: str, value: Any, kind: str, allowed: Any = None) -> Any:
    """Refuse a value that is not of its kind, or out of its range.

    Args:
        called: what an error calls it.
        value: that was given; ``None`` is an empty mapping.
        kind: ``"bool"``; ``"int"``: only whole numbers are in an interval; ``"Sequence[str]"``; a
            mapping from texts to such kinds; or another, which has its range only.
        allowed: as of :func:`argument`, if there is a range.

    Returns:
        The value; of a mapping or list, a copy.

    Raises:
        ConfigError: naming it, what it may be, and its value.

    >>> check_value("groups", {"small": ["HK"]}, "Mapping[str, Sequence[str]]")
    {'small': ['HK']}
    >>> check_value("local_epochs", 0, "int", "[1, inf)")
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: local_epochs must be a whole number in [1, inf), got 0
    """
    if kind.startswith("Mapping"):
        value = value or {}
        holds, what = isinstance(value, Mapping), "a mapping"
    elif kind == "Sequence[str]":
        # One text would be a name for each of its letters.
        holds = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
        what = "a list of names"
    elif kind == "bool":
        # MONAI reads --amp false as a text, and any text that is not empty would switch it on.
        holds, what = isinstance(value, bool), "True or False"
    elif allowed is None:
        return value
    elif isinstance(allowed, type):
        holds, what = isinstance(value, allowed), f"of the class {allowed.__name__}"
    elif not isinstance(allowed, str):
        holds, what = value in allowed, "one of " + ", ".join(map(repr, allowed))
    else:
        least, most = map(float, allowed[1:-1].split(","))
        is_whole_kind = kind.startswith("int")
        holds = isinstance(value, int if is_whole_kind else Real) and not isinstance(value, bool)
        holds = holds and least <= value <= most
        # A round bracket leaves its end out.
        holds = holds and (allowed[0] == "[" or value != least)
        holds = holds and (allowed[-1] == "]" or value != most)
        what = f"a {'whole ' * is_whole_kind}number in {allowed}"
    if not holds:
        raise ConfigError(f"{called} must be {what}, got {value!r}")
    if kind.startswith("Mapping"):
        inner = kind.removeprefix("Mapping[str, ").removesuffix("]")
        items = value.items()
        return {key: check_value(f"{called}: {key!r}", one, inner) for key, one in items}
    return list(value) if kind == "Sequence[str]" else value


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number; ``True`` and ``False`` are none.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number, NumPy's included; ``True`` and ``False`` are none.

    >>> is_finite(2), is_finite(float("nan")), is_finite("0,5"), is_finite(True)
    (True, False, False, False)
    """
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and abs(value) <= sys.float_info.max


def non_default_arguments(component: object, base: type = object) -> list[str]:
    """The arguments of a strategy, part or guard that are not the defaults, as words of a name.

    A choice is shown as it is, a switch by the argument's name, a number with both. What follows
    from the argument ``variant`` is left out, as the variant is shown already.

    Args:
        component: has its arguments in attributes of the same names.
        base: whose own arguments are left out.

    >>> from monai_fairfl.strategies import Proportional, QFedAvg, Strategy
    >>> non_default_arguments(Proportional(2.0))
    ['power_2.0']
    >>> non_default_arguments(QFedAvg(variant="released"), Strategy)
    ['released']
    """
    kind: Any = type(component)
    usual: dict[str, Any] = {name: one.default for name, one in arguments_of(kind, base).items()}
    chosen = {name: getattr(component, name, usual[name]) for name in usual}

    # A variant may have defaults of its own.
    usual |= getattr(kind, "variants", {}).get(chosen.get("variant"), {})

    words = []
    for name, value in chosen.items():
        if value != usual[name]:
            with_name = name if value is True else f"{name}_{value}"
            if value is None or value is False:
                with_name = f"no_{name}"
            words.append(value if isinstance(value, str) else with_name)
    return words


# --- settings


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
