# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sites that join late, or are away: who is known depends on the run, not on the process's start.

FedGA divides its step by the number of known clients, AFL's mixture and CGSV's rewards hold all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.crashes import crash_before_checkpoint
from helpers.least_squares_federation import Listening, ledger_bytes, ledger_file
from helpers.tiny_networks import SITES, TrainingClient, initial

from monai_fairfl import Federation, InProcess, Reply, Request, Strategy, read_ledger
from monai_fairfl.audit import replay
from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import AFL, CGSV, FedGA

ALL = sorted(SITES)
WITHOUT_OAK = ["ash", "beech", "elm"]
ROUNDS = 7
METHODS: dict[str, Callable[[], Strategy]] = {
    "AFL": lambda: AFL(step=0.5),
    "CGSV": lambda: CGSV(gamma=None),
    "FedGA": FedGA,
}
Connected = Callable[[int], Sequence[str]]


def late(number: int) -> Sequence[str]:
    """The sites that are connected in a round: oak joins late, and misses round 5."""
    return ALL if number in (3, 4, 6) else WITHOUT_OAK


def away(number: int) -> Sequence[str]:
    """The sites that are connected in a round: oak is there from the start, and misses two."""
    return WITHOUT_OAK if number in (3, 4) else ALL


class Connecting(InProcess):
    """Lists the sites that are connected in the present round.

    Args:
        connected: round -> these sites.
        begun_in: the round in which the process begins.
        silent_from: the first round in which nobody answers.
    """

    def __init__(self, connected: Connected, begun_in: int = 0, silent_from: int = ROUNDS + 1):
        super().__init__({name: partial(TrainingClient, name) for name in ALL})
        self.connected = connected
        self.silent_from = silent_from
        self.clients = connected(begun_in)

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        number = requests[0].round
        if number < self.silent_from:
            super().exchange(requests, arrived, timeout)
            self.clients = self.connected(number + 1)


def federation(strategy: Strategy, folder: Path, transport: Any, **settings: Any) -> Federation:
    settings = {"rounds": ROUNDS, **settings}
    return Federation(strategy, transport, initial=initial, run_dir=folder / "run", **settings)


def known_clients(folder: Path) -> list[list[str]]:
    """The known clients of each round."""
    records = read_ledger(ledger_file(folder))
    return [record["known_clients"] for record in records if record["kind"] == "round"]


@pytest.mark.slow
@pytest.mark.parametrize("connected", [late, away])
@pytest.mark.parametrize("method", METHODS)
def test_the_bits_are_the_same_with_other_sites_connected_at_a_restart(
    method: str, connected: Connected, tmp_path: Path
) -> None:
    """After a stop, and after a crash that undid a round."""
    federation(METHODS[method](), tmp_path / "whole", Connecting(connected)).run()
    found = replay(tmp_path / "whole" / "run")
    assert (found.rounds, found.differences) == (ROUNDS, ())
    for last in (2, 4):
        folder = tmp_path / f"stopped in {last}"

        def stop(record: Any, last: int = last) -> None:
            if record.get("round") == last:
                first.stop()

        settings = {"observer": Listening(stop)}
        first = federation(METHODS[method](), folder, Connecting(connected), **settings)
        first.run()
        again = Connecting(connected, begun_in=last + 1)
        federation(METHODS[method](), folder, again).run(resume=True)
        assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole"), last

    folder = tmp_path / "crashed"
    crash_before_checkpoint(federation(METHODS[method](), folder, Connecting(connected)), 3)
    federation(METHODS[method](), folder, Connecting(connected, begun_in=3)).run(resume=True)
    assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole")


def test_a_site_is_known_from_the_round_on_that_asks_it_first(tmp_path: Path) -> None:
    federation(FedGA(), tmp_path, Connecting(late)).run()
    assert known_clients(tmp_path) == [WITHOUT_OAK] * 3 + [ALL] * 4


def test_a_site_that_joined_in_a_round_that_failed_is_not_known(tmp_path: Path) -> None:
    silent = Connecting(late, silent_from=3)
    with pytest.raises(FederationError, match="round 3"):
        federation(FedGA(), tmp_path, silent).run()
    assert silent.clients == ALL
    # Oak does not come back.
    without = Connecting(lambda number: WITHOUT_OAK, begun_in=3)
    federation(FedGA(), tmp_path, without).run(resume=True)
    assert known_clients(tmp_path) == [WITHOUT_OAK] * ROUNDS


def test_a_strategy_is_started_again_with_the_clients_of_the_runs_beginning(
    tmp_path: Path,
) -> None:
    started: list[list[str]] = []

    class Noting(FedGA):
        def start(self, weights: Any, clients: Sequence[str], spec: Any) -> None:
            started.append(list(clients))
            super().start(weights, clients, spec)

    federation(Noting(), tmp_path, Connecting(late), rounds=3).run()
    again = Connecting(late, begun_in=3)
    federation(Noting(), tmp_path, again, rounds=4).run(resume=True)
    assert started == [WITHOUT_OAK, WITHOUT_OAK]
