# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests as NVFlare tasks, and their answers as replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController

from monai_fairfl.errors import TransportAborted
from monai_fairfl.messages import Reply, Request, failed
from monai_fairfl.transports.flare import wire

TASKS = {"train": AppConstants.TASK_TRAIN, "measure": AppConstants.TASK_VALIDATION}
"""A request's task -> the name of the NVFlare task."""
SILENT = "its task failed or its process ended; the log of the site shows the reason"

Arrived = Callable[[Reply], None]


class Messages(Protocol):
    """Writes requests and reads replies: the module ``wire``, or ``ScriptMessages``."""

    def request_model(self, request: Request, rounds: int) -> FLModel: ...

    def reply_of(self, model: FLModel, request: Request) -> Reply: ...


class FlareTransport:
    """Sends each request as one NVFlare task to one client.

    Replies come in any order.

    Args:
        controller: whose job it is.
        rounds: of the run, in all; NVFlare shows them.
        messages: writes and reads the messages; ``None``: of this package's own clients.
    """

    def __init__(self, controller: ModelController, rounds: int, messages: Messages | None = None):
        self.controller = controller
        self.rounds = rounds
        self.messages: Messages = wire if messages is None else messages

    @property
    def clients(self) -> Sequence[str]:
        """The job's clients, as NVFlare authenticated them."""
        return sorted(client.name for client in self.controller.engine.get_clients())

    def exchange(
        self, requests: Sequence[Request], arrived: Arrived, timeout: float | None = None
    ) -> None:
        """Send every request, and wait until all are answered or ``timeout`` seconds are over.

        Raises:
            TransportAborted: when the job was aborted.
        """
        begun = time.monotonic()
        # NVFlare's time limits are whole seconds, and 0 means none.
        limit = math.ceil(timeout or 0)
        answered: set[int] = set()
        for request in requests:
            self._send(request, limit, arrived, answered)

        while self.controller.get_num_standing_tasks():
            if self.controller.abort_signal.triggered:
                raise TransportAborted("the job was aborted")
            time.sleep(0.1)

        # A task that ended early without an answer has failed; one that ran into the limit is late.
        in_time = not limit or time.monotonic() - begun < limit
        if in_time:
            for request in requests:
                if request.id not in answered:
                    arrived(failed(request, SILENT))

    def close(self) -> None:
        """Do nothing: NVFlare ends the clients with the job."""

    def _send(self, request: Request, limit: int, arrived: Arrived, answered: set[int]) -> None:
        """Send one request; its answer goes to ``arrived``, its id to ``answered``."""

        def receive(model: FLModel) -> bool:
            answered.add(request.id)
            self._log_offload(model, request.client)
            return self._read(model, request, arrived)

        self.controller.send_model(
            task_name=TASKS[request.task],
            data=self.messages.request_model(request, self.rounds),
            targets=[request.client],
            timeout=limit,
            callback=receive,
        )

    def _log_offload(self, model: FLModel, client: str) -> None:
        params = model.params or {}
        if any(wire.waits_on_disk(value) for value in params.values()):
            self.controller.info(f"the update of {client} waits on disk")

    def _read(self, model: FLModel, request: Request, arrived: Arrived) -> bool:
        """Hand over a reply, and return whether it is a good one.

        An answer that cannot be read is an error of its client. NVFlare would swallow the
        exception.
        """
        try:
            reply = self.messages.reply_of(model, request)
            arrived(reply)
        except Exception as error:
            reason = f"its update cannot be read ({type(error).__name__}: {error})"
            if isinstance(error, TypeError):
                reason += (
                    f"; {self.controller.strategy.name} compares updates, so it cannot work under "
                    "homomorphic encryption"
                )
            arrived(failed(request, reason))
            return False
        return reply.error is None
