# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import warm_python
from helpers.bundle_runs import BUNDLE, command, federation, run
from helpers.checkout import CHECKOUT
from helpers.linear_federation import LinearRun

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.report import write_report
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, QFedAvg, Standalone
from monai_fairfl.valuation import Reconstruction, Retraining
from monai_fairfl.valuation.run import check_valuations, own_contributions, value_run


@pytest.fixture(scope="module")
def two(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    for site in ("alder", "cedar"):
        shutil.copytree(hospitals / site, root / site)
    return root


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that a client of this process answers."""
    seen: list[Request] = []
    answer = FairMonaiAlgo.answer

    def listen(client: FairMonaiAlgo, request: Request) -> Reply:
        seen.append(request)
        return answer(client, request)

    monkeypatch.setattr(FairMonaiAlgo, "answer", listen)
    return seen


def test_a_valuation_leaves_a_file_and_prints_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path)
    found = value_run(Reconstruction("exact"), linear.finished())
    assert found is not None
    written = json.loads(
        (tmp_path / "valuations" / "reconstruction-multi_round-exact-mean.json").read_text()
    )
    assert (
        written["values"]["B"]["value"] == float(found.values["B"])
        and written["strategy"] == "FedAvg"
    )
    assert written["own"]["B"]["value"] == 0.5 and set(written["fidelity"]) >= {
        "pearson",
        "p_value",
    }
    printed = capsys.readouterr().out
    assert "Valuation reconstruction-multi_round-exact-mean of FedAvg" in printed
    assert f"{100 * found.shares()['B']:.1f}%   50.0%" in printed
    assert (
        "from 16 models; rank stability 1.00" in printed and "own shares agree: Pearson" in printed
    )


def test_a_run_that_averages_nothing_has_nothing_to_rebuild(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path, strategy=Standalone())
    assert value_run(Reconstruction("exact"), linear.finished()) is None
    assert value_run(Retraining(), linear.finished()) is not None


def test_a_single_client_is_valued_and_compared_with_nobody(tmp_path: Path) -> None:
    linear = LinearRun(tmp_path)
    linear.federate(tmp_path, clients="A")
    found = value_run(Reconstruction("exact"), linear.finished())
    assert (
        found is not None
        and found.shares() == {"A": 1.0}
        and float(found.values["A"]) == pytest.approx(found.total)
    )


def test_a_methods_own_shares_are_those_of_the_last_round_and_compared_where_all_clients_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = LinearRun(tmp_path)
    linear.lose = lambda request: (request.client, request.round, request.task) == ("B", 1, "train")
    linear.federate(tmp_path)
    linear.lose = lambda request: False
    value_run(Reconstruction("exact"), linear.finished())
    written = json.loads(
        (tmp_path / "valuations" / "reconstruction-multi_round-exact-mean.json").read_text()
    )
    assert {client: own["value"] for client, own in written["own"].items()} == {"A": 0.5, "C": 0.5}
    assert written["fidelity"] is None and "B" in written["values"]
    printed = capsys.readouterr().out
    reason = "B is not in both; a method's shares are of the last round"
    assert f"FedAvg's own shares are not compared: {reason}" in printed
    rows = [line.split() for line in printed.splitlines() if line.endswith(("%", " -"))]
    shares = [float(row[3].rstrip("%")) for row in rows]
    assert (
        len(rows) == 3
        and shares == sorted(shares, reverse=True)
        and next(r for r in rows if r[0] == "B")[4] == "-"
    )


def test_contributions_without_an_error_stay_without_one_and_none_are_none() -> None:
    shares = own_contributions({"contributions": {"A": 1.0, "B": 3.0}})
    assert shares is not None and {c: s.stderr for c, s in shares.items()} == {"A": None, "B": None}
    assert own_contributions({"contributions": {}}) is None
    assert own_contributions({"contributions": {"A": None, "B": 1.0}}) is None
    lost = {"value": -1.0, "stderr": 0.1, "n": 9}
    # Not an even share for each.
    assert own_contributions({"contributions": {"A": lost, "B": lost}}) is None


def test_valuations_that_would_fail_after_the_training_are_refused_before(
    tmp_path: Path, two: Path
) -> None:
    with pytest.raises(ConfigError, match="--record_updates True"):
        federation(two, tmp_path / "run", FedAvg(), valuations=[Reconstruction()]).run()
    assert not (tmp_path / "run").exists()
    recorded = {"record_updates": True}
    check_valuations([Reconstruction(), Retraining()], BUNDLE, ["A", "B"], recorded)
    with pytest.raises(ConfigError, match="different ones"):
        check_valuations([Retraining(), Retraining()], BUNDLE, ["A", "B"], recorded)
    with pytest.raises(ConfigError, match="utility must be one of.*'prostat'"):
        check_valuations([Retraining(utility="prostat")], BUNDLE, ["A", "B"], recorded)
    with pytest.raises(
        ConfigError, match="utility must be one of"
    ):  # of a single class the mean is all there is
        check_valuations(
            [Retraining(utility="whole prostate gland (logit)")], BUNDLE, ["A", "B"], recorded
        )
    spleen = CHECKOUT / "docs" / "examples" / "own_bundle"  # and a background, which is not scored
    for name in ("spleen", "background"):
        with pytest.raises(ConfigError, match="utility must be one of"):
            check_valuations([Reconstruction(utility=name)], spleen, ["A", "B"], recorded)
    with pytest.raises(ConfigError, match="in more than seed or stop"):
        check_valuations(
            [Retraining("permutation"), Retraining("permutation", seed=1)],
            BUNDLE,
            ["A", "B"],
            recorded,
        )
    with pytest.raises(ConfigError, match="local_norm"):
        check_valuations([Retraining()], BUNDLE, ["A", "B"], {"local_norm": True})
    with pytest.raises(ConfigError, match="no whole model"):
        check_valuations([Retraining()], BUNDLE, ["A", "B"], {"buffers": "local"})
    with pytest.raises(ConfigError, match="no evaluate.json"):
        check_valuations([Retraining(data="test")], tmp_path, ["A", "B"], recorded)


@pytest.mark.slow
def test_hospitals_values_add_up_and_a_second_run_measures_nothing(
    two: Path, tmp_path: Path, asked: list[Request]
) -> None:
    settings = {
        "record_updates": True,
        "valuations": [Reconstruction("exact"), Reconstruction("gtg", "worst")],
    }
    federation(two, tmp_path / "run", FedAvg(), **settings).run()
    found = json.loads(
        (tmp_path / "run/valuations/reconstruction-multi_round-exact-mean.json").read_text()
    )
    assert sum(value["value"] for value in found["values"].values()) == pytest.approx(
        found["total"], abs=1e-12
    )

    def mean_dice(scores: dict[str, Any]) -> float:
        return sum(score["mean"]["value"] for score in scores.values()) / len(scores)

    write_report([tmp_path / "run"])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What each site is worth" in page and "GTG-Shapley of the Dice of the worst site" in page
    records = read_ledger(tmp_path / "run" / "ledger.jsonl")
    # Layers in the order in which they run.
    assert records[0]["layers"][0] == "model.0.conv"
    assert records[0]["layers"][-1].startswith("model.2")
    begun = mean_dice({c: m["global_score"] for c, m in records[1]["measurements"].items()})
    ended = mean_dice({c: s["own"]["score"] for c, s in records[-1]["scores"].items()})
    # FedAvg: what the training gained.
    assert found["total"] == pytest.approx(ended - begun, abs=1e-6)
    assert sum(r.run == "valuation" for r in asked) == 2 * 2 * 4
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    asked.clear()
    federation(two, tmp_path / "run", FedAvg(), resume=True, **settings).run()
    # Only the run's own closing scores.
    assert not [r for r in asked if r.task == "train" or r.run == "valuation"]
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
    again = json.loads(
        (tmp_path / "run/valuations/reconstruction-multi_round-exact-mean.json").read_text()
    )
    assert again == found


@pytest.mark.slow
def test_after_a_site_left_all_is_what_the_others_train_and_a_failed_valuation_leaves_the_report(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sites"
    for site in ("alder", "cedar", "rowan"):
        shutil.copytree(hospitals / site, root / site)
    federation(root, tmp_path / "run", FedAvg(), rounds=1).run()
    stayed = {"site_names": ["alder", "cedar"], "valuations": [Retraining()], "rounds": 2}
    federation(root, tmp_path / "run", FedAvg(), resume=True, **stayed).run()
    federation(root, tmp_path / "clean", FedAvg(), **stayed).run()
    found = [
        json.loads(next((tmp_path / run / "valuations").glob("*.json")).read_text())
        for run in ("run", "clean")
    ]
    assert found[0]["values"] == found[1]["values"] and found[0]["total"] == found[1]["total"]

    def fail(*arguments: Any) -> None:
        raise FederationError("client 'cedar' did not measure")

    monkeypatch.setattr("monai_fairfl.bundle.federation.value_run", fail)
    with pytest.raises(FederationError, match="cedar"):
        federation(
            root, tmp_path / "failed", FedAvg(), report=True, **{**stayed, "rounds": 1}
        ).run()
    assert (tmp_path / "failed" / "report.html").is_file()


@pytest.mark.slow
def test_all_strategies_are_compared_with_one_retrained_reference(
    two: Path, tmp_path: Path, asked: list[Request]
) -> None:
    strategies = [FedAvg(), QFedAvg()]
    federation(
        two, tmp_path / "run", strategies, rounds=1, valuations=[Retraining(data="test")]
    ).run()
    results = [
        json.loads(
            (
                tmp_path
                / "run"
                / s.name
                / "valuations/retraining-FedAvg-leave_one_out-mean-test.json"
            ).read_text()
        )
        for s in strategies
    ]
    assert results[0]["values"] == results[1]["values"] and results[0]["own"] != results[1]["own"]
    assert {r.run for r in asked if r.task == "train"} == {
        "FedAvg",
        "QFedAvg",
        "without-alder",
        "without-cedar",
    }
    # Not trained a second time.
    with_all = torch.load(tmp_path / "run" / "FedAvg" / "models" / "global.pt")
    assert with_all and not list((tmp_path / "run" / "valuations").glob("*/FedAvg/all"))


@pytest.mark.slow
def test_the_command_values_a_run_and_goes_on_after_a_kill(two: Path, tmp_path: Path) -> None:
    valuations = [{"_target_": "monai_fairfl.valuation.Retraining", "method": "leave_one_out"}]
    arguments = command(
        two, tmp_path / "run", "--rounds", "1", "--valuations", json.dumps(valuations)
    )
    process = warm_python.start(arguments, tmp_path)
    deadline = time.time() + 120
    while process.is_alive() and time.time() < deadline:
        if list((tmp_path / "run").glob("valuations/*/FedAvg/without-alder/ledger.jsonl")):
            process.kill()
            break
        time.sleep(0.01)
    process.join(timeout=60)
    assert process.exitcode is not None
    assert not list((tmp_path / "run" / "valuations").glob("*.json"))
    done = run([*arguments, "--resume", "True"], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Valuation retraining-FedAvg-leave_one_out-mean of FedAvg" in done.stdout
    assert "model 3 of 3" in done.stdout
    misspelt = run(
        [
            *arguments,
            "--resume",
            "True",
            "--valuations",
            json.dumps([{"_target_": "my.Retrainin"}]),
        ],
        tmp_path,
    )
    assert misspelt.returncode == 2 and "unknown valuation 'my.Retrainin'" in misspelt.stderr
    (folder,) = (tmp_path / "run" / "valuations").glob("retrained-*/FedAvg")
    assert len((folder / "measured.jsonl").read_text().splitlines()) == 4
