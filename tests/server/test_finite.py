# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A model that is not finite never replaces the previous one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.driving import replies_of, vector
from helpers.least_squares_federation import Faulty, federation, ledger_bytes, ledger_file
from helpers.odd_federation import federation as odd_federation

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.finite import require_finite
from monai_fairfl.strategies import FedAvg, RoundResult


def poisoned(request: Request, reply: Reply) -> Reply:
    """B's update of round 1 is not finite, and no guard looks at it."""
    if (request.client, request.round) != ("B", 1):
        return reply
    return replace(reply, update={"w": vector([math.nan, 1.0])})


@pytest.mark.slow
def test_the_round_fails_with_tensor_and_client_and_nothing_of_it_is_recorded(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "parts"
    run = federation(folder, FedAvg(), Faulty(poisoned), guards=(), record_updates=True)
    with pytest.raises(FederationError) as failed:
        run.run()
    message = str(failed.value)
    assert message.startswith("round 1: the new global model is not finite in 'w'; client 'B' most")
    assert "1 round is done" in message and "--resume True" in message
    assert [record["kind"] for record in read_ledger(ledger_file(folder))] == ["start", "round"]
    assert not (folder / "run" / "updates" / "round-0001").exists()

    # The site was mended: the run goes on as if nothing had happened.
    federation(folder, FedAvg(), guards=(), record_updates=True).run(resume=True)
    federation(tmp_path / "whole", FedAvg(), guards=(), record_updates=True).run()
    assert ledger_bytes(folder) == ledger_bytes(tmp_path / "whole")


def test_an_average_that_overflows_half_precision_is_refused(tmp_path: Path) -> None:
    """Every update is finite in float32, and the sum is not in float16."""

    def large(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        update = {name: change.float() * 0 + 60_000.0 for name, change in reply.update.items()}
        return replace(reply, update=update)

    faults = dict.fromkeys(("ash", "beech", "elm", "oak"), large)
    run = odd_federation(FedAvg(), tmp_path / "run", dtype=torch.float16, faults=faults, guards=())
    with pytest.raises(FederationError, match=r"not finite in 'body\.\w+'; client .* is 6e\+04"):
        run.run()


def result_of(**tensors: torch.Tensor) -> RoundResult:
    return RoundResult(tensors, {}, {})


def test_a_constant_mask_may_be_infinite_and_a_sum_may_overflow() -> None:
    replies = replies_of({"A": [1.0]})
    mask = torch.tensor([0.0, -math.inf])
    require_finite(result_of(mask=mask), {"mask": mask.clone()}, replies)
    with pytest.raises(FederationError, match="'mask'"):
        require_finite(result_of(mask=mask), {"mask": torch.zeros(2)}, replies)
    large = torch.full((10,), 3e38)
    assert not large.sum().isfinite()
    require_finite(result_of(w=large), {"w": large * 0}, replies)


def test_a_reward_is_checked_as_the_global_model_is() -> None:
    good = {"w": torch.ones(1)}
    bad = RoundResult(good, {}, {}, rewards={"A": good, "B": {"w": torch.tensor([math.inf])}})
    with pytest.raises(FederationError, match="the new model of B is not finite in 'w'"):
        require_finite(bad, good, replies_of({"A": [1.0]}))
