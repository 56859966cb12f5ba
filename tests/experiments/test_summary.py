# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The summary of a run in which a site failed: it is refused, or says so."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import Client

Wrap = Callable[[str, Client], Client]
SITES = ["alder", "birch", "cedar"]
SMALL = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "split_folds": 2,
    "split_fold": 0,
    "split_validation": 0.5,
    "split_seed": 0,
}


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))


class FailsOnce:
    """A client that fails once, when a request is of one kind.

    Args:
        client: that it is.
        fails: of which request.
    """

    def __init__(self, client: Client, fails: Callable[[Request], bool]):
        self.client = client
        self.fails = fails
        self.failed = False

    def answer(self, request: Request) -> Reply:
        if not self.failed and self.fails(request):
            self.failed = True
            raise MemoryError("no memory left")
        return self.client.answer(request)


class SendsNoGain:
    """A client all of whose gains of the last mile were not finite, and so not taken."""

    def __init__(self, client: Client):
        self.client = client

    def answer(self, request: Request) -> Reply:
        reply = self.client.answer(request)
        finite = {}
        for name, value in reply.measurements.items():
            finite[name] = value
            if name.endswith("_gain"):
                finite[name] = math.nan
        return replace(reply, measurements=finite)


def trained(hospitals: Path, folder: Path, wrap: Wrap, **settings: Any) -> Path:
    """Train two rounds; return the folder of the run, as a study has it."""
    (folder / "three").mkdir()
    for site in SITES:
        (folder / "three" / site).symlink_to(hospitals / site, target_is_directory=True)
    training = importlib.import_module("trainings").Training(
        "prostate_mri_segmentation", "three", 2, 1, SMALL
    )
    run = folder / "run"
    training.run(FedAvg(), (), folder, run, wrap, final=("score", "test_score"), **settings)
    (run / "clients").rename(run / "sites")
    return run


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "when"),
    [
        (lambda request: request.round == 1, "in round 1"),
        (lambda request: bool(request.context.get("closing")), "at the end"),
    ],
    ids=["in a round", "at the end"],
)
def test_a_run_that_went_on_without_a_site_is_refused(
    fails: Callable[[Request], bool], when: str, hospitals: Path, tmp_path: Path
) -> None:
    def wrap(site: str, client: Client) -> Client:
        if site == "birch":
            return FailsOnce(client, fails)
        return client

    run = trained(hospitals, tmp_path, wrap)
    with pytest.raises(FederationError, match=f"went on without birch {when}.*no memory left"):
        importlib.import_module("summary").summary(run, ())


@pytest.mark.long
@pytest.mark.slow
def test_a_site_without_a_gain_stays_with_its_model_and_the_others_have_their_last_mile(
    hospitals: Path, tmp_path: Path
) -> None:
    def without_gains(site: str, client: Client) -> Client:
        if site == "birch":
            return SendsNoGain(client)
        return client

    run = trained(hospitals, tmp_path, without_gains, adapt_epochs=1, adapt_rate=0.001)
    found = importlib.import_module("summary").summary(run, ())
    assert found["last_mile"]["birch"] == {"taken": None, "gains": {}}
    assert found["test_used"]["dice"]["birch"] == found["test"]["dice"]["birch"]
    for site in ("alder", "cedar"):
        assert "adapted" in found["last_mile"][site]["gains"]
        assert len(found["test_used"]["dice"][site]) == len(found["test"]["dice"][site])
