# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From DICOM series to masks, DICOM-SEG, volumes and overlays, by the prostate bundle's own
inference.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigWorkflow
from PIL import Image

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from helpers import warm_python  # noqa: E402
from helpers.checkout import CHECKOUT  # noqa: E402
from helpers.dicom_cases import loaded  # noqa: E402
from helpers.dicom_series import affine_of, oblique, write_series  # noqa: E402

from monai_fairfl.bundle.initial import bundle_recipe, initial_model  # noqa: E402
from monai_fairfl.model_files.recipe import save_model_file  # noqa: E402

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
SMALL: dict[str, Any] = {"size": [32, 32], "channels": [4, 8, 16]}
ORIENTATION = oblique(12, 25)
# In mm: between rows and between columns, between slices, and where the first slice begins.
SPACING = (0.8, 0.6)
STEP = 3.6
ORIGIN = (11.5, -37.25, 4.0)
GEOMETRY: dict[str, Any] = {
    "orientation": ORIENTATION,
    "spacing": SPACING,
    "step": STEP,
    "origin": ORIGIN,
}
AFFINE = affine_of(ORIENTATION, SPACING, STEP, ORIGIN)


def prostate() -> tuple[np.ndarray, np.ndarray]:
    """An image with a bright ellipsoid off the centre, and where it is: slices, rows, columns."""
    z, y, x = np.indices((9, 44, 60))
    gland = ((x - 27) / 10) ** 2 + ((y - 25) / 8) ** 2 + ((z - 5) / 3) ** 2 < 1
    noise = np.random.default_rng(0).normal(100, 5, gland.shape)
    image = 200 * gland + noise
    return image.astype(np.int16), gland


IMAGE, GLAND = prostate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random network of the bundle, in a file that knows its values."""
    torch.manual_seed(0)
    weights, spec = initial_model(BUNDLE, SMALL)
    path = tmp_path_factory.mktemp("models") / "model.pt"
    save_model_file(path, spec.with_aliases(weights), bundle_recipe(BUNDLE, SMALL))
    return path


@pytest.fixture
def bright(tmp_path: Path) -> dict[str, Any]:
    """Settings that make gland of what is bright, so that the right mask is known."""
    torch.save({}, tmp_path / "identity.pt")
    recipe = bundle_recipe(BUNDLE)
    assert recipe is not None
    return {
        # The file has no recipe, so every value must be given.
        **recipe.values,
        "network_def": {"_target_": "torch.nn.Identity"},
        "ckpt_path": str(tmp_path / "identity.pt"),
        "activation": {
            "_target_": "Activationsd",
            "keys": "pred",
            "other": "$lambda x: torch.sigmoid(4 * x - 8)",
        },
        "neighbours": 0,
        "smoothing": 0.0,
        "size": [96, 96],
        "field_of_view": 1.0,
    }


def infer(data: Path, **settings: Any) -> int:
    """Run the bundle on a folder; its outputs lie in ``out`` beside it. Returns the exit code."""
    overrides = {
        "bundle_root": str(BUNDLE),
        "dataset_dir": str(data),
        "output_dir": str(data.parent / "out"),
        "device": "cpu",
        **settings,
    }
    workflow = ConfigWorkflow(
        config_file=str(BUNDLE / "configs" / "inference.json"),
        meta_file=str(BUNDLE / "configs" / "metadata.json"),
        logging_file=False,
        workflow_type="infer",
        **overrides,
    )
    workflow.initialize()
    try:
        workflow.run()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def cases_of(out: Path) -> dict[str, dict[str, Any]]:
    """The table of a run: its cases by name."""
    table = json.loads((out / "volumes.json").read_text())
    return {case["case"]: case for case in table["cases"]}


# ---- the outputs of one series agree


def check_outputs(case: dict[str, Any], sent: list[Any], out: Path) -> np.ndarray:
    """Check that all outputs of one series agree with it and with each other; return the mask."""
    mask, affine = loaded(out / case["mask"])
    np.testing.assert_allclose(affine, AFFINE, atol=1e-4)
    assert mask.shape == (sent[0].Columns, sent[0].Rows, len(sent))
    assert mask.dtype == np.uint8

    # The line of the table.
    gland = mask > 0
    voxel_ml = 0.8 * 0.6 * 3.6 / 1000
    assert case["millilitres"] == pytest.approx(gland.sum() * voxel_ml, abs=1e-3)
    assert case["voxel_size_mm"] == pytest.approx([0.6, 0.8, 3.6], abs=1e-4)
    assert case["slices_with_gland"] == int(gland.any(axis=(0, 1)).sum())
    assert case["series_instance_uid"] == sent[0].SeriesInstanceUID

    # The DICOM-SEG: the mask of each image, and a reference to it.
    uids = [dataset.SOPInstanceUID for dataset in sent]
    segmentation = highdicom.seg.segread(out / case["dicom_seg"])
    frames = segmentation.get_pixels_by_source_instance(uids, combine_segments=False)[..., 0]
    np.testing.assert_array_equal(frames.transpose(2, 1, 0), mask)
    (series,) = segmentation.ReferencedSeriesSequence
    referenced = {image.ReferencedSOPInstanceUID for image in series.ReferencedInstanceSequence}
    assert referenced == set(uids)

    with Image.open(out / case["overlay"]) as overlay:
        assert overlay.mode == "RGB"
        assert max(overlay.size) <= 960
    return mask


@pytest.mark.slow
@pytest.mark.parametrize("order", [None, (3, 9, 1, 7, 5, 2, 8, 6, 4)], ids=["in order", "shuffled"])
def test_series_gives_mask_segmentation_volume_and_overlay_that_agree(
    order: tuple[int, ...] | None, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sent = write_series(tmp_path / "in" / "P1", IMAGE, order=order, **GEOMETRY)
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 0
    mask = check_outputs(cases_of(out)["P1"], sent, out)
    assert 0 < mask.mean() < 1
    written = {path.name for path in out.iterdir()}
    assert written == {
        "P1_pred.nii.gz",
        "P1_seg.dcm",
        "volumes.csv",
        "P1_overlay.png",
        "volumes.json",
        "model.json",
    }


@pytest.mark.slow
def test_gland_of_a_series_is_found_where_it_is(bright: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    sent = write_series(tmp_path / "in", IMAGE, order=range(9, 0, -1), SeriesNumber=3, **GEOMETRY)
    assert infer(tmp_path / "in", **bright) == 0
    mask = check_outputs(cases_of(out)["series3"], sent, out)
    truth = GLAND.transpose(2, 1, 0)
    dice = 2 * (mask * truth).sum() / (mask.sum() + truth.sum())
    assert dice > 0.95


@pytest.mark.slow
def test_series_and_its_nifti_copy_give_one_mask(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_series(tmp_path / "in" / "series", IMAGE, **GEOMETRY)
    copy = nib.Nifti1Image(IMAGE.transpose(2, 1, 0), AFFINE)
    nib.save(copy, tmp_path / "in" / "copy.nii.gz")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 0

    cases = cases_of(out)
    assert sorted(cases) == ["copy", "series"]
    mask_of_series, _ = loaded(out / cases["series"]["mask"])
    mask_of_copy, _ = loaded(out / cases["copy"]["mask"])
    np.testing.assert_array_equal(mask_of_copy, mask_of_series)
    assert mask_of_copy.any()
    assert cases["copy"]["millilitres"] == cases["series"]["millilitres"]
    assert "dicom_seg" not in cases["copy"]


# ---- a good series among faulty ones


def write_mixture(root: Path) -> dict[str, str]:
    """A hospital's export: one good series among faulty ones. Returns the faults by case."""
    write_series(root / "P1" / "STUDY" / "T2", IMAGE, **GEOMETRY)

    localiser = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    write_series(root / "P1" / "STUDY" / "LOC", IMAGE[:3], ImageType=localiser)

    # Three series in one folder: of another modality, with a gap, and with an uneven step.
    folder = root / "P2"
    gap = [0, 1, 2, 3, 5, 6, 7, 8, 9]
    uneven = [0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5, 8.5]
    write_series(folder, IMAGE, Modality="CT", SeriesNumber=1, names="ct{}.dcm")
    write_series(folder, IMAGE, places=gap, SeriesNumber=2, names="a{}.dcm")
    write_series(folder, IMAGE, places=uneven, SeriesNumber=3, names="b{}.dcm")

    (root / "P3").mkdir()
    (root / "P3" / "IM1.dcm").write_bytes(b"no DICOM")

    not_finite = np.full((9, 9, 5), np.nan, np.float32)
    nib.save(nib.Nifti1Image(not_finite, np.eye(4)), root / "P4.nii.gz")
    return {
        "P1_STUDY_LOC": "LOCALIZER",
        "P2_series1": "modality CT",
        "P2_series2": "1 slice is missing",
        "P2_series3": "steps between slices",
        "P3_IM1.dcm": "cannot be read as DICOM",
        "P4": "not finite",
    }


def check_mixture(out: Path, faults: dict[str, str]) -> None:
    cases = cases_of(out)
    good = cases.pop("P1_STUDY_T2")
    assert good["status"] == "segmented"
    assert (out / good["mask"]).is_file()
    assert (out / good["dicom_seg"]).is_file()
    assert cases.keys() == faults.keys()
    for name, fault in faults.items():
        assert cases[name]["status"] == "skipped", name
        (problem,) = cases[name]["problems"]
        assert fault in problem, name


@pytest.mark.slow
def test_faulty_series_are_skipped_with_a_reason_and_the_good_one_is_segmented(
    model: Path, tmp_path: Path
) -> None:
    faults = write_mixture(tmp_path / "in")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 3
    check_mixture(tmp_path / "out", faults)


def test_a_folder_of_faulty_series_ends_with_code_2_and_a_table(
    model: Path, tmp_path: Path
) -> None:
    write_series(tmp_path / "in" / "P1", IMAGE, Modality="CT")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 2
    assert cases_of(tmp_path / "out")["P1"]["status"] == "skipped"


# ---- the command of the README


def readme_words(data: Path, model: Path) -> list[str]:
    """The README's command after ``python -m monai.bundle``, on this data with this model."""
    start = "python -m monai.bundle "
    mark = "configs/inference.json --bundle_root . --dataset_dir"
    text = (BUNDLE / "docs" / "README.md").read_text()
    line = next(line for line in text.splitlines() if mark in line)
    paths = {"IMAGES": str(data), "OUT": str(data.parent / "out"), "models/model.pt": str(model)}
    words = [paths.get(word, word) for word in line.removeprefix(start).split()]
    return [*words, "--device", "cpu"]


def run_readme(data: Path, model: Path) -> subprocess.CompletedProcess[str]:
    """Run the README's command in the bundle's folder."""
    return warm_python.run(["-m", "monai.bundle", *readme_words(data, model)], BUNDLE)


def run_readme_without_dicom(data: Path, model: Path) -> subprocess.CompletedProcess[str]:
    """The same in an interpreter in which pydicom and highdicom cannot be imported."""
    code = (
        "import runpy, sys\n"
        "sys.modules['pydicom'] = sys.modules['highdicom'] = None\n"
        "runpy.run_module('monai.bundle', run_name='__main__')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *readme_words(data, model)],
        cwd=BUNDLE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.long
@pytest.mark.slow
def test_command_of_the_readme_takes_an_export_to_masks_and_prints_what_it_skipped(
    model: Path, tmp_path: Path
) -> None:
    faults = write_mixture(tmp_path / "in")
    done = run_readme(tmp_path / "in", model)
    assert done.returncode == 3, done.stderr[-2000:]
    check_mixture(tmp_path / "out", faults)
    printed = (done.stdout + done.stderr).splitlines()
    for name, fault in faults.items():
        of_case = [line for line in printed if f"{name}: " in line]
        # The answer at the end repeats it.
        line, again = of_case
        assert again.startswith("Look at: ")
        assert fault in line
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_command_of_the_readme_ends_with_code_0_when_all_went_well(
    model: Path, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in" / "P1", IMAGE, **GEOMETRY)
    done = run_readme(tmp_path / "in", model)
    assert done.returncode == 0, done.stderr[-2000:]
    check_outputs(cases_of(tmp_path / "out")["P1"], sent, tmp_path / "out")


@pytest.mark.long
@pytest.mark.slow
def test_nifti_needs_neither_pydicom_nor_highdicom(model: Path, tmp_path: Path) -> None:
    write_series(tmp_path / "in" / "P1", IMAGE)
    copy = nib.Nifti1Image(IMAGE.transpose(2, 1, 0), np.eye(4))
    nib.save(copy, tmp_path / "in" / "P2.nii.gz")
    done = run_readme_without_dicom(tmp_path / "in", model)
    assert done.returncode == 3, done.stderr[-2000:]
    cases = cases_of(tmp_path / "out")
    assert cases["P2"]["status"] == "segmented"
    assert (tmp_path / "out" / "P2_pred.nii.gz").is_file()
    assert "pip install 'monai-fairfl[dicom]'" in cases["DICOM"]["problems"][0]
