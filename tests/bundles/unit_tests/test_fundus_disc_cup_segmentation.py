# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The fundus bundle trains, evaluates and infers, in the form of the model zoo's unit tests.

Run it in the zoo's folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from typing import Any

from monai.bundle import ConfigWorkflow

from monai_fairfl.data import CLINICS, write_clinics

BUNDLE = os.path.join("models", "fundus_disc_cup_segmentation")

# A small network, so that a processor is enough.
SMALL = {
    "size": [32, 32],
    "channels": [4, 8, 16],
    "working_size": 64,
}


def run(workflow_type: str, *names: str, **values: Any) -> None:
    """Run a workflow of these configuration files, which define and use what MONAI asks for."""
    workflow = ConfigWorkflow(
        workflow_type=workflow_type,
        config_file=[os.path.join(BUNDLE, "configs", f"{name}.json") for name in names],
        logging_file=os.path.join(BUNDLE, "configs", "logging.conf"),
        meta_file=os.path.join(BUNDLE, "configs", "metadata.json"),
        bundle_root=BUNDLE,
        **values,
    )
    workflow.initialize()
    missing = workflow.check_properties()
    if missing:
        raise ValueError(f"{names} lack {missing}")
    workflow.run()
    workflow.finalize()


class TestFundusDiscCupSegmentation(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        write_clinics(self.folder, clinics=CLINICS[1:2], size=96, cases=4)
        self.site = os.path.join(self.folder, "beech")
        self.models = os.path.join(self.folder, "models")
        self.results = os.path.join(self.folder, "results")

    def tearDown(self) -> None:
        shutil.rmtree(self.folder)

    def test_train_evaluate_and_inference_configs(self) -> None:
        folders = {"dataset_dir": self.site, "ckpt_dir": self.models, "output_dir": self.results}
        run("train", "train", max_epochs=1, **SMALL, **folders)
        # It overrides train.json, and so is a "train" workflow.
        run("train", "train", "evaluate", **folders)
        self.assertIn("val_mean_dice_raw.csv", os.listdir(self.results))

        run(
            "infer",
            "inference",
            dataset_dir=os.path.join(self.site, "images"),
            output_dir=self.results,
            ckpt_path=os.path.join(self.models, "model.pt"),
        )
        masks = [name for name in os.listdir(self.results) if name.endswith("_pred.png")]
        self.assertEqual(len(masks), 4)


if __name__ == "__main__":
    unittest.main()
