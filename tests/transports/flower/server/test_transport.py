# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests go to the nodes of their sites; replies come as they come, and late ones never."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch  # noqa: E402
from flwr.app import ConfigRecord, Error, Message  # noqa: E402
from helpers.flower_grid import Answer, Nodes  # noqa: E402

from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.protocol.model_spec import ModelSpec  # noqa: E402
from monai_fairfl.server.exchange import Inbox  # noqa: E402
from monai_fairfl.transports.flower.server.transport import (  # noqa: E402
    NOT_CONNECTED,
    FlowerTransport,
)
from monai_fairfl.transports.flower.wire import (  # noqa: E402
    PLAIN,
    TEXT,
    reply_content,
    request_of,
)

pytestmark = pytest.mark.flower


class Known:
    """Names that a test gives."""

    def __init__(self, nodes: Mapping[str, int]):
        self.known = dict(nodes)

    def nodes(self) -> Mapping[str, int]:
        return self.known


def honest(site: str) -> Answer:
    """A node that sends twice what it received."""

    def answer(message: Message) -> Message:
        request, rounds = request_of(message.content, site)
        assert rounds == 4
        update = {name: 2 * tensor for name, tensor in request.weights.items()}
        reply = Reply(site, update, 1, id=request.id, run=request.run, round=request.round)
        return Message(reply_content(reply), reply_to=message)

    return answer


def failing(message: Message) -> Message:
    return Message(Error(8, "the ClientApp crashed"), reply_to=message)


def crafted(site: str, field: str, value: Any) -> Answer:
    """A node whose answer is honest but for one plain value."""

    def answer(message: Message) -> Message:
        reply = honest(site)(message)
        plain = json.loads(str(reply.content[PLAIN][TEXT]))
        plain[field] = value
        reply.content[PLAIN] = ConfigRecord({TEXT: json.dumps(plain)})
        return reply

    return answer


def requests(*sites: str) -> list[Request]:
    found = []
    for number, site in enumerate(sites):
        weights = {"w": torch.tensor([float(number)])}
        found.append(Request(site, "train", weights, id=number, run="r", round=0))
    return found


def exchange(nodes: Nodes, transport: FlowerTransport, *sites: str, **given: Any) -> Any:
    replies: dict[str, Reply] = {}
    with nodes.answering():
        transport.exchange(
            requests(*sites), lambda reply: replies.update({reply.client: reply}), **given
        )
    return replies


def test_each_site_receives_its_own_request_and_a_lost_one_is_an_error() -> None:
    nodes = Nodes()
    names = {"alder": nodes.connect(honest("alder")), "birch": nodes.connect(honest("birch"))}
    names["cedar"] = nodes.connect(failing)
    transport = FlowerTransport(nodes.grid, Known(names), 4)

    found = exchange(nodes, transport, "birch", "alder", "cedar", "elm")

    assert found["birch"].update["w"].tolist() == [0.0]
    assert found["alder"].update["w"].tolist() == [2.0]
    assert found["cedar"].error == "Flower reports: the ClientApp crashed"
    assert found["elm"].error == NOT_CONNECTED


def test_one_crafted_answer_is_an_error_of_its_site_and_the_others_count() -> None:
    """The server looks a request up by the id that came: a list cannot be looked up."""
    nodes = Nodes()
    names = {"alder": nodes.connect(crafted("alder", "id", [0]))}
    names["birch"] = nodes.connect(honest("birch"))
    transport = FlowerTransport(nodes.grid, Known(names), 4)
    asked = requests("alder", "birch")
    inbox = Inbox(asked, ModelSpec(("w",)), asked[0].weights)
    with nodes.answering():
        transport.exchange(asked, inbox.arrived)
    replies = inbox.close()

    assert replies.clients == ["birch"]
    assert (
        "cannot be read (TypeError: id is a list, not a whole number)" in replies.missing["alder"]
    )


def test_an_answer_that_cannot_be_taken_in_is_an_error_of_its_site() -> None:
    nodes = Nodes()
    names = {"alder": nodes.connect(honest("alder")), "birch": nodes.connect(honest("birch"))}
    transport = FlowerTransport(nodes.grid, Known(names), 4)
    taken: dict[str, Reply] = {}

    def take_in(reply: Reply) -> None:
        if reply.client == "alder" and reply.error is None:
            raise RuntimeError("no type for this tensor")
        taken[reply.client] = reply

    with nodes.answering():
        transport.exchange(requests("alder", "birch"), take_in)
    assert "cannot be read (RuntimeError: no type for this tensor)" in str(taken["alder"].error)
    assert taken["birch"].error is None


def test_who_does_not_answer_in_time_is_left_out_and_its_answer_never_looked_at() -> None:
    nodes = Nodes()
    late: list[Message] = []

    def slow(message: Message) -> None:
        late.append(message)

    names = {"alder": nodes.connect(honest("alder")), "birch": nodes.connect(slow)}
    transport = FlowerTransport(nodes.grid, Known(names), 4)
    begun = time.monotonic()

    assert set(exchange(nodes, transport, "alder", "birch", timeout=0.6)) == {"alder"}
    assert time.monotonic() - begun < 5

    nodes.answers[names["birch"]] = honest("birch")
    nodes.state.store_message_res(honest("birch")(late[0]))
    found = exchange(nodes, transport, "birch", timeout=30)
    assert found["birch"].update["w"].tolist() == [0.0]


def test_the_clients_are_counted_once_the_run_has_as_many_as_it_needs() -> None:
    nodes = Nodes()
    names = Known({"alder": 1})
    assert list(FlowerTransport(nodes.grid, names, 4, 1).clients) == ["alder"]
    begun = time.monotonic()
    assert list(FlowerTransport(nodes.grid, names, 4, 2, wait=0.5).clients) == ["alder"]
    assert time.monotonic() - begun >= 0.5

    class Growing(Known):
        def nodes(self) -> Mapping[str, int]:
            self.known[f"site {len(self.known)}"] = len(self.known)
            return self.known

    assert len(FlowerTransport(nodes.grid, Growing({}), 4, 2).clients) == 2
