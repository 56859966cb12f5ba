# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Several strategies in one folder: what they share, and what happens where one of them fails."""

from __future__ import annotations

import json
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
from helpers.linear_federation import bundle_federation, in_place_of_training

from monai_fairfl import History, Reply, Request, Strategy, read_ledger
from monai_fairfl.client import FairMonaiAlgo
from monai_fairfl.errors import FederationError
from monai_fairfl.guards import DEFAULT, NonFinite, TooLong
from monai_fairfl.strategies import CGSV, FedAvg, Rounds, Standalone
from monai_fairfl.valuation import Reconstruction


class Failing(FedAvg):
    """FedAvg whose round 1 raises an error, or does something else."""

    def __init__(self, error: BaseException | None = None, signalled: bool = False):
        super().__init__()
        self._error = error
        self._signalled = signalled
        self._done = 0

    def round(self, clients: Sequence[str]) -> Rounds:
        if self._signalled and not self._done:
            signal.raise_signal(signal.SIGINT)
        result = yield from super().round(clients)
        if self._error is not None and (self._done or self._signalled):
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
    return bundle_federation(sites, run_dir, strategies, **{"report": False, **settings}).run()


def report_of(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "report.json").read_text())
    return found


def opening(folder: Path) -> dict[str, Any]:
    return dict(read_ledger(folder / "ledger.jsonl")[0])


# --- what they share


def test_strategies_share_sites_splits_first_model_seed_and_guards(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    guards = [{"_target_": "monai_fairfl.guards.TooLong", "times": 8.0}, "NonFinite"]
    run(sites, run_dir, [FedAvg(), Standalone()], guards=guards, rounds=1)
    first, second = opening(run_dir / "FedAvg"), opening(run_dir / "Standalone")
    for name in ("model", "seed", "guards"):
        assert first[name] == second[name]
    assert first["guards"] == ["TooLong-times_8.0", "NonFinite"]
    for others in (None, [], [NonFinite()]):
        with pytest.raises(FederationError, match="guards.*TooLong"):
            run(sites, run_dir, [FedAvg(), CGSV()], guards=others, resume=True, rounds=1)
    same = [TooLong(8.0), NonFinite()]
    run(sites, run_dir, [FedAvg(), CGSV()], guards=same, resume=True, rounds=1)
    assert opening(run_dir / "CGSV")["guards"] == first["guards"]
    run(sites, tmp_path / "default", [FedAvg()], rounds=1)
    names = [type(guard).__name__ for guard in DEFAULT]
    assert opening(tmp_path / "default")["guards"] == names


def test_a_valuation_measures_with_the_threads_of_the_run(
    sites: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {}
    answer = FairMonaiAlgo.answer

    def noted(client: FairMonaiAlgo, request: Request) -> Reply:
        threads[request.run] = torch.get_num_threads()
        return answer(client, request)

    monkeypatch.setattr(FairMonaiAlgo, "answer", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        settings = {"record_updates": True, "valuations": [Reconstruction("leave_one_out")]}
        run(sites, tmp_path / "run", [FedAvg()], threads=2, rounds=1, **settings)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads == {"run": 2, "valuation": 2}


# --- the others go on


def test_the_others_run_and_are_valued_after_one_has_failed_which_the_report_names(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    strategies = [Standalone(), Failing(ZeroDivisionError("of my own")), FedAvg()]
    valued = {"record_updates": True, "valuations": [Reconstruction()], "report": True}
    with pytest.raises(FederationError, match="1 of 3 .*Failing: .*of my own"):
        run(sites, run_dir, strategies, **valued)
    report = report_of(run_dir)
    assert "of my own" in report["failed"]["Failing"]
    assert list(report["strategies"]) == ["Standalone", "FedAvg"]
    assert len(report["strategies"]["FedAvg"]["valuations"]) == 1
    assert "of my own" in (run_dir / "report.html").read_text()

    ledger = run_dir / "Failing" / "ledger.jsonl"
    of_the_failed_run = ledger.read_bytes()
    again = [Standalone(), Failing(), FedAvg()]
    histories = run(sites, run_dir, again, resume=True, **valued)
    assert [history.finished for history in histories] == [True] * 3
    assert ledger.read_bytes().startswith(of_the_failed_run)
    assert report_of(run_dir)["failed"] == {}


METHODS = """
from monai_fairfl import Strategy
from monai_fairfl.errors import FederationError

class FirstOnly(Strategy):
    def round(self, clients):
        local = yield self.train(clients)
        weights = [float(client == local.clients[0]) for client in local.clients]
        return self.finish(local, weights, weights)

class Failing(FirstOnly):
    def round(self, clients):
        yield from super().round(clients)
        raise FederationError("nobody measured it")
"""


def test_the_command_takes_strategies_of_ones_own_and_ends_with_2_where_one_fails(
    hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_methods.py").write_text(METHODS)
    targets = [{"_target_": f"my_methods.{name}"} for name in ("Failing", "FirstOnly")]
    arguments = command(hospitals, tmp_path / "run", "--site_names", "['alder', 'cedar']")
    arguments += ["--rounds", "1", "--report", "True", "--strategies", json.dumps(targets)]
    start = arguments.index("-m") + 1
    arguments[start:] = ["helpers.in_turn", json.dumps([False, [arguments[start:]]])]
    path = os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "tests", tmp_path)))
    done = warm_python.run(arguments, tmp_path, PYTHONPATH=path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "Failing" in last and "nobody measured it" in last
    report = report_of(tmp_path / "run")
    assert (list(report["strategies"]), list(report["failed"])) == (["FirstOnly"], ["Failing"])
    records = read_ledger(tmp_path / "run" / "FirstOnly" / "ledger.jsonl")
    assert records[1]["aggregation"] == {"alder": 1.0, "cedar": 0.0}


# --- the comparison ends


def test_what_concerns_all_strategies_ends_the_comparison(sites: Path, tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    for number, error in enumerate((KeyboardInterrupt(), SystemExit(1), full)):
        with pytest.raises(type(error)):
            run(sites, tmp_path / str(number), [Failing(error), FedAvg()])
        assert not (tmp_path / str(number) / "FedAvg").exists()
    with pytest.raises(ZeroDivisionError):
        run(sites, tmp_path / "single", [Failing(ZeroDivisionError())])


def test_after_ctrl_c_no_other_strategy_begins_and_resume_goes_on(
    sites: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    histories = run(sites, run_dir, [Failing(signalled=True), FedAvg()], rounds=1)
    assert [history.run_dir.name for history in histories] == ["Failing"]
    histories = run(sites, run_dir, [Failing(), FedAvg()], rounds=1, resume=True)
    assert [history.finished for history in histories] == [True, True]
    # It fails after the signal came.
    interrupted = Failing(FederationError("too few"), signalled=True)
    with pytest.raises(FederationError, match="1 of 2"):
        run(sites, tmp_path / "failed", [interrupted, FedAvg()])
    assert not (tmp_path / "failed" / "FedAvg").exists()
