# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job of NVIDIA FLARE in this process: its manager of tasks and its wire, and no server."""

from __future__ import annotations

import json
import shutil
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from helpers.federations import BUNDLE, SETTINGS
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator
from safetensors.torch import save_file
from torch import nn

from monai_fairfl import read_ledger, read_spec
from monai_fairfl.messages import to_json
from monai_fairfl.transports.flare import FairFLController, FairFLExecutor, FairFLRecipe

CLIENTS = ["elm", "poplar", "sycamore"]
"""Sites of a job."""

LONGEST = 120.0
"""Seconds that a job may take."""

Answer = Callable[[FLModel], FLModel | Shareable | None]
"""What a site does with a task; ``None``: it does not answer."""


class Net(nn.Module):
    """With BatchNorm, and a head that shares its weight, which ``state_dict`` names twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 1)
        self.second_head = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def net_app(folder: Path, **settings: Any) -> Path:
    """The app of a job whose sites train this network, and measure nothing of themselves."""
    given = {"bundle": BUNDLE, "overrides": SETTINGS, "min_clients": 2, "name": "job"}
    given |= {"evaluate": [], "final": []}
    app = exported(FairFLRecipe(**{**given, **settings}), folder)
    initial = app / "config" / "initial"
    torch.manual_seed(0)
    network = Net()
    spec = read_spec(network)
    save_file(spec.tensors_of(network), initial / "model.safetensors")
    plain = json.loads((initial / "job.json").read_text())
    (initial / "job.json").write_text(json.dumps({**plain, "spec": to_json(spec), "recipe": None}))
    return app


def workspace_of(folder: Path, name: str) -> Workspace:
    """The workspace of a server or site, as a kit has it."""
    for part in ("startup", "local"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return Workspace(str(folder), name)


def exported(recipe: FairFLRecipe, folder: Path) -> Path:
    """The app that NVFlare writes for the server and, without settings of single sites, for all."""
    recipe.export(str(folder))
    return folder / recipe.name / "app"


def controller_of(app: Path, folder: Path) -> FairFLController:
    """The controller that NVFlare's server makes of a job's configuration."""
    workspace = workspace_of(folder, "server")
    given = Namespace(job_id="job", workspace=str(folder), set=[])
    config = app / "config" / "config_fed_server.json"
    read = ServerJsonConfigurator(workspace, str(config), given, str(app))
    read.configure()
    controller = read.workflows[0].controller
    assert isinstance(controller, FairFLController)
    return controller


def played(app: Path, folder: Path, sites: Mapping[str, Answer]) -> Job:
    """A job of these sites, until it ends.

    Args:
        app: of the job.
        folder: workspace of the server.
        sites: name -> what the site does with each task.
    """
    job = Job(app, folder, sites)
    job.run()
    return job


class Job:
    """A running job: what a controller needs of NVFlare's server, and the sites' questions."""

    def __init__(self, app: Path, folder: Path, sites: Mapping[str, Answer]):
        self.folder = folder
        self.sites = sites
        self.panics: list[str] = []
        self.error: Exception | None = None
        self.controller = controller_of(app, folder)
        self.workspace = workspace_of(folder, "server")
        shutil.copytree(app, folder / "job" / "app_server", dirs_exist_ok=True)
        self.clients = [Client(name, "token") for name in sites]
        self.contexts = FLContextManager(self, "server", "job")
        self.signal = Signal()

    @property
    def kept(self) -> Path:
        """The run's folder in the server's workspace."""
        return self.folder / "fairfl" / self.controller.run_name

    @property
    def records(self) -> list[dict[str, Any]]:
        """The run's ledger."""
        return read_ledger(self.kept / "ledger.jsonl")

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rounds in the run's ledger."""
        return [record for record in self.records if record["kind"] == "round"]

    # ---- what NVFlare's engine has ----

    def new_context(self) -> FLContext:
        return self.contexts.new_context()

    def get_clients(self) -> list[Client]:
        return self.clients

    def get_workspace(self) -> Workspace:
        return self.workspace

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nobody listens."""

    # ---- the job ----

    def run(self) -> None:
        """Run the controller; the sites ask for tasks meanwhile."""
        tasks = WFCommServer(task_check_period=0.02)
        controller = self.controller
        controller.system_panic = lambda reason, fl_ctx: self.panics.append(reason)
        done = threading.Event()
        with self.new_context() as context:
            controller.set_communicator(tasks)
            controller.initialize(context)
            tasks.initialize_run(context)
            asking = threading.Thread(target=self._ask, args=(tasks, context, done), daemon=True)
            asking.start()
            try:
                controller.control_flow(self.signal, context)
            finally:
                done.set()
                asking.join()
                tasks.finalize_run(context)
        if self.error is not None:
            raise self.error

    def _ask(self, tasks: WFCommServer, context: FLContext, done: threading.Event) -> None:
        """Let the sites work until the job ends; an error of a test's own site ends it."""
        end = time.monotonic() + LONGEST
        try:
            while not done.is_set():
                assert time.monotonic() < end, "the job waits for ever"
                self._ask_once(tasks, context)
                time.sleep(0.01)
        except Exception as error:
            self.error = error
            self.signal.trigger(True)

    def _ask_once(self, tasks: WFCommServer, context: FLContext) -> None:
        """Let every site ask for its task twice, as one does that was started again, and answer."""
        for client in self.clients:
            tasks.process_task_request(client, context)
            name, number, sent = tasks.process_task_request(client, context)
            if not name:
                continue
            result = self.sites[client.name](FLModelUtils.from_shareable(carried(sent)))
            if isinstance(result, FLModel):
                result = carried(FLModelUtils.to_shareable(result))
            if result is not None:
                tasks.process_submission(client, name, number, result, context)


def carried(shareable: Any) -> Any:
    """What comes out at the other end of NVFlare's wire."""
    # As NVFlare's own processes do.
    common_decomposers.register()
    return fobs.loads(fobs.dumps(shareable))


class Executed:
    """A site of the package: answers tasks by its executor."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]):
        self.context = FLContext()
        self.context.put(ReservedKey.IDENTITY_NAME, name, private=False, sticky=False)
        workspace = workspace_of(folder, name)
        self.context.put(FLContextKey.WORKSPACE_OBJECT, workspace, private=True, sticky=False)
        self.executor = FairFLExecutor(settings)
        self.executor.handle_event(EventType.START_RUN, self.context)

    def __call__(self, model: FLModel) -> FLModel:
        task = FLModelUtils.to_shareable(model)
        return FLModelUtils.from_shareable(
            self.executor.execute("train", task, self.context, Signal())
        )

    def close(self) -> None:
        self.executor.handle_event(EventType.END_RUN, self.context)


def site_settings_of(app: Path) -> dict[str, Any]:
    """What a job tells the executors of its sites."""
    config = json.loads((app / "config" / "config_fed_client.json").read_text())
    settings: dict[str, Any] = config["executors"][0]["executor"]["args"]["settings"]
    return settings


def reply_to(model: FLModel, params: Mapping[str, Any], **changes: Any) -> FLModel:
    """The reply to a task as a site of the package writes it; ``changes`` are of its values."""
    asked = model.meta["fairfl"]
    plain = {name: asked[name] for name in ("id", "run", "round", "format", "package")}
    plain |= {"num_samples": 4, "num_cases": 2, "num_steps": 4, "labelled": [], "error": None}
    plain |= {"digest": "", "precision": "", "measurements": {}}
    meta = {"fairfl": {**plain, **changes}}
    statistics = [name for name in model.params or () if name.startswith("body.1.")]
    meta["fairfl_buffers"] = {name: model.params[name] for name in statistics}
    for name in params:
        meta["fairfl_buffers"].pop(name, None)
    return FLModel("DIFF", dict(params), meta=meta)
