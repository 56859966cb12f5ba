# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Classes that a package offers by name: found, made of plain values, and written as such."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeGuard

from monai_fairfl.errors import ConfigError, did_you_mean, in_words

TARGET = "_target_"
"""Key of the name or dotted path, as in the configuration of a MONAI bundle."""


def is_subclass(value: object, *bases: type) -> TypeGuard[type[Any]]:
    """Whether a value is a class that inherits from one of ``bases``.

    >>> is_subclass(bool, int), is_subclass(True, int), is_subclass(dict[str, float], dict)
    (True, False, False)
    """
    # In Python 3.10 a type alias passes for an instance of ``type``, and ``issubclass`` fails.
    return issubclass(type(value), type) and issubclass(value, bases)  # type: ignore[arg-type]


def concrete_classes(package: ModuleType, *bases: type) -> dict[str, type[Any]]:
    """Name -> class, of those in a package's ``__all__`` that can be used as one of ``bases``.

    >>> from monai_fairfl import guards
    >>> found = concrete_classes(guards, guards.Guard)
    >>> "TooLong" in found, "Guard" in found
    (True, False)
    """
    found: dict[str, type[Any]] = {}
    for name in package.__all__:
        kind = getattr(package, name)
        if is_subclass(kind, *bases) and not inspect.isabstract(kind):
            found[name] = kind
    return found


def find(name: object, package: ModuleType, *bases: type, allow_import: bool = True) -> Any:
    """What a package offers under a name, or the class at a dotted path.

    Args:
        name: in the package's ``__all__``, alone or behind the package's own; or a dotted path,
            ``module.Name``, of a class that inherits from one of ``bases``.
        package: has an ``__all__``.
        bases: of a class of one's own; errors name the first.
        allow_import: whether a path outside the package may be imported, which runs code.

    Raises:
        ConfigError: when there is none of that name or path; it names the closest one, or why the
            path cannot be imported.

    >>> from monai_fairfl import guards
    >>> find("monai_fairfl.guards.TooLong", guards, guards.Guard) is guards.TooLong
    True
    >>> find("ToLong", guards, guards.Guard)
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: unknown guard 'ToLong' ...; did you mean 'TooLong'?
    """
    what = bases[0].__name__.lower()
    short = str(name).removeprefix(f"{package.__name__}.")
    if short in package.__all__:
        return getattr(package, short)
    if not isinstance(name, str) or "." not in name:
        hint = did_you_mean(str(name), concrete_classes(package, *bases))
        raise ConfigError(f"unknown {what} {name!r} (your own has a path, module.Name){hint}")
    if not allow_import:
        raise ConfigError(f"{name!r} is not of this package: read its code, then --allow-import")
    path, _, last = name.rpartition(".")
    try:
        kind = getattr(import_module(path), last)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        hint = "write MODULE.NAME, its folder on PYTHONPATH (PYTHONPATH=. for this one)"
        raise ConfigError(f"unknown {what} {name!r} ({in_words(error)}): {hint}") from error
    if not is_subclass(kind, *bases):
        raise ConfigError(f"{name!r} is no {what}: it must inherit from {bases[0].__qualname__}")
    return kind


def arguments_of(kind: type, base: type = object) -> dict[str, inspect.Parameter]:
    """Name -> argument of a class's constructor, and of those to which it passes ``**`` on.

    Args:
        kind: the class.
        base: where to stop; its own arguments are left out.

    >>> class Mean:
    ...     def __init__(self, power=1.0): ...
    >>> class Trimmed(Mean):
    ...     def __init__(self, share, **others): ...
    >>> list(arguments_of(Trimmed))
    ['share', 'power']
    """
    below = kind.__mro__[: kind.__mro__.index(base)]
    # A dataclass has the arguments of its bases, too; its own rows may replace some of them.
    rows = {name for one in below for name in vars(one).get("__annotations__", {})}
    left_out = set() if base is object else inspect.signature(base).parameters.keys() - rows
    found: dict[str, inspect.Parameter] = {}
    for one in below:
        arguments = inspect.signature(one).parameters.values()
        rest = {each.name for each in arguments if each.kind is inspect.Parameter.VAR_KEYWORD}
        for each in arguments:
            if each.name not in left_out | rest:
                found.setdefault(each.name, each)
        if not rest:
            break
    return found


def made(kind: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """An object of a class, or what a function returns, with these arguments.

    Raises:
        ConfigError: when it has no such argument, with the closest one, or fails, with the reason.

    >>> from monai_fairfl.guards import TooLong
    >>> made(TooLong, [], {"time": 8.0})
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: TooLong has no argument 'time'; did you mean 'times'?
    """
    name = getattr(kind, "__name__", repr(kind))
    known = arguments_of(kind) if inspect.isclass(kind) else named
    for argument in named:
        if argument not in known:
            hint = did_you_mean(str(argument), known)
            raise ConfigError(f"{name} has no argument {argument!r}{hint}")
    try:
        return kind(*positional, **named)
    except ConfigError:
        raise
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(f"{name} cannot be made: {in_words(error)}") from error


def as_mapping(component: object, package: ModuleType, base: type) -> dict[str, Any]:
    """The class of an object and its arguments as plain JSON: ``_target_`` and the arguments.

    Arguments are read from attributes of the same names, so every constructor must store its own.

    Args:
        component: as it was made.
        package: whose public names are written.
        base: whose own arguments are left out.

    Raises:
        ConfigError: when an argument is not stored, or is no plain value.

    >>> from monai_fairfl import guards
    >>> as_mapping(guards.Empty(), guards, guards.Guard)
    {'_target_': 'monai_fairfl.guards.Empty', 'share': 0.001}
    """
    kind = type(component)
    is_public = getattr(package, kind.__name__, None) is kind
    module = package.__name__ if is_public else kind.__module__
    found: dict[str, Any] = {TARGET: f"{module}.{kind.__qualname__}"}
    for name in arguments_of(kind, base):
        if not hasattr(component, name):
            raise ConfigError(f"{kind.__qualname__} must store its argument: self.{name} = {name}")
        found[name] = plain(getattr(component, name))
    return found


def plain(value: object) -> Any:
    """A value as JSON has it; a number that JSON lacks, such as infinity, is a text.

    Raises:
        ConfigError: when JSON cannot hold it.

    >>> plain((1, float("inf")))
    [1, 'inf']
    """
    try:
        return json.loads(json.dumps(value), parse_constant=lambda name: str(float(name)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{value!r} is no plain value of JSON") from error
