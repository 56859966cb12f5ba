# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 48: names that leave a folder, are too long or look like others are refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.driving import LeastSquares
from helpers.least_squares_federation import federation

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import InProcess

NAMES = {
    "a path upwards": "../../x",
    "an absolute path": "/etc/passwd",
    "a path of Windows": "..\\x",
    "NUL": "elm\0",
    "a line break": "elm\noak",
    "ten thousand characters": "x" * 10_000,
    "Cyrillic letters that look Latin": "\u0435lm",
    "a hidden file": ".elm",
    "an option": "-rf",
    "text from right to left": "elm\u202emle",
    "markup": "<script>alert(1)</script>",
    "nothing": "",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_it_is_refused_with_the_rule_and_nothing_is_written_outside(
    name: str, tmp_path: Path
) -> None:
    clients = {client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", name)}
    with pytest.raises(ConfigError, match="client name .* cannot be used: give it 1 to 64 letters"):
        federation(tmp_path / "here", FedAvg(), InProcess(clients)).run()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "here") for path in written)


@pytest.mark.parametrize("name", ["HK.", "HK ", "con", "Aux.2", "LPT1", "nul .nii"])
def test_a_name_that_windows_does_not_keep_is_refused(name: str, tmp_path: Path) -> None:
    clients = {client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", name)}
    with pytest.raises(ConfigError, match=f"client name {name!r} cannot be used: Windows"):
        federation(tmp_path, FedAvg(), InProcess(clients)).run()


def test_a_name_in_an_error_is_short(tmp_path: Path) -> None:
    clients = {client: lambda: LeastSquares([0.0, 1.0]) for client in ("A", "x" * 10_000)}
    with pytest.raises(ConfigError) as error:
        federation(tmp_path, FedAvg(), InProcess(clients)).run()
    assert len(str(error.value)) < 500


def test_honest_names_are_taken(tmp_path: Path) -> None:
    names = ("RUNMC-3T", "site 4", "St.Mary_2", "Conway", "COM", "com10", "icon")
    clients = {client: lambda: LeastSquares([0.0, 1.0]) for client in names}
    assert federation(tmp_path, FedAvg(), InProcess(clients)).run().finished
