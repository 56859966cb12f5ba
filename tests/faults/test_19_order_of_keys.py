# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 19: tensors in another order give the same result, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.odd_federation import federation

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies import CGSV, FedCE, Strategy


def backwards(request: Request, reply: Reply) -> Reply:
    """The same reply, whose mappings are in the opposite order."""
    if reply.update is None or reply.buffers is None:
        return reply
    update = dict(reversed(list(reply.update.items())))
    buffers = dict(reversed(list(reply.buffers.items())))
    return replace(reply, update=update, buffers=buffers)


@pytest.mark.parametrize("strategy", [FedCE, CGSV])
def test_tensors_in_another_order_change_no_bit(strategy: type[Strategy], tmp_path: Path) -> None:
    federation(strategy(), tmp_path / "one" / "run").run()
    faults = {"ash": backwards, "oak": backwards}
    federation(strategy(), tmp_path / "other" / "run", faults=faults).run()
    one = (tmp_path / "one" / "run" / "ledger.jsonl").read_bytes()
    assert (tmp_path / "other" / "run" / "ledger.jsonl").read_bytes() == one
