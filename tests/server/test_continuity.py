# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A client that lost the state of its last round is noted in the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.bundle_runs import federation as bundle_federation
from helpers.least_squares_federation import Faulty, federation

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies import FedAvg


def going_on_from(state_round: dict[int, int | None]) -> Faulty:
    """B states these rounds, and the round before by default; the others state nothing."""

    def change(request: Request, reply: Reply) -> Reply:
        if request.client != "B" or reply.update is None:
            return reply
        stated = state_round.get(request.round, request.round - 1)
        return replace(reply, digest="ab" * 32, state_round=stated)

    return Faulty(change)


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (-1, "without any state of its own"),
        (0, "from its state after round 0"),
        (1, None),
        # The server repeats a round that this client had trained.
        (2, None),
        (None, None),
        ("no number", None),
    ],
)
def test_a_client_that_goes_on_from_an_earlier_round_than_its_last_is_noted(
    stated: int | None, found: str | None, tmp_path: Path
) -> None:
    history = federation(tmp_path, FedAvg(), going_on_from({2: stated})).run()
    notes = [record["notes"] for record in history.rounds]
    if found is None:
        assert notes == [{}] * 4
        return
    assert notes[:2] == [{}, {}] and notes[3] == {}
    assert notes[2] == {
        "B": f"it trained last in round 1 and went on {found}: its optimizer, and what it does not "
        "send, are not those of its last round"
    }


def test_a_resumed_server_knows_from_its_ledger_who_trained(tmp_path: Path) -> None:
    federation(tmp_path, FedAvg(), going_on_from({}), rounds=2).run()
    lost = going_on_from({2: -1})
    history = federation(tmp_path, FedAvg(), lost, rounds=3).run(resume=True)
    assert "it trained last in round 1" in history.rounds[2]["notes"]["B"]


@pytest.mark.slow
def test_a_site_whose_files_are_gone_when_the_run_is_resumed_is_noted(
    hospitals: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    settings = {"site_names": ["alder", "birch"], "rounds": 1}
    bundle_federation(hospitals, run_dir, FedAvg(), **settings).run()
    states = list((run_dir / "sites" / "alder").rglob("*round-0000.pt"))
    assert states
    for file in states:
        file.unlink()
    settings["rounds"] = 2
    (history,) = bundle_federation(hospitals, run_dir, FedAvg(), resume=True, **settings).run()
    notes = history.rounds[1]["notes"]
    assert list(notes) == ["alder"] and "without any state of its own" in notes["alder"]
