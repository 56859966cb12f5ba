# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies with a real bundle: the prostate bundle, NIfTI files of tiny hospitals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT, TINY

from monai_fairfl import FairMonaiAlgo, Federation, InProcess, Reply, Request, Strategy
from monai_fairfl.audit import check_receipts, read_receipts, replay
from monai_fairfl.bundle import initial_model
from monai_fairfl.server import Observer
from monai_fairfl.strategies import Ditto, FedCE, FedLWR, ShapFed

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
SITES = ("alder", "birch", "elm")
ABSENT = "birch"  # in the second of two rounds
SICK = "elm"  # sends NaN as every measurement there

MADE: dict[str, Callable[[], Strategy]] = {
    "FedCE": FedCE,
    "FedLWR": FedLWR,
    "Ditto": Ditto,
    "ShapFed-personalised": lambda: ShapFed(personalised=True),
}
"""A measurement before the training, two phases, a personal model, and rewards by the server."""


class Watched(InProcess):
    """Records the requests; in round 1 it loses ``ABSENT`` and the numbers of ``SICK``.

    Args:
        clients: as of :class:`InProcess`.
        backwards: whether replies arrive in reversed order.
    """

    def __init__(self, clients: Mapping[str, Callable[[], FairMonaiAlgo]], backwards: bool):
        super().__init__(clients)
        self.backwards = backwards
        self.asked: list[Request] = []

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        self.asked += requests
        present = [r for r in requests if (r.client, r.round) != (ABSENT, 1)]
        replies: list[Reply] = []
        super().exchange(present, replies.append, timeout)
        if self.backwards:
            replies.reverse()
        for reply in replies:
            if (reply.client, reply.round) == (SICK, 1):
                reply = _without_numbers(reply)
            arrived(reply)


def _without_numbers(reply: Reply) -> Reply:
    return replace(reply, measurements=dict.fromkeys(reply.measurements, math.nan))


def federation(
    strategy: Strategy, hospitals: Path, folder: Path, backwards: bool, **arguments: Any
) -> Federation:
    overrides = {**TINY, "sw_batch_size": 4}

    def maker(site: str) -> Callable[[], FairMonaiAlgo]:
        kwargs = {
            "dataset_dir": str(hospitals / site),
            "datalist_file": str(folder / "datalists" / f"{site}.json"),
            "ckpt_dir": str(folder / site / "models"),
            "output_dir": str(folder / site / "eval"),
            "device": "$torch.device('cpu')",
            **overrides,
        }
        return lambda: FairMonaiAlgo(
            str(BUNDLE), folder / site, train_kwargs=kwargs, eval_kwargs=kwargs
        )

    transport = Watched({site: maker(site) for site in SITES}, backwards)
    return Federation(
        strategy,
        transport,
        2,
        lambda: initial_model(BUNDLE, overrides),
        run_dir=folder / "run",
        **arguments,
    )


def run_one_round(run: Federation) -> None:
    """Run a federation and stop it after its first round."""

    class Stopping(Observer):
        def record_added(self, record: Mapping[str, Any]) -> None:
            if record["kind"] == "round":
                run.stop()

    run.observer = Stopping()
    run.run()


def outcome(records: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The records less their hashes: equal, whatever the order and the interruption."""
    found = []
    for record in records:
        found.append({k: v for k, v in record.items() if k not in ("previous", "hash")})
    return found


@pytest.mark.parametrize("name", MADE)
def test_each_kind_of_strategy_trains_a_bundle_with_an_absent_and_a_sick_client(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    whole = federation(MADE[name](), hospitals, tmp_path / "whole", backwards=False)
    history = whole.run()
    first, second = history.rounds
    everybody = set(SITES)
    assert history.finished and set(first["measurements"]) == everybody
    assert set(second["missing"]) == {ABSENT}
    assert set(history.records[-1]["scores"]) == everybody
    for record, present in ((first, everybody), (second, everybody - {ABSENT})):
        found = record["aggregation"]
        rows = [found] if found else []
        if found and isinstance(next(iter(found.values())), Mapping):
            rows = list(found.values())
        for row in rows:
            assert set(row) <= present and min(row.values()) >= 0
            assert sum(row.values()) == pytest.approx(1, abs=1e-9)
        assert set(record["contributions"]) <= present

    # All numbers follow from the ledger alone, and the sites' receipts fit it to its end.
    replayed = replay(tmp_path / "whole" / "run")
    assert (replayed.rounds, replayed.differences) == (2, ())
    for site in SITES:
        receipts = read_receipts(tmp_path / "whole" / site / "receipts.jsonl")
        proof = check_receipts(tmp_path / "whole" / "run", receipts)
        assert (proof.covered, proof.problems) == (4, ())

    # Each client receives only its own numbers.
    for request in whole.transport.asked:  # type: ignore[attr-defined]
        if "previous_weight" in request.context and request.round == 1:
            own = first["aggregation"][request.client]
            assert request.context["previous_weight"] == pytest.approx(own)

    # The same bits when replies arrive in another order, and the run is stopped and resumed with
    # new clients.
    broken = tmp_path / "broken"
    run_one_round(federation(MADE[name](), hospitals, broken, backwards=True))
    resumed = federation(MADE[name](), hospitals, broken, backwards=True).run(resume=True)
    assert outcome(resumed.records) == outcome(history.records)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("FedCE", {"local_norm": True}), ("ShapFed-personalised", {"buffers": "local"})],
)
def test_normalisation_may_stay_at_the_sites(
    name: str, settings: dict[str, Any], hospitals: Path, tmp_path: Path
) -> None:
    run = federation(MADE[name](), hospitals, tmp_path, backwards=False, **settings)
    history = run.run()
    spec = run.strategy.spec
    withheld = set(spec.local) if "local_norm" in settings else set(spec.buffers)
    assert replay(tmp_path / "run").differences == ()
    assert withheld and not any(withheld & set(r.weights) for r in run.transport.asked)  # type: ignore[attr-defined]

    # The server has no whole model, each site has one.
    assert history.finished and not (tmp_path / "run" / "models").exists()
    for site in SITES:
        assert (tmp_path / site / "run-own.pt").exists()
        assert 0 <= history.records[-1]["scores"][site]["own"]["score"]["mean"]["value"] <= 1
