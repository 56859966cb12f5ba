# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Segments one image with MONAI Label's own task for bundles; runs in an environment that has it.

    python label_task.py BUNDLE IMAGE MASK ENDING

It copies the mask that the task wrote to MASK, and prints what a viewer is told of the model.
"""

from __future__ import annotations

import json
import shutil
import sys
import types

# MONAI Label draws with it when it trains. There is no build of it for PyTorch without CUDA.
utils = types.ModuleType("torchvision.utils")
utils.make_grid = utils.save_image = None  # type: ignore[attr-defined]
sys.modules["torchvision"] = types.ModuleType("torchvision")
sys.modules["torchvision.utils"] = utils

from monailabel.tasks.infer.bundle import BundleInferTask  # noqa: E402


def main(bundle: str, image: str, mask: str, ending: str) -> None:
    task = BundleInferTask(bundle, {})
    assert task.is_valid()
    file, _ = task({"image": image, "device": "cpu", "result_extension": ending})
    shutil.copy(file, mask)
    info = task.info()
    print(json.dumps({"labels": info["labels"], "dimension": info["dimension"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
