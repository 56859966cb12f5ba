# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as users give them: by name, name with arguments, dotted path or configuration.

Every command and every engine resolves a strategy here:

- ``FedCE``, or a close name, which is suggested;
- ``FedCE('sum')``, ``CGSV(gamma=None)``;
- ``my_methods.Mine``, ``my_methods.Mine(0.5)``;
- ``compose(FedCE(), clip_reports=3)``;
- ``{"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"}``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monai_fairfl import strategies
from monai_fairfl.errors import ConfigError, did_you_mean, in_words
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.composition import compose
from monai_fairfl.strategies.configuration import SHIPPED, TARGET
from monai_fairfl.strategies.parts import Average, Reward, Weighting
from monai_fairfl.utils.importing import load_by_path
from monai_fairfl.utils.named_classes import concrete_classes, find_class, is_subclass
from monai_fairfl.utils.plain_values import written_value

PARTS = (Strategy, Weighting, Reward, Average)
"""What an argument of ``compose`` may be, beside plain values."""

_PROX = """write "compose(FedAvg(), training={'prox_mu': 0.01})\""""
_SAM = """write "compose(FedAvg(), training={'sam_rho': 0.05})\""""

OPTIONS = {
    "fedprox": _PROX,
    "fedbn": "set the key local_norm of federate.json to true",
    "sam": _SAM,
    "fedsam": _SAM,
}
"""Methods that any strategy can be combined with, in small letters -> how."""

_EXPECTED = (
    'give a name, such as FedCE, or {"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"}'
)


def shipped() -> dict[str, type[Strategy]]:
    """Name -> class of every strategy of the package.

    >>> "FedCE" in shipped(), "Strategy" in shipped()
    (True, False)
    """
    return concrete_classes(strategies, Strategy)


def find(name: str) -> type[Strategy]:
    """The class of a strategy.

    Args:
        name: of a shipped strategy, or the dotted path of another one, ``module.Name``.

    Raises:
        ConfigError: when there is none of that name or path, or the path is of something else. It
            names those there are, or why the path cannot be imported.

    >>> find("FedCE") is find("monai_fairfl.strategies.FedCE")
    True
    >>> find("monai_fairfl.strategies.compose")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: 'monai_fairfl.strategies.compose' is no class that ...
    """
    if name == "compose":
        raise ConfigError(
            "compose is no strategy: it puts other parts into one, and is written as a call, such "
            'as "compose(FedCE(), clip_reports=3)" (docs/methods/composition.md)'
        )
    if isinstance(name, str) and name.lower() in OPTIONS:
        raise ConfigError(
            f"{name} is no strategy, but an option of every strategy: {OPTIONS[name.lower()]} "
            "(docs/methods/handlers.md)"
        )
    kind = find_class(name, shipped(), "strategy", "my_methods")
    if not is_subclass(kind, Strategy):
        raise ConfigError(
            f"{name!r} is no class that inherits from monai_fairfl.strategies.Strategy, "
            f"got {kind!r}"
        )
    if inspect.isabstract(kind):
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(f"strategy {name!r} cannot be used: its class does not define {lacking}")
    return kind


def strategy_of(given: Strategy | str | Mapping[str, Any]) -> Strategy:
    """The strategy that a user gave in one of the forms of this module.

    Nothing in a text is run: arguments are numbers, texts in quotes, ``True``, ``False``, ``None``,
    and lists, tuples and dictionaries of these. Those of ``compose`` may be strategies and parts,
    too.

    Args:
        given: a strategy; a text such as ``FedCE``, ``CGSV(gamma=None)`` or ``my_methods.Mine``,
            with arguments in parentheses where they are not the defaults; or a configuration with
            ``_target_``, as a mapping or its text.

    Raises:
        ConfigError: when a text has another form, there is no such strategy, or it does not take
            the arguments.

    >>> strategy_of("CGSV(beta=2)").name, strategy_of("FedCE('sum')").name
    ('CGSV-beta_2', 'FedCE-sum')
    >>> strategy_of({"_target_": "FedCE", "mode": "sum"}).name
    'FedCE-sum'
    >>> strategy_of("compose(FedCE('cos'), reward=Sparsified(2))").name
    'FedCE-cos-Sparsified-beta_2'
    >>> strategy_of("CGSV(bta=2)")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: CGSV has no argument 'bta'; did you mean 'beta'?
    >>> strategy_of("FedCE(mode=sum)")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: FedCE: mode=sum is no plain value; a text needs quotes: ...
    """
    if isinstance(given, Strategy):
        return given
    if isinstance(given, Mapping):
        return _strategy_of(given)
    if not isinstance(given, str):
        raise ConfigError(
            "a strategy is named by a text, such as 'CGSV(gamma=None)', or by a configuration with "
            f"_target_, got {given!r}"
        )
    text = given.strip()
    if text.startswith("{"):
        return _strategy_of(_mapping(text))
    return _called(text)


def _called(text: str, find_kind: Callable[[str], type[Any]] = find) -> Any:
    """The strategy, or the part of one, of a name, perhaps with arguments in parentheses.

    Args:
        text: the name, with the arguments.
        find_kind: name -> class.
    """
    name, call = _name_and_call(text)
    kind: Callable[..., Any]
    if name in ("compose", f"{SHIPPED}.compose"):
        kind, value_of = compose, _argument_of_compose
    else:
        kind, value_of = find_kind(name), _literal_argument
    short_name = name.rpartition(".")[2]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    if call is not None:
        for value in call.args:
            positional.append(value_of(value, short_name, ""))
        for keyword in call.keywords:
            if keyword.arg is None:
                raise ConfigError(f"{text!r}: write each argument by its name in place of **")
            named[keyword.arg] = value_of(keyword.value, short_name, f"{keyword.arg}=")

    return _checked_call(kind, text, positional, named)


def _checked_call(
    kind: Callable[..., Any], text: str, positional: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """A strategy or a part of one, with these arguments.

    Args:
        kind: its class, or ``compose``.
        text: how the user named it, for errors.
        positional: arguments by their position.
        named: arguments by their name.
    """
    short_name = text.partition("(")[0].rpartition(".")[2]
    _check_arguments(kind, short_name, positional, named)
    try:
        return kind(*positional, **named)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{text!r} cannot be made: {error}") from error
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(f"{text!r} cannot be made: {in_words(error)}") from error


# --- a configuration with _target_


def _mapping(text: str) -> Mapping[str, Any]:
    """A configuration in a text, as Python or JSON writes it."""
    try:
        found = written_value(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no configuration: {_EXPECTED}") from error
    if not isinstance(found, Mapping):
        raise ConfigError(f"{text!r} is no configuration: {_EXPECTED}")
    return found


def _strategy_of(configuration: Mapping[str, Any]) -> Strategy:
    """The strategy of a configuration; its parts are made first."""
    found = _component_of(configuration)
    if not isinstance(found, Strategy):
        raise ConfigError(f"{configuration[TARGET]!r} makes no strategy but {found!r}: {_EXPECTED}")
    return found


def _component_of(configuration: Mapping[str, Any]) -> Any:
    """What a configuration describes: a strategy, or a part of one."""
    if TARGET not in configuration:
        hint = _EXPECTED
        if isinstance(configuration.get("strategy"), Mapping):
            hint = "give only the inner mapping, the value of 'strategy'"
        raise ConfigError(f"{dict(configuration)} has no {TARGET}: {hint}")
    target = configuration[TARGET]
    arguments = {}
    for name, value in configuration.items():
        if name != TARGET:
            arguments[name] = _argument_of(name, value)
    make = _class_or_function(target)
    if is_subclass(make, Strategy):
        return _checked_call(find(str(target)), str(target), [], arguments)
    try:
        return make(**arguments)
    except Exception as error:  # whatever it raises
        raise ConfigError(f"{target} cannot be made with {arguments}: {in_words(error)}") from error


def _class_or_function(target: object) -> Any:
    """The class or function that ``_target_`` names; of this package also by its name alone."""
    if isinstance(target, str) and target in strategies.__all__:
        return getattr(strategies, target)
    if isinstance(target, str) and "." not in target:
        # Names those there are.
        return find(target)
    return load_by_path(target, "strategy")


def _argument_of(name: str, value: Any) -> Any:
    """An argument of a configuration, with the components in it."""
    if isinstance(value, Mapping) and TARGET in value:
        return _component_of(value)
    if isinstance(value, Mapping):
        return {key: _argument_of(name, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_argument_of(name, item) for item in value]
    if isinstance(value, str) and value.startswith(("$", "@", "%")):
        raise ConfigError(
            f"{name}={value!r} is an expression of MONAI, which only python -m monai.bundle run "
            "reads: write it into a file after federate.json"
        )
    return value


# --- a name with arguments


def _name_and_call(text: str) -> tuple[str, ast.Call | None]:
    """The name in a text, and the call of it where the text has parentheses."""
    shape = (
        f"{text!r} names no strategy: give its name, such as FedCE, or its name with arguments, "
        "such as 'CGSV(gamma=None)'"
    )
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(shape) from error
    call = None
    if isinstance(found, ast.Call):
        call = found
        found = call.func
    name = ast.unparse(found)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(shape)
    return name, call


def _literal_argument(node: ast.expr, name: str, argument: str) -> Any:
    """The plain value of an argument.

    Args:
        node: as it was written.
        name: of the strategy, for the error.
        argument: its name and ``=``; empty where it was given by its position.
    """
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        written = ast.unparse(node)
        hint = "give a number, a text in quotes, True, False, None, or a list of these"
        if isinstance(node, ast.Name):
            hint = f"a text needs quotes: {argument}{written!r}"
        raise ConfigError(f"{name}: {argument}{written} is no plain value; {hint}") from error


def _argument_of_compose(node: ast.expr, name: str, argument: str) -> Any:
    """A strategy, a part of one, or a plain value; arguments as of :func:`_literal_argument`."""
    if isinstance(node, (ast.Call, ast.Name, ast.Attribute)):
        return _called(ast.unparse(node), _strategy_or_part)
    return _literal_argument(node, name, argument)


def _strategy_or_part(name: str) -> type[Any]:
    """The class of a strategy or of a part; nothing else may be called."""
    known: dict[str, type[Any]] = {}
    for base in PARTS:
        known.update(concrete_classes(strategies, base))
    kind = find_class(name, known, "strategy or part", "my_methods")
    if not any(is_subclass(kind, base) for base in PARTS):
        raise ConfigError(f"{name!r} is no strategy and no part of one, got {kind!r}")
    return kind


def _check_arguments(
    kind: Callable[..., Any], name: str, positional: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Refuse arguments that the strategy does not have, and name those that it needs."""
    signature = inspect.signature(kind)
    takes_any = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_any = True
    for argument in named:
        if argument not in signature.parameters and not takes_any:
            hint = did_you_mean(argument, signature.parameters)
            raise ConfigError(f"{name} has no argument {argument!r}{hint}")
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise ConfigError(
            f"{name}{signature} cannot take these arguments: {error}; monai-fairfl strategies "
            f"{name} describes them"
        ) from error
