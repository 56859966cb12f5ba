# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What is the fundus bundle's own: structures cleaned and nested, and scores on the photograph's
own pixels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from PIL import Image

from monai_fairfl.bundle.initial import bundle_recipe, initial_model
from monai_fairfl.data import CLINICS, write_clinics
from monai_fairfl.model_files.recipe import save_model_file

BUNDLE = Path(__file__).parents[2] / "bundles" / "fundus_disc_cup_segmentation"
OVERLAYS = BUNDLE.parents[1] / "experiments" / "overlays"
STRONG = BUNDLE / "configs" / "strong.json"
STRONG_INFERENCE = OVERLAYS / "strong_photographs_inference.json"
SMALL = {"size": [32, 32], "channels": [4, 8, 16], "working_size": 64, "device": "cpu"}


@pytest.mark.parametrize("name", ["inference", "evaluate"])
def test_each_structure_keeps_its_largest_part_and_the_cup_lies_in_the_disc(name: str) -> None:
    config: dict[str, Any] = json.loads((BUNDLE / "configs" / f"{name}.json").read_text())
    chain = config["postprocessing" if name == "inference" else "validate#postprocessing"][
        "transforms"
    ]
    steps = [step for step in chain if step == "@nesting" or "Largest" in str(step)]
    nesting = json.loads((BUNDLE / "configs" / "train.json").read_text())["nesting"]
    parser = ConfigParser(
        {
            "largest_component": True,
            "structures": ["disc", "cup"],
            "nesting": nesting,
            "steps": steps,
        }
    )
    masks = torch.zeros(2, 32, 32)
    masks[0, 4:20, 4:20], masks[0, 28:30, 28:30] = 1, 1  # a disc, and an island
    masks[1, 8:16, 8:24], masks[1, 5:7, 5:7] = (
        1,
        1,
    )  # a cup that leaves the disc, and an island in the disc
    masks[1, 22:32, 0:20] = 1  # a patch beside the disc, larger than the cup
    case = {"pred": masks}
    for step in parser.get_parsed_content("steps"):
        case = step(case)
    disc, cup = case["pred"]
    assert disc.sum() == 16 * 16 and cup.sum() == 8 * 12 and not (cup > disc).any()


@pytest.mark.slow
def test_masks_and_scores_are_on_the_photographs_own_pixels(tmp_path: Path) -> None:
    """Of a stereo pair the left view is outlined; masks have the size of the file."""
    (clinic,) = (clinic for clinic in CLINICS if clinic.stereo)
    (name,) = write_clinics(tmp_path / "sites", clinics=[clinic], size=64, cases=4)
    site, model = tmp_path / "sites" / name, tmp_path / "model.pt"

    def run(*names: str, **more: Any) -> ConfigWorkflow:
        made = ConfigWorkflow(
            config_file=[str(BUNDLE / "configs" / f"{each}.json") for each in names],
            meta_file=str(BUNDLE / "configs" / "metadata.json"),
            logging_file=False,
            workflow_type="infer" if "inference" in names else "train",
            **{
                "bundle_root": str(BUNDLE),
                **SMALL,
                "output_dir": str(tmp_path / "out"),
                "ckpt_path": str(model),
                **more,
            },
        )
        made.initialize()
        made.run()
        return made

    overrides = {key: value for key, value in SMALL.items() if key != "device"}
    torch.manual_seed(0)
    weights, spec = initial_model(BUNDLE, overrides)
    save_model_file(model, spec.with_aliases(weights), bundle_recipe(BUNDLE, overrides))
    run("inference", dataset_dir=str(site / "images"))
    for photograph in sorted((site / "images").iterdir()):
        mask = np.asarray(Image.open(tmp_path / "out" / f"{photograph.stem}_pred.png"))
        with Image.open(photograph) as image:
            assert mask.shape[::-1] == image.size and set(np.unique(mask)) <= {0, 128, 255}
        assert not mask[:, mask.shape[1] // 2 :].any()
    table = json.loads((tmp_path / "out" / "ratios.json").read_text())
    assert table["summary"] == {"segmented": 4}
    scores = run(
        "train", "evaluate", dataset_dir=str(site), ckpt_dir=str(tmp_path)
    ).evaluator.state.metrics
    assert set(scores) == {"val_mean_dice", "cup_to_disc_error"}
