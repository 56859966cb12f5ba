# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""An observer sees every record: new ones once they are written, earlier ones at a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.driving import crash_before_checkpoint
from helpers.least_squares_federation import (
    Listening,
    federation,
    ledger_file,
    stopped_in_round,
    watching,
)

from monai_fairfl.run_folder.ledger import read_ledger


def test_every_record_is_notified_once_it_is_written(tmp_path: Path) -> None:
    ledger = ledger_file(tmp_path)
    recorded: list[Any] = []
    lengths: list[int] = []

    def listen(record: Any) -> None:
        recorded.append(record)
        lengths.append(len(read_ledger(ledger)))

    history = federation(tmp_path, observer=Listening(listen)).run()
    assert recorded == history.records
    assert recorded == read_ledger(ledger)
    assert lengths == [1, 2, 3, 4, 5, 6]


def test_after_a_resume_only_new_records_are_notified_as_added(tmp_path: Path) -> None:
    stopped_in_round(1, tmp_path).run()
    recorded: list[Any] = []
    federation(tmp_path, observer=Listening(recorded.append)).run(resume=True)
    assert [(record["kind"], record.get("round")) for record in recorded] == [
        ("round", 2),
        ("round", 3),
        ("end", None),
    ]


def test_a_resumed_run_replays_its_earlier_records_before_it_asks_anybody(tmp_path: Path) -> None:
    # Round 2 is in the ledger, but not done.
    crash_before_checkpoint(federation(tmp_path), 2)
    events: list[Any] = []
    observer = Listening(
        replayed=lambda record: events.append((record["kind"], record.get("round")))
    )
    transport = watching(lambda request: events.append("asked"))
    federation(tmp_path, transport=transport, observer=observer).run(resume=True)
    assert events[:4] == [("start", None), ("round", 0), ("round", 1), "asked"]
    assert set(events[3:]) == {"asked"}
