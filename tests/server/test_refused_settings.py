# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Settings, strategies and names of clients that no run can begin with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import LeastSquares
from helpers.least_squares_federation import federation

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, FedCE, FedCI
from monai_fairfl.transports.in_process import InProcess


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": "two"}, "'two'"),
        ({"buffers": "mean"}, "'mean'"),
        ({"threads": 0}, "threads"),
        ({"min_clients": True}, "min_clients"),
        ({"clients_per_round": 0}, "clients_per_round must be a whole number of at least 2, got 0"),
        (
            {"clients_per_round": 0, "min_clients": 1},
            "clients_per_round must be a whole number of at least 1, got 0",
        ),
        (
            {"clients_per_round": 2, "min_clients": 3},
            "clients_per_round must be a whole number of at least 3, got 2",
        ),
        ({"clients_per_round": 2.5}, "2.5"),
        # MONAI reads --local_norm false as a text, and any text would switch it on.
        ({"local_norm": "false"}, "local_norm must be True or False, got 'false'"),
        ({"record_updates": "false"}, "record_updates must be True or False"),
        ({"unasked": 1}, "unasked must be True or False, got 1"),
        ({"seed": "3"}, "seed must be a whole number below .*, got '3'"),
        ({"seed": 2**63}, "seed must be a whole number below .*, got 9223372036854775808"),
        ({"timeout": math.inf}, "timeout must be a number of seconds above 0, or None.*got inf"),
        ({"timeout": "60"}, "timeout must be a number of seconds above 0.*got '60'"),
        ({"adapt_rate": "1e-3"}, "adapt_rate must be a learning rate.*got '1e-3'"),
        ({"final": None}, "final must be a list of measurements, got None"),
        ({"groups": ["A"]}, "groups must be a mapping"),
        ({"groups": {"small": "AB"}}, "groups: 'small' must be a list of clients, got 'AB'"),
        ({"samples": 3}, "samples must be a mapping, got 3"),
    ],
)
def test_bad_settings_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(tmp_path, **settings)


def test_something_else_than_a_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got str"):
        federation(tmp_path, "FedAvg")  # type: ignore[arg-type]


def two_clients(name: str) -> InProcess:
    return InProcess({client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", name)})


@pytest.mark.parametrize("name", ["z" * 65, "-x", "a/b"])
def test_clients_names_stay_short_and_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="client name .*1 to 64 letters"):
        federation(tmp_path, FedAvg(), two_clients(name)).run()


@pytest.mark.parametrize("name", ["global", "best"])
def test_a_client_has_no_name_of_the_federations_models(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be called '{name}'.*rename"):
        federation(tmp_path, transport=two_clients(name)).run()


def test_a_method_that_compares_clients_draws_more_than_one_for_a_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients_per_round": 1, "min_clients": 1}
    message = "FedCE compares the clients of a round, at least 2, and clients_per_round is 1: raise"
    with pytest.raises(ConfigError, match=message):
        federation(tmp_path, FedCE(), **settings).run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert federation(tmp_path, FedAvg(), **settings).run().finished


def test_a_method_that_scores_every_coalition_takes_ten_clients(tmp_path: Path) -> None:
    makers = {f"C{number}": lambda: LeastSquares([0.0, 1.0]) for number in range(11)}
    with pytest.raises(ConfigError, match="FedCI can take at most 10 clients in a round, got 11"):
        federation(tmp_path, FedCI(), InProcess(makers)).run()
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
