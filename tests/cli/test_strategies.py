# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl strategies``: what is shipped, and one in full, also one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command_line import Commands
from helpers.shipped_strategies import SHIPPED


def test_every_strategy_is_listed_with_its_first_line_and_its_arguments(cli: Commands) -> None:
    shown = cli.run("strategies")
    entries = cli.json("strategies")["strategies"]
    assert set(entries) == set(SHIPPED)
    for name, entry in entries.items():
        assert entry["call"].startswith(f"{name}(") and entry["call"] in shown
        first = entry["docstring"].splitlines()[0]
        assert first.endswith(".") and first in shown
    assert "mode='multi'" in entries["FedCE"]["call"]


def test_a_strategy_of_ones_own_and_a_part_are_shown_in_full(
    tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli.run("strategies", "inverse_loss.InverseLoss")
    assert "epsilon=0.001" in shown and "least training loss" in shown
    assert "attackers" in cli.run("strategies", "Krum")
    (tmp_path / "shown_methods.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Needy(InverseLoss):\n"
        "    def __init__(self, share, kind=dict, **more):\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "share, kind" in cli.run("strategies", "shown_methods.Needy")


def test_an_unknown_name_is_answered_with_the_closest_or_all(cli: Commands) -> None:
    assert "CFFL" in cli.refusal("strategies", "zzz")
    assert "'FedCE'" in cli.refusal("strategies", "fedce")
