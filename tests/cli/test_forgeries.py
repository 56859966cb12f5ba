# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Forgeries of a run's folder: each is found by the checks that ``docs/ledger.md`` names."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT
from helpers.command_line import Commands
from helpers.faults_of_folders import Records, forge
from helpers.made_once import MadeOnce
from helpers.tiny_networks import SITES, federation, receipts_of
from safetensors.torch import load_file, save_file

from monai_fairfl.strategies import CGSV

PAGE = (CHECKOUT / "docs" / "ledger.md").read_text()

Forgery = Callable[[Path], object]


@pytest.fixture
def folder(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A run with models of each site and recorded updates, to be changed."""

    def make(folder: Path) -> None:
        federation(CGSV(), folder, record_updates=True).run()

    return Path(shutil.copytree(made_once("run_to_forge", make), tmp_path / "forged"))


def problems(folder: Path, cli: Commands) -> dict[str, list[str]]:
    """Check -> what it finds, with the receipts of all sites."""
    receipts = [receipts_of(folder, site) for site in SITES]
    words = ["verify", folder / "run", "--receipt", *receipts, "--replay", "--json"]
    code, printed, _ = cli.shown(*words)
    proofs = json.loads(printed)["runs"][str(folder / "run")]
    if "problems" in proofs:
        assert code == 2
        return {"the chain": proofs["problems"]}
    names = {"files": "the files", "receipts": "`--receipt`", "replay": "`--replay`"}
    found = {names[key]: proofs[key]["problems"] for key in names if proofs[key]["problems"]}
    assert code == (2 if found else 0)
    return found


# --- what somebody changes


def records(edit: Callable[[Records], object]) -> Forgery:
    """Change records, and recompute all hashes."""
    return lambda run: forge(run, edit)


def one_record(run: Path) -> None:
    ledger = run / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"elm":0', '"elm":1', 1))


def contribution(records: Records) -> None:
    records[2]["contributions"]["elm"] += 0.1


def all_again(records: Records) -> None:
    for record in records[1:-1]:
        record["aggregation"] = dict.fromkeys(record["aggregation"], 0.25)


def receipt(run: Path) -> None:
    file = run / "sites" / "elm" / "receipts.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[2]["update"] = "0" * 64
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def cut(run: Path) -> None:
    model = run / "models" / "global.pt"
    model.write_bytes(model.read_bytes()[: model.stat().st_size // 2])


def number(run: Path) -> None:
    file = run / "models" / "best.pt"
    model = torch.load(file)
    model["0.bias"][0] += 1e-6
    torch.save(model, file)


def in_folder(name: str, folder: str) -> Forgery:
    """Change a file of tensors in a folder, and recompute the folder's manifest."""

    def change(run: Path) -> None:
        file = run / folder / name
        tensors = load_file(file)
        tensors["0.bias"][0] += 1e-6
        save_file(tensors, file)
        manifest = run / folder / "manifest.json"
        written = json.loads(manifest.read_text())
        written["sha256"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(written))

    return change


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "one record changed": (one_record, "the chain"),
    "a contribution changed": (records(contribution), "`--receipt`, `--replay`"),
    "the whole ledger written again": (records(all_again), "`--receipt`, `--replay`"),
    "two records swapped": (
        records(lambda records: records.insert(1, records.pop(2))),
        "`--receipt`, `--replay`, the files",
    ),
    "records cut off at the end": (
        records(lambda records: records.__delitem__(slice(-2, None))),
        "`--receipt`, the files",
    ),
    "the last record changed": (
        records(lambda records: records[-1]["best"].update(score=1.0)),
        "`--receipt`",
    ),
    "another update than the site sent": (receipt, "`--receipt`"),
    "a model cut short": (cut, "the files"),
    "a number of a model changed": (number, "the files"),
    "the model of another site": (
        lambda run: shutil.copy(run / "models" / "elm.pt", run / "models" / "oak.pt"),
        "the files",
    ),
    "a model that the run did not make": (
        lambda run: shutil.copy(run / "models" / "elm.pt", run / "models" / "yew.pt"),
        "the files",
    ),
    "a checkpoint changed": (
        in_folder("model.safetensors", "checkpoints/round-0002"),
        "the files",
    ),
    "the checkpoint of another round": (
        lambda run: shutil.copytree(
            run / "checkpoints" / "round-0001",
            run / "checkpoints" / "round-0002",
            dirs_exist_ok=True,
        ),
        "the files",
    ),
    "a recorded update changed": (
        in_folder("clients/elm.safetensors", "updates/round-0001"),
        "the files",
    ),
    "a recorded model at a round's start changed": (
        in_folder("start.safetensors", "updates/round-0001"),
        "the files",
    ),
}
"""As the page names it -> what somebody does, and the checks that find it."""


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_found_by_the_checks_that_the_page_names(
    forgery: str, folder: Path, cli: Commands
) -> None:
    forge_it, checks = FORGERIES[forgery]
    forge_it(folder / "run")
    assert set(problems(folder, cli)) == set(checks.split(", "))
    assert f"| {forgery} | {checks} |" in PAGE


def test_an_untouched_run_has_no_problem_and_every_file_is_compared(
    folder: Path, cli: Commands
) -> None:
    assert problems(folder, cli) == {}
    proof: dict[str, Any] = cli.json("verify", folder / "run")["runs"][str(folder / "run")]
    # Three rounds of updates, three checkpoints, the global, the best and four sites' models.
    assert proof["files"] == {"checked": 12, "problems": []}
