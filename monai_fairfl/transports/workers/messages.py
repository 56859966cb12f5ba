# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a pool and its worker processes send each other, and how.

Both ends are processes of one user on one machine, so messages are pickled. Tensors never are: they
lie in :mod:`monai_fairfl.transports.workers.shared_memory`.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from monai_fairfl.messages import Reply, Request
from monai_fairfl.transports.workers.shared_memory import Layout

# --- from the pool


@dataclass(frozen=True)
class TorchSettings:
    """What of torch's global settings decides a client's numbers."""

    threads: int
    dtype: torch.dtype
    deterministic: bool
    warn_only: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    matmul_precision: str

    @classmethod
    def of_this_process(cls) -> TorchSettings:
        """The settings as they are now."""
        return cls(
            threads=torch.get_num_threads(),
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            matmul_precision=torch.get_float32_matmul_precision(),
        )

    def apply(self) -> None:
        """Make this process compute so, too."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.set_float32_matmul_precision(self.matmul_precision)


@dataclass(frozen=True)
class Begin:
    """The first message: modules to import, since importing MONAI takes seconds."""

    modules: Sequence[str]


@dataclass(frozen=True)
class Ask:
    """One request to a client.

    Args:
        owner: number of the transport whose client it is.
        make: the function that makes the client, pickled; it is used with the first request.
        request: without its weights.
        model: where the weights lie; ``None``: they are those of the previous request.
        torch: settings of the pool's process.
    """

    owner: int
    make: bytes
    request: Request
    model: Layout | None
    torch: TorchSettings


@dataclass(frozen=True)
class Release:
    """Let the clients of a transport go."""

    owner: int


@dataclass(frozen=True)
class Do:
    """A piece of work, such as a whole federation.

    Args:
        work: a function without arguments, pickled.
        torch: settings of the pool's process.
    """

    work: bytes
    torch: TorchSettings


@dataclass(frozen=True)
class Stop:
    """End the present work after its round, and all later work at once."""


# --- from a worker


@dataclass(frozen=True)
class Begun:
    """All modules are imported."""


@dataclass(frozen=True)
class RoundsDone:
    """A work of federations has begun, gone on, or done another round."""

    number: int


@dataclass(frozen=True)
class Did:
    """What a :class:`Do` returned, or the error that it raised."""

    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Answered:
    """The reply to an :class:`Ask`, without its tensors.

    Args:
        reply: with an update and buffers of ``None``.
        update: where the update lies; ``None`` where the client sent none.
        buffers: where the buffers lie.
    """

    reply: Reply
    update: Layout | None
    buffers: Layout | None


@dataclass(frozen=True)
class Released:
    """The clients are gone."""


@dataclass(frozen=True)
class Logged:
    """What a client logged."""

    record: logging.LogRecord


@dataclass(frozen=True)
class Warned:
    """What a client warned of."""

    text: str
    category: type[Warning]
    file: str
    line: int


def send(connection: Connection, message: Any) -> None:
    """Send a message.

    ``Connection.send`` would hand tensors in it over by means of torch, which needs a server.
    """
    connection.send_bytes(pickle.dumps(message))


def receive(connection: Connection) -> Any:
    """The next message.

    Raises:
        OSError: when the other end is gone; ``EOFError`` when it closed the connection.
    """
    return pickle.loads(connection.recv_bytes())
