# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a fresh interpreter loads for inference at a hospital: nothing of the federation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.shipped_bundles import BUNDLES, ROOT, Bundle

FEDERATION = ("client", "report", "run_folder", "server", "strategies", "transports", "valuation")

FACE = """
import monai_fairfl.workflow

for name in monai_fairfl.workflow.__all__:
    getattr(monai_fairfl.workflow, name)
"""

WHOLE_RUN = """
import sys

from monai.bundle import ConfigWorkflow

root, images, model, outputs = sys.argv[1:]
workflow = ConfigWorkflow(
    config_file=f"{root}/configs/inference.json",
    meta_file=f"{root}/configs/metadata.json",
    logging_file=False,
    workflow_type="infer",
    bundle_root=root,
    dataset_dir=images,
    ckpt_path=model,
    output_dir=outputs,
    device="cpu",
    size=[32, 32],
    channels=[4, 8, 16],
    **DEFAULTS,
)
workflow.initialize()
workflow.run()
"""

LIST_MODULES = """
import sys

print("modules:", *sorted(sys.modules))
"""


def modules_after(code: str, *arguments: str) -> list[str]:
    """Names of all modules that a fresh interpreter has loaded after ``code``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code + LIST_MODULES, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1].split()[1:]


def parts_of_the_federation(modules: list[str]) -> list[str]:
    found = []
    for module in modules:
        package, _, rest = module.partition(".")
        if package == "monai_fairfl" and rest.partition(".")[0] in FEDERATION:
            found.append(module)
    return found


@pytest.mark.long
@pytest.mark.slow
def test_every_name_of_the_workflow_loads_without_the_federation() -> None:
    modules = modules_after(FACE)
    assert "monai_fairfl.workflow.volumes" in modules
    assert parts_of_the_federation(modules) == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda bundle: bundle.name.partition("_")[0])
def test_a_whole_run_of_inference_loads_nothing_of_the_federation(
    bundle: Bundle, tmp_path: Path
) -> None:
    site = tmp_path / "sites" / bundle.write(tmp_path / "sites")[0]
    images = site / bundle.images
    # A state_dict without a recipe: every value is given by hand.
    values = {**bundle.config("inference")["defaults"], **bundle.small}
    given = {}
    for key in bundle.config("inference")["deciding"]:
        if key not in ("size", "channels"):
            given[key] = values[key]
    network = bundle.workflow(("inference",), images, tmp_path).parser.get_parsed_content(
        "network_def"
    )
    model = tmp_path / "model.pt"
    torch.save(network.state_dict(), model)

    outputs = tmp_path / "masks"
    code = f"DEFAULTS = {given!r}\n" + WHOLE_RUN
    modules = modules_after(code, str(bundle.root), str(images), str(model), str(outputs))
    assert list(outputs.glob(bundle.masks))
    assert "monai_fairfl.workflow.model_values" in modules
    assert parts_of_the_federation(modules) == []
