# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federations that ``engines.py`` compares: one function an engine, in a process of its own.

``python engines_runs.py RUN`` runs one; RUN is a :class:`Run` as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.bundle.site import initial_model
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.utils.tensors import own_random_state

CLIENTS = ["alder", "birch", "cedar"]
BUNDLE = "prostate_mri_segmentation"
LIGHT = ["configs/train.json", "configs/light.json"]
OVERRIDES = {
    "size": [64, 64],
    "channels": [16, 32, 64, 128],
    "decay_epochs": 100,
    "val_interval": 0,  # nobody validates while training
    "validate#handlers": [],  # nor takes a model that is only scored for the best one
}
METHODS = {
    "FedAvg": "FedAvg",
    "FedCE": "FedCE('sum', variant='revised')",  # the variant that NVFlare has
}
IN_PROCESS = "ours, in process"
OURS_OVER_NVFLARE = "ours over NVFlare"
NVFLARES_OWN = "NVFlare's own"
OURS_OVER_FLOWER = "ours over Flower"
FLOWERS_OWN = "Flower's own"
INITIAL = "initial.pt"
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Run:
    """One federation to run, in a process of its own; all it writes is in ``folder``."""

    engine: str
    method: str
    rounds: int
    hospitals: str
    folder: str
    local_epochs: int = 4
    interval: float = 0  # seconds a client of NVFlare's waits between two tasks; 0: as it comes
    warm: int = 0  # rounds that are not timed
    jobs: int = 1  # worker processes of our engine in process; 1: none
    overrides: dict[str, Any] = field(default_factory=lambda: dict(OVERRIDES))

    def file(self, name: str) -> Path:
        """Return the file of the engine's ``"model"`` or ``"log"``.

        The log grows by one of ``engines_watch.ROUND`` a round.
        """
        server = "job/server"
        files = {
            IN_PROCESS: {
                "model": "run/models/global.pt",
                "log": "run/ledger.jsonl",
            },
            OURS_OVER_NVFLARE: {
                "model": f"{server}/simulate_job/fairfl/models/global.pt",
                "log": f"{server}/fairfl/job/ledger.jsonl",
            },
            NVFLARES_OWN: {
                "model": f"{server}/simulate_job/app_server/FL_global_model.pt",
                "log": f"{server}/log.txt",
            },
            OURS_OVER_FLOWER: {
                "model": f"{server}/job/models/global.pt",
                "log": f"{server}/job/ledger.jsonl",
            },
            FLOWERS_OWN: {
                "model": "final_model.pt",
                "log": "printed.txt",
            },
        }
        return Path(self.folder) / files[self.engine][name]

    def write_settings(self) -> Path:
        """Write what the sites of an engine's own method read; returns the file."""
        bundle = find_bundle(BUNDLE).absolute()
        file = Path(self.folder) / SETTINGS
        file.write_text(json.dumps({"bundle": str(bundle), "config": LIGHT, **asdict(self)}))
        return file


def in_process(run: Run) -> None:
    """All clients in the server's process, or in worker processes where there are several jobs."""
    BundleFederation(
        str(find_bundle(BUNDLE)),
        run.hospitals,
        strategy_of(METHODS[run.method]),
        run.rounds,
        str(Path(run.folder) / "run"),
        site_names=CLIENTS,
        config=LIGHT,
        overrides=run.overrides,
        local_epochs=run.local_epochs,
        min_clients=len(CLIENTS),
        evaluate=(),
        final=(),
        jobs=run.jobs,
    ).run()


def ours_over_nvflare(run: Run) -> None:
    """A process per client, and one for the server."""
    from monai_fairfl.transports.flare import FairFLRecipe

    recipe = FairFLRecipe(
        name="job",
        bundle=BUNDLE,
        strategy=METHODS[run.method],
        min_clients=len(CLIENTS),
        num_rounds=run.rounds,
        sites_root=run.hospitals,
        config=LIGHT,
        overrides=run.overrides,
        local_epochs=run.local_epochs,
        evaluate=[],
        final=[],
    )
    simulate_nvflare(recipe, run)


def nvflares_own(run: Run) -> None:
    """NVFlare's own recipe, with ``engines_peer_nvflare.py`` at the sites."""
    from nvflare.app_opt.pt.recipes import FedAvgRecipe
    from nvflare.app_opt.pt.recipes.fedce import FedCERecipe
    from nvflare.client.config import ExchangeFormat

    folder = Path(run.folder)
    parameters = write_initial_model(run)
    parser = train_config(find_bundle(BUNDLE), run.overrides, LIGHT)
    network = parser.get_parsed_content("network_def", instantiate=False).config
    class_path = f"monai.networks.nets.{network.pop('_target_')}"
    arguments = {
        "name": "job",
        "model": {"class_path": class_path, "args": network},
        "initial_ckpt": str(folder / INITIAL),
        "min_clients": len(CLIENTS),
        "num_rounds": run.rounds,
        "train_script": str(Path(__file__).with_name("engines_peer_nvflare.py").absolute()),
        "train_args": str(run.write_settings()),
        "server_expected_format": ExchangeFormat.PYTORCH,
    }
    if run.method == "FedCE":
        recipe = FedCERecipe(trainable_param_names=parameters, **arguments)
    else:
        recipe = FedAvgRecipe(**arguments)
    simulate_nvflare(recipe, run)
    everybody = f"{len(CLIENTS)}/{len(CLIENTS)}"
    if run.file("log").read_text().count(f"Aggregated {everybody} results") != run.rounds:
        raise RuntimeError("a client's result was left out, which NVFlare only logs")


def simulate_nvflare(recipe: Any, run: Run) -> None:
    """Run a job in NVFlare's simulator; a thread for each client gives each its own process."""
    from nvflare.recipe.sim_env import SimEnv

    if run.interval:
        recipe.add_server_config({"server": {"task_request_interval": run.interval}})
    recipe.execute(SimEnv(clients=CLIENTS, workspace_root=run.folder))


def ours_over_flower(run: Run) -> None:
    """The server in this process, and a process of Ray's per client."""
    from monai_fairfl.transports.flower import simulate_job

    simulate_job(
        Path(run.folder) / "job",
        run.hospitals,
        site_names=CLIENTS,
        jobs=len(CLIENTS),
        bundle=BUNDLE,
        strategy=METHODS[run.method],
        num_rounds=run.rounds,
        name="job",
        config=LIGHT,
        overrides=run.overrides,
        local_epochs=run.local_epochs,
        evaluate=[],
        final=[],
    )


def flowers_own(run: Run) -> None:
    """Flower's own FedAvg, with the app of ``engines_peer_flower.py``."""
    from engines_peer_flower import simulate_flower

    write_initial_model(run)
    simulate_flower(
        run.write_settings(),
        initial=Path(run.folder) / INITIAL,
        clients=len(CLIENTS),
        rounds=run.rounds,
        final=run.file("model"),
    )


def write_initial_model(run: Run) -> list[str]:
    """Write the model that our engines begin with; returns the names of its parameters."""
    with own_random_state(0):
        weights, spec = initial_model(find_bundle(BUNDLE).absolute(), run.overrides, config=LIGHT)
    torch.save(spec.with_aliases(weights), Path(run.folder) / INITIAL)
    return list(spec.parameters)


ENGINES: dict[str, Callable[[Run], None]] = {
    IN_PROCESS: in_process,
    OURS_OVER_NVFLARE: ours_over_nvflare,
    NVFLARES_OWN: nvflares_own,
    OURS_OVER_FLOWER: ours_over_flower,
    FLOWERS_OWN: flowers_own,
}


def main(text: str) -> None:
    """Run a federation that is written as JSON."""
    run = Run(**json.loads(text))
    ENGINES[run.engine](run)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(print(__doc__))
    main(sys.argv[1])
