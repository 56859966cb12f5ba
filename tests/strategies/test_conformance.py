# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every strategy through the same federation: the prostate bundle, real NIfTI files of tiny
synthetic hospitals.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT, TINY

from monai_fairfl import strategies as shipped
from monai_fairfl.bundle.federation import initial_model
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import Sparsified, Strategy, compose
from monai_fairfl.transports.in_process import InProcess

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
SITES = ("alder", "birch", "elm")
ABSENT = "birch"  # in the second of two rounds
SICK = "elm"  # sends NaN as every measurement there
TWO_CLASSES = {"out_channels": 2}

SHIPPED = {name: getattr(shipped, name) for name in shipped.__all__}
MADE: dict[str, Callable[[], Strategy]] = {
    name: kind
    for name, kind in SHIPPED.items()
    if isinstance(kind, type) and issubclass(kind, Strategy) and not inspect.isabstract(kind)
} | {
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
    """Loses ``ABSENT`` and ``SICK``'s numbers in round 1, changes the order of replies, remembers
    what was asked.
    """

    def __init__(self, clients: Mapping[str, Callable[[], FairMonaiAlgo]], backwards: bool):
        super().__init__(clients)
        self.backwards, self.asked = backwards, []  # type: ignore[var-annotated]

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        self.asked += requests
        replies: list[Reply] = []
        super().exchange(
            [r for r in requests if (r.client, r.round) != (ABSENT, 1)], replies.append, timeout
        )
        replies = [
            _without_numbers(reply) if (reply.client, reply.round) == (SICK, 1) else reply
            for reply in replies
        ]
        for reply in reversed(replies) if self.backwards else replies:
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


def stopped_after_one_round(federation: Federation) -> Federation:
    whole = federation._round

    def one(*arguments: Any) -> None:
        whole(*arguments)
        federation.stop()

    federation._round = one  # type: ignore[method-assign]
    return federation


def outcome(history: History) -> list[Any]:
    """All that must be equal, whatever the order and the interruption; only the chain's time-free
    content.
    """
    return [
        {key: value for key, value in r.items() if key not in ("previous", "hash")}
        for r in history.records
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_every_strategy_keeps_the_promises_of_all(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    whole = federation(MADE[name](), hospitals, tmp_path / "whole", backwards=False)
    history = whole.run()
    first, second = history.rounds

    # a client that is missing in the second round breaks nothing, nor does one whose numbers are
    # not finite
    assert history.finished and set(first["measurements"]) == set(SITES)
    assert set(second["missing"]) == {ABSENT} and set(second["measurements"]) == set(SITES) - {
        ABSENT
    }
    assert set(history.records[-1]["scores"]) == set(SITES)

    # weights are finite, not negative and sum to one, per layer where there are layers
    for record, present in ((first, set(SITES)), (second, set(SITES) - {ABSENT})):
        found = record["aggregation"]
        layered = bool(found) and isinstance(next(iter(found.values())), Mapping)
        rows = list(found.values()) if layered else [found] if found else []
        for row in rows:
            assert set(row) <= present and all(math.isfinite(w) and w >= 0 for w in row.values())
            assert sum(row.values()) == pytest.approx(1, abs=1e-9)
        assert set(record["contributions"]) <= present
        if (
            rows and not whole.strategy.estimates
        ):  # then its weights stand in the place of contributions
            weights = {client: sum(row[client] for row in rows) / len(rows) for client in rows[0]}
            assert record["contributions"] == pytest.approx(weights)

    # each client is told numbers of its own only, and its own model
    for request in whole.transport.asked:  # type: ignore[attr-defined]
        assert all(isinstance(value, (int, float)) for value in request.context.values())
        if "previous_weight" in request.context and request.round == 1:
            assert request.context["previous_weight"] == pytest.approx(
                first["aggregation"][request.client]
            )

    # the same bits when replies arrive in another order, and the run is stopped and resumed with
    # new clients
    broken = tmp_path / "broken"
    stopped_after_one_round(federation(MADE[name](), hospitals, broken, backwards=True)).run()
    resumed = federation(MADE[name](), hospitals, broken, backwards=True).run(resume=True)
    assert outcome(resumed) == outcome(history)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"local_norm": True}, {"buffers": "local"}])
@pytest.mark.parametrize(
    "name", ["FedAvg", "FedCE", "FedLWR", "ShapFed-personalised", "Ditto", "FedCI", "Standalone"]
)
def test_normalisation_may_stay_at_the_sites(
    name: str, settings: dict[str, Any], hospitals: Path, tmp_path: Path
) -> None:
    run = federation(MADE[name](), hospitals, tmp_path, backwards=False, **settings)
    history = run.run()
    spec = run.strategy.spec
    withheld = set(spec.local) if "local_norm" in settings else set(spec.buffers)
    assert withheld and not any(withheld & set(r.weights) for r in run.transport.asked)  # type: ignore[attr-defined]
    assert (
        history.finished and not (tmp_path / "run" / "models").exists()
    )  # the server has no whole model
    for site in SITES:
        assert (tmp_path / site / "run-own.pt").exists()  # each site has
        assert 0 <= history.records[-1]["scores"][site]["own"]["score"]["mean"]["value"] <= 1
