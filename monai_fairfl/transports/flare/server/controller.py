# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server: an NVFlare workflow that runs a federation, its clients being the job's."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.tensor_disk_offload_context import (
    cleanup_tensor_disk_offload,
    setup_tensor_disk_offload,
)
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import cleanup_memory

from monai_fairfl.errors import FairFLError, TransportAborted
from monai_fairfl.protocol.messages import Reply, Request, failed
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.server.observer import Observer
from monai_fairfl.strategies import Reward, Strategy, Weighting, compose
from monai_fairfl.transports.flare import wire
from monai_fairfl.transports.flare.job.initial import (
    INITIAL,
    read_initial,
    read_initial_recipe,
    read_job_settings,
)
from monai_fairfl.transports.flare.policy import NEEDS
from monai_fairfl.transports.flare.server.foreign import Scripts
from monai_fairfl.transports.flare.server.tracking import EarlyStop, scalars_of, show
from monai_fairfl.transports.flare.workspace import kept_folder
from monai_fairfl.utils.files import write_atomically

TASKS = {"train": AppConstants.TASK_TRAIN, "measure": AppConstants.TASK_VALIDATION}
UNTOLD = "its task failed or its process ended; the log of the site says why"


class FlareTransport:
    """Requests as NVFlare tasks, one for each, of one client each; replies in the order in which
    they come.

    Args:
        controller: whose job it is.
        rounds: in all, which NVFlare shows.
        scripts: writes and reads the messages where the clients are not of this package.
    """

    def __init__(self, controller: FairFLController, rounds: int, scripts: Scripts | None = None):
        self.controller, self.rounds, self.messages = controller, rounds, scripts or wire

    @property
    def clients(self) -> Sequence[str]:
        """The job's clients, as NVFlare authenticated them."""
        return sorted(client.name for client in self.controller.engine.get_clients())

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        """Send every request to its client, and wait until all were answered or ``timeout`` seconds
        are over.

        Raises:
            TransportAborted: when the job was aborted.
        """
        begun, answered = time.monotonic(), set()
        limit = math.ceil(timeout or 0)  # NVFlare's are whole seconds; 0: none
        for request in requests:

            def received(model: FLModel, request: Request = request) -> bool:
                answered.add(request.id)
                if any(hasattr(value, "materialize") for value in (model.params or {}).values()):
                    self.controller.info(f"the update of {request.client} waits on disk")
                return self._take_in(model, request, arrived)

            self.controller.send_model(
                task_name=TASKS[request.task],
                data=self.messages.request_model(request, self.rounds),
                targets=[request.client],
                timeout=limit,
                callback=received,
            )
        while self.controller.get_num_standing_tasks():
            if self.controller.abort_signal.triggered:
                raise TransportAborted("the job was aborted")
            time.sleep(0.1)
        if not limit or time.monotonic() - begun < limit:
            for request in requests:
                if request.id not in answered:
                    arrived(failed(request, UNTOLD))

    def _take_in(self, model: FLModel, request: Request, arrived: Callable[[Reply], None]) -> bool:
        """Hand over a reply. What cannot be read is an error of its client: NVFlare would swallow
        the exception.
        """
        try:
            reply = self.messages.reply_of(model, request)
            arrived(reply)
            return reply.error is None
        except Exception as error:
            why = f"its update cannot be read ({type(error).__name__}: {error})"
            if isinstance(error, TypeError):
                name = self.controller.strategy.name
                why += f"; {name} compares updates, so it cannot work under homomorphic encryption"
            arrived(failed(request, why))
            return False

    def close(self) -> None:
        """NVFlare ends the clients with the job."""


class _EachOnce(list[ClientTask]):
    """What was sent of a task. NVFlare 2.9 adds it again when it is sent again while a task of
    another site waits.

    Its keeper of tasks then ends with a ``KeyError`` on removing it twice, and the job waits for
    ever.
    """

    def append(self, sent: ClientTask) -> None:
        if sent not in self:
            super().append(sent)


class FairFLController(ModelController):
    """Runs a :class:`~monai_fairfl.server.federation.Federation` as the workflow of an NVFlare job.

    All that it keeps is in ``fairfl/RUN_NAME`` of the server's workspace, and a copy of the results
    (models, ledger, report) goes into the job's folder, so that ``nvflare job download`` brings
    them. A job that is submitted again goes on after the last whole round of a run that did not
    end; once it ended, a new run, ``RUN_NAME-2``, begins.

    Args:
        strategy: one of ``monai_fairfl.strategies``, or your own.
        num_rounds: rounds in all.
        min_clients: fewest clients that must answer every exchange.
        run_name: name of the run's folder.
        resume: go on with what an earlier job of this name left unfinished.
        timeout: seconds that an exchange may take, the start of the clients included; 0: no limit.
            Who is late is missing in this round, and is asked again in the next.
        weighting: in place of the strategy's own, as are the next two; see
            :func:`~monai_fairfl.strategies.compose`.
        reward: model that each client continues from.
        training: context of every training request.
        federation: further arguments of :class:`~monai_fairfl.server.federation.Federation`, plain values.
        stop_cond: the clients' mean of a measurement that ends the run early, such as
            ``"global_score >= 0.8"``.
        patience: rounds without a better mean after which it ends, too.
        best_model_filename: of the best global model among the results, ``best.pt`` by default.
        enable_tensor_disk_offload: let arriving tensors wait on disk, and read them one at a time.
        memory_gc_rounds: free memory after every so many rounds, as NVFlare's FedAvg does; 0: leave
            it to Python.
        scripts: arguments of :class:`~monai_fairfl.transports.flare.server.foreign.Scripts` where the
            clients run scripts that know nothing of this package; ``None``: they are of this
            package.
        needs: said to those whose policy refuses this class.

    :class:`FairFLRecipe` puts the initial model and its specification beside the server's
    configuration.
    """

    _always_serialize_args = ("needs",)

    def __init__(
        self,
        strategy: Strategy,
        num_rounds: int = 2,
        min_clients: int = 2,
        run_name: str = "fairfl",
        resume: bool = True,
        timeout: float = 0,
        weighting: Weighting | None = None,
        reward: Reward | None = None,
        training: Mapping[str, float] | None = None,
        federation: Mapping[str, Any] | None = None,
        stop_cond: str | None = None,
        patience: int | None = None,
        best_model_filename: str | None = None,
        enable_tensor_disk_offload: bool = False,
        memory_gc_rounds: int = 0,
        scripts: Mapping[str, str] | None = None,
        needs: str = NEEDS,
    ):
        super().__init__(persistor_id="", ignore_result_error=True)
        # NVFlare writes a job's configuration from attributes that are named as the arguments
        self.strategy, self.num_rounds, self.min_clients = strategy, num_rounds, min_clients
        self.run_name, self.resume, self.timeout = run_name, resume, timeout
        self.weighting, self.reward, self.training = weighting, reward, training
        self.federation, self.stop_cond, self.patience = federation, stop_cond, patience
        self.best_model_filename, self.enable_tensor_disk_offload = (
            best_model_filename,
            enable_tensor_disk_offload,
        )
        self.memory_gc_rounds, self.scripts = memory_gc_rounds, scripts
        self.needs = needs

    def run(self) -> None:
        """Run the federation; an error of its own ends the job, and says how to go on."""
        wire.register_tensors()
        offload = setup_tensor_disk_offload(
            self.engine, self.enable_tensor_disk_offload, self.fl_ctx.get_job_id("job")
        )
        folder = run_folder(
            kept_folder(self.engine.get_workspace().get_root_dir()), self.run_name, self.resume
        )
        try:
            history = self._federation(folder).run(resume=folder.exists())
            self.info(f"{len(history.rounds)} rounds are done: {folder}")
        except TransportAborted:
            self.info(f"aborted; submit the job again to go on: {folder}")
        except FairFLError as error:
            self.panic(f"{error}\nSubmit the job again to go on from {folder}")
        finally:
            cleanup_tensor_disk_offload(self.engine, offload)
            self._hand_over(folder)

    def broadcast(self, task: Task, *arguments: Any, **options: Any) -> None:
        """Schedule a task so that a site may ask for it twice: its process was started anew, or an
        answer came late.
        """
        task.client_tasks = _EachOnce()
        super().broadcast(task, *arguments, **options)

    def _federation(self, folder: Path) -> Federation:
        strategy = self.strategy
        if self.weighting or self.reward or self.training:
            strategy = compose(strategy, self.weighting, self.reward, self.training)
        initial = Path(self.get_app_dir()) / "config" / INITIAL
        federation = Federation(
            strategy,
            FlareTransport(
                self,
                self.num_rounds,
                None if self.scripts is None else Scripts(strategy, **self.scripts),
            ),
            self.num_rounds,
            partial(read_initial, initial),
            run_dir=folder,
            recipe=read_initial_recipe(initial),
            min_clients=self.min_clients,
            timeout=self.timeout or None,
            observer=_JobObserver(self, folder, read_job_settings(initial)),
            **{"final": ("score", "test_score"), **(self.federation or {})},
        )
        self._stopping = EarlyStop(self.stop_cond, self.patience, federation.conclude)
        return federation

    def _hand_over(self, folder: Path) -> None:
        """A copy of the results in the job's folder; the states to go on from stay in the
        workspace.
        """
        if not (folder / "ledger.jsonl").exists():
            return
        from monai_fairfl.report import (  # plotly and all: not before the end
            write_report_if_possible,
        )

        write_report_if_possible([folder], folder)
        target = Path(self.get_run_dir()) / "fairfl"
        shutil.copytree(
            folder,
            target,
            ignore=shutil.ignore_patterns("checkpoints", "updates", ".*"),
            dirs_exist_ok=True,
        )
        best = target / "models" / "best.pt"
        if self.best_model_filename and best.exists():
            best.rename(best.with_name(self.best_model_filename))


class _JobObserver(Observer):
    """Shows a run's records to the job: its receivers of metrics, early stopping, ``config.json``.

    Args:
        controller: of the job.
        folder: of the run.
        settings: what the job asked for, as far as the server knows it; ``None``: nothing.
    """

    def __init__(
        self, controller: FairFLController, folder: Path, settings: Mapping[str, Any] | None
    ):
        self.controller = controller
        self.folder = folder
        self.settings = settings

    def run_started(self) -> None:
        if self.settings is not None:
            config = {**self.settings, "rounds": self.controller.num_rounds}
            text = json.dumps(config, indent=4)
            write_atomically(self.folder / "config.json", text.encode())

    def record_replayed(self, record: Mapping[str, Any]) -> None:
        self.controller._stopping.told(record)

    def record_added(self, record: Mapping[str, Any]) -> None:
        for scalar in scalars_of(record):
            with self.controller.engine.new_context() as fl_ctx:
                show(fl_ctx, scalar)
        self.controller._stopping.told(record)
        every = self.controller.memory_gc_rounds
        if every and record["kind"] == "round" and (record["round"] + 1) % every == 0:
            cleanup_memory()


def run_folder(root: Path, name: str, resume: bool = True) -> Path:
    """Where a run is kept: a new folder, or that of the newest run of this name if it did not end.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> run_folder(root, "fedce").name
    'fedce'
    """
    number = 1
    while (folder := root / (name if number == 1 else f"{name}-{number}")).exists():
        records = read_ledger(folder / "ledger.jsonl") if (folder / "ledger.jsonl").exists() else []
        if resume and not (records and records[-1]["kind"] == "end"):
            return folder
        number += 1
    return folder
