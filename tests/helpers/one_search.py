# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A configuration names MONAI's classes without their modules, and MONAI searches all modules for
every configuration, a tenth of a second each. Where this is imported, it searches each module once,
does not measure how far a key that is not there is from all that are, and does not look through all
of a configuration for imports whenever it builds a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import monai.utils.module
from monai.bundle import ComponentLocator, ConfigExpression, ReferenceResolver

_search: Any = ComponentLocator._find_classes_or_functions


@cache
def _names_of(module: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = _search(ComponentLocator(), [module])
    return found


@cache
def _table_of(modules: tuple[str, ...]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for module in modules:
        for name, where in _names_of(module).items():
            table.setdefault(name, []).extend(where)
    return table


def _searched_once(locator: ComponentLocator, modules: Sequence[str]) -> dict[str, list[str]]:
    return _table_of(tuple(modules))


ComponentLocator._find_classes_or_functions = _searched_once  # type: ignore[method-assign]
monai.utils.module.damerau_levenshtein_distance = lambda one, other: 9


class _Items(dict[str, Any]):
    """What a configuration holds; MONAI goes through all of it only to find the imports."""

    def __init__(self) -> None:
        self.imports: dict[str, Any] = {}

    def __setitem__(self, name: str, item: Any) -> None:
        super().__setitem__(name, item)
        if isinstance(item, ConfigExpression) and item.is_import_statement(item.get_config()):
            self.imports[name] = item

    def items(self) -> Any:
        return self.imports.items()


def _reset(resolver: ReferenceResolver) -> None:
    resolver.items, resolver.resolved_content = _Items(), {}


ReferenceResolver.reset = _reset  # type: ignore[method-assign]
