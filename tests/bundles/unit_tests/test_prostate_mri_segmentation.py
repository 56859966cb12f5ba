# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The prostate bundle trains, evaluates and infers, in the form of the model zoo's unit tests.

Run it in the zoo's folder.
"""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any

from monai.bundle import ConfigWorkflow

from monai_fairfl.data import SITES, write_sites

BUNDLE = os.path.join("models", "prostate_mri_segmentation")

# A small network, so that a processor is enough.
SMALL = {
    "size": [32, 32],
    "channels": [4, 8, 16],
    "slices_per_volume": 4,
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


class TestProstateMRISegmentation(unittest.TestCase):
    def test_train_evaluate_and_inference_configs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_sites(folder, sites=SITES[:1], size=(48, 48, 8), cases=4)
            site, models = os.path.join(folder, "alder"), os.path.join(folder, "models")
            results = os.path.join(folder, "results")
            folders = {"dataset_dir": site, "ckpt_dir": models, "output_dir": results}
            run("train", "train", max_epochs=1, **SMALL, **folders)
            # It overrides train.json, and so is a "train" workflow.
            run("train", "train", "evaluate", **folders)
            self.assertIn("val_mean_dice_raw.csv", os.listdir(results))

            model = os.path.join(folders.pop("ckpt_dir"), "model.pt")
            run("infer", "inference", ckpt_path=model, **folders)
            masks = [name for name in os.listdir(results) if name.endswith("_pred.nii.gz")]
            self.assertEqual(len(masks), 4)


if __name__ == "__main__":
    unittest.main()
