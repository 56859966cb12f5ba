# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site withdraws from a finished run: what is deleted, what stays, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.made_once import MadeOnce
from helpers.tiny_networks import SITES, federation, initial, receipts_of
from safetensors.torch import load_file

from monai_fairfl.audit import (
    check_receipts,
    plan_withdrawal,
    read_receipts,
    read_statement,
    replay,
    withdraw,
)
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT, Replayed
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Weights
from monai_fairfl.report import write_report
from monai_fairfl.run_folder.checkpoint import Checkpoints
from monai_fairfl.run_folder.ended import keep_result
from monai_fairfl.run_folder.ledger import Ledger, digest_of, heads_of, read_ledger
from monai_fairfl.run_folder.recorded_updates import recorded_rounds
from monai_fairfl.strategies import CGSV, FedAvg, Strategy
from monai_fairfl.utils import files
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.valuation.reconstruction import MultiRound, OneRound

OTHERS = ("ash", "beech", "oak")


def make(folder: Path, strategy: Strategy, **settings: Any) -> None:
    """Three rounds with recorded updates, and guards that look back."""
    assert any(isinstance(guard, Replayed) for guard in DEFAULT)
    federation(strategy, folder, record_updates=True, **settings).run()


@pytest.fixture
def folder(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A finished run of CGSV, whose sites continue from rewards, to be changed."""
    made = made_once("run_to_withdraw_from", lambda path: make(path, CGSV()))
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def averaged(made_once: MadeOnce, tmp_path: Path) -> Path:
    """The same of FedAvg, whose rounds are plain weighted sums."""
    made = made_once("average_to_withdraw_from", lambda path: make(path, FedAvg()))
    shutil.copytree(made, tmp_path / "averaged")
    return tmp_path / "averaged"


def contents(run: Path) -> dict[str, bytes]:
    """Path -> bytes of every file of a run, but its lock."""
    found = {}
    for file in sorted(run.rglob("*")):
        if file.is_file() and file.name != ".lock":
            found[file.relative_to(run).as_posix()] = file.read_bytes()
    return found


def rewards_of(run: Path) -> Mapping[str, Weights]:
    """The rewards of a run's newest checkpoint."""
    checkpoint = Checkpoints(run / "checkpoints").load()
    assert checkpoint is not None
    return checkpoint.rewards


def test_no_file_holds_the_sites_tensors_and_the_others_files_are_the_same(folder: Path) -> None:
    run = folder / "run"
    before = contents(run)
    secrets = []
    for file in run.glob("updates/round-*/clients/elm.safetensors"):
        for name, tensor in load_file(file).items():
            if tensor.numel() > 1:  # a count of batches is everybody's
                secrets.append((f"{file}, {name}", tensor.numpy().tobytes()))
    assert len(secrets) == 3 * 8
    assert all(any(secret in data for data in before.values()) for _, secret in secrets)

    rewards = rewards_of(run)

    withdraw(run, "elm")

    after = contents(run)
    for where, secret in secrets:
        holders = [path for path, data in after.items() if secret in data]
        assert not holders, where
    assert not [path for path in after if "elm" in path and not path.startswith("withdrawn/")]
    untouched = [
        *(f"updates/round-000{t}/clients/{site}.safetensors" for t in range(3) for site in OTHERS),
        *(f"models/{site}.pt" for site in OTHERS),
        *(f"sites/{site}/receipts.jsonl" for site in OTHERS),
        "models/global.pt",
        "checkpoints/round-0002/model.safetensors",
        "ledger.jsonl",
        "schedule.json",
    ]
    for path in untouched:
        assert after[path] == before[path], path
    # The others' rewards may be stored as what differs from another one than before.
    left = rewards_of(run)
    assert set(left) == set(OTHERS)
    for site in OTHERS:
        assert digest_of(left[site]) == digest_of(rewards[site])


def test_no_update_can_be_computed_of_what_is_left(averaged: Path) -> None:
    """A round's step less the others' weighted updates is the site's own weighted update."""
    run = averaged / "run"
    rounds = recorded_rounds(run)
    secret = load_file(run / "updates/round-0001/clients/elm.safetensors")["0.weight"]
    weights = read_ledger(run / "ledger.jsonl")[2]["aggregation"]

    def computed() -> torch.Tensor:
        step = rounds[2].start()["0.weight"] - rounds[1].start()["0.weight"]
        for site in OTHERS:
            step = step - weights[site] * rounds[1].sent_by(site)["0.weight"]
        return step / weights["elm"]

    assert torch.allclose(computed(), secret, atol=1e-5)  # so the models between rounds must go
    withdraw(run, "elm")
    with pytest.raises(FederationError, match="start.safetensors"):
        computed()
    assert not list(run.glob("updates/*/start.safetensors"))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["round-0002"]


def test_a_checkpoint_that_was_damaged_goes_too(averaged: Path) -> None:
    checkpoints = averaged / "run" / "checkpoints"
    (checkpoints / "round-0002" / "strategy.json").unlink()
    found = Checkpoints(checkpoints).load()
    assert found is not None and found.round == 1
    assert (checkpoints / "round-0002.damaged" / "model.safetensors").exists()
    withdraw(averaged / "run", "elm")
    assert [path.name for path in checkpoints.iterdir()] == ["round-0001"]


def test_updates_go_too_of_a_round_that_has_lost_its_manifest(averaged: Path) -> None:
    recorded = averaged / "run" / "updates" / "round-0001"
    (recorded / "manifest.json").unlink()
    withdraw(averaged / "run", "elm")
    left = [file.name for file in recorded.rglob("*.safetensors")]
    assert sorted(left) == [f"{site}.safetensors" for site in OTHERS]


def test_what_a_crash_left_of_the_sites_data_list_goes_too(averaged: Path) -> None:
    datalists = averaged / "run" / "datalists"
    datalists.mkdir(exist_ok=True)
    for name in ("elm.json.4711.part", "elms.json.4711.part"):
        (datalists / name).write_text('{"training": [{"image": "Case07.nii.gz"')
    [statement] = withdraw(averaged / "run", "elm")
    assert [path.name for path in datalists.iterdir()] == ["elms.json.4711.part"]
    assert "datalists/elm.json.4711.part" in [entry["path"] for entry in statement.deleted]


def test_a_round_whose_update_can_still_be_computed_is_named_and_all_updates_go_on_request(
    tmp_path: Path,
) -> None:
    make(tmp_path, FedAvg(), rounds=1)
    run = tmp_path / "run"
    secret = load_file(run / "updates/round-0000/clients/elm.safetensors")["0.weight"]
    shutil.copytree(tmp_path, tmp_path / "second")
    [statement] = withdraw(run, "elm")
    assert statement.computable_rounds == [0]

    # The statement is right: the initial model is known by its seed, the last one is there.
    with own_random_state(0):
        start, _ = initial()
    weights = read_ledger(run / "ledger.jsonl")[1]["aggregation"]
    step = torch.load(run / "models/global.pt")["0.weight"] - start["0.weight"]
    for site in OTHERS:
        step = step - weights[site] * recorded_rounds(run)[0].sent_by(site)["0.weight"]
    assert torch.allclose(step / weights["elm"], secret, atol=1e-5)

    [statement] = withdraw(tmp_path / "second" / "run", "elm", all_updates=True)
    assert statement.computable_rounds == []
    assert not (tmp_path / "second" / "run" / "updates").exists()


def test_the_checkpoint_has_neither_its_reward_nor_its_sketches_and_the_run_still_ends_cleanly(
    folder: Path,
) -> None:
    run = folder / "run"
    state = (run / "checkpoints/round-0002/strategy.json").read_text()
    sketched = json.loads(state)["guards"]
    assert any("elm" in of_guard.get("updates", {}) for of_guard in sketched)
    withdraw(run, "elm")
    checkpoint = Checkpoints(run / "checkpoints").load()
    assert checkpoint is not None and set(checkpoint.rewards) == set(OTHERS)
    # The others' sketches of the model before the last round would give a part of its update.
    assert not any(of_guard.get("sent") for of_guard in checkpoint.state["guards"])
    assert '"elm"' not in json.dumps(checkpoint.state["guards"])
    before = contents(run)
    history = federation(CGSV(), folder, record_updates=True).run(resume=True)
    assert history.finished and contents(run) == before


def test_further_rounds_begin_without_the_site_and_never_with_it(folder: Path) -> None:
    withdraw(folder / "run", "elm")
    more = {"rounds": 4, "record_updates": True}
    with pytest.raises(FederationError, match="cannot begin with elm, which withdrew.*site_names"):
        federation(CGSV(), folder, **more).run(resume=True)
    history = federation(CGSV(), folder, sites=OTHERS, **more).run(resume=True)
    assert history.finished and len(history.rounds) == 4
    assert set(history.rounds[-1]["samples"]) == set(OTHERS)

    # Nor does it get a model again, which would be one of those between the rounds.
    assert history.rounds[-1]["known_clients"] == sorted(OTHERS)
    assert set(history.rounds[-1]["rewards"]) == set(OTHERS)
    assert not (folder / "run" / "models" / "elm.pt").exists()


def test_ledger_receipts_replay_and_report_are_as_before_and_the_report_says_who_withdrew(
    folder: Path,
) -> None:
    run = folder / "run"
    heads = heads_of(run / "ledger.jsonl")
    before = replay(run)
    withdraw(run, "elm")
    assert heads_of(run / "ledger.jsonl") == heads and replay(run) == before
    receipts = [receipt for site in OTHERS for receipt in read_receipts(receipts_of(folder, site))]
    assert not check_receipts(run, receipts).problems
    report = write_report([run])
    assert any(text.startswith("elm withdrew from CGSV") for text in report["warnings"])
    assert "elm withdrew from CGSV" in (run / "report.html").read_text()


def test_the_statement_lists_files_rounds_effect_and_what_remains(folder: Path) -> None:
    run = folder / "run"
    before = contents(run)
    records = read_ledger(run / "ledger.jsonl")
    [statement] = withdraw(run, "elm", others=True)
    assert read_statement(run, "elm") == statement and statement.ended
    paths = {entry["path"]: entry for entry in statement.deleted}
    assert set(before) - set(contents(run)) == set(paths)
    assert all(entry["bytes"] == len(before[path]) for path, entry in paths.items())
    assert statement.ledger["head"] == heads_of(run / "ledger.jsonl")[-1]
    for entry in statement.rounds:
        record = records[entry["round"] + 1]
        assert entry["weight"] == record["aggregation"]["elm"]
    assert len(statement.rounds) == 3
    assert statement.what_if["sites"]["elm"]["weight"]["what_if"] is None
    assert statement.what_if["sites"]["ash"]["weight"]["what_if"] > 0
    text = (run / "withdrawn/elm.md").read_text()
    for part in ("updates/round-0001/clients/elm.safetensors", "append-only", "nobody can take"):
        assert part in text


def test_the_log_is_named_among_what_remains(averaged: Path) -> None:
    run = averaged / "run"
    [without] = plan_withdrawal(run, "elm")
    assert "log.txt" not in [entry["what"] for entry in without.remains]
    (run / "log.txt").write_text("Valuation exact of FedAvg\n  elm  0.0001\n")
    [planned] = plan_withdrawal(run, "elm")
    assert "log.txt" in [entry["what"] for entry in planned.remains]


def test_a_site_that_counted_as_one_with_another_took_part(tmp_path: Path) -> None:
    """In every round oak sends what elm sent, and the record has images of elm alone."""
    sent: dict[str, Weights] = {}

    def copy(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        sent[request.client] = reply.update
        return replace(reply, update=sent["elm"]) if request.client == "oak" else reply

    federation(FedAvg(), tmp_path, copy, rounds=2, record_updates=True).run()
    records = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert all("oak" not in record["samples"] for record in records[1:3])
    [statement] = plan_withdrawal(tmp_path / "run", "oak")
    weights = [entry["weight"] for entry in statement.rounds]
    assert weights == [record["aggregation"]["oak"] for record in records[1:3]]
    assert all(weight > 0 for weight in weights)
    text = statement.as_text()
    assert "In none: no update of it came in." not in text
    assert "another site's recorded update of round 0, 1: a guard counted both sites as one" in text


def test_the_statement_for_the_hospital_has_no_other_sites_numbers(folder: Path) -> None:
    run = folder / "run"
    [statement] = withdraw(run, "elm")
    assert statement.what_if == {}
    text = (run / "withdrawn/elm.md").read_text()
    [others] = re.findall("## What the others' numbers would be.*?##", text, re.DOTALL)
    assert "monai-fairfl what-if RUN --without elm" in others
    assert not [site for site in OTHERS if site in others]


def test_a_valuation_names_who_withdrew_and_the_others_updates_are_still_read(
    averaged: Path,
) -> None:
    run = averaged / "run"
    sent = recorded_rounds(run)[0].sent_by("oak")
    withdraw(run, "elm")
    rounds = recorded_rounds(run)
    again = rounds[0].sent_by("oak")
    assert all(torch.equal(again[name], sent[name]) for name in sent)
    for rebuild in (
        lambda: MultiRound(rounds)(0, frozenset({"ash", "oak"})),
        lambda: OneRound(rounds),
        lambda: rounds[0].sent_by("elm"),
    ):
        with pytest.raises(ConfigError, match="elm withdrew from the run.*Run the federation"):
            rebuild()


@pytest.mark.slow
def test_files_of_valuations_that_name_the_site_are_deleted(folder: Path) -> None:
    run = folder / "run"
    valuations = run / "valuations"
    trained = valuations / "retrained-1" / "FedAvg"
    make(trained / "without-ash", FedAvg(), sites=("beech", "elm", "oak"))
    make(trained / "without-elm", FedAvg(), sites=OTHERS)
    for name in ("without-ash", "without-elm"):
        for file in (trained / name / "run").iterdir():
            shutil.move(file, trained / name)
        (trained / name / "run").rmdir()
    (valuations / "a.json").write_text('{"values": {"elm": 1}}')
    (valuations / "b.json").write_text('{"values": {"elmwood": 1}}')
    (trained / "measured.jsonl").write_text('{"coalition": ["ash", "elm"]}\n')
    withdraw(run, "elm")
    assert not (valuations / "a.json").exists() and (valuations / "b.json").exists()
    assert not (trained / "measured.jsonl").exists()
    assert [path.name for path in trained.iterdir()] == ["without-elm"]


def test_an_interrupted_withdrawal_is_finished_by_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "run"
    planned = {entry["path"] for entry in plan_withdrawal(run, "elm")[0].deleted}
    unlink = Path.unlink
    deleted: list[Path] = []

    def stop_at_the_third(self: Path, missing_ok: bool = False) -> None:
        deleted.append(self)
        if len(deleted) == 3:
            raise OSError("power")
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop_at_the_third)
        with pytest.raises(OSError, match="power"):
            withdraw(run, "elm")
    interrupted = read_statement(run, "elm")
    assert interrupted is not None and not interrupted.ended
    recorded_rounds(run)
    [statement] = withdraw(run, "elm")
    assert statement.ended and {entry["path"] for entry in statement.deleted} == planned
    assert not any((run / path).exists() for path in planned)
    assert statement.begun == interrupted.begun


def test_a_kill_while_the_last_checkpoint_is_replaced_loses_neither_the_old_nor_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "run"
    rewards = rewards_of(run)
    delete = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            delete(path)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            withdraw(run, "elm")
    withdraw(run, "elm")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["round-0002"]
    left = rewards_of(run)
    assert {site: digest_of(model) for site, model in left.items()} == {
        site: digest_of(rewards[site]) for site in OTHERS
    }


def test_a_second_withdrawal_changes_nothing_and_another_site_can_withdraw_too(
    folder: Path,
) -> None:
    run = folder / "run"
    [first] = withdraw(run, "elm")
    before = contents(run)
    assert withdraw(run, "elm") == [first] and contents(run) == before
    withdraw(run, "oak")
    assert recorded_rounds(run)[0].withdrawn == ("elm", "oak")
    assert not list(run.glob("updates/*/clients/oak*")) and read_statement(run, "elm") == first


def test_of_a_comparison_over_seeds_nothing_can_be_withdrawn(folder: Path) -> None:
    """The scores of elm's cases would stay in its tables."""
    comparison = folder / "compared"
    cell = comparison / "cells" / "CGSV" / "seed-0"
    cell.parent.mkdir(parents=True)
    shutil.move(folder / "run", cell)
    (comparison / "plan.json").write_text("{}")
    (comparison / "cases.csv").write_text("site,case\nelm,1.nii\n")
    before = contents(comparison)
    for place in (cell, comparison):
        with pytest.raises(ConfigError, match="compared is a comparison over seeds.*elm's cases"):
            withdraw(place, "elm")
    assert contents(comparison) == before


def test_an_unfinished_run_an_unknown_site_and_one_run_of_a_comparison_are_refused(
    tmp_path: Path,
) -> None:
    def lose_the_last_round(request: Request, reply: Reply) -> Reply | None:
        return None if request.round == 2 else reply

    unfinished = federation(FedAvg(), tmp_path, lose_the_last_round, record_updates=True)
    with pytest.raises(FederationError):
        unfinished.run()
    run = tmp_path / "run"
    before = contents(run)
    with pytest.raises(FederationError, match="has not ended.*finish it without elm first"):
        withdraw(run, "elm")
    with pytest.raises(ConfigError, match="missing does not exist: give the folder of a run"):
        withdraw(tmp_path / "missing", "elm")
    with pytest.raises(ConfigError, match="'elms' took part in no round.*did you mean 'elm'"):
        withdraw(run, "elms")
    with pytest.raises(ConfigError, match="site '../elm' cannot be used"):
        withdraw(run, "../elm")
    assert contents(run) == before
    (tmp_path / "config.json").write_text('{"strategies": ["run"]}')
    with pytest.raises(ConfigError, match="one run of a comparison.*name the folder"):
        withdraw(run, "elm")


def test_of_a_comparison_every_run_and_what_they_share_loses_the_site(
    folder: Path, averaged: Path, tmp_path: Path
) -> None:
    root = tmp_path / "comparison"
    root.mkdir()
    shutil.move(folder / "run", root / "CGSV")
    shutil.move(averaged / "run", root / "FedAvg")
    (root / "datalists").mkdir()
    for site in SITES:
        (root / "datalists" / f"{site}.json").write_text("{}")
        (root / "datalists" / f"{site}.digests").write_text("0\n")
    (root / "cases.csv").write_text("site,case\nelm,1\n")
    statements = withdraw(root, "elm")
    assert [statement.run for statement in statements] == ["CGSV", "FedAvg"]
    assert {statement.name for statement in statements} == {"run"}
    for kind in ("json", "digests"):
        left = sorted(file.stem for file in (root / "datalists").glob(f"*.{kind}"))
        assert left == list(OTHERS)
    assert not (root / "cases.csv").exists()
    for run in root.glob("*/ledger.jsonl"):
        assert read_statement(run.parent, "elm") is not None
        assert not [path for path in contents(run.parent) if path.endswith("elm.safetensors")]


def test_a_comparison_with_a_run_that_has_no_record_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "comparison"
    root.mkdir()
    shutil.move(folder / "run", root / "CGSV")
    (root / "FedAvg").mkdir()
    (root / "FedAvg" / "ledger.jsonl").touch()
    before = contents(root)
    with pytest.raises(FederationError, match="FedAvg/ledger.jsonl has no record.*delete its"):
        withdraw(root, "elm")
    assert contents(root) == before


def test_the_models_of_a_result_before_the_run_was_extended_are_deleted(folder: Path) -> None:
    run = folder / "run"
    kept = keep_result(run, 2)
    assert (kept / "models" / "global.pt").exists() and (kept / "models" / "elm.pt").exists()
    withdraw(run, "elm")
    assert sorted(path.name for path in kept.rglob("*") if path.is_file()) == [
        "ledger.jsonl",
        "schedule.json",
    ]


@pytest.mark.parametrize(("best", "computable"), [(None, []), (2, []), (0, [0]), (1, [2])])
def test_rounds_between_two_models_that_stay_are_named(
    best: int | None, computable: list[int], averaged: Path
) -> None:
    """Of a single round between the initial, the best and the last model the update follows."""
    run = averaged / "run"
    records = read_ledger(run / "ledger.jsonl")
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    records[-1]["best"] = {} if best is None else {"round": best, "score": 0.5}
    for record in records:
        del record["previous"]
        ledger.append(record)
    (run / "models" / "best.pt").write_bytes(b"")
    assert plan_withdrawal(run, "elm")[0].computable_rounds == computable


def test_the_command_that_trains_without_the_site_is_the_runs_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder / "run"
    words = ["python", "-m", "monai.bundle", "run", "--rounds", "3", "--run_dir", str(run)]
    config = {"command": words, "sites": dict.fromkeys(SITES, {})}
    (run / "config.json").write_text(json.dumps(config))
    expected = "python -m monai.bundle run --rounds 3 --run_dir {run}-without-elm "
    expected += '--site_names \'["ash", "beech", "oak"]\''
    [planned] = plan_withdrawal(run, "elm")
    assert planned.retrain == expected.format(run=run)

    # From within the folder, which has no name there.
    monkeypatch.chdir(run)
    for place in (".", "../run", "models/.."):
        [planned] = plan_withdrawal(place, "elm")
        [named] = re.findall("--run_dir (.*) --site_names", planned.retrain)
        assert Path(named).resolve() == folder / "run-without-elm"

    config["command"] = None  # type: ignore[assignment]
    (run / "config.json").write_text(json.dumps(config))
    [planned] = plan_withdrawal(run, "elm")
    assert "from Python: run the same with site_names=['ash', 'beech', 'oak']" in planned.retrain
