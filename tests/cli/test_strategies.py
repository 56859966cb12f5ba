# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl strategies`` and ``guards``: what is shipped, and one in full, also one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command_line import Commands
from monai.bundle import ConfigParser

from monai_fairfl import strategies

FACTS = ("paper", "client_does", "client_sends", "trusts", "cost", "phases", "min_clients")


def test_every_strategy_says_what_it_costs_and_can_be_made_from_its_configuration(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = cli.run("strategies").splitlines()
    assert max(map(len, shown)) <= 100
    entries = cli.json("strategies")["strategies"]
    assert {"FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM"} <= set(entries)
    for name, entry in entries.items():
        assert [line for line in shown if line.split()[:1] == [name]], name
        for fact in FACTS:
            assert entry[fact], f"give the class {name} a {fact!r}"
        assert entry["summary"].endswith("."), name
        kind = getattr(strategies, name)
        parsed = ConfigParser({"strategy": entry["config"]})
        assert type(parsed.get_parsed_content("strategy")) is kind


def test_a_strategy_of_ones_own_is_shown_whatever_its_arguments_are(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "inverse_loss.InverseLoss"
    entry = cli.json("strategies", name)["strategies"][name]
    assert entry["config"] == {"_target_": name}
    assert (entry["arguments"]["epsilon"], entry["requires"]) == (0.001, ["train_loss"])

    (tmp_path / "shown_methods.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Needy(InverseLoss):\n"
        "    def __init__(self, share, kind=dict, **more):\n"
        "        pass\n"
        "class Broken(InverseLoss):\n"
        "    def __init__(self):\n"
        "        raise KeyError('no table')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "shown_methods.Needy"
    entry = cli.json("strategies", name)["strategies"][name]
    assert entry["needed_arguments"] == ["share"]
    assert entry["arguments"] == {"kind": "<class 'dict'>"}
    # The description is not that of the class that it inherits from.
    assert entry["description"] == ""
    assert "share" in cli.run("strategies", name)
    assert "no table" in cli.refusal("strategies", "shown_methods.Broken")


def test_an_unknown_name_is_answered_with_the_known_ones(
    cli: Commands,
) -> None:
    assert "CFFL" in cli.refusal("strategies", "FedX")
    assert "'FedCE'" in cli.refusal("strategies", "fedce")
    assert "TooLong" in cli.refusal("guards", "toolong")
