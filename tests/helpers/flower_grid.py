# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower's own grid in this process, whose nodes a test answers for, and an app's components."""

from __future__ import annotations

import json
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Message, RecordDict
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import flatten_dict
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

Answer = Callable[[Message], Message | None]
"""What a node answers; ``None``: nothing."""


class Nodes:
    """A grid whose nodes have keys, and answer as the test says."""

    def __init__(self) -> None:
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state = factory.state()
        run = Run.create_empty(1)
        run.federation_id = NOOP_FEDERATION_ID
        run.primary_task_id = 1
        self.state.run_ids[1] = RunRecord(run=run)
        self.state.task_store[1] = Task(task_id=1, run_id=1)
        identify(node=SUPERLINK_NODE_ID)
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(run)
        self.answers: dict[int, Answer] = {}

    def connect(self, answer: Answer, public: bytes = b"") -> int:
        """Connect a node that has a public key; returns its number."""
        key = public or new_key(Encoding.PEM)[0]
        node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 1e300)
        self.state.acknowledge_node_heartbeat(node, 1e300)
        self.answers[node] = answer
        return int(node)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, every node answers its messages; both pass Flower's serialisation."""
        ended = threading.Event()

        def answer_all() -> None:
            while not ended.wait(0.02):
                for node, answer in list(self.answers.items()):
                    for message in self.state.get_message_ins(node_id=node, limit=1):
                        message.content = carried(message.content)
                        reply = answer(message)
                        if reply is not None:
                            self.send(reply)

        thread = threading.Thread(target=answer_all, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def send(self, reply: Message) -> None:
        """Send a node's answer."""
        if reply.has_content():
            reply.content = carried(reply.content)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        self.state.store_message_res(reply)


def carried(content: RecordDict) -> RecordDict:
    """A message's content as it comes out at the other end of Flower's wire."""
    return recorddict_from_proto(recorddict_to_proto(content))


def identify(node: int) -> None:
    """Be what Flower takes this process for when it makes a message: a task of run 1 at a node."""
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = 1
    TaskIdentity.node_id = node


def new_key(*encodings: Encoding) -> list[bytes]:
    """A public key: PEM as a SuperNode sends it, OpenSSH as ``ssh-keygen`` writes it."""
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    formats = {
        Encoding.PEM: PublicFormat.SubjectPublicKeyInfo,
        Encoding.OpenSSH: PublicFormat.OpenSSH,
    }
    return [public.public_bytes(encoding, formats[encoding]) for encoding in encodings]


class App:
    """An app as Flower reads it from its folder."""

    def __init__(self, folder: Path):
        read, _ = load_and_validate(folder / "pyproject.toml")
        found: dict[str, Any] = read["tool"]["flwr"]["app"]
        self.config: dict[str, Any] = flatten_dict(found["config"])
        self.server, self.client = (
            pkgutil.resolve_name(found["components"][name]) for name in ("serverapp", "clientapp")
        )

    def serve(self, nodes: Nodes) -> None:
        """Run the server's part."""
        with nodes.answering():
            self.server(nodes.grid, self._context({}, self.config))

    def site(self, own: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Answer:
        """A node with a ``--node-config`` of its own; the run's configuration may be changed."""
        context = self._context(own, {**self.config, **(changes or {})})

        def answer(message: Message) -> Message:
            found: Message = self.client(message, context)
            return found

        return answer

    def _context(self, own: Mapping[str, Any], config: Mapping[str, Any]) -> Context:
        return Context(1, 1, dict(own), RecordDict(), dict(config))


def own_files(folder: Path, images: Path, **settings: Any) -> dict[str, str]:
    """The node-config of a site whose own folder names its images and other settings."""
    (folder / "local").mkdir(parents=True)
    given = {"dataset_dir": str(images), **settings}
    (folder / "local" / "fairfl.json").write_text(json.dumps(given))
    return {"name": folder.name, "folder": str(folder)}
