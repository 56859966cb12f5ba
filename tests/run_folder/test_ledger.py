# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import FORMAT, Ledger, digest_of, read_ledger


def write(path: Path, count: int = 3) -> Ledger:
    ledger = Ledger(path)
    for number in range(count):
        ledger.append({"round": number, "score": Estimate(0.5, None, number)})
    return ledger


def test_each_record_carries_the_hash_of_the_one_before(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl")
    lines = (tmp_path / "l.jsonl").read_bytes().splitlines(keepends=True)
    assert json.loads(lines[0])["previous"] == ""
    for before, after in zip(lines, lines[1:], strict=False):
        assert json.loads(after)["previous"] == hashlib.sha256(before).hexdigest()


def test_reopening_continues_the_chain(tmp_path: Path) -> None:
    head = write(tmp_path / "l.jsonl").head
    again = Ledger(tmp_path / "l.jsonl")
    assert again.head == head and len(again.records) == 3
    again.append({"round": 3})
    assert [record["round"] for record in read_ledger(tmp_path / "l.jsonl")] == [0, 1, 2, 3]


@pytest.mark.parametrize("line", [0, 1])
def test_an_edited_line_is_named(tmp_path: Path, line: int) -> None:
    write(tmp_path / "l.jsonl")
    lines = (tmp_path / "l.jsonl").read_text().splitlines(keepends=True)
    lines[line] = lines[line].replace("0.5", "0.9")
    (tmp_path / "l.jsonl").write_text("".join(lines))
    with pytest.raises(FederationError, match=f"line {line + 2} does not follow line {line + 1}"):
        read_ledger(tmp_path / "l.jsonl")


def test_a_removed_line_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl")
    lines = (tmp_path / "l.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "l.jsonl").write_text("".join(lines[:1] + lines[2:]))
    with pytest.raises(FederationError, match="line 2"):
        Ledger(tmp_path / "l.jsonl")


@pytest.mark.parametrize("text", ["[]", "null", '"start"', "3"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path / "l.jsonl", count=1)
    with open(tmp_path / "l.jsonl", "a") as file:
        file.write(f"{text}\n")
    for read in (read_ledger, Ledger):
        with pytest.raises(FederationError, match=r"l\.jsonl, line 2 is no JSON object"):
            read(tmp_path / "l.jsonl")


def test_a_number_that_is_not_finite_is_null_at_any_depth(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.jsonl").append(
        {"gram": {"whole": [[1.0, math.inf], [math.inf, math.nan]]}}
    )
    (record,) = read_ledger(tmp_path / "l.jsonl")
    assert record["gram"] == {"whole": [[1.0, None], [None, None]]}


def test_a_last_line_cut_short_by_a_crash_is_dropped(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl")
    whole = (tmp_path / "l.jsonl").read_bytes()
    (tmp_path / "l.jsonl").write_bytes(whole + b'{"round": 3, "sco')
    assert len(read_ledger(tmp_path / "l.jsonl")) == 3
    assert len(Ledger(tmp_path / "l.jsonl").records) == 3
    assert (tmp_path / "l.jsonl").read_bytes() == whole


def test_a_ledger_that_was_removed_does_not_go_on_without_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    ledger = write(path)
    path.unlink()
    with pytest.raises(FederationError, match="l.jsonl was removed while its run was on"):
        ledger.append({"round": 3})
    assert not path.exists() and len(ledger.records) == 3


def test_keep_drops_what_comes_after_a_checkpoint(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l.jsonl")
    ledger.truncate(2)
    ledger.append({"round": 2, "score": Estimate(0.5, None, 2)})
    write(tmp_path / "other.jsonl")
    assert (tmp_path / "l.jsonl").read_bytes() == (tmp_path / "other.jsonl").read_bytes()


def test_digest_depends_on_values_names_types_and_shapes_and_not_on_order() -> None:
    base = {"a": torch.arange(4.0), "b": torch.tensor(1)}
    same = {"b": torch.tensor(1), "a": torch.arange(4.0)}
    others = [
        {**base, "a": torch.arange(4.0) + 1e-6},
        {**base, "a": torch.arange(4.0).view(2, 2)},
        {**base, "a": torch.arange(4.0).double()},
        {"A": base["a"], "b": base["b"]},
    ]
    assert digest_of(base) == digest_of(same)
    assert len({digest_of(base), *map(digest_of, others)}) == 5


@pytest.mark.parametrize("written", [0, FORMAT + 1, "new"])
def test_a_ledger_of_another_format_is_not_read(tmp_path: Path, written: Any) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).append({"kind": "start", "format": written, "package": "9.0.0"})
    refusal = rf"written by monai_fairfl 9.0.0 \(format {written!r}\).*reads format {FORMAT}: use"
    for reads in (read_ledger, Ledger):
        with pytest.raises(FederationError, match=refusal):
            reads(path)


def test_a_folder_or_a_missing_file_is_no_ledger_and_the_fix_is_named(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "absent.jsonl"):
        with pytest.raises(ConfigError, match="give the file ledger.jsonl in the folder of a run"):
            read_ledger(given)
