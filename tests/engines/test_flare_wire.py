# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What sites send over NVIDIA FLARE's wire: odd tensors count, and hostile content does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from helpers.flare_job import Answer, Net, net_app, played, reply_to  # noqa: E402
from nvflare.apis.shareable import ReturnCode, make_reply  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from monai_fairfl.model_files import state_of_file  # noqa: E402

PARAMETERS = sorted(name for name, _ in Net().named_parameters())
HALVES = {name: torch.full_like(value, 0.5) for name, value in Net().named_parameters()}
"""The update of an honest site: numbers that every type holds."""

Change = Callable[[torch.Tensor], Any]


def as_sent(change: Change) -> Answer:
    """A site whose tensors are of another kind."""
    return lambda model: reply_to(model, {name: change(HALVES[name]) for name in PARAMETERS})


HONEST: dict[str, Change] = {
    "plain": lambda tensor: tensor,
    "half": lambda tensor: tensor.half(),
    "brain": lambda tensor: tensor.bfloat16(),
    "double": lambda tensor: tensor.double(),
    "array": lambda tensor: tensor.numpy(),
}


def values(**changes: Any) -> Answer:
    """A site that sends other plain values."""
    return lambda model: reply_to(model, HALVES, **changes)


def meta(content: Any) -> Answer:
    """A site that sends something else in place of a reply's values."""
    return lambda model: FLModel("DIFF", dict(HALVES), meta={"fairfl": content})


def uncarried(**changes: Any) -> Answer:
    """A site whose text no packer of NVFlare would write."""
    return lambda model: FLModelUtils.to_shareable(reply_to(model, HALVES, **changes))


HOSTILE: dict[str, tuple[Answer, str]] = {
    "no values": (meta(None), "read"),
    "a text": (meta("text"), "read"),
    "unread": (meta({"error": "unknown context key"}), "unknown context key"),
    "failed": (lambda model: make_reply(ReturnCode.EXECUTION_EXCEPTION), "process"),
    "other version": (values(format=99, package="9.0.0"), "9.0.0"),
    "list": (values(measurements=[0.5]), "list"),
    "half a character": (uncarried(measurements={"\ud800": 0.5}), "name"),
    "precision": (values(precision="int8"), "precision"),
    "long error": (values(error="x" * 1_000_000), "xxx"),
    "encrypted": (lambda model: reply_to(model, dict.fromkeys(HALVES, b"secret")), "encryption"),
}


def test_odd_tensors_count_and_each_hostile_site_is_missing_for_its_own_reason(
    tmp_path: Path,
) -> None:
    """One round of all: the model is that of the honest sites alone."""
    sites: dict[str, Answer] = {name: as_sent(change) for name, change in HONEST.items()}
    sites |= {name: site for name, (site, _) in HOSTILE.items()}
    app = net_app(tmp_path, strategy="FedAvg", num_rounds=1, guards=["NonFinite"])

    job = played(app, tmp_path / "server", sites)

    assert job.panics == []
    (record,) = job.rounds
    assert set(record["aggregation"]) == set(HONEST)
    assert set(record["missing"]) == set(HOSTILE)
    for name, (_, word) in HOSTILE.items():
        reason = record["missing"][name]
        assert word in reason and len(reason) < 1200, name
    torch.manual_seed(0)
    start = Net().state_dict()
    found = state_of_file(job.kept / "models" / "global.pt")
    for name in PARAMETERS:
        np.testing.assert_allclose(found[name], start[name] + 0.5, atol=1e-6)


def test_who_is_silent_is_late_and_the_others_go_on(tmp_path: Path) -> None:
    sites: dict[str, Answer] = {name: as_sent(HONEST["plain"]) for name in ("elm", "poplar")}
    sites["sycamore"] = lambda model: None
    app = net_app(tmp_path, strategy="FedAvg", num_rounds=1, timeout=1)

    job = played(app, tmp_path / "server", sites)

    (record,) = job.rounds
    assert record["missing"] == {"sycamore": "timeout"}
