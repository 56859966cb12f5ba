# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 7: when nobody answers any more the run stops with an instruction, and can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.least_squares_federation import federation, ledger_bytes, losing

from monai_fairfl.errors import FederationError


def test_a_run_that_nobody_answers_stops_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    gone = losing(lambda request: request.round == 2)
    message = r"round 2: 0 of 3 clients answered.*missing: A, B, C \(timeout\)"
    message += r".*Bring the clients back, and run the same command with --resume True"
    with pytest.raises(FederationError, match=message):
        federation(tmp_path / "parts", transport=gone).run()
    federation(tmp_path / "parts").run(resume=True)
    federation(tmp_path / "whole").run()
    assert ledger_bytes(tmp_path / "parts") == ledger_bytes(tmp_path / "whole")
