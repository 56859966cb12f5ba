# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: used ones are refused, and one run at a time has it locked."""

from __future__ import annotations

import fcntl
import os
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from helpers.least_squares_federation import (
    Listening,
    clients,
    federation,
    initial,
    ledger_bytes,
)

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import InProcess
from monai_fairfl.utils.files import locked


def test_a_used_folder_is_refused_and_so_are_other_settings_on_resume(tmp_path: Path) -> None:
    federation(tmp_path).run()
    with pytest.raises(FederationError, match="already holds a run: resume it"):
        federation(tmp_path).run()
    with pytest.raises(FederationError, match="begun with seed = 0, now it is 7"):
        federation(tmp_path, seed=7, rounds=9).run(resume=True)
    with pytest.raises(FederationError, match="begun with .* = 'FedCE.*now it is 'FedAvg'"):
        federation(tmp_path, FedAvg(), rounds=9).run(resume=True)


# --- its lock


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    refused: list[str] = []

    def start_another(record: Any) -> None:
        if record.get("round") == 1:
            message = "run is in use by another run: wait until"
            with pytest.raises(FederationError, match=message) as error:
                federation(tmp_path / "two").run(resume=True)
            refused.append(str(error.value))

    federation(tmp_path / "two", observer=Listening(start_another)).run()
    assert len(refused) == 1
    federation(tmp_path / "one").run()
    assert ledger_bytes(tmp_path / "one") == ledger_bytes(tmp_path / "two")


def lock_and_die(folder: Path) -> None:
    with locked(folder):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_folder_is_free_again_when_its_run_was_killed(tmp_path: Path) -> None:
    killed = get_context("fork").Process(target=lock_and_die, args=(tmp_path / "run",))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert (tmp_path / "run" / ".lock").exists()
    assert federation(tmp_path).run().finished


def test_a_file_system_without_locks_holds_no_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: Any, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert federation(tmp_path).run().finished
    assert "start no second one in it" in caplog.text


# --- its name


@pytest.mark.parametrize("name", ["lr=0.01", ".hidden", "x" * 129, "-x"])
def test_a_folder_whose_name_cannot_be_the_runs_is_refused_at_once_with_the_rule(
    tmp_path: Path, name: str
) -> None:
    message = r"the run's name, the last part of run_dir, .*1 to 128 letters"
    with pytest.raises(ConfigError, match=message):
        Federation(FedAvg(), InProcess(clients()), 1, initial, run_dir=tmp_path / name)


@pytest.mark.parametrize(
    "name", ["fundus_disc_cup_segmentation-ShapFed-personalised-2", "y" * 128, "only-Site 4"]
)
def test_a_long_name_of_a_run_is_as_good_as_a_short_one(tmp_path: Path, name: str) -> None:
    run = Federation(FedAvg(), InProcess(clients()), 1, initial, run_dir=tmp_path / name).run()
    assert run.finished
