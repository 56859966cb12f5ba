# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The server's side of a job: an NVFlare workflow that runs a federation of the job's clients."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.app_common.utils.tensor_disk_offload_context import (
    cleanup_tensor_disk_offload,
    setup_tensor_disk_offload,
)
from nvflare.app_common.workflows.model_controller import ModelController

from monai_fairfl.errors import FairFLError, TransportAborted
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import Average, Reward, Strategy, Weighting, compose
from monai_fairfl.transports.engines.initial_files import (
    INITIAL,
    read_initial,
    read_initial_recipe,
    read_job_settings,
)
from monai_fairfl.transports.engines.job_run import federation_of_job
from monai_fairfl.transports.engines.storage import folder_of_run, storage_folder
from monai_fairfl.transports.flare import wire
from monai_fairfl.transports.flare.policy import NEEDS
from monai_fairfl.transports.flare.server.early_stopping import EarlyStop
from monai_fairfl.transports.flare.server.job_observer import JobObserver
from monai_fairfl.transports.flare.server.script_messages import (
    ScriptMessages,
    settings_for_scripts,
)
from monai_fairfl.transports.flare.server.task_transport import FlareTransport

STAYS_IN_WORKSPACE = ("checkpoints", "updates", ".*")
"""Patterns of a run's files that no copy of the results holds."""


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
        num_rounds: rounds in all.
        min_clients: fewest clients that must answer every exchange.
        run_name: name of the run's folder.
        resume: go on with what an earlier job of this name left unfinished.
        timeout: seconds that an exchange may take, the start of the clients included; 0: no limit.
            A late client is missing in this round, and is asked again in the next.
        weighting: in place of the strategy's own, as are the next two; see
            :func:`~monai_fairfl.strategies.compose`.
        reward: model that each client continues from.
        training: context of every training request.
        federation: further arguments of :class:`~monai_fairfl.server.federation.Federation`, plain
            values.
        stop_cond: the clients' mean of a measurement that ends the run early, such as
            ``"global_score >= 0.8"``; their median of a script's metric, unless ``federation`` has
            its range, such as ``{"ranges": {"dice": [0, 1]}}``.
        patience: rounds without a better mean or median after which it ends, too.
        best_model_filename: of the best global model among the results, ``best.pt`` by default.
        enable_tensor_disk_offload: let arriving tensors wait on disk, and read them one at a time.
        memory_gc_rounds: free memory after every so many rounds, as NVFlare's FedAvg does; 0: leave
            it to Python.
        scripts: arguments of
            :class:`~monai_fairfl.transports.flare.server.script_messages.ScriptMessages` where the
            clients run scripts that know nothing of this package; ``None``: they are of this
            package.
        needs: what a server must allow; NVFlare shows it when its policy refuses this class.
        average: in place of the weighted mean of the updates.
        cap: most weight of any client, and ``clip_reports`` the band of what clients measured; see
            :func:`~monai_fairfl.strategies.compose`.
        clip_reports: see ``cap``.

    >>> from monai_fairfl.strategies import FedCE
    >>> controller = FairFLController(FedCE("sum"), num_rounds=60, min_clients=3)
    >>> controller.strategy.name, controller.num_rounds
    ('FedCE-sum', 60)
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
        average: Average | None = None,
        cap: float | None = None,
        clip_reports: float | None = None,
    ):
        super().__init__(persistor_id="", ignore_result_error=True)
        # NVFlare writes a job's configuration from attributes that are named as the arguments.
        self.strategy = strategy
        self.num_rounds = num_rounds
        self.min_clients = min_clients
        self.run_name = run_name
        self.resume = resume
        self.timeout = timeout
        self.weighting = weighting
        self.reward = reward
        self.training = training
        self.federation = federation
        self.stop_cond = stop_cond
        self.patience = patience
        self.best_model_filename = best_model_filename
        self.enable_tensor_disk_offload = enable_tensor_disk_offload
        self.memory_gc_rounds = memory_gc_rounds
        self.scripts = scripts
        self.needs = needs
        self.average = average
        self.cap = cap
        self.clip_reports = clip_reports

    def run(self) -> None:
        """Run the federation; an error of its own ends the job and names the way to go on."""
        wire.register_tensors()
        offload = setup_tensor_disk_offload(
            self.engine, self.enable_tensor_disk_offload, self.fl_ctx.get_job_id("job")
        )
        storage = storage_folder(self.engine.get_workspace().get_root_dir())
        folder = folder_of_run(storage, self.run_name, self.resume)
        try:
            history = self._federation(folder).run(resume=folder.exists())
            self.info(f"{len(history.rounds)} rounds are done: {folder}")
        except TransportAborted:
            self.info(f"aborted; submit the job again to go on: {folder}")
        except FairFLError as error:
            self.panic(f"{error}\nSubmit the job again to go on from {folder}")
        finally:
            cleanup_tensor_disk_offload(self.engine, offload)
            self._copy_results(folder)

    def broadcast(self, task: Task, *arguments: Any, **options: Any) -> None:
        """Schedule a task so that a site may ask for it twice.

        A site does so when its process was started again, or when the answer to its question was
        late.
        """
        task.client_tasks = _EachOnce()
        super().broadcast(task, *arguments, **options)

    def _federation(self, folder: Path) -> Federation:
        strategy = compose(
            self.strategy,
            weighting=self.weighting,
            reward=self.reward,
            training=self.training,
            average=self.average,
            cap=self.cap,
            clip_reports=self.clip_reports,
        )
        messages = None
        if self.scripts is not None:
            messages = ScriptMessages(strategy, **self.scripts)
        initial = Path(self.get_app_dir()) / "config" / INITIAL
        job_settings = read_job_settings(initial)
        config = None
        if job_settings is not None:
            config = {**job_settings, "engine": "NVIDIA FLARE", "rounds": self.num_rounds}
        early_stop = EarlyStop(self.stop_cond, self.patience)
        observer = JobObserver(
            self.engine, early_stop, folder / "config.json", config, self.memory_gc_rounds
        )

        settings = dict(self.federation or {})
        if self.scripts is not None:
            settings = settings_for_scripts(settings)
        federation = federation_of_job(
            strategy,
            FlareTransport(self, self.num_rounds, messages),
            self.num_rounds,
            partial(read_initial, initial),
            folder,
            recipe=read_initial_recipe(initial),
            observer=observer,
            min_clients=self.min_clients,
            timeout=self.timeout,
            settings=settings,
        )
        early_stop.conclude = federation.conclude
        return federation

    def _copy_results(self, folder: Path) -> None:
        """Write the report, and copy the results into the job's folder."""
        if not (folder / "ledger.jsonl").exists():
            return
        # It loads scipy and jinja2, which nothing needs before the end.
        from monai_fairfl.report import write_report_if_possible

        write_report_if_possible([folder], folder)
        results = Path(self.get_run_dir()) / "fairfl"
        left_out = shutil.ignore_patterns(*STAYS_IN_WORKSPACE)
        shutil.copytree(folder, results, ignore=left_out, dirs_exist_ok=True)
        best = results / "models" / "best.pt"
        if self.best_model_filename and best.exists():
            best.rename(best.with_name(self.best_model_filename))


class _EachOnce(list[ClientTask]):
    """The client tasks of an NVFlare task, each once.

    NVFlare 2.9 adds a client task again when it is sent again while a task of another site waits.
    Its manager of tasks then ends with a ``KeyError`` on removing it twice, and the job waits for
    ever.
    """

    def append(self, client_task: ClientTask) -> None:
        if client_task not in self:
            super().append(client_task)
