# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The controller under NVFlare's own manager of tasks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.driving import SPEC, LeastSquares

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import DEFAULT
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.run_folder.records import names_of_guards
from monai_fairfl.server.exchange import Inbox
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import InProcess

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from helpers.flare_poc import wait_for  # noqa: E402
from helpers.linear_federation import START, LinearClient, vector  # noqa: E402
from nvflare.apis.client import Client  # noqa: E402
from nvflare.apis.fl_context import FLContext, FLContextManager  # noqa: E402
from nvflare.apis.impl.wf_comm_server import WFCommServer  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from monai_fairfl.transports.engines.initial_files import INITIAL, write_initial  # noqa: E402
from monai_fairfl.transports.flare import wire  # noqa: E402
from monai_fairfl.transports.flare.server.controller import FairFLController  # noqa: E402
from monai_fairfl.transports.flare.server.task_transport import FlareTransport  # noqa: E402

pytestmark = pytest.mark.nvflare


class Engine:
    """What a controller needs of a server: its clients, a context, and somebody to tell events."""

    def __init__(self, clients: str):
        self.clients = [Client(name, "token") for name in clients]
        self.contexts = FLContextManager(self, "server", "job")

    def new_context(self) -> FLContext:
        return self.contexts.new_context()

    def get_clients(self) -> list[Client]:
        return self.clients

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        pass


class Site:
    """Asks for its task, does it, sends the result, as NVFlare's client does."""

    def __init__(self, client: Client, tasks: WFCommServer, context: FLContext):
        self.client, self.tasks, self.context = client, tasks, context
        self.worker = LinearClient(client.name, [])

    def ask(self) -> None:
        self.name, self.id, self.data = self.tasks.process_task_request(self.client, self.context)

    def send(self) -> None:
        request = wire.request_of(FLModelUtils.from_shareable(self.data), self.client.name)
        result = FLModelUtils.to_shareable(wire.reply_model(self.worker.answer(request)))
        self.tasks.process_submission(self.client, self.name, self.id, result, self.context)


@pytest.fixture
def job() -> Iterator[tuple[FlareTransport, list[Site]]]:
    """A running job of three sites."""
    engine, tasks, controller = Engine("ABC"), WFCommServer(), FairFLController(FedAvg())
    with engine.new_context() as context:
        controller.set_communicator(tasks)
        controller.initialize(context)
        controller.abort_signal = Signal()
        tasks.initialize_run(context)
        yield FlareTransport(controller, rounds=1), [
            Site(client, tasks, context) for client in engine.clients
        ]
        tasks.finalize_run(context)


@pytest.mark.slow
def test_a_site_that_asks_again_for_its_task_does_not_stop_the_job(
    job: tuple[FlareTransport, list[Site]],
) -> None:
    """Its process was started again, or the answer to its question was late.

    The tasks of the others wait behind it.
    """
    transport, sites = job
    requests = [
        Request(site.client.name, "train", {"w": vector(START)}, id=n, round=0)
        for n, site in enumerate(sites)
    ]
    replies: list[Reply] = []
    exchange = threading.Thread(
        target=transport.exchange, args=(requests, replies.append), daemon=True
    )
    exchange.start()
    wait_for("the tasks", lambda: transport.controller.get_num_standing_tasks() == len(sites))
    for site in sites:
        site.ask()
        site.ask()
        site.send()
    exchange.join(timeout=30)
    assert not exchange.is_alive()
    assert [(reply.client, reply.error) for reply in replies] == [
        ("A", None),
        ("B", None),
        ("C", None),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0.3, 1.4])
def test_who_is_late_is_late_at_a_deadline_between_two_seconds_too(
    job: tuple[FlareTransport, list[Site]], timeout: float
) -> None:
    """NVFlare's deadlines are whole seconds; a task that ended before would have failed."""
    requests = [Request("A", "train", {"w": vector(START)}, round=0)]
    inbox = Inbox(requests, SPEC, {"w": vector(START)})
    begun = time.monotonic()
    job[0].exchange(requests, inbox.arrived, timeout)
    assert inbox.close().missing == {"A": "timeout"} and time.monotonic() - begun >= timeout


class Worse(LeastSquares):
    """Its best score is of the model that it receives in round 1."""

    def answer(self, request: Request) -> Reply:
        reply = super().answer(request)
        return replace(
            reply,
            measurements=dict.fromkeys(reply.measurements, 0.6 if request.round == 1 else 0.5),
        )


def test_patience_is_remembered_when_a_job_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job_of(run: str, stop_after: int | None = None) -> list[int]:
        """The rounds in the ledger after one job, and how often a round was shown."""
        controller = FairFLController(
            FedAvg(), 12, run_name=run, stop_cond="global_score >= 0.9", patience=4
        )
        controller.engine = Engine("ABC")  # type: ignore[assignment]
        monkeypatch.setattr(controller, "get_app_dir", lambda: str(tmp_path))
        federation = controller._federation(tmp_path / run)
        federation.transport = InProcess({name: lambda: Worse([1.0, 0.0]) for name in "ABC"})
        federation.initial = lambda: ({"w": vector(START)}, SPEC)
        record_added = federation.observer.record_added

        def note_and_stop(record: Any) -> None:
            record_added(record)
            if record["kind"] == "round":
                shown.append(record["round"])
            if stop_after is not None and record.get("round") == stop_after:
                federation.stop()

        federation.observer.record_added = note_and_stop  # type: ignore[method-assign]
        return [
            record["round"] for record in federation.run(resume=(tmp_path / run).exists()).rounds
        ]

    shown: list[int] = []
    whole = job_of("whole")
    shown.clear()
    parts = [job_of("parts", stop_after) for stop_after in (1, 3, None)]
    assert whole == parts[-1] == shown == list(range(6))
    assert (tmp_path / "whole/ledger.jsonl").read_text().count("\n") == 8


def test_a_jobs_guards_are_those_that_its_configuration_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guards_of_job(**given: Any) -> list[str]:
        controller = FairFLController(FedAvg(), federation=given)
        controller.engine = Engine("ABC")  # type: ignore[assignment]
        monkeypatch.setattr(controller, "get_app_dir", lambda: str(tmp_path))
        return names_of_guards(controller._federation(tmp_path / "run").guards)

    default = [type(guard).__name__ for guard in DEFAULT]
    assert guards_of_job() == guards_of_job(guards=None) == default
    assert guards_of_job(guards=[]) == []
    wider = {"_target_": "monai_fairfl.guards.TooLong", "times": 8.0}
    assert guards_of_job(guards=[wider]) == ["TooLong-times_8.0"]
    with pytest.raises(ConfigError, match="no class that inherits from monai_fairfl.guards.Guard"):
        guards_of_job(guards=["subprocess.Popen"])


def test_the_config_of_a_jobs_run_names_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_initial(tmp_path / "config" / INITIAL, {}, SPEC, settings={"local_epochs": 1})
    controller = FairFLController(FedAvg(), num_rounds=3)
    controller.engine = Engine("ABC")  # type: ignore[assignment]
    monkeypatch.setattr(controller, "get_app_dir", lambda: str(tmp_path))
    controller._federation(tmp_path / "run").observer.run_started()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config == {"local_epochs": 1, "engine": "NVIDIA FLARE", "rounds": 3}
