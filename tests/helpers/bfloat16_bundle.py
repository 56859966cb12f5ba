# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle whose network has its weights in bfloat16, a type that NumPy does not have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from monai_fairfl import find_bundle

NETWORK = '''
import torch
from monai.networks.nets import DynUNet


class Bfloat16DynUNet(DynUNet):
    """A DynUNet in bfloat16, between images and predictions in float32."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.to(torch.bfloat16)

    def forward(self, x):
        return super().forward(x.to(torch.bfloat16)).float()
'''


def write_bfloat16_bundle(folder: Path) -> Path:
    """Copy the prostate bundle into a new folder, with such a network; returns the folder."""
    shutil.copytree(find_bundle("prostate_mri_segmentation"), folder)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "__init__.py").touch()
    (folder / "scripts" / "bfloat16.py").write_text(NETWORK)
    file = folder / "configs" / "train.json"
    config = json.loads(file.read_text())
    config["network_def"]["_target_"] = "scripts.bfloat16.Bfloat16DynUNet"
    file.write_text(json.dumps(config, indent=4))
    return folder
