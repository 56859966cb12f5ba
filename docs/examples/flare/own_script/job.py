# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's own FedCE: ``python job.py WORKSPACE``."""

import os
import sys

import torch
from net import Net
from nvflare.app_opt.pt.recipes import FedCERecipe
from nvflare.recipe import SimEnv

workspace = os.path.abspath(sys.argv[1])
torch.manual_seed(0)
torch.save(Net().state_dict(), f"{workspace}-initial.pt")

recipe = FedCERecipe(
    name="discs",
    model=Net(),
    initial_ckpt=f"{workspace}-initial.pt",
    min_clients=3,
    num_rounds=3,
    train_script="client.py",
    train_args=f"--log {workspace}-received",
    fedce_mode="plus",
    key_metric="dice",
)
run = recipe.execute(SimEnv(clients=["elm", "poplar", "sycamore"], workspace_root=workspace))
print(run.get_result())
