# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards by name and configuration, and the command that shows them."""

from __future__ import annotations

import inspect
import json
import math
from typing import Any

import pytest

from monai_fairfl.cli import main
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import DEFAULT, NonFinite, TooLong, catalogue
from monai_fairfl.strategies import FedAvg


def test_the_default_guards_survive_their_configuration() -> None:
    config = json.loads(json.dumps(catalogue.config_of(DEFAULT)))
    again = catalogue.guards_of(config)
    assert catalogue.config_of(again) == config
    assert [type(guard) for guard in again] == [type(guard) for guard in DEFAULT]


def test_names_paths_configurations_and_guards_may_be_mixed() -> None:
    own = TooLong(7.0)
    given: list[Any] = ["NonFinite", own, {"_target_": "monai_fairfl.guards.Empty", "share": 0.01}]
    first, second, third = catalogue.guards_of(given)
    assert isinstance(first, NonFinite) and second is own and vars(third) == {"share": 0.01}


THRESHOLDS = [
    (kind, argument)
    for kind in map(type, DEFAULT)
    for argument, parameter in inspect.signature(kind).parameters.items()
    if argument != "seed" and isinstance(parameter.default, (int, float))
]


@pytest.mark.parametrize("value", [-2, math.nan, math.inf, "8"])
@pytest.mark.parametrize(("kind", "argument"), THRESHOLDS)
def test_a_threshold_that_would_guard_nothing_is_refused(
    kind: Any, argument: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}: {argument} must be a finite number"):
        kind(**{argument: value})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["Emty"], "did you mean 'Empty'"),
        (["monai_fairfl.guards.Emty"], "has no 'Emty'"),
        (["monai_fairfl.strategies.FedAvg"], "no class that inherits from"),
        (["monai_fairfl.guards.Guard"], "and defines check"),
        ([{"share": 1}], "is no dotted path"),
        ([{"_target_": "Empty", "shares": 1}], "cannot be made: .*shares"),
        ([{"_target_": "Replayed", "entries": 40.5}], "entries must be a whole number, got 40.5"),
        ([{"_target_": "Replayed", "seed": -1}], "seed must be a whole number, got -1"),
        ("Empty", "must be a list"),
        ({"_target_": "Empty"}, "must be a list"),
        ([3], "is no dotted path"),
    ],
)
def test_what_is_no_guard_is_refused_with_the_reason(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        catalogue.guards_of(given)


def test_a_guard_that_hides_an_argument_is_refused() -> None:
    class Hidden(TooLong):
        def __init__(self, factor: float = 2.0):
            super().__init__(factor)

    with pytest.raises(ConfigError, match="write self.factor = factor"):
        catalogue.config_of([Hidden()])


def test_every_guard_has_a_page_and_a_place_in_the_table() -> None:
    entries = {name: catalogue.describe(name) for name in catalogue.shipped()}
    table = catalogue.as_table(entries)
    for guard in DEFAULT:
        name = type(guard).__name__
        assert entries[name]["default"] and f"{name}(" in table
        assert name in catalogue.as_page(name, entries[name])
        assert entries[name]["looks_back"] == bool(guard.state)


def test_a_strategy_is_no_guard() -> None:
    with pytest.raises(ConfigError, match="guard"):
        catalogue.guards_of([FedAvg()])  # type: ignore[list-item]


def test_the_command_lists_guards_and_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guards"]) == 0
    assert "TooLong(times=6.0)" in capsys.readouterr().out
    assert main(["guards", "Replayed"]) == 0
    assert '"_target_": "monai_fairfl.guards.Replayed", "cosine": 0.9' in capsys.readouterr().out
    assert main(["guards", "Replay"]) == 2
    assert "did you mean 'Replayed'" in capsys.readouterr().err
