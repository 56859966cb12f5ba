# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of strategies and their parts: their check, and their place in a run's name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any, TypeGuard

from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.utils.named_classes import arguments_of


def check_choice(owner: object, argument: str, value: object, allowed: Collection[object]) -> None:
    """Refuse an argument that is not one of ``allowed``.

    Args:
        owner: the strategy or part, for the message.
        argument: name of the argument.
        value: what the user gave.
        allowed: its possible values.

    Raises:
        ValueError: naming the owner, the argument and the possible values.

    >>> from monai_fairfl.strategies import FedCE
    >>> FedCE(mode="plus")
    Traceback (most recent call last):
    ValueError: FedCE: mode must be one of 'multi', 'sum', 'cos', 'err', got 'plus'
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{_name(owner)}: {argument} must be one of {choices}, got {value!r}")


def check_between(owner: object, interval: str, /, **arguments: object) -> None:
    """Refuse arguments that are no numbers of an interval, such as a text with a decimal comma.

    Args:
        owner: the strategy or part, for the message.
        interval: in mathematical notation: ``"[0, 1)"``, ``"(0, inf)"``.
        **arguments: name -> what the user gave.

    Raises:
        ValueError: naming the owner, the argument, the interval and the value.

    >>> check_between("FairFed", "[0, inf)", beta=0.5)
    >>> check_between("FairFed", "[0, inf)", beta="0,5")
    Traceback (most recent call last):
    ValueError: FairFed: beta must be a number in [0, inf), got '0,5'
    """
    least, most = (float(bound) for bound in interval[1:-1].split(","))
    for argument, value in arguments.items():
        is_inside = False
        if _is_real(value):
            above = least < value or (interval[0] == "[" and value == least)
            below = value < most or (interval[-1] == "]" and value == most)
            is_inside = above and below
        if not is_inside:
            raise ValueError(
                f"{_name(owner)}: {argument} must be a number in {interval}, got {value!r}"
            )


def is_finite(value: object) -> bool:
    """Whether a value is a finite number, NumPy's included; ``True`` and ``False`` are none.

    >>> is_finite(2), is_finite(float("nan")), is_finite("0,5"), is_finite(True)
    (True, False, False, False)
    """
    return _is_real(value) and math.isfinite(value)


def _is_real(value: object) -> TypeGuard[float]:
    """Whether a value is a real number, NumPy's included; ``True`` and ``False`` are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_layer(owner: object, argument: str, layer: str, layers: Sequence[str]) -> None:
    """Refuse a layer that is not one of ``layers``.

    Args:
        owner: the strategy, for the message.
        argument: that names the layer.
        layer: its name.
        layers: of the model that it may name.

    Raises:
        ConfigError: naming the owner, the argument, the closest name or those there are.

    >>> check_layer("ShapFed", "output_layer", "haed", ["conv", "head"])
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: ShapFed: output_layer must be ...; did you mean 'head'?
    """
    if layer not in layers:
        raise ConfigError(
            f"{_name(owner)}: {argument} must be a trained layer of the model, got {layer!r}"
            f"{did_you_mean(layer, layers)}"
        )


def _name(owner: object) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


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
    arguments = arguments_of(kind, base)
    usual: dict[str, Any] = {name: one.default for name, one in arguments.items()}
    chosen = {name: getattr(component, name, usual[name]) for name in usual}

    # A variant has defaults of its own, which an instance of it shows.
    if "variant" in usual:
        given = {name: chosen[name] for name in usual if usual[name] is inspect.Parameter.empty}
        example = kind(**{**given, "variant": chosen["variant"]})
        for name in usual.keys() - {*given, "variant"}:
            usual[name] = getattr(example, name, usual[name])

    return [_word(name, value) for name, value in chosen.items() if value != usual[name]]


def _word(argument: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if value is True:
        return argument
    if value is None or value is False:
        return f"no_{argument}"
    return f"{argument}_{value}"
