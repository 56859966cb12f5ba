# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as a command line names them: ``FedAvg``, ``CGSV(beta=2)``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import (
    CGSV,
    FedAvg,
    FedCE,
    Proportional,
    TrimmedMean,
    compose,
)
from monai_fairfl.strategies.configuration import configuration_of
from monai_fairfl.strategies.resolver import find, shipped, strategy_of


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("FedAvg", FedAvg()),
        (" FedAvg() ", FedAvg()),
        ("CGSV(beta=2)", CGSV(beta=2)),
        ("CGSV(beta=2, reward=None)", CGSV(beta=2, reward=None)),
        ('FedCE("sum")', FedCE("sum")),
        ("FedCE(mode='sum')", FedCE("sum")),
        ("monai_fairfl.strategies.FedCE('sum')", FedCE("sum")),
        ("compose(FedCE(), clip_reports=3)", compose(FedCE(), clip_reports=3)),
        ("compose(FedCE, training={'prox_mu': 0.1})", compose(FedCE(), training={"prox_mu": 0.1})),
        (
            "monai_fairfl.strategies.compose(CGSV(beta=2), weighting=Proportional(2.0), cap=2)",
            compose(CGSV(beta=2), weighting=Proportional(2.0), cap=2),
        ),
        (
            "compose(compose(FedCE('cos'), cap=1.5), average=TrimmedMean(1))",
            compose(compose(FedCE("cos"), cap=1.5), average=TrimmedMean(1)),
        ),
    ],
)
def test_a_text_is_the_strategy_that_python_would_make(text: str, made: object) -> None:
    found = strategy_of(text)
    assert type(found) is type(made)
    assert configuration_of(found) == configuration_of(made)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_strategy_is_made_by_its_name(name: str) -> None:
    assert type(strategy_of(name)) is shipped()[name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fedce", "did you mean 'FedCE'"),
        ("FedCE(mod='sum')", "FedCE has no argument 'mod'; did you mean 'mode'"),
        ("FedCE(mode=sum)", r"FedCE: mode=sum is no plain value; a text needs quotes: mode='sum'"),
        ("FedCE(sum)", r"FedCE: sum is no plain value; a text needs quotes: 'sum'"),
        ("FedCE(mode='plus')", "mode must be one of 'multi', 'sum', .*, got 'plus'"),
        ("CGSV(beta=1+1)", r"CGSV: beta=1 \+ 1 is no plain value; give a number"),
        ("FedCE('sum', 'paper', 3)", "FedCE.*cannot take these arguments: too many positional"),
        ("FedCE('sum', mode='sum')", "FedCE.*cannot take these arguments: multiple values"),
        ("FedCE(**{'mode': 'sum'})", "write each argument by its name"),
        ("FedCE(", "names no strategy: give its name"),
        ("FedAvg, FedCE", "names no strategy: give its name"),
        ("FedAvg()()", "names no strategy: give its name"),
        ("", "names no strategy: give its name"),
        ("3", "names no strategy: give its name"),
        ("os.getcwd", "'os.getcwd' is no class that inherits"),
        ("no_such_module.Mine", "no_such_module"),
        ("compose", "compose.*cannot take these arguments: missing a required argument"),
        (
            "FedProx",
            r"an option of every strategy: write .compose\(FedAvg\(\), training=.'prox_mu'",
        ),
        ("FedBN", "FedBN is no strategy, but an option .* the key local_norm"),
        ("compose(FedCE(), clip_report=3)", "compose has no argument 'clip_report'; did you mean"),
        ("compose(fedce())", "unknown strategy or part 'fedce': did you mean 'FedCE'"),
        ("compose(FedCE(mod='sum'))", "FedCE has no argument 'mod'; did you mean 'mode'"),
        ("compose(FedCE(), cap=0)", "cap must be a finite number above 0, got 0"),
        (
            "compose(FedAvg(), average=FedAvg())",
            "compose: average must be of the class Average, got <.*FedAvg",
        ),
        ("compose(FedAvg(), Median())", "compose: weighting must be of the class Weighting"),
        (
            "compose(FedAvg(), average=Krum())",
            "compose: average must be of the class Average, got .*; Krum is a weighting: give it "
            "as weighting",
        ),
        ("compose(2)", "compose: strategy must be of the class Strategy, got 2"),
        ("compose(os.getcwd())", "'os.getcwd' is no strategy and no part of one"),
        ("Proportional(2.0)", "unknown strategy 'Proportional'"),
    ],
)
def test_another_text_is_refused_with_what_was_meant(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        strategy_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "CGSV(beta=open({file!r}, 'w'))",
        "CGSV(__import__('pathlib').Path({file!r}).touch())",
        "FedCE([open({file!r}, 'w')])",
        "[open({file!r}, 'w')][0](1)",
        "compose(open({file!r}, 'w'))",
        "compose(builtins.open({file!r}, 'w'))",
        "compose(FedCE(), training={{'prox_mu': open({file!r}, 'w')}})",
    ],
)
def test_nothing_in_the_text_is_run(text: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    with pytest.raises(ConfigError):
        strategy_of(text.format(file=str(file)))
    assert not file.exists()


@pytest.mark.parametrize(
    "given",
    [
        FedCE("sum"),
        {"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"},
        {"_target_": "FedCE", "mode": "sum"},
        '{"_target_": "FedCE", "mode": "sum"}',
        "{'_target_': 'monai_fairfl.strategies.FedCE', 'mode': 'sum'}",
        "FedCE('sum')",
    ],
)
def test_every_form_gives_the_same_strategy(given: Any) -> None:
    assert configuration_of(strategy_of(given)) == configuration_of(FedCE("sum"))


def test_a_configuration_makes_the_parts_of_a_composition_too() -> None:
    parts = {"weighting": {"_target_": "Proportional", "power": 2.0}}
    given = {"_target_": "compose", "strategy": {"_target_": "CGSV"}, **parts}
    made = compose(CGSV(), weighting=Proportional(2.0))
    assert configuration_of(strategy_of(given)) == configuration_of(made)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "sum"}, "has no _target_"),
        (
            '{"strategy": {"_target_": "FedCE"}}',
            "has no _target_: give only the inner mapping, the value of 'strategy'",
        ),
        ({"_target_": "fedce"}, "did you mean 'FedCE'"),
        ({"_target_": "FedCE", "mod": "sum"}, "FedCE has no argument 'mod'; did you mean 'mode'"),
        ({"_target_": "Proportional"}, "makes no strategy"),
        ({"_target_": "FedCE", "mode": "$print()"}, "is an expression of MONAI"),
        ("{'_target_': ", "is no configuration"),
        (3, "got 3"),
    ],
)
def test_another_configuration_is_refused_with_what_was_meant(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        strategy_of(given)


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("CGSV", "exact"),
        ("CFFL", "grow"),
        ("FedGA", "centred"),
        ("FedISM", "salt"),
        ("FedISM", "plus"),
        ("FedISM", "reset_optimizer"),
        ("FedLWR", "layerwise"),
        ("ShapFed", "personalised"),
        ("Sparsified", "leave_one"),
    ],
)
def test_a_text_is_no_switch(name: str, switch: str) -> None:
    """Every text but the empty one would count as true."""
    given: dict[str, Any] = {"_target_": name, switch: "no"}
    if name == "Sparsified":
        given = {"_target_": "compose", "strategy": {"_target_": "FedAvg"}, "reward": given}
    with pytest.raises(ConfigError, match=f"{name}: {switch} must be one of True, False.*'no'"):
        strategy_of(given)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AFL", ["step"]),
        ("CFFL", ["fade", "alpha", "threshold"]),
        ("CGSV", ["gamma", "alpha", "beta"]),
        ("Ditto", ["lam"]),
        ("FairFed", ["beta"]),
        ("FedCI", ["decay"]),
        ("FedGA", ["step"]),
        ("FedISM", ["q", "beta", "rho", "alpha"]),
        ("QFedAvg", ["q", "learning_rate"]),
        ("ShapFed", ["mu"]),
    ],
)
@pytest.mark.parametrize("value", ["0,5", (0, 5), True])
def test_what_is_no_number_is_refused_by_its_name(
    name: str, arguments: list[str], value: Any
) -> None:
    """MONAI reads ``--strategy#beta 0,5``, with a decimal comma, as two numbers."""
    for argument in arguments:
        words = f"{name}: {argument} must be a number, such as 0.5, got {value!r}"
        with pytest.raises(ConfigError, match=re.escape(words)):
            strategy_of({"_target_": name, argument: value})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("reward=Sparsified(beta='2')", "Sparsified: beta must be a number, such as 0.5, got '2'"),
        (
            "weighting=GeometricMedian(smoothing='1')",
            "GeometricMedian: smoothing must be a number, such as 0.5, got '1'",
        ),
        ("cap='2'", "compose: cap must be a number, such as 0.5, got '2'"),
        ("clip_reports='3'", "compose: clip_reports must be a number, such as 0.5, got '3'"),
        ("training=['prox_mu']", "training must be a mapping, such as {'prox_mu': 0.01}, got ["),
    ],
)
def test_a_part_of_another_type_is_refused_by_its_name(part: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        strategy_of(f"compose(FedAvg(), {part})")


@pytest.mark.parametrize(
    "text",
    [
        "AFL(step=inf)",
        "AFL(step=1e7)",
        "CFFL(alpha=1000)",
        "CFFL(alpha=inf)",
        "CFFL(alpha=0)",
        "CGSV(gamma=inf)",
        "FairFed(beta=inf)",
        "FedGA(step=inf)",
        "QFedAvg(q=inf)",
        "QFedAvg(learning_rate=inf)",
        "QFedAvg(q=nan)",
        "Ditto(lam=inf)",
        "FedISM(q=inf)",
        "FedISM(rho=inf)",
        "FedISM(q=nan)",
        "FedISM(rho=nan)",
        "FedISM(alpha=nan)",
        "FedISM(alpha=-1)",
        "FedLWR(clip=0.9)",
        "FedLWR(clip=[0.1])",
        "FedLWR(clip=[0, 0.5, 1])",
    ],
)
def test_a_number_out_of_range_is_refused_before_anything_is_trained(text: str) -> None:
    name, _, arguments = text.rstrip(")").partition("(")
    argument, _, value = arguments.partition("=")
    given = float(value) if value in ("nan", "inf") else json.loads(value)
    with pytest.raises(ConfigError, match=f"{name}: .*{argument}.* must be"):
        strategy_of({"_target_": name, argument: given})


def test_compose_is_no_name_of_a_strategy_and_its_form_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"written as a call, such as \"compose\(FedCE\(\)"):
        find("compose")
