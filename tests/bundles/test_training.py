# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Both bundles train and evaluate alone: what they see, what they write, which data they refuse."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.shipped_bundles import EVALUATE, FUNDUS, PROSTATE, TRAIN, Bundle
from monai.bundle import ConfigParser
from PIL import Image

from monai_fairfl.data import find_cases
from monai_fairfl.errors import DataError


def saved_weights(file: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor]
    state = torch.load(file, weights_only=True, map_location="cpu")["model"]
    return state


def require_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name].cpu()), name


# --- what a training writes


def test_a_training_writes_its_best_model_and_the_same_one_again_from_its_seed(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    made = bundle.run(TRAIN, site, tmp_path / "a", max_epochs=1, seed=3)
    saved = saved_weights(tmp_path / "a" / "model.pt")
    assert saved.keys() == made.trainer.network.state_dict().keys()
    metrics = made.parser.get_parsed_content("validate#evaluator").state.metrics
    assert "val_mean_dice" in metrics
    for name, value in metrics.items():
        assert 0 <= value <= 1, name
    bundle.run(TRAIN, site, tmp_path / "b", max_epochs=1, seed=3)
    require_same(saved, saved_weights(tmp_path / "b" / "model.pt"))


def test_every_overlay_trains_and_evaluates(bundle: Bundle, site: Path, tmp_path: Path) -> None:
    for overlay in bundle.overlays:
        out = tmp_path / overlay[-1]
        bundle.run(("train", *overlay), site, out, max_epochs=1)
        model = {"ckpt_path": str(out / "model.pt")}
        made = bundle.run(("train", *overlay, "evaluate"), site, out, **model)
        assert 0 <= made.evaluator.state.metrics["val_mean_dice"] <= 1, overlay


def test_the_paper_setting_is_that_of_the_paper(tmp_path: Path) -> None:
    site = tmp_path / "sites" / PROSTATE.write(tmp_path / "sites")[0]
    overlay = PROSTATE.config("paper_setting")
    own = {key: overlay[key] for key in ("size", "channels", "slices_per_volume")}
    parser = PROSTATE.workflow(("train", "light", "paper_setting"), site, tmp_path, **own).parser
    optimizer = parser.get_parsed_content("optimizer")
    assert tuple(optimizer.defaults["betas"]) == (0.9, 0.99)
    assert optimizer.defaults["lr"] == 1e-3
    assert type(parser.get_parsed_content("loss")).__name__ == "DiceLoss"
    assert parser.get_parsed_content("augmentation") == []


# --- data that is refused, and data lists


def spoil(site: Path, folder: Path) -> Path:
    """A copy of a site with one mask that does not lie on its image."""
    copy = Path(shutil.copytree(site, folder))
    masks = []
    for path in sorted(copy.rglob("Case00*")):
        if "mask" in path.parent.name or "_seg" in path.name:
            masks.append(path)
    mask = masks[0]
    if mask.name.endswith(".nii.gz"):
        image = nib.Nifti1Image.from_filename(str(mask))
        shifted = image.affine.copy()
        shifted[2, 3] += 5.0
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), shifted), mask)
    else:
        with Image.open(mask) as opened:
            picture = opened.copy()
        picture.crop((0, 0, picture.width, picture.height - 8)).save(mask)
    return copy


def listed_cases(site: Path) -> list[dict[str, str]]:
    """The cases of a site, relative to it; ``Case00`` comes first."""
    found = []
    for case in find_cases(site):
        found.append({key: os.path.relpath(case[key], site) for key in ("image", "label")})
    return found


def test_a_training_checks_its_data_first_unless_its_list_leaves_the_faulty_case_out(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    spoilt = spoil(site, tmp_path / "spoilt")
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, max_epochs=1)
    assert isinstance(faulty, DataError)
    assert "Case00" in str(faulty) and "1 problem" in str(faulty)
    assert not (tmp_path / "model.pt").exists()
    _, *sound = listed_cases(spoilt)
    parts = {"training": sound[:1], "validation": sound[1:2], "testing": sound[2:]}
    (tmp_path / "hand.json").write_text(json.dumps(parts))
    hand = {"datalist_file": str(tmp_path / "hand.json"), "max_epochs": 1, "val_interval": 0}
    faulty = bundle.cause_of_failed_run(TRAIN, spoilt, tmp_path, **hand)
    assert "Case00" in str(faulty)
    bundle.run(TRAIN, spoilt, tmp_path, **hand, check_data=False)
    assert (tmp_path / "model.pt").is_file()


def test_an_evaluation_tests_the_cases_that_its_training_left(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(site, tmp_path / "site")

    def datalist(names: tuple[str, ...], **overrides: Any) -> dict[str, list[dict[str, str]]]:
        parser = ConfigParser()
        parser.read_config(bundle.files(*names))
        folders = {"dataset_dir": str(data), "ckpt_dir": str(tmp_path / "models")}
        parser.update({"bundle_root": str(bundle.root), **folders, **overrides})
        found: dict[str, list[dict[str, str]]] = parser.get_parsed_content("datalist")
        return found

    trained = datalist(TRAIN, seed=1)
    assert datalist(EVALUATE, seed=1) == trained
    for file in list(data.rglob("Case03*")):
        shutil.copy(file, file.with_name(file.name.replace("Case03", "Case04")))
    with pytest.warns(UserWarning, match="1 case.* not used"):
        assert datalist(EVALUATE, seed=1) == trained
    with pytest.raises(RuntimeError) as other_seed:
        datalist(EVALUATE)
    assert "'seed': 1" in str(other_seed.value.__cause__)


# --- photographs


@pytest.mark.parametrize("name", ["inference", "evaluate"])
def test_each_structure_keeps_one_part_and_the_cup_lies_in_the_disc(name: str) -> None:
    key = "postprocessing" if name == "inference" else "validate#postprocessing"
    chain = FUNDUS.config(name)[key]["transforms"]
    steps = [step for step in chain if step == "@nesting" or "Largest" in str(step)]
    values = {"largest_component": True, "structures": ["disc", "cup"], "steps": steps}
    parser = ConfigParser({**values, "nesting": FUNDUS.config("train")["nesting"]})
    masks = torch.zeros(2, 32, 32)
    # A disc, and an island.
    masks[0, 4:20, 4:20] = masks[0, 28:30, 28:30] = 1
    # A cup that leaves the disc, an island in the disc, and a patch beside it that is larger.
    masks[1, 8:16, 8:24] = masks[1, 5:7, 5:7] = masks[1, 22:32, 0:20] = 1
    case = {"pred": masks}
    for step in parser.get_parsed_content("steps"):
        case = step(case)
    disc, cup = case["pred"]
    assert disc.sum() == 16 * 16
    assert cup.sum() == 8 * 12
    assert not (cup > disc).any()
