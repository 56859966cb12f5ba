# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy as plain JSON, and a strategy made of such JSON again.

The ledger records the JSON, so that its numbers can be computed again without the program that
began the run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from monai_fairfl import strategies
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.composition import compose
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.utils.importing import load_by_path
from monai_fairfl.utils.named_classes import is_subclass

TARGET = "_target_"
"""Key of the dotted path, as in the configuration of a MONAI bundle."""

SHIPPED = "monai_fairfl.strategies"

NOT_FINITE = ("inf", "-inf", "nan")
"""How a number is written that JSON does not have."""

PARTS = {"weighting": Weighting, "reward": Reward, "average": Average}
"""Arguments of ``compose`` that are parts -> their class; a record has those that are given."""

LIMITS = ("cap", "clip_reports")
"""Arguments of ``compose`` that are numbers; a record has those that are given."""


class _NotPlainError(Exception):
    """An argument that JSON cannot hold."""


def configuration_of(strategy: Strategy) -> dict[str, Any] | None:
    """Return the class of a strategy, its arguments and its parts as plain JSON.

    The form is that of a bundle's configuration: ``_target_`` and the arguments. Arguments are read
    from attributes of the same names, so every constructor must store its own.

    Args:
        strategy: as it was made; parts of :func:`~monai_fairfl.strategies.compose` included.

    Returns:
        ``None`` where an argument is not stored, or is no plain value.

    >>> from monai_fairfl.strategies import FedCE
    >>> configuration_of(FedCE("sum"))
    {'_target_': 'monai_fairfl.strategies.FedCE', 'mode': 'sum', 'variant': 'paper'}
    """
    parts = strategy.parts
    try:
        own = _component_to_json(strategy)
        if parts == Parts():
            return own
        composed: dict[str, Any] = {TARGET: f"{SHIPPED}.compose", "strategy": own}
        for name in PARTS:
            if getattr(parts, name) is not None:
                composed[name] = _component_to_json(getattr(parts, name))
        composed["training"] = _argument_to_json(parts.training)
        for name in LIMITS:
            if getattr(parts, name) is not None:
                composed[name] = _argument_to_json(getattr(parts, name))
        return composed
    except _NotPlainError:
        return None


def strategy_from(configuration: Mapping[str, Any], allow_import: bool = False) -> Strategy:
    """Make the strategy that :func:`configuration_of` described.

    Args:
        configuration: as a ledger records it.
        allow_import: whether classes outside this package may be imported. A ledger is data that
            others wrote, and importing runs code.

    Raises:
        ConfigError: when a class may not be imported or is none of a strategy, or its arguments do
            not fit it.

    >>> strategy_from({"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"}).name
    'FedCE-sum'
    >>> strategy_from({"_target_": "os.getcwd"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: 'os.getcwd' is not of this package, and a ledger is data: ...
    """
    if configuration.get(TARGET) != f"{SHIPPED}.compose":
        return _component_from_json(configuration, Strategy, allow_import)
    strategy = _component_from_json(configuration["strategy"], Strategy, allow_import)
    parts = {}
    for name, base in PARTS.items():
        if name in configuration:
            parts[name] = _component_from_json(configuration[name], base, allow_import)
    training = _argument_from_json(configuration.get("training", {}))
    limits = {name: configuration[name] for name in LIMITS if name in configuration}
    try:
        return compose(strategy, training=training, **parts, **limits)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{SHIPPED}.compose cannot take {limits}: {in_words(error)}") from error


def _component_to_json(component: object) -> dict[str, Any]:
    """The class and the arguments of a strategy or one of its parts."""
    kind = type(component)
    found: dict[str, Any] = {TARGET: _path_of(kind)}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _NotPlainError(name)
        if not hasattr(component, name):
            raise _NotPlainError(name)
        found[name] = _argument_to_json(getattr(component, name))
    return found


def _path_of(kind: type) -> str:
    """The dotted path of a class: the public one, where it is of this package."""
    if getattr(strategies, kind.__name__, None) is kind:
        return f"{SHIPPED}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _argument_to_json(value: object) -> Any:
    """An argument as JSON has it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_argument_to_json(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _argument_to_json(item) for key, item in value.items()}
    raise _NotPlainError(repr(value))


def _argument_from_json(plain: Any) -> Any:
    """The inverse of :func:`_argument_to_json`; a tuple stays a list."""
    if isinstance(plain, str) and plain in NOT_FINITE:
        return float(plain)
    if isinstance(plain, list):
        return [_argument_from_json(item) for item in plain]
    if isinstance(plain, Mapping):
        return {key: _argument_from_json(item) for key, item in plain.items()}
    return plain


def _component_from_json(configuration: Mapping[str, Any], base: type, allow_import: bool) -> Any:
    """The component of a configuration, which must be a ``base``."""
    path = str(configuration.get(TARGET))
    kind = _class_at(path, allow_import)
    if not is_subclass(kind, base) or inspect.isabstract(kind):
        raise ConfigError(f"{path!r} is no class that can be used as a {base.__name__}")
    arguments = {}
    for name, value in configuration.items():
        if name != TARGET:
            arguments[name] = _argument_from_json(value)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be made with {arguments}: {in_words(error)}") from error


def _class_at(path: str, allow_import: bool) -> object:
    """What a dotted path names; without ``allow_import`` it must be of this package."""
    module, _, name = path.rpartition(".")
    if module == SHIPPED and name in strategies.__all__:
        return getattr(strategies, name)
    if not allow_import:
        raise ConfigError(
            f"{path!r} is not of this package, and a ledger is data: its code is imported only on "
            "request (--allow-import), after you have read it"
        )
    return load_by_path(path, "strategy")
