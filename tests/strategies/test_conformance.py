# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every strategy in the same federation: the prostate bundle, NIfTI files of tiny hospitals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT, TINY

from monai_fairfl import strategies as shipped
from monai_fairfl.audit import check_receipts, read_receipts, replay
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Sparsified, Strategy, catalogue, compose, resolver
from monai_fairfl.transports.in_process import InProcess

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
SITES = ("alder", "birch", "elm")
ABSENT = "birch"  # in the second of two rounds
SICK = "elm"  # sends NaN as every measurement there

MADE: dict[str, Callable[[], Strategy]] = {
    **resolver.shipped(),
    "FedCE-sum": lambda: shipped.FedCE("sum"),
    "CGSV-paper": lambda: shipped.CGSV(variant="paper", exact=True),
    "CGSV-ECI": lambda: shipped.CGSV(reward="contribution_index"),
    "FedLWR-released": lambda: shipped.FedLWR(variant="released"),
    "FedLWR-cosine": lambda: shipped.FedLWR(similarity="cosine", layerwise=False),
    "ShapFed-personalised": lambda: shipped.ShapFed(personalised=True),
    "FedISM-plus": lambda: shipped.FedISM(plus=True, alpha=0.0),
    "QFedAvg-loss": lambda: shipped.QFedAvg(form="loss_weighted"),
    "AFL-worst": lambda: shipped.AFL(form="worst_client"),
    "FedAvg-prox": lambda: compose(shipped.FedAvg(), training={"prox_mu": 0.1}),
    "FedCE with CGSV's reward": lambda: compose(shipped.FedCE("cos"), reward=Sparsified()),
    "ShapFed with FedISM's training": lambda: compose(
        shipped.ShapFed(), training={"sam_rho": 0.05, "gsam_alpha": 0.1}
    ),
}


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


def outcome(history: History) -> list[Any]:
    """The records less their hashes: equal, whatever the order and the interruption."""
    records = []
    for record in history.records:
        records.append({k: v for k, v in record.items() if k not in ("previous", "hash")})
    return records


PAPERS = ("FedAvg", "FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM")
"""The methods of the five papers, and plain averaging: ``make test`` has these."""


def _by_time() -> list[Any]:
    """Every name; all but the papers' methods take long together."""
    names: list[Any] = []
    for name in MADE:
        marks = () if name in PAPERS else (pytest.mark.long,)
        names.append(pytest.param(name, marks=marks))
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", _by_time())
def test_every_strategy_keeps_the_promises_of_all(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    whole = federation(MADE[name](), hospitals, tmp_path / "whole", backwards=False)
    history = whole.run()
    first, second = history.rounds

    # Nothing breaks when in the second round one client is absent, and one sends NaN.
    everybody = set(SITES)
    without_absent = everybody - {ABSENT}
    assert history.finished and set(first["measurements"]) == everybody
    assert set(second["missing"]) == {ABSENT}
    assert set(second["measurements"]) == without_absent
    assert set(history.records[-1]["scores"]) == everybody

    # Weights are finite, not negative and sum to one, per layer where there are layers.
    for record, present in ((first, everybody), (second, without_absent)):
        found = record["aggregation"]
        rows = [found] if found else []
        if found and isinstance(next(iter(found.values())), Mapping):
            rows = list(found.values())
        for row in rows:
            assert set(row) <= present and all(math.isfinite(w) and w >= 0 for w in row.values())
            assert sum(row.values()) == pytest.approx(1, abs=1e-9)
        assert set(record["contributions"]) <= present

        # Where a method estimates nobody's contribution, its weights stand in their place.
        if rows and not whole.strategy.estimates:
            weights = {client: sum(row[client] for row in rows) / len(rows) for client in rows[0]}
            assert record["contributions"] == pytest.approx(weights)

    # The report has a text for each quantity that the method records.
    for name_of_quantity in second["details"]:
        assert catalogue.quantity(type(whole.strategy).__name__, name_of_quantity) is not None

    # All numbers follow from the ledger alone, and the sites' receipts fit it to its end.
    replayed = replay(tmp_path / "whole" / "run")
    assert (replayed.rounds, replayed.differences) == (2, ())
    for site in SITES:
        receipts = read_receipts(tmp_path / "whole" / site / "receipts.jsonl")
        proof = check_receipts(tmp_path / "whole" / "run", receipts)
        assert (proof.covered, proof.problems) == (4, ())

    # Each client receives only its own numbers, and its own model.
    for request in whole.transport.asked:  # type: ignore[attr-defined]
        assert all(isinstance(value, (int, float)) for value in request.context.values())
        if "previous_weight" in request.context and request.round == 1:
            assert request.context["previous_weight"] == pytest.approx(
                first["aggregation"][request.client]
            )

    # The same bits when replies arrive in another order, and the run is stopped and resumed with
    # new clients.
    broken = tmp_path / "broken"
    run_one_round(federation(MADE[name](), hospitals, broken, backwards=True))
    resumed = federation(MADE[name](), hospitals, broken, backwards=True).run(resume=True)
    assert outcome(resumed) == outcome(history)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"local_norm": True}, {"buffers": "local"}])
@pytest.mark.parametrize(
    "name",
    [
        "FedAvg",
        "FedCE",
        "ShapFed-personalised",
        "Ditto",
        pytest.param("FedLWR", marks=pytest.mark.long),
        pytest.param("FedCI", marks=pytest.mark.long),
        pytest.param("Standalone", marks=pytest.mark.long),
    ],
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
