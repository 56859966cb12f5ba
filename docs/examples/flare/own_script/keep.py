# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The same job with an aggregator of this package: ``python keep.py WORKSPACE``."""

import os
import sys

import torch
from net import Net
from nvflare.app_opt.pt.recipes import FedAvgRecipe
from nvflare.recipe import SimEnv

from monai_fairfl.strategies import FedCE
from monai_fairfl.transports.flare import FairFLAggregator

workspace = os.path.abspath(sys.argv[1])
torch.manual_seed(0)
torch.save(Net().state_dict(), f"{workspace}-initial.pt")
trainable = [name for name, value in Net().named_parameters() if value.requires_grad]

recipe = FedAvgRecipe(
    name="discs",
    model=Net(),
    initial_ckpt=f"{workspace}-initial.pt",
    min_clients=3,
    num_rounds=3,
    train_script="client.py",
    train_args=f"--log {workspace}-received",
    aggregator=FairFLAggregator(
        FedCE("sum", variant="revised"), trainable_param_names=trainable, key_metric="dice"
    ),
    key_metric="dice",
)
run = recipe.execute(SimEnv(clients=["elm", "poplar", "sycamore"], workspace_root=workspace))
print(run.get_result())
