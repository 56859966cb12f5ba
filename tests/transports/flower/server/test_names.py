# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A node is the site of its key; in a simulation, of its answer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from flwr.app import Message  # noqa: E402
from helpers.flower_grid import Nodes, openssh, pem  # noqa: E402

from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flower.server.names import (  # noqa: E402
    NamesByAnswer,
    NamesByKey,
    keys_in,
)
from monai_fairfl.transports.flower.wire import plain_content  # noqa: E402

pytestmark = pytest.mark.flower


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def test_a_node_is_the_site_whose_key_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes()
    keys = {site: new_key() for site in ("alder", "birch", "cedar")}
    for site, key in keys.items():
        (tmp_path / f"{site}.pub").write_bytes(openssh(key) + b" admin@hospital\n")
    numbers = {site: nodes.connect(public=pem(keys[site])) for site in ("birch", "alder")}
    stranger = nodes.connect()
    names = NamesByKey(nodes.grid, tmp_path)

    assert names.nodes() == numbers
    assert names.nodes() == numbers
    [warning] = [line for line in caplog.messages if "node" in line and "key" in line]
    assert f"node {stranger} is connected, and its key is not in {tmp_path}" in warning


def test_keys_that_cannot_be_told_apart_or_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no public key of a site"):
        keys_in(tmp_path)
    key = openssh(new_key())
    (tmp_path / "alder.pub").write_bytes(key)
    (tmp_path / "birch.pub").write_bytes(key)
    with pytest.raises(ConfigError, match="birch and alder have the same public key"):
        keys_in(tmp_path)
    (tmp_path / "birch.pub").write_bytes(b"ssh-rsa nonsense")
    with pytest.raises(ConfigError, match="birch.pub is no public key"):
        keys_in(tmp_path)


def test_a_simulated_node_is_asked_once() -> None:
    nodes = Nodes()
    asked: list[str] = []

    def saying(site: str) -> int:
        def answer(message: Message) -> Message:
            asked.append(site)
            return Message(plain_content({"site": site}), reply_to=message)

        return nodes.connect(answer)

    numbers = {site: saying(site) for site in ("birch", "alder")}
    names = NamesByAnswer(nodes.grid)
    with nodes.answering():
        assert names.nodes() == numbers
        assert names.nodes() == numbers

    assert sorted(asked) == ["alder", "birch"]
