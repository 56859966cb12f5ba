# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's side of a job: an NVFlare workflow that runs a federation of the job's clients.

Each request is one task of one client.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.model_controller import ModelController

from monai_fairfl.errors import FairFLError, FederationError, TransportAborted
from monai_fairfl.messages import Reply, Request
from monai_fairfl.strategies import Parts, Strategy, compose
from monai_fairfl.transports.engines.job import Job, Start, folder_of_run, run_job, storage_folder
from monai_fairfl.transports.engines.wire import packed_request, reply_from
from monai_fairfl.transports.flare import wire
from monai_fairfl.transports.flare.policy import NEEDS

INITIAL = "initial"
"""Folder beside the server's configuration with what the job begins with."""

STAYS_IN_WORKSPACE = ("checkpoints", "updates", ".*")
"""Patterns of a run's files that no copy of the results holds."""

TASKS = {"train": AppConstants.TASK_TRAIN, "measure": AppConstants.TASK_VALIDATION}
"""A request's task -> the name of the NVFlare task."""
SILENT = "its task failed or its process ended; the log of the site shows the reason"

LOST = (
    "Failed to create connection to the child process",
    "Communication error with client",
    "Subprocess died for client",
)
"""What NVFlare's simulator logs where it has lost the process of a client.

It gives a process a minute to open its port, and the process gives the server ten seconds to
answer. A machine that is busy misses either, another program may take the port in between, and a
process may be killed. The simulator then goes on without the client, whose answer never comes.
"""


class FairFLController(ModelController):
    """Runs a :class:`~monai_fairfl.server.federation.Federation` as the workflow of an NVFlare job.

    The run is in ``fairfl/RUN_NAME`` of the server's workspace. A copy of the results (models,
    ledger, report) goes into the job's folder, so that ``nvflare job download`` brings them. A job
    that is submitted again goes on after the last whole round of a run that did not end; once it
    ended, a new run, ``RUN_NAME-2``, begins.

    :class:`~monai_fairfl.transports.flare.FairFLRecipe` puts the initial model and its
    specification beside the server's configuration.

    Args:
        strategy: one of ``monai_fairfl.strategies``, or your own.
        run_name: name of the run's folder.
        job: the other fields of :class:`~monai_fairfl.transports.engines.job.Job`, plain values. A
            client that is late after ``timeout`` seconds, its start included, is missing in this
            round, and is asked again in the next.
        parts: of the strategy, see :class:`~monai_fairfl.strategies.Parts`.
        needs: what a server must allow; NVFlare shows it when its policy refuses this class.

    >>> from monai_fairfl.strategies import FedCE
    >>> controller = FairFLController(FedCE("sum"), "fedce", {"num_rounds": 60, "min_clients": 3})
    >>> controller.strategy.name, controller.job["num_rounds"]
    ('FedCE-sum', 60)
    """

    _always_serialize_args = ("needs",)

    def __init__(
        self,
        strategy: Strategy,
        run_name: str,
        job: Mapping[str, Any],
        parts: Parts | None = None,
        needs: str = NEEDS,
    ):
        super().__init__(persistor_id="", ignore_result_error=True)
        if parts is not None:
            compose(strategy, **vars(parts))
        # NVFlare writes a job's configuration from attributes that are named as the arguments.
        self.strategy = strategy
        self.run_name = run_name
        self.job = job
        self.parts = parts
        self.needs = needs

    def run(self) -> None:
        """Run the federation; an error of its own ends the job and names the way to go on."""
        wire.register_tensors()
        storage = storage_folder(self.engine.get_workspace().get_root_dir())
        folder = folder_of_run(storage, self.run_name)
        job = Job(strategy=self.strategy, name=self.run_name, **self.job)
        transport = FlareTransport(self, job.num_rounds)
        try:
            start = Start.read(Path(self.get_app_dir()) / "config" / INITIAL)
            run_job(folder, job, start, transport, "NVIDIA FLARE")
        except TransportAborted:
            self.info(f"aborted; submit the job again to go on: {folder}")
        except FairFLError as error:
            self.panic(f"{error}\nSubmit the job again to go on from {folder}")
        finally:
            if folder.exists():
                left_out = shutil.ignore_patterns(*STAYS_IN_WORKSPACE)
                results = Path(self.get_run_dir()) / "fairfl"
                shutil.copytree(folder, results, ignore=left_out, dirs_exist_ok=True)

    def broadcast(self, task: Task, *arguments: Any, **options: Any) -> None:
        """Schedule a task so that a site may ask for it twice.

        A site does so when its process was started again, or when the answer to its question was
        late.
        """
        task.client_tasks = _EachOnce()
        super().broadcast(task, *arguments, **options)


class _EachOnce(list[ClientTask]):
    """The client tasks of an NVFlare task, each once.

    NVFlare 2.9 adds a client task again when it is sent again while a task of another site waits.
    Its manager of tasks then ends with a ``KeyError`` on removing it twice, and the job waits for
    ever.
    """

    def append(self, client_task: ClientTask) -> None:
        if client_task not in self:
            super().append(client_task)


class FlareTransport:
    """Sends each request as one NVFlare task to one client.

    Replies come in any order.

    Args:
        controller: whose job it is.
        rounds: of the run, in all; NVFlare shows them.
    """

    def __init__(self, controller: ModelController, rounds: int):
        self.controller = controller
        self.rounds = rounds
        self.simulator = _LostClients()
        logging.getLogger().addHandler(self.simulator)

    @property
    def clients(self) -> Sequence[str]:
        """The job's clients, as NVFlare authenticated them."""
        return sorted(client.name for client in self.controller.engine.get_clients())

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Send every request, and yield replies until all came or ``timeout`` seconds are over.

        Raises:
            TransportAborted: when the job was aborted.
            FederationError: when NVFlare's simulator has lost a client.
        """
        begun = time.monotonic()
        # NVFlare's time limits are whole seconds, and 0 means none.
        limit = math.ceil(timeout or 0)
        # NVFlare's threads put the answers here.
        answers: SimpleQueue[tuple[Request, FLModel]] = SimpleQueue()
        for request in requests:
            self.controller.send_model(
                task_name=TASKS[request.task],
                data=wire.model_of(packed_request(request, self.rounds)),
                targets=[request.client],
                timeout=limit,
                callback=lambda model, request=request: answers.put((request, model)),
            )

        silent = {request.id: request for request in requests}
        while True:
            # Looked at before the queue, so that nothing that came is left in it.
            waits = self.controller.get_num_standing_tasks()
            while not answers.empty():
                request, model = answers.get()
                silent.pop(request.id, None)
                yield reply_from(request, partial(wire.packed_of, model))
            if not waits:
                break
            if self.controller.abort_signal.triggered:
                raise TransportAborted("the job was aborted")
            if self.simulator.lost:
                raise FederationError(
                    f"NVFlare's simulator has lost the process of a client ({self.simulator.lost})."
                    " This happens on a busy machine: use fewer clients at a time (num_threads) if "
                    "it happens often"
                )
            time.sleep(0.1)

        # A task that ended early without an answer has failed; one that ran into the limit is late.
        if not limit or time.monotonic() - begun < limit:
            for request in silent.values():
                yield request.reply(error=SILENT)

    def close(self) -> None:
        """Do no more than to listen no longer: NVFlare ends the clients with the job."""
        logging.getLogger().removeHandler(self.simulator)


class _LostClients(logging.Handler):
    """Hears from NVFlare's simulator, which runs in the server's process, that it lost a client."""

    lost = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(words in text for words in LOST):
            self.lost = text
