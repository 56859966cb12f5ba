# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A user who gives no values gets the evaluation's numbers.

The scores that an evaluation wrote are compared with the masks that inference wrote, by the
untouched labels; so are the exports of a model with the model.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.shipped_bundles import EVALUATE, INFERENCE, Bundle
from PIL import Image

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.model_files import fused_weights, read_recipe, save_model_file, state_of_file
from monai_fairfl.strategies import Ditto
from monai_fairfl.workflow.export import ONNX_KEY, export_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected(
    bundle: Bundle, site: Path, trained_long: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, float]:
    """Case -> Dice, by an evaluation of the model that is given no values."""
    return evaluated(bundle, site, trained_long, tmp_path_factory.mktemp("evaluation"))


def evaluated(
    bundle: Bundle, site: Path, model: Path, out: Path, datalist: Path | None = None
) -> dict[str, float]:
    """Case -> Dice of its outermost structure, by an evaluation of the training's test cases."""
    datalist = datalist or model.parent / "datalist.json"
    given = {"ckpt_path": str(model), "datalist_file": str(datalist)}
    bundle.without_overrides().run(EVALUATE, site, out, **given)
    scores = {}
    with open(out / "eval" / "val_mean_dice_raw.csv") as file:
        for row in csv.DictReader(file):
            case = Path(row["filename"]).name.partition(".")[0]
            scores[case] = float(row["class0"])
    return scores


def dice_of_inference(
    bundle: Bundle, site: Path, model: Path, cases: list[str], out: Path
) -> dict[str, float]:
    """Case -> Dice of its outermost structure: inference's mask against the untouched label."""
    images = out / "images"
    images.mkdir()
    for case in cases:
        for image in (site / bundle.images).glob(f"{case}.*"):
            shutil.copy(image, images)
    bundle.without_overrides().run(INFERENCE, images, out, ckpt_path=str(model))
    scores = {}
    for case in cases:
        mask = next((out / "eval").glob(f"{case}{bundle.masks}"))
        scores[case] = dice(outermost(mask), outermost(label_of(site, case)))
    return scores


def label_of(site: Path, case: str) -> Path:
    for path in site.rglob(f"{case}*"):
        if "mask" in path.parent.name or "_seg" in path.name:
            return path
    raise AssertionError(f"{site} has no label of {case}")


def outermost(mask: Path) -> np.ndarray:
    """The outermost structure of a mask."""
    if mask.suffix == ".png":
        with Image.open(mask) as picture:
            levels = np.asarray(picture.convert("L"))
        return levels > 0
    return np.asarray(nib.Nifti1Image.from_filename(str(mask)).dataobj) > 0


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def require_real_masks(scores: dict[str, float]) -> None:
    """Of an empty or a full mask the Dice says nothing."""
    assert scores
    for case, score in scores.items():
        assert score > 0.05, case


@pytest.mark.parametrize("kind", ["plain", "torchscript"])
def test_inference_gives_the_evaluations_dice(
    bundle: Bundle,
    site: Path,
    trained_long: Path,
    expected: dict[str, float],
    kind: str,
    tmp_path: Path,
) -> None:
    require_real_masks(expected)
    model = trained_long
    if kind == "torchscript":
        model = tmp_path / "model.ts"
        export_model(trained_long, model, bundle.root)
    found = dice_of_inference(bundle, site, model, list(expected), tmp_path)
    assert found == pytest.approx(expected, abs=1e-3)
    used = json.loads((tmp_path / "eval" / "model.json").read_text())
    assert used["recipe"]["values"]["size"] == [32, 32]
    assert used["settings"]["inferer"]


def test_inference_of_dicom_series_gives_the_evaluations_dice(
    bundle: Bundle, site: Path, trained_long: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    if not bundle.name.startswith("prostate"):
        pytest.skip("photographs are no DICOM series here")
    pytest.importorskip("highdicom")
    from helpers.dicom_series import write_series

    series = tmp_path / "series"
    for case in expected:
        image = nib.Nifti1Image.from_filename(str(site / f"{case}.nii.gz"))
        voxels = np.asarray(image.dataobj, dtype=np.float32)
        stored = np.round(voxels * (30000 / voxels.max())).astype(np.int16)
        # The axes of a stored NIfTI that runs to the left, to the back and upwards are columns,
        # rows and slices.
        assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
        columns, rows, slices = (float(side) for side in image.header.get_zooms()[:3])
        write_series(series / case, stored.transpose(2, 1, 0), spacing=(rows, columns), step=slices)
    bundle.without_overrides().run(INFERENCE, series, tmp_path, ckpt_path=str(trained_long))

    found = {}
    for case in expected:
        mask = tmp_path / "eval" / f"{case}_pred.nii.gz"
        found[case] = dice(outermost(mask), outermost(label_of(site, case)))
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.long
@pytest.mark.slow
def test_a_clients_own_model_needs_no_values_either(
    bundle: Bundle, sites: Path, site: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    BundleFederation(
        str(bundle.root),
        str(sites),
        Ditto(),
        rounds=2,
        local_epochs=30,
        run_dir=str(run_dir),
        overrides={**bundle.small, **bundle.quick_learning},
        site_names=[site.name],
        min_clients=1,
        seed=1,
        report=False,
    ).run()
    own = next((run_dir / "sites" / site.name).rglob("*-own.pt"))
    datalist = run_dir / "datalists" / f"{site.name}.json"
    scores = evaluated(bundle, site, own, tmp_path / "evaluation", datalist)
    require_real_masks(scores)

    recorded = {}
    (cases,) = (run_dir / "sites" / site.name).rglob("*-personal_test_score-2-*.csv")
    with cases.open() as file:
        for row in csv.DictReader(file):
            case = row["case"].partition(".")[0]
            recorded[case] = float(row.get("disc", row["dice"]))
    assert scores == pytest.approx(recorded, abs=1e-4)

    found = dice_of_inference(bundle, site, own, list(scores), tmp_path)
    assert found == pytest.approx(scores, abs=1e-3)


# --- exports


def test_evaluation_runs_torchscript_as_it_runs_the_plain_model(
    bundle: Bundle, site: Path, trained_long: Path, expected: dict[str, float], tmp_path: Path
) -> None:
    export_model(trained_long, tmp_path / "model.ts", bundle.root)
    datalist = trained_long.parent / "datalist.json"
    found = evaluated(bundle, site, tmp_path / "model.ts", tmp_path, datalist)
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_a_fused_model_is_inferred_evaluated_and_exported_as_any_other(
    bundle: Bundle, site: Path, trained: Path, trained_long: Path, tmp_path: Path
) -> None:
    fused = tmp_path / "fused.pt"
    members = [state_of_file(trained), state_of_file(trained_long)]
    save_model_file(fused, fused_weights(members), read_recipe(trained_long))
    datalist = trained_long.parent / "datalist.json"
    expected = evaluated(bundle, site, fused, tmp_path / "evaluation", datalist)
    assert expected != evaluated(bundle, site, trained_long, tmp_path / "member", datalist)

    found = dice_of_inference(bundle, site, fused, list(expected), tmp_path)
    assert found == pytest.approx(expected, abs=1e-3)
    export_model(fused, tmp_path / "fused.ts", bundle.root)
    exported = evaluated(bundle, site, tmp_path / "fused.ts", tmp_path / "exported", datalist)
    assert exported == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_onnx_gives_the_networks_numbers_and_carries_the_recipe(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    recipe = export_model(trained, tmp_path / "model.onnx", bundle.root)
    model = onnx.load(str(tmp_path / "model.onnx"))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata[ONNX_KEY]) == recipe.state_dict()

    export_model(trained, tmp_path / "model.ts", bundle.root)
    channels = bundle.config("metadata")["network_data_format"]["inputs"]["image"]["num_channels"]
    image = torch.rand(3, channels, 32, 32)
    with torch.no_grad():
        expected = torch.jit.load(str(tmp_path / "model.ts"))(image)
    found = ReferenceEvaluator(model).run(None, {"image": image.numpy()})[0]
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-4, rtol=1e-4)
