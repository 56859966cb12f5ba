# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings, strategies and names that no run can begin with are refused by name and value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LeastSquares
from helpers.least_squares_federation import federation, nobody

from monai_fairfl import InProcess
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, FedCE

WRONG: list[tuple[str, Any, str]] = [
    ("rounds", 0, "0"),
    ("min_clients", True, "True"),
    ("clients_per_round", 1, "2"),
    ("keep", 1, "2"),
    # MONAI reads --local_norm false as a text, and any text would switch it on.
    ("local_norm", "false", "'false'"),
    ("seed", 2**63, "9223372036854775808"),
    ("timeout", "60", "'60'"),
    ("adapt_fuse", True, "adapt_epochs"),
    ("evaluate", "global_score", "'global_score'"),
    ("groups", {"small": "AB"}, "'AB'"),
    ("samples", {"A": 1_000_001}, "1000001"),
    ("ranges", {"score": [0, 1e7]}, "within 1e6"),
    ("min_client", 3, "min_clients"),
]


def test_a_bad_setting_is_refused_by_name_and_value(tmp_path: Path) -> None:
    for name, value, word in WRONG:
        with pytest.raises(ConfigError, match=rf"\b{name}\b.*{word}"):
            federation(tmp_path, **{name: value})


def test_a_method_that_compares_clients_draws_more_than_one_for_a_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients_per_round": 1, "min_clients": 1}
    with pytest.raises(ConfigError, match="FedCE.*2.*clients_per_round.*1"):
        federation(tmp_path, FedCE(), nobody(), **settings).run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert federation(tmp_path, FedAvg(), **settings).run().finished


# --- names

HOSTILE = {
    "an absolute path": "/etc/passwd",
    "a line break": "elm\noak",
    "Cyrillic letters that look Latin": "\u0435lm",
    "markup": "<script>alert(1)</script>",
    "the global model's": "global",
}


def test_a_clients_name_that_is_no_plain_one_is_refused_and_nothing_is_written_outside(
    tmp_path: Path,
) -> None:
    for name in HOSTILE.values():
        two = {client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", name)}
        with pytest.raises(ConfigError, match="cannot be") as error:
            federation(tmp_path / "here", FedAvg(), InProcess(two)).run()
        assert len(str(error.value)) < 500
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert written == ["here/run/.lock"]
