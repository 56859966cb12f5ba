# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run that was stopped, killed or finished is resumed: to the same bits, or not at all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.driving import crash_before_checkpoint
from helpers.least_squares_federation import (
    TARGETS,
    Listening,
    clients,
    concluded_in_round,
    federation,
    global_weights,
    ledger_bytes,
    ledger_file,
    nobody,
    records_less_the_plan,
    stopped_in_round,
    watching,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Request
from monai_fairfl.report.collect import find_runs, read_run
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import FedAvg, FedCE, Standalone, Strategy
from monai_fairfl.transports.in_process import InProcess

# --- to the same bits


@pytest.mark.parametrize("strategy", [FedAvg, FedCE, Standalone])
@pytest.mark.parametrize("stop_in", [0, 2])
def test_stopping_and_resuming_gives_the_same_bits(
    tmp_path: Path, strategy: type[Strategy], stop_in: int
) -> None:
    federation(tmp_path / "whole", strategy()).run()

    def stop(request: Request) -> None:
        if request.round == stop_in:
            first.stop()

    first = federation(tmp_path / "parts", strategy(), watching(stop))
    assert not first.run().finished
    assert federation(tmp_path / "parts", strategy()).run(resume=True).finished
    assert ledger_bytes(tmp_path / "whole") == ledger_bytes(tmp_path / "parts")
    assert torch.equal(global_weights(tmp_path / "whole"), global_weights(tmp_path / "parts"))


def test_a_run_has_one_id_also_when_it_is_resumed_and_the_same_run_begun_again_another(
    tmp_path: Path,
) -> None:
    ids: list[set[str]] = []

    def note(request: Request) -> None:
        ids[-1].add(request.run_id)
        if len(ids) == 1 and request.round == 1:
            first.stop()

    ids.append(set())
    first = federation(tmp_path / "parts", transport=watching(note))
    first.run()
    for folder in ("parts", "whole"):
        ids.append(set())
        federation(tmp_path / folder, transport=watching(note)).run(resume=True)
    begun, resumed, another = ids
    assert len(begun) == len(another) == 1 and "" not in begun
    assert resumed == begun != another
    assert ledger_bytes(tmp_path / "whole") == ledger_bytes(tmp_path / "parts")


def test_a_run_that_is_resumed_in_a_copy_of_its_folder_keeps_its_name(tmp_path: Path) -> None:
    federation(tmp_path / "whole").run()
    stopped_in_round(1, tmp_path / "parts").run()
    shutil.copytree(tmp_path / "parts" / "run", tmp_path / "parts" / "copy")

    names: set[str] = set()
    transport = watching(lambda request: names.add(request.run))
    copied = federation(tmp_path / "parts", transport=transport, name="copy")
    assert copied.run(resume=True).finished
    assert names == {"run"}  # by it the sites find their states
    ledger = (tmp_path / "parts" / "copy" / "ledger.jsonl").read_bytes()
    assert ledger == ledger_bytes(tmp_path / "whole")


def test_a_crash_between_ledger_and_checkpoint_resumes_to_the_same_bits(tmp_path: Path) -> None:
    federation(tmp_path / "whole").run()
    crash_before_checkpoint(federation(tmp_path / "parts"), 2)
    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "whole") == ledger_bytes(tmp_path / "parts")


def test_a_damaged_newest_checkpoint_resumes_from_the_previous_one_to_the_same_bits(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole").run()

    def stop(request: Request) -> None:
        if request.round == 2:
            stopped.stop()

    stopped = federation(tmp_path / "parts", transport=watching(stop))
    stopped.run()
    checkpoint = tmp_path / "parts" / "run" / "checkpoints" / "round-0002"
    (checkpoint / "model.safetensors").write_bytes(b"")
    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "whole") == ledger_bytes(tmp_path / "parts")


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a folder half written"])
def test_a_stopped_run_whose_checkpoints_are_gone_is_not_begun_again(
    tmp_path: Path, last: int, left: str
) -> None:
    stopped_in_round(last, tmp_path).run()
    before = ledger_bytes(tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints)
    if left != "nothing":
        checkpoints.mkdir()
    if left == "a folder half written":
        (checkpoints / ".writing-round-0002").mkdir()

    message = f"run has {last + 1} recorded rounds and no checkpoint.* a backup, .*copy that to "
    with pytest.raises(FederationError, match=message + re.escape(str(checkpoints))):
        federation(tmp_path, transport=nobody()).run(resume=True)
    assert ledger_bytes(tmp_path) == before


def test_a_crash_before_the_first_checkpoint_begins_again_with_the_same_bits(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole").run()
    crash_before_checkpoint(federation(tmp_path / "parts"), 0)
    kinds = [record["kind"] for record in read_ledger(ledger_file(tmp_path / "parts"))]
    assert kinds == ["start", "round"]
    federation(tmp_path / "parts").run(resume=True)
    assert ledger_bytes(tmp_path / "whole") == ledger_bytes(tmp_path / "parts")


def test_a_stop_is_asked_of_one_run_and_not_of_the_next(tmp_path: Path) -> None:
    stopped = federation(tmp_path)
    stopped.stop()
    assert stopped.run().rounds == []
    assert len(stopped.run(resume=True).rounds) == 4


# --- a finished run


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    federation(tmp_path).run()
    finished = ledger_bytes(tmp_path)
    assert federation(tmp_path).run(resume=True).finished
    assert ledger_bytes(tmp_path) == finished


def test_resuming_a_finished_run_leaves_its_end_and_asks_nobody(tmp_path: Path) -> None:
    ended = federation(tmp_path).run()
    resumed = federation(tmp_path, transport=nobody()).run(resume=True)
    assert resumed.records == ended.records


def test_a_finished_run_goes_on_for_more_rounds(tmp_path: Path) -> None:
    federation(tmp_path / "parts", rounds=2).run()
    federation(tmp_path / "parts", rounds=4).run(resume=True)
    federation(tmp_path / "whole", rounds=4).run()
    whole = records_less_the_plan(tmp_path / "whole")
    assert records_less_the_plan(tmp_path / "parts") == whole


def test_a_finished_run_that_is_extended_says_so_and_keeps_its_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation(tmp_path, rounds=2).run()
    ended = ledger_bytes(tmp_path)
    model = (tmp_path / "run" / "models" / "global.pt").read_bytes()
    assert federation(tmp_path, rounds=4).run(resume=True).finished

    kept = tmp_path / "run" / "ended-0002"
    (message,) = caplog.messages
    assert message == (
        f"{tmp_path / 'run'} is finished after 2 rounds, and now it is extended to 4: its result "
        f"is kept in {kept}"
    )
    assert (kept / "ledger.jsonl").read_bytes() == ended
    assert (kept / "models" / "global.pt").read_bytes() == model
    assert (tmp_path / "run" / "models" / "global.pt").read_bytes() != model
    assert read_run(kept).finished and find_runs([tmp_path / "run"]) == [tmp_path / "run"]


def test_an_extended_run_that_was_killed_is_not_closed_after_more_rounds_than_are_asked_for(
    tmp_path: Path,
) -> None:
    federation(tmp_path / "whole", rounds=2).run()
    shutil.copytree(tmp_path / "whole" / "run", tmp_path / "parts" / "run")
    stopped_in_round(2, tmp_path / "parts").run(resume=True)
    before = ledger_bytes(tmp_path / "parts")
    model = global_weights(tmp_path / "parts")

    message = (
        "has 3 of 4 rounds and has not ended, and now rounds is 2: give rounds 4 to go on, or 3 to "
        "end it here. An earlier result is in .*ended-0002"
    )
    with pytest.raises(FederationError, match=message):
        federation(tmp_path / "parts", rounds=2, transport=nobody()).run(resume=True)
    assert ledger_bytes(tmp_path / "parts") == before
    assert torch.equal(global_weights(tmp_path / "parts"), model)
    kept = tmp_path / "parts" / "run" / "ended-0002" / "ledger.jsonl"
    assert kept.read_bytes() == ledger_bytes(tmp_path / "whole")
    assert federation(tmp_path / "parts", rounds=3).run(resume=True).finished


def test_a_finished_run_that_is_resumed_with_other_settings_leaves_its_end(tmp_path: Path) -> None:
    federation(tmp_path).run()
    finished = ledger_bytes(tmp_path)
    with pytest.raises(FederationError, match="begun with seed"):
        federation(tmp_path, seed=7, rounds=9).run(resume=True)
    assert ledger_bytes(tmp_path) == finished and not list((tmp_path / "run").glob("ended-*"))


def test_a_finished_run_reports_clients_that_were_not_part_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = InProcess(clients("AB"))
    federation(tmp_path, FedAvg(), two).run()
    assert len(federation(tmp_path, FedAvg(), two).run(resume=True).rounds) == 4
    assert not caplog.messages

    assert list(TARGETS) == ["A", "B", "C"]
    federation(tmp_path, FedAvg()).run(resume=True)
    (message,) = caplog.messages
    assert "is finished, without C: name more rounds" in message

    federation(tmp_path, FedAvg(), rounds=5).run(resume=True)
    assert "without C" not in "".join(caplog.messages[1:])


# --- a concluded run


def test_a_concluded_run_ends_with_the_present_round_as_if_no_more_were_planned(
    tmp_path: Path,
) -> None:
    history = concluded_in_round(1, tmp_path / "concluded").run()
    assert history.finished
    assert [record["kind"] for record in history.records] == ["start", "round", "round", "end"]
    scores = history.records[-1]["scores"]
    assert set(scores) == set(TARGETS)
    for client, scored in scores.items():
        assert set(scored["own"]) == {"score"}, client

    federation(tmp_path / "planned", rounds=2).run()
    planned = records_less_the_plan(tmp_path / "planned")
    assert records_less_the_plan(tmp_path / "concluded") == planned


def test_resuming_a_concluded_run_leaves_its_end_and_asks_nobody_unless_more_rounds_are_wanted(
    tmp_path: Path,
) -> None:
    ended = concluded_in_round(1, tmp_path).run()
    resumed = federation(tmp_path, transport=nobody()).run(resume=True)
    assert resumed.records == ended.records
    assert len(federation(tmp_path, rounds=5).run(resume=True).rounds) == 5


def test_replayed_records_may_conclude_the_run_before_its_next_round(tmp_path: Path) -> None:
    stopped_in_round(1, tmp_path / "parts").run()
    conclude = Listening(replayed=lambda record: resumed.conclude())
    resumed = federation(tmp_path / "parts", observer=conclude)
    assert resumed.run(resume=True).finished
    federation(tmp_path / "planned", rounds=2).run()
    planned = records_less_the_plan(tmp_path / "planned")
    assert records_less_the_plan(tmp_path / "parts") == planned
