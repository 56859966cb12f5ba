# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Classes that a package offers by name: which there are, their arguments and their docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeGuard

from monai_fairfl.errors import ConfigError, closest
from monai_fairfl.utils.importing import load_by_path


def concrete_classes(package: ModuleType, base: type) -> dict[str, type[Any]]:
    """Name -> class, of the classes in a package's ``__all__`` that can be used as a ``base``.

    Args:
        package: has an ``__all__``.
        base: from which they inherit; abstract ones are left out.

    >>> from monai_fairfl import guards
    >>> found = concrete_classes(guards, guards.Guard)
    >>> "TooLong" in found, "Guard" in found
    (True, False)
    """
    found: dict[str, type[Any]] = {}
    for name in package.__all__:
        kind = getattr(package, name)
        if is_subclass(kind, base) and not inspect.isabstract(kind):
            found[name] = kind
    return found


def is_subclass(value: object, base: type) -> TypeGuard[type[Any]]:
    """Whether a value is a class that inherits from ``base``.

    In Python 3.10 a type alias such as ``dict[str, float]`` passes for an instance of ``type``, and
    ``issubclass`` fails on it. So this looks at the value's own type.

    >>> is_subclass(bool, int), is_subclass(True, int), is_subclass(dict[str, float], dict)
    (True, False, False)
    """
    return issubclass(type(value), type) and issubclass(value, base)  # type: ignore[arg-type]


def find_class(name: object, known: Mapping[str, type[Any]], what: str, own_module: str) -> Any:
    """One of the known classes, or what a dotted path names.

    Args:
        name: of a known class, or a dotted path, ``module.Name``.
        known: name -> class.
        what: the kind of thing that it is for, such as ``"strategy"``; errors name it.
        own_module: a module such as a user may have, for the error's example of a dotted path.

    Returns:
        The class. Whether what a path names is a class of the wanted kind is for the caller to
        check.

    Raises:
        ConfigError: when there is none of that name or path. It names those there are, or why the
            path cannot be imported.

    >>> find_class("median", {"Median": object, "Mean": object}, "average", "my_averages")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: unknown average 'median': did you mean 'Median'? known are ...
    """
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, str) and "." not in name:
        meant = closest(name, known)
        hint = ""
        if meant is not None:
            hint = f"did you mean {meant!r}? "
        raise ConfigError(
            f"unknown {what} {name!r}: {hint}known are {', '.join(known)}; "
            f"one of your own is named by its dotted path, such as {own_module}.{name}"
        )
    return load_by_path(name, what)


def arguments_of(kind: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """The constructor's arguments, name -> default as plain JSON, and names without a default.

    >>> class Example:
    ...     def __init__(self, times, share=0.5, kind=int, **others): ...
    >>> arguments_of(Example)
    ({'share': 0.5, 'kind': "<class 'int'>"}, ['times'])
    """
    defaults: dict[str, Any] = {}
    needed: list[str] = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            needed.append(name)
        else:
            defaults[name] = json.loads(json.dumps(parameter.default, default=repr))
    return defaults, needed


def plain_docstring(docstring: str) -> str:
    r"""The first paragraph of a docstring and its arguments, without markup for Sphinx.

    >>> plain_docstring("Averages as in :class:`~a.b.FedAvg`, ``q`` times.\n\nMore.\n\n>>> 1")
    'Averages as in FedAvg, q times.'
    """
    paragraphs = re.split(r"\n\s*\n", docstring)
    arguments = [text for text in paragraphs[1:] if text.startswith("Args:")]
    text = "\n\n".join([paragraphs[0], *arguments])
    text = re.sub(r":(?:class|func|meth|data):`~?(?:[\w.]*\.)?(\w+)`", r"\1", text)
    text = re.sub(r":math:`([^`]+)`", r"\1", text)
    return re.sub(r"``(.+?)``", r"\1", text)


def first_paragraph(text: str) -> str:
    r"""The first paragraph of a text, in one line.

    >>> first_paragraph("One\nline.\n\nAnother paragraph.")
    'One line.'
    """
    return " ".join(text.partition("\n\n")[0].split())
