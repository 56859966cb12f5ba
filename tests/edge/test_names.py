# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies and guards as a command line or a configuration names them, and what is refused.

Nothing in such a text is run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from helpers.shipped_strategies import SHIPPED

from monai_fairfl import BundleFederation, Strategy, compose, find_bundle
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, FedCE, TrimmedMean

BUNDLE = str(find_bundle("prostate_mri_segmentation"))


def federation(strategies: Any, folder: Path, **settings: Any) -> BundleFederation:
    return BundleFederation(BUNDLE, "DATA", strategies, rounds=1, run_dir=str(folder), **settings)


def made(text: Any, folder: Path) -> Strategy:
    [strategy] = federation(text, folder).strategies
    return strategy


def test_a_text_is_the_strategy_that_python_would_make(tmp_path: Path) -> None:
    for text, expected in (
        (" FedAvg() ", FedAvg()),
        ("monai_fairfl.strategies.FedCE('sum')", FedCE("sum")),
        ('{"_target_": "FedCE", "mode": "sum"}', FedCE("sum")),
        (
            "FedCE('cos', cap=1.5, average=TrimmedMean(1))",
            compose(FedCE("cos"), cap=1.5, average=TrimmedMean(1)),
        ),
        (
            {
                "_target_": "monai_fairfl.strategies.compose",
                "strategy": {"_target_": "monai_fairfl.strategies.FedAvg"},
                "average": {"_target_": "monai_fairfl.strategies.TrimmedMean", "trim": 2},
                "cap": 1.5,
            },
            FedAvg(average=TrimmedMean(2), cap=1.5),
        ),
    ):
        found = made(text, tmp_path)
        assert type(found) is type(expected) and found.name == expected.name
        assert made(expected, tmp_path) is expected


def test_every_shipped_strategy_is_made_by_its_name(tmp_path: Path) -> None:
    names = list(SHIPPED)
    found = federation(names, tmp_path).strategies
    assert [type(strategy).__name__ for strategy in found] == names and len(names) >= 15


MEANT = [
    ("fedce", "FedCE"),
    ("FedCE(mod='sum')", "'mod'.*'mode'"),
    ("FedCE(mode=sum)", "quotes"),
    ("CGSV(beta=1+1)", "CGSV"),
    ("FedCE(", "call"),
    ("os.getcwd", "os.getcwd"),
    ("FedAvg(average=Krum())", "Average.*Krum"),
    ("Proportional(2.0)", "Proportional"),
    ('{"_target_": "FedCE", "mode": "$print()"}', "print"),
]


def test_another_text_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    for text, words in MEANT:
        with pytest.raises(ConfigError, match=words):
            made(text, tmp_path)


def test_nothing_in_the_text_is_run(tmp_path: Path) -> None:
    file = tmp_path / "written"
    for text in (
        "CGSV(__import__('pathlib').Path({file!r}).touch())",
        "FedAvg(average=builtins.open({file!r}, 'w'))",
        '{{"_target_": "pathlib.Path.touch", "self": {{"_target_": "pathlib.Path"}}}}',
    ):
        with pytest.raises(ConfigError):
            made(text.format(file=str(file)), tmp_path)
        assert not file.exists()


OF_METHODS: dict[str, dict[str, Any]] = {
    "CFFL": {"fade": 1.0},
    "CGSV": {"gamma": 0.0, "exact": "no"},
    "FedCE": {"mode": "plus"},
    "FedCI": {"decay": "0,5"},
    "FedISM": {"rho": math.inf},
    "QFedAvg": {"learning_rate": (0, 5)},
    "ShapFed": {"mu": True},
}
"""A number with a decimal comma is read as a text or a pair; every text would count as true."""


def test_a_number_out_of_range_or_a_text_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    for name, arguments in OF_METHODS.items():
        for argument, value in arguments.items():
            with pytest.raises(ConfigError, match=f"{name}.*{argument}"):
                made(f"{name}({argument}={value!r})".replace("inf", "1e999"), tmp_path)


# ---- guards


def test_what_is_no_guard_is_refused(tmp_path: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        (["Emty"], "Empty"),
        ([{"_target_": "TooLong", "times": "8"}], "times"),
        ("Empty", "list"),
        ([FedAvg()], "guard"),
    ]
    for guards, words in wrong:
        with pytest.raises(ConfigError, match=words):
            federation("FedAvg", tmp_path, guards=guards)
