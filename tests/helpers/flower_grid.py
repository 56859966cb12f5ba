# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower's own grid and state in this process, with nodes that a test answers for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
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

    def connect(self, answer: Answer = lambda message: None, public: bytes = b"") -> int:
        """Connect a node that has a public key; returns its number."""
        key = public or pem(ec.generate_private_key(ec.SECP384R1()))
        node = self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 1e300)
        self.state.acknowledge_node_heartbeat(node, 1e300)
        self.answers[node] = answer
        return int(node)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, every node answers its messages."""
        ended = threading.Event()

        def answer_all() -> None:
            while not ended.wait(0.02):
                for node, answer in list(self.answers.items()):
                    for message in self.state.get_message_ins(node_id=node, limit=1):
                        reply = answer(message)
                        if reply is not None:
                            reply.metadata.__dict__["_message_id"] = str(uuid4())
                            self.state.store_message_res(reply)

        thread = threading.Thread(target=answer_all, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def identify(node: int) -> None:
    """Be what Flower takes this process for when it makes a message: a task of run 1 at a node."""
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = 1
    TaskIdentity.node_id = node


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A public key as a SuperNode sends it."""
    public = key.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A public key as ``ssh-keygen`` writes it."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
