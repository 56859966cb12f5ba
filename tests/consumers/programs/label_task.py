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
from collections.abc import Callable, Sequence

from monai.transforms import SqueezeDimd

# MONAI Label draws with it when it trains. There is no build of it for PyTorch without CUDA.
utils = types.ModuleType("torchvision.utils")
utils.make_grid = utils.save_image = None  # type: ignore[attr-defined]
sys.modules["torchvision"] = types.ModuleType("torchvision")
sys.modules["torchvision.utils"] = utils

from monailabel.tasks.infer.bundle import BundleInferTask  # noqa: E402


class PhotographTask(BundleInferTask):  # type: ignore[misc]
    """Writes a mask of two axes, as the task of MONAI Label's endoscopy app does.

    MONAI Label's writer removes the channel of a volume's mask, and takes that of a picture's mask
    for an axis.
    """

    def post_transforms(self, data: dict[str, object] | None = None) -> Sequence[Callable]:
        return [*super().post_transforms(data), SqueezeDimd(keys="pred", dim=0)]


def main(bundle: str, image: str, mask: str, ending: str) -> None:
    kind = PhotographTask if ending == ".png" else BundleInferTask
    task = kind(bundle, {})
    assert task.is_valid()
    file, _ = task({"image": image, "device": "cpu", "result_extension": ending})
    shutil.copy(file, mask)
    info = task.info()
    print(json.dumps({"labels": info["labels"], "dimension": info["dimension"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
