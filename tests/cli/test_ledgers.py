# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The commands ``verify`` and ``what-if`` on trained federations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import run_json
from helpers.made_once import MadeOnce
from helpers.tiny_networks import SITES, federation, receipts_of

from monai_fairfl.cli import main
from monai_fairfl.run_folder.ledger import Ledger, heads_of, read_ledger
from monai_fairfl.strategies import FedCE


def _make(folder: Path) -> None:
    federation(FedCE(), folder).run()


@pytest.fixture
def folder(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A finished FedCE run of three rounds, to be changed."""
    shutil.copytree(made_once("run_for_commands", _make), tmp_path / "copy")
    return tmp_path / "copy"


def printed(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    assert main([*map(str, words)]) == code
    return capsys.readouterr().out


def raise_elms_contribution(run: Path) -> None:
    """Change one contribution, and mend all later hashes."""
    records = read_ledger(run / "ledger.jsonl")
    records[2]["contributions"]["elm"]["value"] += 0.1
    rewrite(run, records)


def rewrite(run: Path, records: list[dict[str, Any]]) -> None:
    """Write a ledger again, with a chain that holds."""
    (run / "ledger.jsonl").unlink()
    ledger = Ledger(run / "ledger.jsonl")
    for record in records:
        record.pop("previous")
        ledger.append(record)


def test_verify_says_how_far_receipts_and_a_head_cover_the_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    files = [receipts_of(folder, site) for site in SITES]
    heads = heads_of(run / "ledger.jsonl")
    found = run_json(capsys, "verify", run, "--head", heads[2], "--receipt", *files, "--replay")
    proofs = found["runs"][str(run)]
    assert proofs["stored_head"]["covered"] == 3 and proofs["receipts"]["covered"] == 5
    assert proofs["replay"]["largest_difference"] == 0 and proofs["replay"]["numbers"] > 30
    text = printed(capsys, 0, "verify", run, "--head", heads[2])
    assert "covers 3 of 5 records" in text and "the last 2" in text


def test_verify_says_that_the_chain_alone_does_not_show_a_change_of_the_last_record(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    head = heads_of(run / "ledger.jsonl")[-1]
    warning = "the chain alone cannot show"
    alone: list[tuple[str, ...]] = [(), ("--replay",)]
    for words in alone:
        text = printed(capsys, 0, "verify", run, *words)
        assert text.count(warning) == 1
    receipts = [str(receipts_of(folder, site)) for site in SITES]
    for words in [("--head", head), ("--receipt", *receipts)]:
        text = printed(capsys, 0, "verify", run, *words)
        assert "covers 5 of 5 records" in text and warning not in text


def test_of_several_runs_a_broken_chain_hides_no_other(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, intact = folder / "several" / "a", folder / "several" / "b"
    for run in (broken, intact):
        shutil.copytree(folder / "run", run)
    ledger = broken / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("elm", "oak", 1))

    found = run_json(capsys, "verify", folder / "several", code=2)
    [problem] = found["runs"][str(broken)]["problems"]
    assert "line" in problem
    assert found["runs"][str(intact)]["rounds"] == 3
    text = printed(capsys, 2, "verify", folder / "several")
    assert problem in text and f"{intact}: the chain is intact, 3 rounds" in text
    # A run that is alone is an error by itself.
    assert main(["verify", str(broken)]) == 2


def test_verify_finds_a_changed_contribution_by_receipt_head_and_replay_but_not_by_the_chain(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    head = heads_of(run / "ledger.jsonl")[-1]
    raise_elms_contribution(run)
    assert "the chain is intact" in printed(capsys, 0, "verify", run)
    text = printed(capsys, 2, "verify", run, "--receipt", receipts_of(folder, "elm"))
    assert "NOT RIGHT: elm's receipt of round 2" in text and "record of round 1" in text
    assert "NOT RIGHT: no record has the head" in printed(capsys, 2, "verify", run, "--head", head)
    text = printed(capsys, 2, "verify", run, "--replay")
    assert "NOT RIGHT: round 1, contributions, elm, value: recorded" in text
    assert "largest difference 0.1 (round 1, contributions, elm, value)" in text


def test_a_run_that_cannot_be_replayed_is_named_and_the_others_are_replayed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", folder / "other")
    records = read_ledger(folder / "other" / "ledger.jsonl")
    records[0]["configuration"] = None
    rewrite(folder / "other", records)
    runs = run_json(capsys, "verify", folder, "--replay", code=2)["runs"]
    assert runs[str(folder / "run")]["replay"]["largest_difference"] == 0
    assert "arguments" in runs[str(folder / "other")]["replay"]["refused"]
    text = printed(capsys, 2, "verify", folder, "--replay")
    assert "NO REPLAY" in text and "largest difference 0" in text


def test_verify_of_several_runs_takes_receipts_and_no_single_head(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "run", folder / "other")
    head = heads_of(folder / "run" / "ledger.jsonl")[-1]
    error = run_json(capsys, "verify", folder, "--head", head, code=2)["error"]
    assert "head" in error and str(folder / "other") in error
    receipts = folder / "receipts.jsonl"
    receipts.write_text('{"client": "elm", "run": "absent", "round": 0, "head": ""}\n')
    error = run_json(capsys, "verify", folder, "--receipt", receipts, code=2)["error"]
    assert "no receipt" in error and "absent" in error
    receipts.write_text("")
    error = run_json(capsys, "verify", folder, "--receipt", receipts, code=2)["error"]
    assert str(receipts) in error and "sites/SITE/state" in error


def test_what_if_prints_both_numbers_of_every_site_and_what_they_mean(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    found = run_json(capsys, "what-if", run, "--without", "elm")
    assert found["question"] == {"strategy": "FedCE", "without": "elm"}
    assert set(found["sites"]) == set(SITES) and len(found["rounds"]) == 3
    assert found["sites"]["elm"]["weight"]["what_if"] is None
    text = printed(capsys, 0, "what-if", run, "--strategy", "FedCE('sum')")
    title, header, *rows = text.splitlines()
    assert (title, header.split()) == (
        "FedCE, 3 rounds",
        ["site", "weight", "what-if", "contribution", "what-if"],
    )
    assert [row.split()[0] for row in rows[:4]] == list(SITES)
    recorded = found["sites"]["ash"]["weight"]["recorded"]
    assert rows[0].split()[1] == f"{recorded:.4f}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--strategy", "FedISM"), "sharpness"),
        (("--strategy", "FedSee"), "FedSee"),
        (("--strategy", "FedCE('plus')"), "mode"),
        (("--without", "yew"), "yew"),
        ((), "--without"),
    ],
)
def test_what_if_refuses_by_name(
    words: tuple[str, ...], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in run_json(capsys, "what-if", folder / "run", *words, code=2)["error"]
