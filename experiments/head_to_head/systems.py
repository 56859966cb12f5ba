# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trains one system of the comparison, in a process of its own::

    python experiments/head_to_head/systems.py --folder FOLDER --system NAME

``FOLDER/task.json`` describes the training. What the system leaves is in ``FOLDER``, too.
"""

from __future__ import annotations

import argparse
import math
import pydoc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

EXPERIMENTS = Path(__file__).parents[1]
sys.path.insert(0, str(EXPERIMENTS))

from head_to_head.fedbn import fedbn  # noqa: E402
from head_to_head.task import BUNDLE, BUNDLE_ROOT, Task  # noqa: E402
from trainings import Training  # noqa: E402

from monai_fairfl.bundle.initial import initial_model  # noqa: E402
from monai_fairfl.guards import DEFAULT  # noqa: E402
from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.strategies import FedAvg, FedCE, Strategy  # noqa: E402
from monai_fairfl.transports.in_process import Client  # noqa: E402
from monai_fairfl.utils.random_state import own_random_state  # noqa: E402

NVFLARE = "NVFlare FedCE"
FEDBN = "FedBN, its own loop"
LOCAL_NORM = "FedAvg, local_norm"
OURS: Mapping[str, Callable[[], Strategy]] = {
    "FedCE": lambda: FedCE("sum"),
    "FedCE, NVFlare's formula": lambda: FedCE("sum", variant="revised"),
    "FedAvg": FedAvg,
    LOCAL_NORM: FedAvg,
}
"""Name -> strategy of the systems that run in our engine."""


@dataclass(frozen=True)
class FalseReport:
    """A site that reports the same false leave-one-out error in every round.

    Args:
        liar: the site.
        value: what it reports.
    """

    liar: str
    value: float

    def wrap(self, site: str, client: Client) -> Client:
        """Put a lying client in the liar's place."""
        if site == self.liar:
            return _Liar(client, self.value)
        return client


class _Liar:
    """An honest client of our engine, but for its leave-one-out error."""

    def __init__(self, client: Client, value: float):
        self.client = client
        self.value = value

    def answer(self, request: Request) -> Reply:
        """Answer, and replace the error where it was measured."""
        reply = self.client.answer(request)
        if "leave_one_out_error" not in reply.measurements:
            return reply
        false = {**reply.measurements, "leave_one_out_error": self.value}
        return replace(reply, measurements=false)


HONEST = FalseReport("", math.nan)
"""Nobody reports anything false."""


def train(system: str, task: Task, folder: Path, false: FalseReport = HONEST) -> None:
    """Train a system; all that it leaves is in ``folder``."""
    torch.set_num_threads(1)
    if system == NVFLARE:
        _nvflare(task, folder, false)
    elif system == FEDBN:
        _fedbn(task, folder)
    else:
        _ours(system, task, folder, false)


def _ours(system: str, task: Task, folder: Path, false: FalseReport) -> None:
    """Run our engine: all clients in its process, default guards, ledger and checkpoints."""
    sites_root = Path(task.sites_root)
    training = Training(
        BUNDLE,
        sites_root.name,
        task.rounds,
        task.local_epochs,
        task.overrides,
        config=task.config,
    )
    training.run(
        OURS[system](),
        DEFAULT,
        sites_root.parent,
        folder / "run",
        false.wrap,
        seed=task.seed,
        min_clients=len(task.sites),
        local_norm=system == LOCAL_NORM,
    )


def _fedbn(task: Task, folder: Path) -> None:
    last, best = fedbn(task, folder / "sites", first_model(task))
    for kind, models in (("last", last), ("best", best)):
        (folder / kind).mkdir()
        for site, state in models.items():
            torch.save(state, folder / kind / f"{site}.pt")


def _nvflare(task: Task, folder: Path, false: FalseReport) -> None:
    """Run NVFlare's recipe in its simulator, with its defaults; a process for each site."""
    from nvflare.app_opt.pt.recipes import FedCERecipe
    from nvflare.recipe import SimEnv

    from monai_fairfl.transports.flare.job.simulator import ERRORS, ending_without_a_client

    parser = task.parser(task.sites[0], folder / "server")
    # NVFlare's server builds the network from its class and arguments.
    given = dict(parser.get_parsed_content("network_def", instantiate=False).config)
    class_path = f"monai.networks.nets.{given.pop('_target_')}"
    network_class: Any = pydoc.locate(class_path)
    trainable = [name for name, _ in network_class(**given).named_parameters()]
    torch.save(first_model(task), folder / "initial.pt")
    words = f"--folder {folder}"
    if false.liar:
        words += f" --liar {false.liar} --false-report={false.value}"
    recipe = FedCERecipe(
        name="job",
        model={"class_path": class_path, "args": given},
        initial_ckpt=str(folder / "initial.pt"),
        min_clients=len(task.sites),
        num_rounds=task.rounds,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
        train_args=words,
        trainable_param_names=trainable,
        key_metric="dice",
    )
    with ending_without_a_client(folder / "job" / "server" / ERRORS):
        recipe.execute(SimEnv(clients=task.sites, workspace_root=str(folder)))


def first_model(task: Task) -> dict[str, torch.Tensor]:
    """Build the first model as our engine does, under the task's seed."""
    with own_random_state(task.seed):
        weights, spec = initial_model(BUNDLE_ROOT, task.overrides, config=task.config)
    return dict(spec.with_aliases(weights))


def main() -> None:
    """Read the command line, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="has task.json")
    parser.add_argument(
        "--system", required=True, choices=[NVFLARE, FEDBN, *OURS], help="what is trained"
    )
    parser.add_argument("--liar", default="", help="a site that reports a false error")
    parser.add_argument("--false-report", type=float, default=math.nan, help="the error")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    false = FalseReport(arguments.liar, arguments.false_report)
    train(arguments.system, Task.read(folder / "task.json"), folder, false)


if __name__ == "__main__":
    main()
