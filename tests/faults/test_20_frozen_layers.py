# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 20: layers that some sites do not train.

A site that freezes a layer sends zeros for it, and counts there like any other: the layer moves by
the weighted mean of all. A site that leaves its tensors out is refused, by their names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from helpers.odd_federation import CLIENTS, IMAGES, SPEC, federation, start
from safetensors.torch import load_file

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies import FedAvg

FROZEN = ("head.bias", "head.weight")


def frozen(request: Request, reply: Reply) -> Reply:
    """The site does not train its head."""
    if reply.update is None:
        return reply
    zeros = {name: torch.zeros_like(reply.update[name]) for name in FROZEN}
    return replace(reply, update={**reply.update, **zeros})


def left_out(request: Request, reply: Reply) -> Reply:
    """The site does not send its head."""
    if reply.update is None:
        return reply
    sent = {name: tensor for name, tensor in reply.update.items() if name not in FROZEN}
    return replace(reply, update=sent)


def updates_of(folder: Path, client: str) -> dict[str, torch.Tensor]:
    """What a client sent in the first round of a run that recorded it."""
    return load_file(folder / "updates" / "round-0000" / "clients" / f"{client}.safetensors")


def test_a_frozen_layer_counts_as_one_that_did_not_move(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 1, "final": (), "record_updates": True}
    plain = federation(FedAvg(), tmp_path / "plain", **settings)
    plain.run()
    run = federation(FedAvg(), tmp_path / "run", faults={"oak": frozen}, **settings)
    [record] = run.run().rounds
    assert record["missing"] == {} and record["guards"] == {}

    initial = start(torch.float32)
    own = updates_of(tmp_path / "plain", "oak")
    share = IMAGES["oak"] / sum(IMAGES.values())
    for name in SPEC.parameters:
        expected = plain.strategy.weights[name] - initial[name]
        if name in FROZEN:
            expected = expected - share * own[name]
        torch.testing.assert_close(run.strategy.weights[name] - initial[name], expected)


def test_a_site_that_leaves_out_tensors_is_refused_by_their_names(tmp_path: Path) -> None:
    history = federation(FedAvg(), tmp_path / "run", faults={"oak": left_out}).run()
    for record in history.rounds:
        reason = record["missing"]["oak"]
        assert reason.startswith("refused: update has other tensors than the model: missing")
        assert all(name in reason for name in FROZEN)
        assert set(record["aggregation"]) == set(CLIENTS) - {"oak"}
