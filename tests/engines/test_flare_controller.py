# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The controller under NVFlare's own keeper of tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from monai_fairfl.messages import Reply, Request
from monai_fairfl.strategies import FedAvg

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'")
from flare_poc import wait_for  # noqa: E402
from linear_federation import START, LinearClient, vector  # noqa: E402
from nvflare.apis.client import Client  # noqa: E402
from nvflare.apis.fl_context import FLContext, FLContextManager  # noqa: E402
from nvflare.apis.impl.wf_comm_server import WFCommServer  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from monai_fairfl.transports.flare import wire  # noqa: E402
from monai_fairfl.transports.flare.controller import FairFLController, FlareTransport  # noqa: E402

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
        yield FlareTransport(controller, rounds=1), [Site(client, tasks, context) for client in engine.clients]
        tasks.finalize_run(context)


def test_a_site_that_asks_again_for_its_task_does_not_stop_the_job(
    job: tuple[FlareTransport, list[Site]],
) -> None:
    """Its process was started anew, or the answer to its question was late; the others' tasks wait behind it."""
    transport, sites = job
    requests = [Request(site.client.name, "train", {"w": vector(START)}, id=n, round=0) for n, site in enumerate(sites)]
    replies: list[Reply] = []
    exchange = threading.Thread(target=transport.exchange, args=(requests, replies.append), daemon=True)
    exchange.start()
    wait_for("the tasks", lambda: transport.controller.get_num_standing_tasks() == len(sites))
    for site in sites:
        site.ask()
        site.ask()
        site.send()
    exchange.join(timeout=30)
    assert not exchange.is_alive()
    assert [(reply.client, reply.error) for reply in replies] == [("A", None), ("B", None), ("C", None)]
