# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests go to the nodes of their sites; an answer that is late, hostile or missing concerns its
site alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch  # noqa: E402
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict  # noqa: E402
from helpers.client_requests import tiny_model  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from helpers.flower_grid import Answer, App, Nodes, own_files  # noqa: E402

from monai_fairfl import Reply, Request  # noqa: E402
from monai_fairfl.transports.flower import FlowerTransport, export_app  # noqa: E402

Tamper = Callable[[RecordDict], Any]


def job_of(**given: Any) -> Any:
    """What a transport needs to know of a job."""
    return SimpleNamespace(**{"num_rounds": 2, "min_clients": 1, "timeout": 0.0, **given})


def asked_of(*sites: str) -> list[Request]:
    weights, _ = tiny_model()
    return [Request(site, "train", weights, run="r", round=0, seed=3) for site in sites]


def exchange(nodes: Nodes, names: Mapping[str, int], *absent: str) -> dict[str, Reply]:
    """Site -> its reply."""
    with nodes.answering():
        transport = FlowerTransport(nodes.grid, lambda: names, job_of())
        return {reply.client: reply for reply in transport.ask(asked_of(*names, *absent))}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> App:
    settings = {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu"}
    return App(export_app(tmp_path_factory.mktemp("app"), **settings))


@pytest.fixture(scope="module")
def honest(
    app: App, hospitals: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RecordDict, Reply]:
    """What a site sends that trained, and what the server reads."""
    folder = tmp_path_factory.mktemp("sites") / "elm"
    train = app.site(own_files(folder, hospitals / "elm"))
    sent: list[RecordDict] = []

    def answer(message: Message) -> Message:
        reply = train(message)
        assert reply is not None
        sent.append(reply.content)
        return reply

    nodes = Nodes()
    found = exchange(nodes, {"elm": nodes.connect(answer)})["elm"]
    assert found.error is None
    # Its files stay in its own folder.
    assert list(folder.glob("fairfl/elm/state/r-round-0000.pt"))
    return sent[0], found


def test_what_a_site_cannot_do_it_answers_with_the_reason_and_writes_nothing(
    app: App, tmp_path: Path
) -> None:
    # Site -> its node-config, what the app's configuration sets, and a word of its answer.
    own = {"name": "elm", "folder": str(tmp_path)}
    cases: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
        "impostor": (own, {}, "'elm'"),
        "nameless": ({"folder": str(tmp_path)}, {}, "name"),
        "homeless": ({"name": "homeless"}, {}, "folder"),
        "relative": ({**own, "folder": "here"}, {}, "absolute"),
        "coded": ({**own, "name": "coded"}, {"overrides": '{"size": "$1"}'}, "code"),
    }
    nodes = Nodes()
    names = {site: nodes.connect(app.site(*cases[site][:2])) for site in cases}

    found = exchange(nodes, names)

    for site, (_, _, word) in cases.items():
        assert word in str(found[site].error), site
    assert not list(tmp_path.rglob("*"))


def with_text(change: Callable[[str], str]) -> Tamper:
    """The plain values of an answer are another text."""

    def tamper(content: RecordDict) -> None:
        [record] = content.config_records.values()
        [key] = record
        record[key] = change(str(record[key]))

    return tamper


def with_field(**fields: Any) -> Tamper:
    return with_text(lambda text: json.dumps({**json.loads(text), **fields}))


def with_arrays(array: Array | None) -> Tamper:
    """All tensors of an answer are this one; or no tensors at all."""

    def tamper(content: RecordDict) -> None:
        for name, record in list(content.array_records.items()):
            arrays = dict.fromkeys(record, array)
            content[name] = ConfigRecord() if array is None else ArrayRecord(arrays)

    return tamper


def endless() -> bytes:
    """A safetensors file of one tensor without numbers whose strides no machine can count."""
    shape = {"dtype": "F32", "shape": [0, 2**62, 4], "data_offsets": [0, 0]}
    header = json.dumps({"tensor": shape})
    return len(header).to_bytes(8, "little") + header.encode()


HOSTILE: dict[str, tuple[Tamper, str]] = {
    "empty": (lambda content: content.clear(), "fairfl"),
    "nested": (with_text(lambda text: '{"a":' * 100_000), "nested"),
    "damaged": (with_arrays(Array("float32", (2,), "safetensors", b"x" * 99)), "cannot be read"),
    "endless": (with_arrays(Array("float32", (0,), "safetensors", endless())), "cannot be read"),
    "bare": (with_arrays(None), "cannot be read"),
}


def test_an_answer_that_cannot_be_read_is_an_error_of_its_site_and_the_others_count(
    honest: tuple[RecordDict, Reply],
) -> None:
    sent, expected = honest
    nodes = Nodes()
    names = {}

    def sending(tamper: Tamper) -> Answer:
        def answer(message: Message) -> Message:
            content = deepcopy(sent)
            tamper(content)
            return Message(content, reply_to=message)

        return answer

    def crash(message: Message) -> Message:
        return Message(Error(8, "the ClientApp crashed"), reply_to=message)

    for site, (tamper, _) in HOSTILE.items():
        names[site] = nodes.connect(sending(tamper))
    names["crashed"] = nodes.connect(crash)
    # It says that it is elm; the server goes by whom it asked.
    names["oak"] = nodes.connect(sending(with_field(client="elm")))

    found = exchange(nodes, names, "absent")

    for site, (_, word) in HOSTILE.items():
        assert word in str(found[site].error), site
    assert "crashed" in str(found["crashed"].error)
    assert "not connected" in str(found["absent"].error)
    oak = found["oak"]
    assert oak.update is not None and expected.update is not None
    assert (oak.client, oak.error) == ("oak", None)
    assert (oak.num_samples, oak.digest) == (expected.num_samples, expected.digest)
    for name, tensor in expected.update.items():
        assert torch.equal(oak.update[name], tensor)


def test_who_does_not_answer_in_time_is_left_out() -> None:
    nodes = Nodes()

    def prompt(message: Message) -> Message:
        return Message(Error(1, "prompt"), reply_to=message)

    names = {"alder": nodes.connect(prompt), "birch": nodes.connect(lambda message: None)}
    transport = FlowerTransport(nodes.grid, lambda: names, job_of())
    with nodes.answering():
        [reply] = transport.ask(asked_of(*names), timeout=5)
    assert reply.client == "alder" and "prompt" in str(reply.error)


def test_sites_are_waited_for_until_they_are_as_many_as_the_run_needs() -> None:
    names = {"alder": 1}
    transport = FlowerTransport(Nodes().grid, lambda: names, job_of(min_clients=2, timeout=60))
    threading.Timer(0.5, names.__setitem__, ("birch", 2)).start()
    assert list(transport.clients) == ["alder", "birch"]
    few = FlowerTransport(Nodes().grid, lambda: names, job_of(min_clients=3, timeout=0.5))
    assert list(few.clients) == ["alder", "birch"]
