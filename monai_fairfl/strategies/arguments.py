# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of strategies and their parts: their check, and their place in a run's name."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

from monai_fairfl.errors import ConfigError, closest


def check_choice(owner: object, argument: str, value: object, allowed: Collection[object]) -> None:
    """Refuse an argument that is not one of ``allowed``.

    Args:
        owner: the strategy or part, or its name, for the message.
        argument: name of the argument.
        value: what the user gave.
        allowed: its possible values.

    Raises:
        ValueError: naming the owner, the argument and the possible values.

    >>> check_choice("FedCE", "mode", "plus", ("multi", "sum"))
    Traceback (most recent call last):
    ValueError: FedCE: mode must be one of 'multi', 'sum', got 'plus'
    """
    if value in allowed:
        return
    name = owner if isinstance(owner, str) else type(owner).__name__
    choices = ", ".join(repr(choice) for choice in allowed)
    raise ValueError(f"{name}: {argument} must be one of {choices}, got {value!r}")


def is_real(value: object) -> bool:
    """Whether a value is a real number, NumPy's included; ``True`` and ``False`` are none.

    >>> is_real(2), is_real("0,5"), is_real(True)
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def check_numbers(owner: object, /, **arguments: object) -> None:
    """Refuse arguments that are no numbers, such as a text with a decimal comma.

    Args:
        owner: the strategy or part, or its name, for the message.
        **arguments: name -> what the user gave.

    Raises:
        ValueError: naming the owner, the argument and its value.

    >>> check_numbers("FairFed", beta=0.5)
    >>> check_numbers("FairFed", beta="0,5")
    Traceback (most recent call last):
    ValueError: FairFed: beta must be a number, such as 0.5, got '0,5'
    """
    name = owner if isinstance(owner, str) else type(owner).__name__
    for argument, value in arguments.items():
        if not is_real(value):
            raise ValueError(f"{name}: {argument} must be a number, such as 0.5, got {value!r}")


def check_layer(owner: object, argument: str, layer: str, layers: Sequence[str]) -> None:
    """Refuse a layer that is not one of ``layers``.

    Args:
        owner: the strategy, for the message.
        argument: that names the layer.
        layer: its name.
        layers: of the model that it may name, in the model's order.

    Raises:
        ConfigError: naming the owner, the argument, the closest name and some of those there are.

    >>> check_layer("ShapFed", "output_layer", "haed", ["conv", "head"])
    Traceback (most recent call last):
    monai_fairfl.errors.ConfigError: ShapFed: output_layer must be ...; did you mean 'head'?
    """
    if layer in layers:
        return
    name = owner if isinstance(owner, str) else type(owner).__name__
    meant = closest(layer, layers)
    hint = "" if meant is None else f"; did you mean {meant!r}?"
    raise ConfigError(
        f"{name}: {argument} must be a trained layer of the model, such as {list(layers[-5:])}, "
        f"got {layer!r}{hint}"
    )


def non_default_arguments(component: object) -> list[str]:
    """The arguments of a strategy or part that are not the defaults, as words of a name.

    A choice is shown as it is, a switch by the argument's name, a number with both. What follows
    from the argument ``variant`` is left out, as the variant is shown already.

    Args:
        component: has its arguments in attributes of the same names.

    >>> from monai_fairfl.strategies import Proportional, QFedAvg, Uniform
    >>> non_default_arguments(Proportional(2.0)), non_default_arguments(Uniform())
    (['power_2.0'], [])
    >>> non_default_arguments(QFedAvg(variant="released"))
    ['released']
    """
    kind: Any = type(component)
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            defaults[name] = parameter.default
    chosen = {name: getattr(component, name, default) for name, default in defaults.items()}

    # A variant has defaults of its own, which an instance of it shows.
    if "variant" in defaults:
        needed = {}
        for name, default in defaults.items():
            if default is inspect.Parameter.empty:
                needed[name] = chosen[name]
        of_variant = kind(**needed, variant=chosen["variant"])
        for name in set(defaults) - {"variant", *needed}:
            defaults[name] = getattr(of_variant, name, defaults[name])

    words = []
    for name, value in chosen.items():
        if value != defaults[name]:
            words.append(_word(name, value))
    return words


def _word(argument: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if value is True:
        return argument
    if value is None or value is False:
        return f"no_{argument}"
    return f"{argument}_{value}"


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
    name = owner if isinstance(owner, str) else type(owner).__name__
    for argument, value in arguments.items():
        is_inside = isinstance(value, Real) and not isinstance(value, bool)
        if is_inside:
            number = float(value)  # type: ignore[arg-type]
            above = least < number or (interval[0] == "[" and number == least)
            below = number < most or (interval[-1] == "]" and number == most)
            is_inside = above and below
        if not is_inside:
            raise ValueError(f"{name}: {argument} must be a number in {interval}, got {value!r}")
