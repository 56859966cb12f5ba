# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison in which one method fails: the others run, and the report names it."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.bundle_runs import command
from helpers.checkout import CHECKOUT
from helpers.linear_federation import LinearClient, bundle_federation, in_place_of_training

from monai_fairfl.errors import FederationError
from monai_fairfl.guards import DEFAULT, NonFinite, TooLong
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import CGSV, FedAvg, Standalone, Strategy
from monai_fairfl.strategies.base import Rounds
from monai_fairfl.utils.files import locked
from monai_fairfl.valuation import Reconstruction


class Failing(FedAvg):
    """FedAvg whose rounds from ``first`` on raise ``error``."""

    def __init__(self, error: BaseException | None = None, first: int = 1):
        super().__init__()
        self._error = error
        self._first = first
        self._done = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        if self._error is not None and self._done >= self._first:
            raise self._error
        self._done += 1
        return result


@pytest.fixture
def sites(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hospitals whose clients train nothing."""
    in_place_of_training(monkeypatch)
    return hospitals


def run(
    sites: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> list[History]:
    return bundle_federation(sites, run_dir, strategies, **settings).run()


def report_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return found


def finished(run_dir: Path) -> dict[str, bool]:
    """Strategy -> whether it finished, by the report."""
    strategies = report_of(run_dir)["strategies"]
    return {name: found["finished"] for name, found in strategies.items()}


def test_a_valuation_measures_with_the_threads_of_the_run(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {}
    answer = LinearClient.answer

    def noted(client: LinearClient, request: Request) -> Reply:
        threads[request.run] = torch.get_num_threads()
        return answer(client, request)

    monkeypatch.setattr(LinearClient, "answer", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        settings = {"record_updates": True, "valuations": [Reconstruction("leave_one_out")]}
        run(sites, tmp_path / "run", [FedAvg()], threads=2, report=False, **settings)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads == {"run": 2, "valuation": 2}


# --- the other strategies go on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "reason", "traceback"),
    [
        (FederationError("no client measured it"), "no client measured it", False),
        (ZeroDivisionError("of my own"), "ZeroDivisionError: of my own", True),
    ],
    ids=["of the method", "of its code"],
)
def test_the_other_strategies_run_after_one_has_failed_and_the_report_names_it(
    error: Exception,
    reason: str,
    traceback: bool,
    sites: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    message = f"1 of 3 strategies failed .Failing: {reason}.*tries again: Failing"
    with pytest.raises(FederationError, match=message):
        run(sites, run_dir, [Standalone(), Failing(error), FedAvg()])
    assert finished(run_dir) == {"Standalone": True, "FedAvg": True}
    assert report_of(run_dir)["failed"] == {"Failing": reason}

    warning = f"Failing failed and is not in this report: {reason}"
    assert warning in capsys.readouterr().out
    assert warning in (run_dir / "report.html").read_text()

    logged = next(
        record for record in caplog.records if record.message.startswith("Failing failed")
    )
    assert logged.levelno == logging.ERROR
    assert (logged.exc_info is not None) == traceback


@pytest.mark.slow
def test_resume_tries_again_what_failed_from_where_it_stopped(sites: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, run_dir, [Failing(FederationError("for now")), FedAvg()])
    ledger = run_dir / "Failing" / "ledger.jsonl"
    of_the_failed_run = ledger.read_bytes()

    histories = run(sites, run_dir, [Failing(), FedAvg()], resume=True)
    assert [history.finished for history in histories] == [True, True]
    assert ledger.read_bytes().startswith(of_the_failed_run)
    assert finished(run_dir) == {"Failing": True, "FedAvg": True}
    assert report_of(run_dir)["failed"] == {}


@pytest.mark.slow
def test_what_finished_is_valued_where_another_strategy_failed(sites: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    strategies = [Failing(FederationError("for now")), FedAvg()]
    valued = {"record_updates": True, "valuations": [Reconstruction()]}
    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, run_dir, strategies, **valued)
    assert len(report_of(run_dir)["strategies"]["FedAvg"]["valuations"]) == 1
    assert not (run_dir / "Failing" / "valuations").exists()


@pytest.mark.long
@pytest.mark.slow
def test_the_command_ends_with_an_error_code_and_the_name_of_what_failed(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_methods.py").write_text(
        "from monai_fairfl.errors import FederationError\n"
        "from monai_fairfl.strategies import FedAvg\n"
        "class Failing(FedAvg):\n"
        "    def round(self, clients):\n"
        "        yield from super().round(clients)\n"
        "        raise FederationError('nobody measured it')\n"
    )
    targets = ["my_methods.Failing", "monai_fairfl.strategies.FedAvg"]
    strategies = json.dumps([{"_target_": target} for target in targets])
    # Of two options of one name the last counts.
    arguments = command(hospitals, tmp_path / "run", "--report", "True")
    arguments += ["--site_names", "['alder', 'cedar']"]
    arguments += ["--rounds", "1"]
    arguments += ["--strategies", strategies]
    search_path = f"{CHECKOUT}{os.pathsep}{tmp_path}"
    done = warm_python.run(arguments, tmp_path, PYTHONPATH=search_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "1 of 2 strategies failed (Failing: nobody measured it)" in done.stderr.splitlines()[-1]
    assert "Failing failed and is not in this report: nobody measured it" in done.stdout
    assert finished(tmp_path / "run") == {"FedAvg": True}


# --- the comparison ends


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), OSError(28, "No space left on device")]
)
def test_what_concerns_all_strategies_ends_the_comparison(
    error: BaseException, sites: Path, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        run(sites, tmp_path / "run", [Failing(error), FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_a_folder_in_use_by_another_run_ends_the_comparison(sites: Path, tmp_path: Path) -> None:
    with (
        locked(tmp_path / "run" / "Standalone"),
        pytest.raises(FederationError, match="^.*Standalone is in use by"),
    ):
        run(sites, tmp_path / "run", [Standalone(), FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_a_strategy_that_fails_after_ctrl_c_does_not_begin_the_next(
    sites: Path, tmp_path: Path
) -> None:
    class Interrupted(Failing):
        def round(self, clients: Sequence[str]) -> Rounds:
            signal.raise_signal(signal.SIGINT)
            result = yield from super().round(clients)
            return result

    interrupted = Interrupted(FederationError("too few"), first=0)
    with pytest.raises(FederationError, match="1 of 2 strategies failed"):
        run(sites, tmp_path / "run", [interrupted, FedAvg()])
    assert not (tmp_path / "run" / "FedAvg").exists()


def test_the_error_of_a_single_strategy_is_its_own(sites: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="of my own"):
        run(sites, tmp_path / "run", [Failing(ZeroDivisionError("of my own"))])


# --- guards


@pytest.mark.slow
def test_the_runs_of_a_comparison_share_their_guards(sites: Path, tmp_path: Path) -> None:
    folder = tmp_path / "compared"
    run(sites, folder, [FedAvg(), Standalone()], guards=["NonFinite"])
    for name in ("FedAvg", "Standalone"):
        assert read_ledger(folder / name / "ledger.jsonl")[0]["guards"] == ["NonFinite"]
    config = json.loads((folder / "config.json").read_text())
    assert config["federation"]["guards"] == [{"_target_": "monai_fairfl.guards.NonFinite"}]

    for others in (None, [], [TooLong()]):
        with pytest.raises(
            FederationError, match=r"begun with guards = \['NonFinite'\], now it is"
        ):
            run(sites, folder, [FedAvg(), CGSV()], guards=others, resume=True)
    run(sites, folder, [FedAvg(), CGSV()], guards=[NonFinite()], resume=True)
    assert read_ledger(folder / "CGSV" / "ledger.jsonl")[0]["guards"] == ["NonFinite"]


@pytest.mark.slow
def test_a_run_without_named_guards_has_the_default_ones(sites: Path, tmp_path: Path) -> None:
    run(sites, tmp_path / "run", [FedAvg()])
    opening = read_ledger(tmp_path / "run" / "ledger.jsonl")[0]
    assert opening["guards"] == [type(guard).__name__ for guard in DEFAULT]
    assert "guards" not in json.loads((tmp_path / "run" / "config.json").read_text())["federation"]
