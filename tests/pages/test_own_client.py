# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The client of ``docs/own_loop.md``: it takes part in a run, measures and restarts."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import own_client
import pytest
import torch
from helpers.checkout import CHECKOUT

from monai_fairfl import Federation, History, InProcess, Reply, Request, Strategy
from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import Ditto, FedCE

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


def test_the_error_is_that_of_the_mean_of_the_other_hospitals_models(fedce: History) -> None:
    private = fedce.run_dir.parent / "private"
    models = {}
    for site in SITES:
        [file] = (private / site).glob("*-0.pt")
        models[site] = torch.load(file, weights_only=True)
    for number, site in enumerate(SITES):
        others = [other for other in SITES if other != site]
        shares = torch.tensor([fedce.rounds[0]["aggregation"][other] for other in others])
        shares = shares / shares.sum()
        without = {}
        for name in models[site]:
            stacked = torch.stack([models[other][name].float() for other in others])
            without[name] = torch.tensordot(shares, stacked, 1)
        hospital = own_client.Hospital(number, private / site)
        error = fedce.rounds[1]["measurements"][site]["leave_one_out_error"]["value"]
        assert error == pytest.approx(1 - hospital.dice(without).value, abs=1e-3)


def test_a_restart_after_each_request_changes_nothing(fedce: History, tmp_path: Path) -> None:
    again = run(tmp_path, FedCE(), restarts=True)
    assert again.records == fedce.records


def test_a_method_that_needs_more_of_it_stops_and_says_what(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="ditto_lambda.*personal_score"):
        run(tmp_path, Ditto())


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
