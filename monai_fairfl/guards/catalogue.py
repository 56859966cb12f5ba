# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards by name: what is shipped, with its arguments, and guards made from a configuration."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from monai_fairfl import guards
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.guards.base import Guard
from monai_fairfl.guards.defaults import DEFAULT
from monai_fairfl.utils.named_classes import (
    arguments_of,
    concrete_classes,
    find_class,
    first_paragraph,
    is_subclass,
    plain_docstring,
)

Given = Sequence[Guard | str | Mapping[str, Any]] | None
"""Guards as a user gives them; ``None``: the default ones."""


def shipped() -> dict[str, type[Guard]]:
    """Name -> class of every guard of the package.

    >>> sorted(shipped())[:3]
    ['BatchStatistics', 'Copies', 'Empty']
    """
    return concrete_classes(guards, Guard)


def find(name: object) -> type[Guard]:
    """The class of a guard.

    Args:
        name: of a shipped guard, or the dotted path of another one, ``module.Name``.

    Raises:
        ConfigError: when there is none of that name or path, or the path is of something else. It
            names those there are, or why the path cannot be imported.

    >>> find("TooLong") is find("monai_fairfl.guards.TooLong")
    True
    >>> find("ToLong")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: unknown guard 'ToLong': did you mean 'TooLong'? known are ...
    """
    kind = find_class(name, shipped(), "guard", "my_guards")
    if not is_subclass(kind, Guard) or inspect.isabstract(kind):
        raise ConfigError(
            f"{name!r} is no class that inherits from monai_fairfl.guards.Guard and defines check, "
            f"got {kind!r}"
        )
    found: type[Guard] = kind
    return found


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
    return tuple(_guard_of(one) for one in given)


def _guard_of(given: object) -> Guard:
    if isinstance(given, Guard):
        return given
    arguments: dict[str, Any] = {}
    name = given
    if isinstance(given, Mapping):
        arguments = {str(key): value for key, value in given.items() if key != "_target_"}
        name = given.get("_target_")
    kind = find(name)
    try:
        return kind(**arguments)
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(f"guard {name!r} cannot be made: {in_words(error)}") from error


def config_of(chosen: Sequence[Guard]) -> list[dict[str, Any]]:
    """The configurations of some guards, plain JSON; :func:`guards_of` makes the same guards of it.

    Raises:
        ConfigError: when a guard does not store an argument under its name.

    >>> config_of(guards_of(["Empty"]))
    [{'_target_': 'monai_fairfl.guards.Empty', 'share': 0.001}]
    """
    return [_config_of_one(guard) for guard in chosen]


def _config_of_one(guard: Guard) -> dict[str, Any]:
    kind = type(guard)
    path = f"{kind.__module__}.{kind.__name__}"
    if shipped().get(kind.__name__) is kind:
        path = f"monai_fairfl.guards.{kind.__name__}"
    config: dict[str, Any] = {"_target_": path}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if not hasattr(guard, name):
            raise ConfigError(
                f"{path} does not store its argument {name!r}: write self.{name} = {name} in its "
                "constructor, so that the run's configuration can name it"
            )
        config[name] = getattr(guard, name)
    return config


def describe(name: str) -> dict[str, Any]:
    """Everything about one guard, plain JSON.

    Args:
        name: as for :func:`find`.

    >>> describe("TooLong")["arguments"]
    {'times': 6.0}
    """
    kind = find(name)
    arguments, _ = arguments_of(kind)
    description = plain_docstring(inspect.getdoc(kind) or "")
    is_default = any(type(guard) is kind for guard in DEFAULT)
    return {
        "target": f"{kind.__module__}.{kind.__name__}" if "." in name else f"{__package__}.{name}",
        "default": is_default,
        "looks_back": bool(kind.state),
        "arguments": arguments,
        "summary": first_paragraph(description),
        "description": description,
    }


def as_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Guards one below the other, for a terminal.

    Args:
        found: name -> what :func:`describe` returned.
    """
    lines = []
    for name, entry in found.items():
        note = "" if entry["default"] else "  (not a default one)"
        lines.append(_call(name, entry) + note)
        lines += textwrap.wrap(
            entry["summary"], 90, initial_indent="    ", subsequent_indent="    "
        )
    order = ", ".join(type(guard).__name__ for guard in DEFAULT)
    return "\n".join([*lines, "", f"The default ones, in their order: {order}"])


def as_page(name: str, entry: Mapping[str, Any]) -> str:
    """One guard in full, for a terminal.

    >>> print(as_page("Empty", describe("Empty")).splitlines()[0])
    Empty(share=0.001)
    """
    config = {"_target_": entry["target"], **entry["arguments"]}
    in_file = f'in federate.json:  "guards": [{json.dumps(config)}, ...]'
    return "\n".join([_call(name, entry), "", entry["description"], "", in_file])


def _call(name: str, entry: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{key}={value!r}" for key, value in entry["arguments"].items())
    return f"{name.rpartition('.')[2]}({arguments})"
