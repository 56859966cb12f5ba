# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A finished run is valued: file, table, the method's own shares, and what is refused before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_networks
from helpers.bundle_runs import BUNDLE, federation
from helpers.checkout import CHECKOUT
from helpers.driving import vector
from helpers.linear_federation import (
    LINEAR,
    LinearClient,
    LinearRun,
    bundle_federation,
    in_place_of_training,
)
from rich.console import Console

from monai_fairfl.bundle.runs_display import show_text, shown_on
from monai_fairfl.cli.running import quietly
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.strategies import FedAvg, Standalone
from monai_fairfl.strategies.base import RoundResult
from monai_fairfl.valuation import FinishedRun, Reconstruction, Retraining, Valuation
from monai_fairfl.valuation.finished import LINES, Evaluator
from monai_fairfl.valuation.run import check_valuations, own_contributions, value_run
from monai_fairfl.valuation.utility import Panel

# --- the file and the table


def written_valuation(run_dir: Path) -> dict[str, Any]:
    file = run_dir / "valuations" / "reconstruction-multi_round-exact-mean.json"
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_a_valuation_leaves_a_file_and_prints_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    found = value_run(Reconstruction("exact"), linear.finished())
    assert found is not None

    written = written_valuation(tmp_path)
    assert written["values"]["B"]["value"] == float(found.values["B"])
    assert written["strategy"] == "FedAvg"
    assert written["own"]["B"]["value"] == 0.5
    assert set(written["fidelity"]) >= {"pearson", "p_value"}

    printed = capsys.readouterr().out
    assert "Valuation reconstruction-multi_round-exact-mean of FedAvg" in printed
    assert f"{100 * found.shares()['B']:.1f}%   50.0%" in printed
    assert "from 16 models; rank stability 1.00" in printed
    assert "own shares" in printed and "with these: Pearson" in printed and " of 100" in printed


def test_a_command_that_logs_its_output_shows_lines_and_the_table(
    tmp_path: Path,
) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    shown = StringIO()
    with shown_on(Console(file=shown, width=200), rest_in_log=True):
        value_run(Reconstruction("exact"), replace(linear.finished(), show=show_text))
    lines = shown.getvalue().splitlines()
    assert lines[0].endswith("; model 1 of 16")
    assert lines[1].endswith("; model 3 of 16")
    assert "Valuation reconstruction-multi_round-exact-mean of FedAvg" in lines
    assert "from 16 models; rank stability 1.00" in shown.getvalue()


def test_a_command_that_shows_all_output_shows_no_line_twice(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    shown = StringIO()
    with shown_on(Console(file=shown)):
        value_run(Reconstruction("exact"), replace(linear.finished(), show=show_text))
    assert shown.getvalue() == ""


@pytest.mark.slow
def test_the_terminal_of_a_quiet_command_has_the_progress_and_the_table(
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_place_of_training(monkeypatch)
    settings = {"record_updates": True, "ranges": LINEAR, "report": False}
    settings |= {"valuations": [Reconstruction("exact")]}
    with quietly(tmp_path / "log.txt"):
        bundle_federation(hospitals, tmp_path / "run", [FedAvg()], **settings).run()
    terminal = capsys.readouterr().err
    name = "reconstruction-multi_round-exact-mean"
    assert f"{name}: round 0, {{}} " in terminal and "; model 1 of 16\n" in terminal
    assert terminal.count(f"Valuation {name} of FedAvg") == 1
    assert terminal.index(f"Valuation {name}") > terminal.index("model 15 of 16")


def test_many_models_show_a_line_now_and_then(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    run = linear.finished()
    lines: list[str] = []
    valuation = Reconstruction("exact")
    evaluate = Evaluator(
        "many", run.panel, valuation.utility, valuation.measured(run), lines.append
    )
    evaluate.expected = 30
    for number in range(30):
        evaluate(f"game {number}", frozenset("A"), lambda: {"w": vector((0.0, 0.0))})
    assert len(lines) == LINES
    assert "model 1 of 30" in lines[0] and "model 4 of 30" in lines[1]


def test_a_run_that_averages_nothing_has_nothing_to_rebuild(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path, strategy=Standalone())
    assert value_run(Reconstruction("exact"), linear.finished()) is None
    assert value_run(Retraining(), linear.finished()) is not None


def test_a_single_client_is_valued_and_compared_with_nobody(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path, clients="A")
    found = value_run(Reconstruction("exact"), linear.finished())
    assert found is not None
    assert found.shares() == {"A": 1.0}
    assert float(found.values["A"]) == pytest.approx(found.total)


def valued_federation(folder: Path, change: Callable[[Request, Reply], Reply]) -> Valuation | None:
    """Two rounds of FedAvg whose replies are changed, and the value of each site's update."""
    tiny = tiny_networks.federation(FedAvg(), folder, change, rounds=2, record_updates=True)
    tiny.run()
    sites = list(tiny_networks.SITES)
    panel = Panel(tiny.transport, sites)

    def train(*_: object) -> Weights:
        raise AssertionError("nothing is trained")

    run = FinishedRun(folder / "run", sites, panel, train, folder / "run" / "retrained")
    return value_run(Reconstruction("exact"), run)


def test_models_are_scored_again_where_the_evaluation_has_changed(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    counts = []
    for evaluation in ("first", "first", "second"):
        value_run(Reconstruction("exact"), replace(linear.finished(), evaluation=evaluation))
        counts.append(linear.models_measured)
    # Two rounds of eight coalitions each.
    assert counts == [16, 16, 32]


@pytest.mark.slow
def test_a_valuation_of_test_images_begins_again_where_the_bundle_scores_them_otherwise(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    bundle = tmp_path / "bundle"
    shutil.copytree(CHECKOUT / "bundles" / "prostate_mri_segmentation", bundle)

    def headers(resume: bool) -> str:
        valuation = Reconstruction("exact", data="test")
        settings = {"record_updates": True, "ranges": LINEAR, "report": False, "resume": resume}
        settings |= {"bundle": bundle, "valuations": [valuation]}
        bundle_federation(hospitals, tmp_path / "run", [FedAvg()], **settings).run()
        return (tmp_path / "run" / "valuations" / "measured.jsonl").read_text().splitlines()[0]

    first = headers(resume=False)
    assert headers(resume=True) == first
    evaluate = bundle / "configs" / "evaluate.json"
    evaluate.write_text(json.dumps({**json.loads(evaluate.read_text()), "threshold": 0.4}))
    assert headers(resume=True) != first


@pytest.mark.slow
def test_cases_that_a_client_claims_in_a_valuation_count_as_in_the_run(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    pooled = Reconstruction("exact", utility="pooled")

    def values(run_dir: Path) -> dict[str, Any]:
        settings = {"record_updates": True, "ranges": LINEAR, "report": False}
        bundle_federation(hospitals, run_dir, [FedAvg()], valuations=[pooled], **settings).run()
        file = run_dir / "valuations" / f"{pooled.name}.json"
        found: dict[str, Any] = json.loads(file.read_text())["values"]
        return found

    honest = values(tmp_path / "honest")
    answer = LinearClient.answer

    def claiming(self: LinearClient, request: Request) -> Reply:
        reply = answer(self, request)
        if self.name == "B" and request.run == "valuation":
            score = reply.measurements["score"]
            claimed = {**score, "mean": replace(score["mean"], n=10_000)}  # type: ignore
            return replace(reply, measurements={"score": claimed})
        return reply

    monkeypatch.setattr(LinearClient, "answer", claiming)
    assert values(tmp_path / "claimed") == honest


# --- the method's own shares


def test_a_methods_own_shares_are_those_of_the_last_round_and_compared_where_all_clients_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(request: Request) -> bool:
        return (request.client, request.round, request.task) == ("B", 1, "train")

    linear = LinearRun(tmp_path)
    linear.lose = lost
    linear.federate(tmp_path)
    linear.lose = lambda request: False
    value_run(Reconstruction("exact"), linear.finished())

    written = written_valuation(tmp_path)
    own = {client: share["value"] for client, share in written["own"].items()}
    assert own == {"A": 0.5, "C": 0.5}
    assert written["fidelity"] is None
    assert "B" in written["values"]

    printed = capsys.readouterr().out
    reason = "B is not in both; a method's shares are of the last round"
    assert f"FedAvg's own shares are not compared: {reason}" in printed

    # Client, value, error, share, own share.
    rows = [line.split() for line in printed.splitlines() if line.endswith(("%", " -"))]
    assert len(rows) == 3
    shares = [float(row[3].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    (row_of_b,) = (row for row in rows if row[0] == "B")
    assert row_of_b[4] == "-"


class WithErrors(FedAvg):
    """FedAvg that gives C a score far below 0, with an error; those of A and B are certain."""

    def finish(self, *args: Any, **kwargs: Any) -> RoundResult:
        result = super().finish(*args, **kwargs)
        scores = {"A": Estimate(3.0, 0.0, 9), "B": Estimate(1.0, 0.0, 9), "C": Estimate(-8, 0.4, 9)}
        return replace(result, contributions=scores)


@pytest.mark.slow
def test_a_score_far_below_0_has_no_share_in_any_draw_of_the_interval(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path, strategy=WithErrors())
    value_run(Reconstruction("exact"), linear.finished())
    written = written_valuation(tmp_path)
    own = {client: share["value"] for client, share in written["own"].items()}
    assert own == {"A": 0.75, "B": 0.25, "C": 0.0}
    distance = written["fidelity"]["euclidean"]
    assert distance["low"] == pytest.approx(distance["estimate"])
    assert distance["high"] == pytest.approx(distance["estimate"])


def test_contributions_without_an_error_stay_without_one() -> None:
    shares = own_contributions({"contributions": {"A": 1.0, "B": 3.0}})
    assert shares is not None
    assert {client: share.stderr for client, share in shares.items()} == {"A": None, "B": None}


def test_without_contributions_of_all_clients_there_are_no_shares() -> None:
    assert own_contributions({"contributions": {}}) is None
    assert own_contributions({"contributions": {"A": None, "B": 1.0}}) is None


def test_losses_of_all_clients_are_no_even_shares() -> None:
    lost = {"value": -1.0, "stderr": 0.1, "n": 9}
    assert own_contributions({"contributions": {"A": lost, "B": lost}}) is None


# --- refused before the training

RECORDED = {"record_updates": True}


def refused(message: str, *valuations: Any, bundle: Path = BUNDLE, **settings: Any) -> None:
    """Check that valuations of two sites are refused with this message."""
    with pytest.raises(ConfigError, match=message):
        check_valuations(list(valuations), bundle, ["A", "B"], settings or RECORDED)


def test_a_reconstruction_without_recorded_updates_is_refused_before_the_training(
    hospitals: Path, tmp_path: Path
) -> None:
    sites = {"site_names": ["alder", "cedar"]}
    given = federation(
        hospitals, tmp_path / "run", FedAvg(), valuations=[Reconstruction()], **sites
    )
    with pytest.raises(ConfigError, match="--record_updates True"):
        given.run()
    assert not (tmp_path / "run").exists()
    check_valuations([Reconstruction(), Retraining()], BUNDLE, ["A", "B"], RECORDED)


@pytest.mark.slow
def test_a_run_without_recorded_updates_is_not_taken_up_to_be_valued(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    settings: dict[str, Any] = {"ranges": LINEAR, "report": False}
    bundle_federation(hospitals, tmp_path, [FedAvg()], rounds=1, **settings).run()
    before = (tmp_path / "ledger.jsonl").read_bytes()
    settings |= {"resume": True, "valuations": [Reconstruction()]}
    # Whether the key is given now or not.
    for recorded in (False, True):
        settings["record_updates"] = recorded
        with pytest.raises(ConfigError, match="round 0 of .* was not recorded") as refused:
            bundle_federation(hospitals, tmp_path, [FedAvg()], **settings).run()
        words = str(refused.value)
        assert "this run can never have them. Train again in a new folder" in words
        assert '"record_updates": true in the file of --config' in words
        assert "with Retraining, which needs no updates" in words
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_valuations_that_would_write_one_file_are_refused() -> None:
    refused("different ones", Retraining(), Retraining())
    refused(
        "in more than seed or stop", Retraining("permutation"), Retraining("permutation", seed=1)
    )


def test_an_unknown_utility_is_refused() -> None:
    refused("utility must be one of.*'prostat'", Retraining(utility="prostat"))
    # Of a single class the mean is all there is.
    gland = Retraining(utility="whole prostate gland (logit)")
    refused("utility must be one of", gland)
    # This bundle has one class and a background, which is not scored.
    spleen = CHECKOUT / "docs" / "examples" / "own_bundle"
    for name in ("spleen", "background"):
        refused("utility must be one of", Reconstruction(utility=name), bundle=spleen)


def test_models_that_nobody_has_whole_are_not_retrained() -> None:
    refused("local_norm", Retraining(), local_norm=True)
    refused("no whole model", Retraining(), buffers="local")


def test_test_data_need_an_evaluation(tmp_path: Path) -> None:
    refused("no evaluate.json", Retraining(data="test"), bundle=tmp_path)
