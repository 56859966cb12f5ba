# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests as NVFlare tasks, and their answers as replies."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol

from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController

from monai_fairfl.errors import TransportAborted
from monai_fairfl.messages import Reply, Request, failed
from monai_fairfl.transports.engines.wire import unreadable
from monai_fairfl.transports.flare import wire

TASKS = {"train": AppConstants.TASK_TRAIN, "measure": AppConstants.TASK_VALIDATION}
"""A request's task -> the name of the NVFlare task."""
SILENT = "its task failed or its process ended; the log of the site shows the reason"


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

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Send every request, and yield replies until all came or ``timeout`` seconds are over.

        Raises:
            TransportAborted: when the job was aborted.
        """
        begun = time.monotonic()
        # NVFlare's time limits are whole seconds, and 0 means none.
        limit = math.ceil(timeout or 0)
        # NVFlare's threads put the replies here.
        replies: SimpleQueue[Reply] = SimpleQueue()
        answered: set[int] = set()
        for request in requests:
            self._send(request, limit, replies, answered)

        while True:
            # Looked at before the queue, so that nothing that came is left in it.
            waits = self.controller.get_num_standing_tasks()
            while not replies.empty():
                yield replies.get()
            if not waits:
                break
            if self.controller.abort_signal.triggered:
                raise TransportAborted("the job was aborted")
            time.sleep(0.1)

        # A task that ended early without an answer has failed; one that ran into the limit is late.
        in_time = not limit or time.monotonic() - begun < limit
        if in_time:
            for request in requests:
                if request.id not in answered:
                    yield failed(request, SILENT)

    def close(self) -> None:
        """Do nothing: NVFlare ends the clients with the job."""

    def _send(
        self, request: Request, limit: int, replies: SimpleQueue[Reply], answered: set[int]
    ) -> None:
        """Send one request; NVFlare calls ``receive`` with its answer, from a thread of its own."""

        def receive(model: FLModel) -> bool:
            reply = self._read(model, request)
            replies.put(reply)
            answered.add(request.id)
            return reply.error is None

        self.controller.send_model(
            task_name=TASKS[request.task],
            data=self.messages.request_model(request, self.rounds),
            targets=[request.client],
            timeout=limit,
            callback=receive,
        )

    def _read(self, model: FLModel, request: Request) -> Reply:
        """Return a reply; an answer that cannot be read is an error of its client.

        NVFlare would swallow the exception. A tensor that waits on disk is read when the server
        takes the reply.
        """
        if any(map(wire.waits_on_disk, (model.params or {}).values())):
            self.controller.info(f"the update of {request.client} waits on disk")
        try:
            return self.messages.reply_of(model, request)
        except Exception as error:
            return unreadable(request, error)
