# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Whoever uses a model gets the federation's own numbers, and names nothing but the model.

Each recipe is federated once. Its model is then evaluated, inferred and exported, and so is a model
whose training changed the network by an overlay of the user's own.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.reports import rows_of
from helpers.shipped_bundles import BUNDLES, EVALUATE, INFERENCE, OWN, PROSTATE, Bundle, Federated
from PIL import Image

from monai_fairfl.cli import main
from monai_fairfl.model_files import fused_weights, read_recipe, save_model_file, state_of_file


def voxels(file: Path) -> np.ndarray:
    return np.asarray(nib.Nifti1Image.from_filename(str(file)).dataobj)


def masks_in(bundle: Bundle, out: Path) -> dict[str, np.ndarray]:
    found = {}
    for file in sorted(out.glob(bundle.masks)):
        if file.suffix == ".png":
            with Image.open(file) as picture:
                found[file.name] = np.asarray(picture)
        else:
            found[file.name] = voxels(file)
    return found


def dice(mask: np.ndarray, truth: np.ndarray) -> float:
    return float(2 * ((mask > 0) & (truth > 0)).sum() / ((mask > 0).sum() + (truth > 0).sum()))


def evaluated(bundle: Bundle, site: Path, model: Path, datalist: Path, out: Path) -> Any:
    """Case -> its mean Dice, by the bundle's own evaluation, which is given no values."""
    given = {"ckpt_path": str(model), "datalist_file": str(datalist)}
    bundle.without_overrides().run(EVALUATE, site, out, **given)
    table = rows_of(out / "eval" / "val_mean_dice_raw.csv")
    return {Path(row["filename"]).name: float(row["mean"]) for row in table}


PAIRS = [(bundle, recipe) for bundle in BUNDLES for recipe in ("", *bundle.recipes, OWN)]


def scores_of(run: Path, site: str) -> dict[str, float]:
    """Case -> its Dice, as the federation scored its model on the site's test cases."""
    [table] = (run / "sites" / site).rglob("*-test_score-*.csv")
    return {Path(row["case"]).name: float(row["dice"]) for row in rows_of(table)}


@pytest.mark.parametrize(
    ("bundle", "recipe"), PAIRS, ids=[f"{bundle.name[:8]}-{recipe}" for bundle, recipe in PAIRS]
)
def test_inference_evaluation_and_exports_score_as_the_federation_did(
    bundle: Bundle, recipe: str, federated: Federated, tmp_path: Path
) -> None:
    folder = federated(bundle, recipe)
    sites, run = folder / "sites", folder / "run"
    name = bundle.whole_sites(sites)[-1]
    site = sites / name
    expected = scores_of(run, name)
    assert expected and min(expected.values()) > 0

    out, only = tmp_path / "scores", tmp_path / "only"
    only.mkdir()
    (only / name).symlink_to(site)
    assert main(["evaluate", str(run), str(only), "--out", str(out)]) == 0
    table = out / name / "val_mean_dice_raw.csv"
    found = {Path(row["filename"]).name: float(row["mean"]) for row in rows_of(table)}
    assert found == pytest.approx(expected, abs=1e-6)

    images, out = tmp_path / "images", tmp_path / "masks"
    images.mkdir()
    for case in expected:
        shutil.copy(site / bundle.images / case, images)
    assert main(["infer", str(run), str(images), "--out", str(out), "--no-pictures"]) == 0
    segmented = masks_in(bundle, out)
    assert len(segmented) == len(expected)
    for mask in segmented.values():
        assert 0 < (mask > 0).mean() < 1
    if bundle is PROSTATE:
        for case, score in expected.items():
            truth = voxels(site / case.replace(".nii", "_segmentation.nii"))
            mask = segmented[case.replace(".nii", "_pred.nii")]
            assert dice(mask, truth) == pytest.approx(score, abs=1e-3)

    # As MONAI Label and MONAI Deploy load it: the exported configuration alone.
    exported = tmp_path / "exported"
    assert main(["export", str(run / "models" / "global.pt"), "--out", str(exported)]) == 0
    model = {"ckpt_path": str(exported / "models" / "model.pt")}
    copy = replace(bundle, copy=exported, small={})
    copy.run(INFERENCE, images, tmp_path / "again", **model)
    again = masks_in(bundle, tmp_path / "again" / "eval")
    assert list(again) == list(segmented)
    for name, mask in segmented.items():
        np.testing.assert_array_equal(again[name], mask)


# --- a client's own model, a fused model, and ONNX


def test_a_fused_model_is_evaluated_and_exported_as_any_other(
    bundle: Bundle, federated: Federated, trained: Path, tmp_path: Path
) -> None:
    folder = federated(bundle, "")
    name = bundle.whole_sites(folder / "sites")[-1]
    site, member = folder / "sites" / name, folder / "run" / "models" / "global.pt"
    datalist = folder / "run" / "datalists" / f"{name}.json"
    fused = tmp_path / "fused.pt"
    members = [state_of_file(trained), state_of_file(member)]
    save_model_file(fused, fused_weights(members), read_recipe(member))
    expected = evaluated(bundle, site, fused, datalist, tmp_path / "evaluation")
    assert expected != pytest.approx(scores_of(folder / "run", name), abs=1e-3)
    for out in ("exported", "fused.ts"):
        assert main(["export", str(fused), "--out", str(tmp_path / out)]) == 0
    assert len(list(torch.jit.load(tmp_path / "fused.ts").members.children())) == 2
    exported = tmp_path / "exported" / "models" / "model.pt"
    assert evaluated(bundle, site, exported, datalist, tmp_path / "again") == expected


@pytest.mark.parametrize("bundle", [PROSTATE], ids=["prostate"], indirect=True)
def test_onnx_gives_the_networks_numbers_and_carries_the_recipe(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    file = tmp_path / "model.onnx"
    # The command of the bundle's page.
    assert main(["export", str(trained), "--bundle", str(bundle.root), "--out", str(file)]) == 0
    model = onnx.load(str(file))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    recipe = read_recipe(trained)
    assert recipe is not None
    assert json.loads(metadata["monai_fairfl.recipe"]) == recipe.state_dict()

    image, expected = bundle.prediction_of(trained)
    found = ReferenceEvaluator(model).run(None, {"image": image.numpy()})[0]
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-4, rtol=1e-4)
