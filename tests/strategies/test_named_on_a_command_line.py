# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as a command line names them: ``FedAvg``, ``CGSV(beta=2)``."""

from __future__ import annotations

from pathlib import Path

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import CGSV, FedAvg, FedCE
from monai_fairfl.strategies.catalogue import shipped, strategy_of
from monai_fairfl.strategies.configuration import configuration_of


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
    ],
)
def test_a_text_is_the_strategy_that_python_would_make(text: str, made: object) -> None:
    found = strategy_of(text)
    assert type(found) is type(made)
    assert configuration_of(found) == configuration_of(made)  # type: ignore[arg-type]


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
    ],
)
def test_nothing_in_the_text_is_run(text: str, tmp_path: Path) -> None:
    file = tmp_path / "written"
    with pytest.raises(ConfigError):
        strategy_of(text.format(file=str(file)))
    assert not file.exists()
