# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A ledger that was changed: the chain finds some of it, receipts find it all up to the newest."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.made_once import MadeOnce
from helpers.tiny_networks import SITES, federation, receipts_of

from monai_fairfl.audit import (
    NotInLedgerError,
    Proof,
    check_head,
    check_receipts,
    read_receipts,
    replay,
)
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.report.collect import read_records
from monai_fairfl.run_folder.ledger import heads_of, read_ledger
from monai_fairfl.strategies import FedCE

Records = list[dict[str, Any]]


def _make(folder: Path) -> None:
    federation(FedCE(), folder).run()


@pytest.fixture
def run(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A finished run of three rounds, with the receipts of its sites, to be changed."""
    finished = made_once("run_with_receipts", _make)
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def proof(folder: Path, *sites: str) -> Proof:
    receipts = []
    for site in sites or SITES:
        receipts += read_receipts(receipts_of(folder, site))
    return check_receipts(folder / "run", receipts)


def write(folder: Path, records: Records, mended: bool) -> None:
    """Write the records of a run again.

    Args:
        folder: of the run.
        records: as they shall be.
        mended: whether every line gets the hash of the line before, so that the chain holds.
    """
    lines = []
    previous = ""
    for record in records:
        if mended:
            record = {**record, "previous": previous}
        lines.append(json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n")
        previous = hashlib.sha256(lines[-1].encode()).hexdigest()
    (folder / "run" / "ledger.jsonl").write_text("".join(lines))


def records_of(folder: Path) -> Records:
    return read_ledger(folder / "run" / "ledger.jsonl")


def rewrite(records: Records) -> Records:
    """A run of other numbers altogether."""
    for record in records[1:-1]:
        for client in record["aggregation"]:
            record["aggregation"][client] = 0.25
    return records


def change_contribution(records: Records) -> Records:
    records[2]["contributions"]["elm"]["value"] += 0.1
    return records


def cut(records: Records) -> Records:
    return records[:-2]


def swap(records: Records) -> Records:
    records[1], records[2] = records[2], records[1]
    return records


MENDED: dict[str, tuple[Callable[[Records], Records], str]] = {
    "a rewritten chain": (rewrite, "receipt of round 1 does not fit: the record of round 0 was"),
    "a changed contribution": (
        change_contribution,
        "receipt of round 2 does not fit: the record of round 1 was changed after ash received",
    ),
    "a cut tail": (
        cut,
        "receipt of round 3 does not fit: the ledger had 4 records then, and has 3",
    ),
    "a swapped pair": (swap, "receipt of round 1 does not fit: the record of round 0 was changed"),
}
"""What can be done to a ledger so that its chain holds, and what the receipts say first."""


def test_an_untouched_run_fits_all_receipts_and_these_cover_its_end(run: Path) -> None:
    found = proof(run)
    assert (found.records, found.covered, found.problems, found.notes) == (5, 5, (), ())
    assert proof(run, "elm") == found


@pytest.mark.parametrize("name", MENDED)
def test_a_manipulation_that_the_chain_does_not_show_is_found_by_a_receipt(
    name: str, run: Path
) -> None:
    manipulate, first = MENDED[name]
    write(run, manipulate(records_of(run)), mended=True)
    assert len(records_of(run)) >= 3  # the chain holds
    for sites in ((), ("ash",)):
        found = proof(run, *sites)
        assert first in found.problems[0]


@pytest.mark.parametrize("manipulate", [change_contribution, swap])
def test_a_record_that_is_changed_without_mending_breaks_the_chain(
    manipulate: Callable[[Records], Records], run: Path
) -> None:
    write(run, manipulate(records_of(run)), mended=False)
    with pytest.raises(FederationError, match="does not follow line"):
        proof(run)


def test_the_last_record_which_no_chain_covers_is_covered_by_the_closing_message(
    run: Path,
) -> None:
    records = records_of(run)
    records[-1]["best"]["score"] = 1.0
    write(run, records, mended=True)
    found = proof(run, "oak")
    assert found.covered == 4
    (problem,) = found.problems
    assert "oak's receipt of the end does not fit: the record of round 3 was changed" not in problem
    assert problem.startswith("oak's receipt of the end does not fit: the end was changed")


def test_an_update_that_its_client_did_not_send_is_named(run: Path) -> None:
    """A server that invents an update also invents its digest, before it sends any head."""
    file = receipts_of(run, "beech")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["round"] == 1:
            line["update"] = "0" * 64
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (problem,) = proof(run, "beech").problems
    assert "the record of round 1 names an update of beech that is in none of beech's" in problem
    assert proof(run, "ash").problems == ()


def test_a_head_covers_the_records_up_to_its_own_and_no_further(run: Path) -> None:
    heads = heads_of(run / "run" / "ledger.jsonl")
    assert check_head(run / "run", heads[-1]) == Proof(5, 5, ())
    assert check_head(run / "run", heads[2].upper()).covered == 3
    write(run, change_contribution(records_of(run)), mended=True)
    assert check_head(run / "run", heads[1]).problems == ()  # it is of an earlier record
    (problem,) = check_head(run / "run", heads[-1]).problems
    assert heads[-1] in problem and "changed, or cut off" in problem
    with pytest.raises(ConfigError, match="64 hexadecimal digits, got 'ab12'"):
        check_head(run / "run", "ab12")


def test_an_end_that_a_longer_run_replaced_is_noted_and_no_problem(run: Path) -> None:
    federation(FedCE(), run, rounds=4).run(resume=True)
    found = proof(run, "elm")
    assert (found.records, found.covered, found.problems) == (6, 6, ())
    assert found.notes == (
        "elm's receipt of the end is of an end after which the run went on for more rounds",
    )


def test_receipts_that_are_given_twice_hide_no_change_of_the_end(run: Path) -> None:
    """The second copy of a site's receipts is no sign that the run went on after its end."""
    records = records_of(run)
    records[-1]["scores"]["elm"] = {}
    write(run, records, mended=True)
    assert proof(run, "elm", "elm").notes == ()
    assert "the end was changed after elm received" in proof(run, "elm", "elm").problems[0]


def test_receipts_of_other_runs_and_damaged_files_are_named(run: Path, tmp_path: Path) -> None:
    file = receipts_of(run, "ash")
    other = [{**json.loads(line), "run": "other"} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in other))
    with pytest.raises(ConfigError, match=r"no receipt is of run 'run'.*they are of \['other'\]"):
        proof(run, "ash")
    with pytest.raises(ConfigError, match="is no file: give the receipts.jsonl"):
        read_receipts(tmp_path / "absent.jsonl")
    for line in ('"a"', '{"round": "two"}', '{"round": 1, "head": 3}'):
        file.write_text(line + "\n")
        with pytest.raises(ConfigError, match="receipts.jsonl, line 1 is no receipt"):
            read_receipts(file)


def test_no_receipt_at_all_is_named_with_the_place_of_a_sites_receipts(run: Path) -> None:
    with pytest.raises(ConfigError, match="there is no receipt to compare .*sites/SITE/state of"):
        check_receipts(run / "run", [])


@pytest.mark.parametrize("text", ["", '{"kind": "start", "ru'])
def test_a_ledger_without_a_record_is_no_ledger_that_was_changed(
    text: str, run: Path, tmp_path: Path
) -> None:
    receipts = read_receipts(receipts_of(run, "ash"))
    head = heads_of(run / "run" / "ledger.jsonl")[-1]
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "ledger.jsonl").write_text(text)
    why = "begun/ledger.jsonl has no record yet: this run has not begun. Run it, or name the folder"
    (problem,) = check_head(begun, head).problems
    assert why in problem
    for given in (receipts, []):
        with pytest.raises(ConfigError, match=why):
            check_receipts(begun, given)
    with pytest.raises(NotInLedgerError, match=why):
        replay(begun)
    with pytest.raises(ConfigError, match=why):
        read_records(begun)


def test_a_folder_without_a_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ledger.jsonl is no ledger: give the file"):
        check_head(tmp_path, "0" * 64)


def test_a_receipt_that_a_crash_cut_short_does_not_count(run: Path) -> None:
    file = receipts_of(run, "ash")
    whole = file.read_text()
    file.write_text(whole + '{"client": "ash", "ru')
    assert len(read_receipts(file)) == len(whole.splitlines())
    federation(FedCE(), run, rounds=4).run(resume=True)
    assert proof(run, "ash").problems == ()


@pytest.mark.parametrize("stated", ["", "ab", "AB" * 32, "x" * 64, "ab" * 33, 5, None, ["a"]])
def test_a_digest_of_another_form_does_not_count_and_ends_nothing(
    stated: Any, tmp_path: Path
) -> None:
    def state(request: Request, reply: Reply) -> Reply:
        return replace(reply, digest=stated) if request.client == "elm" else reply

    history = federation(FedCE(), tmp_path, state, rounds=1).run()
    assert history.finished
    assert sorted(history.rounds[0]["digests"]) == [site for site in SITES if site != "elm"]
    assert history.rounds[0]["missing"] == {}


def test_the_digest_of_an_update_that_a_guard_kept_out_is_on_record(tmp_path: Path) -> None:
    def spoil(request: Request, reply: Reply) -> Reply:
        if request.client != "elm" or reply.update is None:
            return reply
        return replace(
            reply, update={name: value * math.nan for name, value in reply.update.items()}
        )

    history = federation(FedCE(), tmp_path, spoil, rounds=1).run()
    assert history.rounds[0]["missing"]["elm"].startswith("quarantined")
    assert sorted(history.rounds[0]["digests"]) == list(SITES)


def test_a_transport_that_fails_at_the_last_message_does_not_undo_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = federation(FedCE(), tmp_path, rounds=1)
    send = run.transport.exchange

    def exchange(requests: Any, arrived: Any, timeout: Any = None) -> None:
        if any(request.context.get("ended") for request in requests):
            raise OSError("the line is dead")
        send(requests, arrived, timeout)

    run.transport.exchange = exchange  # type: ignore[method-assign]
    assert run.run().finished
    assert "not every client was sent the last head of the ledger: the line is dead" in caplog.text
    assert proof(tmp_path, "ash").covered == 2


def test_receipts_cover_the_end_of_a_run_without_closing_measurements(tmp_path: Path) -> None:
    federation(FedCE(), tmp_path, rounds=2, final=()).run()
    assert [record["kind"] for record in records_of(tmp_path)] == ["start", "round", "round", "end"]
    for site in SITES:
        assert proof(tmp_path, site).covered == 4
    write(tmp_path, records_of(tmp_path)[:-1], mended=True)
    assert "the ledger had 4 records then, and has 3" in proof(tmp_path, "ash").problems[0]


def test_every_request_leaves_a_receipt_with_its_head(run: Path) -> None:
    heads = heads_of(run / "run" / "ledger.jsonl")
    records = records_of(run)
    *rounds, closing, end = read_receipts(receipts_of(run, "elm"))
    for number, receipt in enumerate(rounds):
        assert (receipt.client, receipt.run, receipt.round) == ("elm", "run", number)
        assert receipt.head == heads[number]
        assert receipt.update == records[number + 1]["digests"]["elm"]
    assert (closing.head, closing.update, closing.ended) == (heads[3], None, False)
    assert (end.head, end.update, end.ended) == (heads[4], None, True)


@pytest.mark.parametrize("manipulate", [rewrite, cut])
def test_a_ledger_that_does_not_fit_its_checkpoint_is_not_resumed(
    manipulate: Callable[[Records], Records], run: Path
) -> None:
    write(run, manipulate(records_of(run)), mended=True)
    before = (run / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(
        FederationError, match="does not fit the checkpoint of round 2.*from a copy"
    ):
        federation(FedCE(), run, rounds=5).run(resume=True)
    assert (run / "run" / "ledger.jsonl").read_bytes() == before
