# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of NVIDIA FLARE's ``FedCERecipe``: a script of the Client API, which NVFlare starts.

Its steps are those of NVFlare's own example for prostate (``research/fed-ce``): score the received
model and the model without this site, train, send the difference and the mean of the errors.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
from head_to_head.task import PlainSite, Task, copied_state
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants, PTFedCEHelper


def difference(
    trained: dict[str, torch.Tensor], received: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Subtract the received model; counters do not change, as in NVFlare's example.

    NVFlare sends no tensors in the order ``channels_last``, so they are brought to the usual one.
    """
    changes = {}
    for name, value in trained.items():
        if value.is_floating_point():
            changes[name] = (value - received[name]).contiguous()
        else:
            changes[name] = torch.zeros_like(value)
    return changes


def main(arguments: argparse.Namespace) -> None:
    """Train each model that the server sends."""
    torch.set_num_threads(1)
    flare.init()
    name = flare.get_site_name()
    folder = Path(arguments.folder)
    site = PlainSite(Task.read(folder / "task.json"), name, folder / "sites" / name)
    network = site.network
    previous_local_state: dict[str, torch.Tensor] = {}
    minus_scores = []
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        network.load_state_dict(model.params)
        received = copied_state(network)
        global_dice = site.dice(network)

        weight = PTFedCEHelper.get_contribution_weight(model, name)
        minus_dice = 0.0
        if previous_local_state:
            without = PTFedCEHelper.make_minus_model(network, previous_local_state, weight)
            minus_dice = site.dice(without)
        minus_scores.append(minus_dice)

        site.train(model.current_round)
        trained = copied_state(network)
        previous_local_state = trained
        result = FLModel(
            params=difference(trained, received),
            params_type=ParamsType.DIFF,
            metrics={"dice": global_dice},
            meta={"NUM_STEPS_CURRENT_ROUND": site.task.local_epochs * len(site.training)},
        )
        reported = 1.0 - float(np.mean(minus_scores))
        if name == arguments.liar:
            reported = float(arguments.false_report)
        PTFedCEHelper.set_minus_model_score(result, reported)
        record = {
            "round": model.current_round,
            "weights": (model.meta or {}).get(FedCEConstants.CONTRIBUTION_WEIGHTS, {}),
            "reported": reported,
            "dice": global_dice,
        }
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        flare.send(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="of the run, with task.json")
    parser.add_argument("--liar", default="", help="the site that reports a false error")
    parser.add_argument("--false-report", default="0", help="what it reports")
    main(parser.parse_args())
