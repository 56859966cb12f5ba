# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The fundus bundle in several processes, in the form of the model zoo's unit tests.

Run it in the zoo's folder. Without GPUs two processes share the processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest

import torch

from monai_fairfl.data import CLINICS, write_clinics

BUNDLE = os.path.join("models", "fundus_disc_cup_segmentation")
PROCESSES = torch.cuda.device_count() or 2

# A small network, so that a processor is enough.
SMALL = ["--size", "[32,32]", "--channels", "[4,8,16]", "--working_size", "64"]


def run(names: list[str], *words: str) -> None:
    """Run a workflow of these configuration files in a process for each GPU."""
    files = [os.path.join(BUNDLE, "configs", f"{name}.json") for name in names]
    command = ["torchrun", "--standalone", f"--nproc_per_node={PROCESSES}"]
    command += ["-m", "monai.bundle", "run", "--config_file", str(files)]
    command += ["--meta_file", os.path.join(BUNDLE, "configs", "metadata.json")]
    command += ["--logging_file", os.path.join(BUNDLE, "configs", "logging.conf")]
    subprocess.check_call([*command, "--bundle_root", BUNDLE, *words])


class TestFundusDiscCupSegmentationInProcesses(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        # A quarter validates, a quarter tests, and each process needs a case of each.
        write_clinics(self.folder, clinics=CLINICS[1:2], size=96, cases=4 * PROCESSES)
        self.site = os.path.join(self.folder, "beech")

    def tearDown(self) -> None:
        shutil.rmtree(self.folder)

    def test_multi_gpu_configs(self) -> None:
        folders = ["--dataset_dir", self.site, "--ckpt_dir", os.path.join(self.folder, "models")]
        results = os.path.join(self.folder, "results")
        run(["train", "multi_gpu_train"], *folders, "--max_epochs", "1", *SMALL)
        run(["train", "evaluate", "multi_gpu_evaluate"], *folders, "--output_dir", results)
        with open(os.path.join(results, "val_mean_dice_raw.csv")) as file:
            rows = file.read().splitlines()
        self.assertEqual(len(rows), 1 + PROCESSES)


if __name__ == "__main__":
    unittest.main()
