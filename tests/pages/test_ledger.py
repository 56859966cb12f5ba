# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What ``docs/ledger.md`` says of each strategy is what the commands do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.shipped_strategies import SHIPPED
from helpers.tiny_networks import federation

from monai_fairfl.audit import NotInLedgerError, replay, what_if
from monai_fairfl.strategies import FedAvg

PAGE = (CHECKOUT / "docs" / "ledger.md").read_text()


def rows() -> dict[str, list[str]]:
    """Strategy -> the cells of its row, in the table of strategies."""
    found = {}
    section = PAGE.partition("## Which strategies")[2]
    for line in re.findall(r"^\| `.*$", section, re.MULTILINE):
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+)`", names):
            found[name] = cells
    return found


def is_answered(run: Path, **question: object) -> bool:
    try:
        what_if(run, **question)  # type: ignore[arg-type]
    except NotInLedgerError:
        return False
    return True


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with FedAvg."""
    folder = tmp_path_factory.mktemp("fedavg")
    federation(FedAvg(), folder, rounds=2).run()
    return folder / "run"


@pytest.mark.parametrize("name", SHIPPED)
def test_each_strategys_row_of_the_page_is_true(name: str, fedavg: Path, tmp_path: Path) -> None:
    assert name in rows(), f"add {name} to the table of strategies in docs/ledger.md"
    replayed, without, of_another = rows()[name]
    strategy = SHIPPED[name]
    federation(strategy(), tmp_path, rounds=2).run()
    own = tmp_path / "run"
    assert replayed == "yes" and replay(own).differences == ()
    assert is_answered(own, without="elm") == without.startswith("yes")
    assert is_answered(own, strategy=strategy())

    assert is_answered(fedavg, strategy=strategy()) == of_another.startswith("yes")
