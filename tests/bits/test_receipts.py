# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A ledger that was changed: the chain finds some of it, receipts find it all up to the newest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.faults_of_folders import Records, forge
from helpers.made_once import MadeOnce
from helpers.tiny_networks import SITES, federation, receipts_of

from monai_fairfl import read_ledger
from monai_fairfl.audit import (
    Proof,
    check_head,
    check_receipts,
    read_receipts,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.run import Ledger
from monai_fairfl.strategies import FedCE


@pytest.fixture
def run(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A finished run of three rounds, with the receipts of its sites, to be changed."""
    finished = made_once("run_of_receipts", lambda folder: federation(FedCE(), folder).run())
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def proof(folder: Path, *sites: str) -> Proof:
    receipts = []
    for site in sites or SITES:
        receipts += read_receipts(receipts_of(folder, site))
    return check_receipts(folder / "run", receipts)


def heads_of(folder: Path) -> list[str]:
    return Ledger(folder / "run" / "ledger.jsonl").heads


def change_receipts(file: Path, **fields: Any) -> None:
    """Give the lines of a site's file other fields; another update only that of round 1."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if "update" not in fields or line["round"] == 1:
            line.update(fields)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def rewrite(records: Records) -> None:
    """A run of other numbers altogether."""
    for record in records[1:-1]:
        record["aggregation"] = dict.fromkeys(record["aggregation"], 0.25)


def change_contribution(records: Records) -> None:
    records[2]["contributions"]["elm"]["value"] += 0.1


def test_an_untouched_run_fits_all_receipts_and_these_cover_its_end(run: Path) -> None:
    assert proof(run) == proof(run, "elm") == Proof(5, 5, ())


@pytest.mark.parametrize(
    ("manipulate", "words"),
    [
        (rewrite, ("round 1", "record of round 0")),
        (change_contribution, ("round 2", "record of round 1")),
        (lambda records: records.__delitem__(slice(-2, None)), ("round 3", "4 records", "has 3")),
        (lambda records: records.insert(1, records.pop(2)), ("round 1", "record of round 0")),
        (lambda records: records.insert(1, dict(records[1])), ("round 2", "record of round 1")),
    ],
)
def test_a_manipulation_that_the_chain_does_not_show_is_found_by_a_receipt(
    manipulate: Any, words: tuple[str, ...], run: Path
) -> None:
    forge(run / "run", manipulate)
    assert len(read_ledger(run / "run" / "ledger.jsonl")) >= 3  # the chain holds
    for sites in ((), ("ash",)):
        first = proof(run, *sites).problems[0]
        assert first.startswith("ash") and all(word in first for word in words)
        assert "opening" not in first  # earlier receipts cover it
    assert proof(run).covered < 5


def test_an_update_that_its_client_did_not_send_is_named(run: Path) -> None:
    """A server that invents an update also invents its digest, before it sends any head."""
    change_receipts(receipts_of(run, "beech"), update="0" * 64)
    (problem,) = proof(run, "beech").problems
    assert "round 1" in problem and "beech" in problem
    assert proof(run, "ash").problems == ()


def test_a_head_covers_the_records_up_to_its_own_and_no_further(run: Path) -> None:
    heads = heads_of(run)
    assert check_head(run / "run", heads[-1]) == Proof(5, 5, ())
    assert check_head(run / "run", f" {heads[2].upper()}\n").covered == 3
    forge(run / "run", change_contribution)
    assert check_head(run / "run", heads[1]) == Proof(5, 2, ())  # it is of an earlier record
    (problem,) = check_head(run / "run", heads[-1]).problems
    assert heads[-1] in problem
    for wrong in ("ab12", "x" * 64):
        with pytest.raises(ConfigError, match=f"64 .*{wrong}"):
            check_head(run / "run", wrong)
    with pytest.raises(ConfigError, match="no ledger"):
        check_head(run, heads[0])


# --- the digests of updates
