# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings beside each other: what one leaves when it ends, and when it is stopped."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from helpers.linear_federation import bundle_federation, in_place_of_training

from monai_fairfl.bundle.trainings import has_ended, run_logged
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.workers import Turn
from monai_fairfl.utils import terminal


@pytest.mark.slow
def test_a_run_that_is_stopped_before_it_begins_is_not_finished_and_goes_on(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    run_dir = tmp_path / "run"

    def run() -> bool:
        federation = bundle_federation(hospitals, run_dir, [FedAvg()], resume=True, report=False)
        return run_logged(run_dir, lambda turn: federation, Turn())

    with monkeypatch.context() as stopped:
        stopped.setattr(terminal, "_stopping_for_good", threading.Event())
        terminal.stop_for_good()
        assert not run()
    assert not has_ended(run_dir)
    assert run()
    assert has_ended(run_dir)
