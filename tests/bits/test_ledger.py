# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The ledger: a chain in which a changed, removed or added line is found, and other formats too."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.least_squares_federation import (
    Faulty,
    Listening,
    federation,
    ledger_bytes,
    ledger_file,
)

from monai_fairfl import Estimate, __version__, read_ledger
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.run_folder import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of three records."""
    ledger = Ledger(tmp_path / "l.jsonl")
    for number in range(3):
        ledger.append({"round": number, "score": Estimate(0.5, None, number)})
    return ledger.path


def test_each_record_carries_the_hash_of_the_line_before(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    previous = ""
    for line in lines:
        assert json.loads(line)["previous"] == previous
        previous = hashlib.sha256(line).hexdigest()
    again = Ledger(path)
    assert again.head == previous and len(again.records) == 3
    again.append({"round": 3})
    assert [record["round"] for record in read_ledger(path)] == [0, 1, 2, 3]
    again.truncate(3)
    assert path.read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [lines[0].replace("0.5", "0.9"), *lines[1:]], 2),
        (lambda lines: [lines[0], lines[1].replace("0.5", "0.9"), lines[2]], 3),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [*lines, "[]\n"], 4),
        (lambda lines: [lines[0], "null\n", *lines[1:]], 2),
        (lambda lines: ["x\n", *lines], 1),
    ],
)
def test_a_line_that_does_not_follow_is_named(path: Path, damage: Any, line: int) -> None:
    changed = damage(path.read_text().splitlines(keepends=True))
    path.write_text("".join(changed))
    for read in (read_ledger, Ledger):
        with pytest.raises(FederationError, match=rf"l\.jsonl.*line {line}\b"):
            read(path)
    assert path.read_text() == "".join(changed)


def test_a_last_line_cut_short_by_a_crash_is_dropped(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 3, "sco')
    assert len(read_ledger(path)) == 3
    assert len(Ledger(path).records) == 3 and path.read_bytes() == whole


def test_a_ledger_that_was_removed_does_not_go_on_without_its_beginning(tmp_path: Path) -> None:
    def remove(record: Any) -> None:
        if record.get("round") == 1:
            ledger_file(tmp_path).unlink()

    with pytest.raises(FederationError, match="removed"):
        federation(tmp_path, observer=Listening(remove)).run()
    assert not ledger_file(tmp_path).exists()


@pytest.mark.parametrize("written", [0, 2, "new"])
def test_a_ledger_of_another_format_is_not_read(tmp_path: Path, written: Any) -> None:
    federation(tmp_path, rounds=1).run()
    opening = read_ledger(ledger_file(tmp_path))[0]
    assert (opening["format"], opening["package"]) == (1, __version__)
    path = tmp_path / "other.jsonl"
    Ledger(path).append({**opening, "format": written, "package": "9.0.0"})
    for reads in (read_ledger, Ledger):
        with pytest.raises(FederationError, match=f"9.0.0.*format {written!r}"):
            reads(path)


def test_another_version_that_writes_the_same_format_may_go_on(tmp_path: Path) -> None:
    federation(tmp_path, rounds=2).run()
    [opening, *_] = read_ledger(ledger_file(tmp_path))
    ledger_file(tmp_path).unlink()
    Ledger(ledger_file(tmp_path)).append({**opening, "package": "0.0.1"})
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert federation(tmp_path, rounds=2).run(resume=True).finished


def test_a_folder_or_a_missing_file_is_no_ledger(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "absent.jsonl"):
        with pytest.raises(ConfigError, match="no ledger"):
            read_ledger(given)


# --- numbers in it


def test_a_number_that_is_not_finite_is_null_at_any_depth(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.jsonl").append({"gram": {"w": [[1.0, math.inf], [-math.inf, math.nan]]}})
    (record,) = read_ledger(tmp_path / "l.jsonl")
    assert record["gram"] == {"w": [[1.0, None], [None, None]]}


@pytest.mark.parametrize("number", [np.float32, torch.tensor, np.array])
def test_numbers_of_numpy_and_pytorch_count_as_pythons(tmp_path: Path, number: Any) -> None:
    def wrapped(request: Any, reply: Any) -> Any:
        for name, value in reply.measurements.items():
            reply.measurements[name] = {"mean": Estimate(number(value), number(0.5), 3)}
        return reply

    federation(tmp_path / "wrapped", transport=Faulty(wrapped), final=()).run()

    def plain(request: Any, reply: Any) -> Any:
        for name, value in reply.measurements.items():
            value = float(number(value))
            reply.measurements[name] = {"mean": Estimate(value, 0.5, 3)}
        return reply

    federation(tmp_path / "plain", transport=Faulty(plain), final=()).run()
    assert ledger_bytes(tmp_path / "wrapped") == ledger_bytes(tmp_path / "plain")
