# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings beside each other: what one leaves when it ends, and when it is stopped."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.linear_federation import bundle_federation, in_place_of_training

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.trainings import run_logged
from monai_fairfl.errors import FairFLError
from monai_fairfl.run_folder.resuming import ended
from monai_fairfl.strategies import FedAvg, Rounds
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
    assert not ended(run_dir)
    assert run()
    assert ended(run_dir)


def test_what_a_log_cannot_hold_ends_no_training(tmp_path: Path) -> None:
    name = os.fsdecode(b"M\xfcller.nii.gz")

    def fails(turn: Turn) -> BundleFederation:
        print(name)
        raise KeyError(name)

    with pytest.raises(FairFLError, match="The traceback is in"):
        run_logged(tmp_path, fails, Turn())
    first, *_, last = (tmp_path / "log.txt").read_text().splitlines()
    assert first == r"M\udcfcller.nii.gz" and "KeyError" in last


class Boom(FedAvg):
    """FedAvg with a fault of the code."""

    def round(self, clients: Sequence[str]) -> Rounds:
        yield from super().round(clients)
        raise KeyError("ALDER")


@pytest.mark.slow
def test_the_log_of_a_run_that_fails_has_the_traceback_and_the_error_names_the_log(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    run_dir = tmp_path / "run"
    federation = bundle_federation(hospitals, run_dir, [Boom()], report=False)
    with pytest.raises(FairFLError) as failed:
        run_logged(run_dir, lambda turn: federation, Turn())
    log = run_dir / "log.txt"
    assert str(failed.value) == f"KeyError: 'ALDER'. The traceback is in {log}"
    assert 'raise KeyError("ALDER")\n' in log.read_text()
    assert log.read_text().endswith("KeyError: 'ALDER'\n")
