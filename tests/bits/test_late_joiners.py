# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sites that join late, or are away: who is known depends on the run, not on the process's start.

FedGA divides its step by the number of known clients, CGSV's rewards hold all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.faults_of_folders import crash_before_checkpoint
from helpers.least_squares_federation import ledger_bytes
from helpers.tiny_networks import SITES, Site, initial

from monai_fairfl import Federation, InProcess, Reply, Request, Strategy
from monai_fairfl.audit import replay
from monai_fairfl.strategies import CGSV, FedGA

ALL = sorted(SITES)
WITHOUT_OAK = ["ash", "beech", "elm"]
ROUNDS = 6


class Connecting(InProcess):
    """Lists the sites that are connected: oak only in some rounds.

    Args:
        with_oak: these rounds.
        begun_in: the round in which the process begins.
    """

    def __init__(self, with_oak: Sequence[int], begun_in: int = 0):
        super().__init__({name: partial(Site, name) for name in ALL})
        self.with_oak = with_oak
        self.clients = self.connected(begun_in)

    def connected(self, number: int) -> list[str]:
        return ALL if number in self.with_oak else WITHOUT_OAK

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        yield from super().ask(requests, timeout)
        self.clients = self.connected(requests[0].round + 1)


def federation(strategy: Strategy, folder: Path, transport: Any) -> Federation:
    return Federation(strategy, transport, ROUNDS, initial, run_dir=folder / "run")


@pytest.mark.parametrize(
    ("make", "with_oak", "killed"),
    [(lambda: CGSV(gamma=None), (2, 3, 5), 4), (FedGA, (0, 1, 2, 5), 3)],
)
def test_the_bits_are_the_same_with_other_sites_connected_at_a_restart(
    make: Callable[[], Strategy], with_oak: Sequence[int], killed: int, tmp_path: Path
) -> None:
    run = federation(make(), tmp_path / "whole", Connecting(with_oak)).run()
    first = min(with_oak)
    known = [record["known_clients"] for record in run.rounds]
    assert known == [WITHOUT_OAK] * first + [ALL] * (ROUNDS - first)
    found = replay(tmp_path / "whole" / "run")
    assert (found.rounds, found.differences) == (ROUNDS, ())
    folder = tmp_path / "parts"
    crash_before_checkpoint(federation(make(), folder, Connecting(with_oak)), killed)
    federation(make(), folder, Connecting(with_oak, killed)).run(resume=True)
    assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole")
