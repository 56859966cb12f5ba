# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as users write them, and as a ledger records them.

A strategy is written in two ways, which every command and engine takes:

- a call, as in Python: ``FedCE``, ``FedCE('sum', reward=Sparsified(2.0))``, ``my_methods.Mine(3)``;
- a mapping, as in the configuration of a MONAI bundle, perhaps as a text:
  ``{"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"}``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from monai_fairfl import strategies
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.utils.named_classes import TARGET, as_mapping, concrete_classes
from monai_fairfl.utils.named_classes import find as find_in
from monai_fairfl.utils.named_classes import made, plain
from monai_fairfl.utils.plain_values import written_value

KINDS = (Strategy, Weighting, Reward, Average)
"""What may be written so: strategies, and the parts of which they are made."""


def shipped() -> dict[str, type[Strategy]]:
    """Name -> class of every strategy of the package.

    >>> "FedCE" in shipped(), "Strategy" in shipped()
    (True, False)
    """
    return concrete_classes(strategies, Strategy)


def find(name: object, allow_import: bool = True) -> Any:
    """The class of a strategy or part, by its name or the dotted path ``module.Name``.

    Args:
        name: of a shipped class, or the path of another one.
        allow_import: whether a class outside this package may be imported, which runs code.

    Raises:
        ConfigError: when there is none, naming the closest one or why it cannot be imported.

    >>> find("FedCE") is find("monai_fairfl.strategies.FedCE")
    True
    """
    return find_in(name, strategies, *KINDS, allow_import=allow_import)


def strategy_of(given: object, allow_import: bool = True) -> Strategy:
    """The strategy that a user wrote, or that a ledger records.

    Nothing in a text is run but constructors of strategies and their parts. Arguments are numbers,
    texts in quotes, ``True``, ``False``, ``None``, lists and dictionaries of these, and parts.

    Args:
        given: a strategy, the text of a call, or a mapping with ``_target_`` or its text.
        allow_import: whether classes outside this package may be imported. A ledger is data that
            others wrote, and importing runs code.

    Raises:
        ConfigError: when it has another form, or there is no such class or argument.

    >>> strategy_of("FedCE('cos', reward=Sparsified(2.0))").name
    'FedCE-cos-Sparsified-beta_2.0'
    >>> strategy_of({"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"}).name
    'FedCE-sum'
    >>> strategy_of("CGSV(bta=2)")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: CGSV has no argument 'bta'; did you mean 'beta'?
    """
    found = given
    if isinstance(given, str):
        text = given.strip()
        try:
            if text.startswith("{"):
                found = written_value(text)
            else:
                node = ast.parse(text, mode="eval").body
                call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
                found = _value(call, allow_import)
        except ConfigError:
            raise
        except Exception as error:  # whatever a text leads to
            raise ConfigError(
                f"{text!r} is no call such as FedCE('sum'), in which texts have quotes"
            ) from error
    if isinstance(found, Mapping) and TARGET in found:
        found = _from_mapping(found, allow_import)
    if not isinstance(found, Strategy):
        raise ConfigError(
            f"{given!r} is no strategy: write a call, such as FedCE('sum'), or a mapping with "
            '"_target_": "monai_fairfl.strategies.FedCE"'
        )
    return found


def configuration_of(strategy: Strategy) -> dict[str, Any] | None:
    """The class of a strategy, its arguments and its parts as plain JSON, for the ledger.

    Returns:
        A mapping of which :func:`strategy_of` makes the same strategy; ``None`` where a constructor
        does not store an argument in an attribute of its name, or it is no plain value.

    >>> from monai_fairfl.strategies import FedCE
    >>> configuration_of(FedCE("sum"))
    {'_target_': 'monai_fairfl.strategies.FedCE', 'mode': 'sum', 'variant': 'paper'}
    """
    try:
        own = as_mapping(strategy, strategies, Strategy)
        if strategy.exchanged == Parts():
            return own
        # As compose() takes them: a class of one's own need not pass parts on.
        composed: dict[str, Any] = {TARGET: "monai_fairfl.strategies.compose", "strategy": own}
        for name, part in vars(strategy.exchanged).items():
            if isinstance(part, KINDS):
                composed[name] = as_mapping(part, strategies, object)
            elif part is not None:
                composed[name] = plain(part)
        return composed
    except ConfigError:
        return None


def _value(node: ast.expr, allow_import: bool) -> Any:
    """The object of a call, or a plain value."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    kind = find(ast.unparse(node.func), allow_import)
    positional = [_value(value, allow_import) for value in node.args]
    named = {str(word.arg): _value(word.value, allow_import) for word in node.keywords}
    return made(kind, positional, named)


def _from_mapping(value: Any, allow_import: bool) -> Any:
    """A value of a mapping, with the objects that it describes."""
    if isinstance(value, list):
        return [_from_mapping(item, allow_import) for item in value]
    if isinstance(value, Mapping):
        found = {key: _from_mapping(item, allow_import) for key, item in value.items()}
        if TARGET not in found:
            return found
        return made(find(found.pop(TARGET), allow_import), [], found)
    if value in ("inf", "-inf", "nan"):
        return float(value)
    return value
