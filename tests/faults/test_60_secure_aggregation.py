# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 60: updates that the server cannot read are refused by name, never averaged silently.

Which methods could work on the sum alone is checked here against what each strategy looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attacks
import pytest
from attacks import SITES
from helpers import odd_federation
from helpers.attacked_federation import SEED, itself
from helpers.least_squares_federation import TARGETS, clients, federation

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.averages import Aggregation
from monai_fairfl.protocol.geometry import Geometry
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg, FedCE, Strategy
from monai_fairfl.strategies.resolver import shipped
from monai_fairfl.transports.in_process import Client, InProcess
from monai_fairfl.utils.random_state import own_random_state

NEED_SINGLE_UPDATES = {"CGSV", "FedCE", "FedCI", "LeaveOneOut", "QFedAvg", "ShapFed"}
"""All others could work on the sum of the updates."""

# --- encrypted updates, as NVIDIA FLARE would bring them


class Sealed(InProcess):
    """Updates reach the server as NVIDIA FLARE's messages, those of ``sealed`` in ciphertext."""

    def __init__(self, strategy: Strategy, sealed: Sequence[str]):
        from monai_fairfl.transports.flare.server.task_transport import FlareTransport

        super().__init__(clients())
        controller: Any = SimpleNamespace(strategy=strategy)
        self.server = FlareTransport(controller, 4)
        self.sealed = sealed

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        from monai_fairfl.transports.flare.wire import reply_model

        by_id = {request.id: request for request in requests}

        def pass_on(reply: Reply) -> None:
            message = reply_model(reply)
            if reply.client in self.sealed and message.params:
                message.params = {name: b"ciphertext" for name in message.params}
            self.server._read(message, by_id[reply.id], arrived)

        super().exchange(requests, pass_on, timeout)


@pytest.mark.nvflare
@pytest.mark.parametrize("kind", [FedAvg, FedCE])
def test_an_encrypted_update_is_refused_by_the_strategys_name(
    kind: type[Strategy], tmp_path: Path
) -> None:
    pytest.importorskip("nvflare")
    strategy = kind()
    history = federation(tmp_path, strategy, Sealed(strategy, ["B"])).run()
    for record in history.rounds:
        reason = record["missing"]["B"]
        assert "its update cannot be read (TypeError: 'w' is a bytes, not a tensor)" in reason
        assert f"{strategy.name} compares updates, so it cannot work under" in reason
        assert set(record["aggregation"]) == {"A", "C"}


@pytest.mark.nvflare
def test_a_federation_of_encrypted_updates_stops_and_names_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    strategy = FedCE()
    sealed = Sealed(strategy, list(TARGETS))
    with pytest.raises(FederationError, match="A, B, C .*FedCE compares updates, so it cannot"):
        federation(tmp_path, strategy, sealed).run()
    assert not (tmp_path / "run" / "models").exists()


# --- the sum alone


@pytest.mark.parametrize("name", shipped())
def test_who_needs_single_updates(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the sum alone: no inner products, and no average of some of the clients."""
    looked: list[str] = []
    average = Replies.average
    sees = {"strategy": False}
    geometry = Replies.geometry

    def watched_geometry(self: Replies) -> Geometry:
        if sees["strategy"]:
            looked.append("inner products")
        return geometry.__get__(self)  # type: ignore[no-any-return]

    def watched_average(self: Replies, weights: Aggregation, *more: Any, **named: Any) -> Any:
        rows: list[Any] = [weights]
        if any(isinstance(row, Mapping) for row in weights.values()):
            rows = list(weights.values())  # by layer
        for row in rows:
            averaged = {client for client, weight in row.items() if weight}
            if averaged != set(odd_federation.CLIENTS):
                looked.append(f"an average of {sorted(averaged)}")
        return average(self, weights, *more, **named)

    monkeypatch.setattr(Replies, "geometry", property(watched_geometry))
    monkeypatch.setattr(Replies, "average", watched_average)
    kind = shipped()[name]
    play = kind.round

    def watched_round(self: Strategy, names: Sequence[str]) -> Any:
        """The strategy's own steps only: guards and records look at updates, too."""
        generator = play(self, names)
        replies = None
        while True:
            sees["strategy"] = True
            try:
                requests = generator.send(replies)  # type: ignore[arg-type]
            except StopIteration as stop:
                return stop.value
            finally:
                sees["strategy"] = False
            replies = yield requests

    monkeypatch.setattr(kind, "round", watched_round)
    settings: dict[str, Any] = {"guards": (), "final": (), "rounds": 2}
    assert odd_federation.federation(kind(), tmp_path / "run", **settings).run().finished
    assert bool(looked) == (name in NEED_SINGLE_UPDATES), looked


# --- privacy filters


@pytest.mark.nvflare
def test_variables_that_a_filter_excludes_are_refused_by_their_names(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters.exclude_vars import ExcludeVars
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    from monai_fairfl.transports.flare.wire import reply_model, reply_of

    def filtered(request: Request, reply: Reply) -> Reply:
        if reply.update is None:
            return reply
        shareable = FLModelUtils.to_shareable(reply_model(reply))
        passed = ExcludeVars(["head.weight"]).process(shareable, FLContext())
        return reply_of(FLModelUtils.from_shareable(passed), request)

    run = odd_federation.federation(FedAvg(), tmp_path / "run", faults={"elm": filtered})
    for record in run.run().rounds:
        assert record["missing"] == {
            "elm": "refused: update has other tensors than the model: missing ['head.weight'], "
            "unexpected []"
        }


@dataclass(frozen=True)
class Behind:
    """What guards see of sites behind a privacy filter.

    Args:
        filter: makes it.
        alone: the guard that acts where one site alone has the filter; empty where none does.
    """

    filter: Callable[[], Any]
    alone: str


def percentile(**arguments: Any) -> Any:
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

    return PercentilePrivacy(**arguments)


def svt(**arguments: Any) -> Any:
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    return SVTPrivacy(**arguments)


FILTERS = {
    "percentile as on the page": Behind(partial(percentile, percentile=10, gamma=0.01), ""),
    "percentile without its limit": Behind(partial(percentile, percentile=90, gamma=1.0), ""),
    "SVT": Behind(svt, "Noise"),
    "SVT with a large limit": Behind(partial(svt, fraction=0.9, gamma=0.1), "Outsized"),
}


class Filtered:
    """An honest client behind a filter of NVIDIA FLARE's."""

    def __init__(self, client: Client, filter: Any):
        self.client = client
        self.filter = filter

    def answer(self, request: Request) -> Reply:
        from nvflare.apis.fl_context import FLContext
        from nvflare.app_common.utils.fl_model_utils import FLModelUtils

        from monai_fairfl.transports.flare.wire import reply_model, reply_of

        reply = self.client.answer(request)
        if reply.update is None:
            return reply
        shareable = FLModelUtils.to_shareable(reply_model(reply))
        passed = self.filter.process(shareable, FLContext())
        return reply_of(FLModelUtils.from_shareable(passed), request)


def verdicts_behind(behind: Behind, sites: Sequence[str], folder: Path) -> dict[str, set[str]]:
    """client -> the guards that acted on it, where these sites have the filter."""
    makers: dict[str, Callable[[], Any]] = {}
    for name, client in attacks.clients_of(SITES, None, SEED, False).items():
        if name in sites:
            client = Filtered(client, behind.filter())
        makers[name] = partial(itself, client)
    settings: dict[str, Any] = {"rounds": 3, "seed": SEED, "final": (), "run_dir": folder}
    run = Federation(FedAvg(), InProcess(makers), initial=attacks.initial, **settings)
    acted: dict[str, set[str]] = {}
    # NVIDIA FLARE's filters draw from NumPy's global generator.
    with own_random_state(0):
        history = run.run()
    for record in history.rounds:
        for client_name, verdicts in record["verdicts"].items():
            acted.setdefault(client_name, set()).update(each["guard"] for each in verdicts)
    return acted


@pytest.mark.slow
@pytest.mark.nvflare
@pytest.mark.parametrize("name", FILTERS)
def test_what_guards_see_behind_a_filter(name: str, tmp_path: Path) -> None:
    """An honest site that alone adds noise is taken for noise."""
    pytest.importorskip("nvflare")
    behind = FILTERS[name]
    alone = verdicts_behind(behind, SITES[-1:], tmp_path / "alone")
    assert alone == ({SITES[-1]: {behind.alone}} if behind.alone else {})
    assert verdicts_behind(behind, SITES, tmp_path / "all") == {}
