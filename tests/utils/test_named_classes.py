# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A type alias among a package's names is passed over, whatever a Python says of its type."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import catalogue
from monai_fairfl.strategies import resolver
from monai_fairfl.strategies.configuration import strategy_from
from monai_fairfl.utils.named_classes import concrete_classes, is_subclass


class AliasOfPython310:
    """``dict[str, float]`` as Python 3.10 has it: its class seems to be ``type``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type


ALIASES: dict[str, Any] = {"OfThisPython": dict[str, float], "OfPython310": AliasOfPython310()}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module ``methods_and_aliases`` with a class and two aliases."""
    module = ModuleType("methods_and_aliases")
    for name, value in {"Method": OrderedNames, **ALIASES}.items():
        setattr(module, name, value)
    module.__all__ = ["Method", *ALIASES]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class OrderedNames(dict[str, float]):
    """A class that inherits from what the aliases name."""


def test_only_classes_are_found(package: ModuleType) -> None:
    assert concrete_classes(package, dict) == {"Method": OrderedNames}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_no_class(name: str) -> None:
    assert not is_subclass(ALIASES[name], dict)


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_that_is_named_as_a_strategy_or_a_guard_is_refused(
    name: str, package: ModuleType
) -> None:
    path = f"methods_and_aliases.{name}"
    with pytest.raises(ConfigError, match="no class that inherits from .*Strategy"):
        resolver.find(path)
    with pytest.raises(ConfigError, match="no class that inherits from .*Guard"):
        catalogue.find(path)
    with pytest.raises(ConfigError, match="no class that can be used as a Strategy"):
        strategy_from({"_target_": path}, allow_import=True)
