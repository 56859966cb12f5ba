# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of NVIDIA FLARE's own recipes, for ``engines.py``.

It runs MONAI's ``MonaiAlgo`` in a script of the Client API. NVFlare starts it, with a file of
settings. It trains on the batches that our sites train on, since it draws the same random numbers;
for FedCE it also scores the model without this site, as NVFlare's ``PTFedCEHelper`` makes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nvflare.client as flare
import torch
from engines_peer_algo import algo_of
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import PTFedCEHelper

from monai_fairfl.client.training import one_round
from monai_fairfl.utils.tensors import seed_of


def score_without(algo: Any, model: FLModel, site: str, local: dict[str, torch.Tensor]) -> float:
    """Score the received model less this site's last one: mean Dice of the validation images."""
    network = algo.trainer.network
    evaluator = algo.train_workflow.evaluator
    network.load_state_dict(model.params)
    weight = PTFedCEHelper.get_contribution_weight(model, site)
    evaluator.network = PTFedCEHelper.make_minus_model(network, local, weight)
    try:
        evaluator.run()
    finally:
        evaluator.network = network
    return float(evaluator.state.metrics[evaluator.state.key_metric_name])


def main(file: str) -> None:
    """Train each model that the server sends."""
    settings = json.loads(Path(file).read_text())
    flare.init()
    site = flare.get_site_name()
    algo: Any = algo_of(site, file)
    scores: list[float] = []  # of the models without this site
    local: dict[str, torch.Tensor] = {}  # its own model after the last round
    while flare.is_running():
        model = flare.receive()
        if settings["method"] == "FedCE":
            score = 0.0  # of the first round, when the site has sent nothing
            if local:
                score = score_without(algo, model, site, local)
            scores.append(score)
        with one_round(algo.trainer, seed_of(0, site, model.current_round), []):
            algo.train(ExchangeObject(weights=model.params))
        sent = algo.get_weights()
        steps = sent.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS]
        result = FLModel(
            ParamsType.DIFF, dict(sent.weights), meta={"NUM_STEPS_CURRENT_ROUND": steps}
        )
        if scores:
            state = algo.trainer.network.state_dict()
            local = {name: tensor.detach().clone() for name, tensor in state.items()}
            PTFedCEHelper.set_minus_model_score(result, 1.0 - sum(scores) / len(scores))
        flare.send(result)
    algo.finalize()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(print(__doc__))
    main(sys.argv[1])
