# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The client of ``docs/own_loop.md``: it takes part in a run, measures and restarts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import own_client
import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl import Federation, History, InProcess, Reply, Request, Strategy
from monai_fairfl.strategies import FedCE

SITES = ["alder", "birch", "cedar"]


class Restarting:
    """A hospital whose process ends after each request."""

    def __init__(self, private: Path):
        self.private = private

    def answer(self, request: Request) -> Reply:
        return own_client.hospitals(self.private)[request.client]().answer(request)


def run(folder: Path, strategy: Strategy, restarts: bool = False) -> History:
    private = folder / "private"
    hospitals = own_client.hospitals(private)
    if restarts:
        hospitals = {site: lambda: Restarting(private) for site in hospitals}
    transport = InProcess(hospitals)
    return Federation(
        strategy, transport, 4, own_client.initial, run_dir=folder / "run", min_clients=3
    ).run()


@pytest.fixture(scope="module")
def fedce(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(tmp_path_factory.mktemp("here"), FedCE())


def test_all_that_is_asked_by_default_is_measured_and_the_model_gets_better(
    fedce: History,
) -> None:
    for number, record in enumerate(fedce.rounds):
        names = {"global_score", "leave_one_out_error"} if number else {"global_score"}
        assert {site: set(found) for site, found in record["measurements"].items()} == {
            site: names for site in SITES
        }
    end = fedce.records[-1]["scores"]
    for site in SITES:
        first = fedce.rounds[0]["measurements"][site]["global_score"]["value"]
        assert end[site]["own"]["score"]["value"] > first + 0.2


def test_a_restart_after_each_request_changes_nothing(fedce: History, tmp_path: Path) -> None:
    again = run(tmp_path, FedCE(), restarts=True)
    assert again.records == fedce.records


def test_the_script_of_the_page_prints_the_weights_of_each_round(
    fedce: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = CHECKOUT / "docs" / "examples" / "own_client.py"
    monkeypatch.setattr(sys, "argv", [script.name, str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    weights = [str(record["aggregation"]) for record in fedce.rounds]
    assert capsys.readouterr().out.splitlines() == weights
