# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From DICOM series to masks, DICOM-SEG, volumes and overlays, through the prostate bundle's own
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
from helpers.dicom_series import affine_of, oblique, write_series  # noqa: E402

from monai_fairfl.bundle.initial import bundle_recipe, initial_model  # noqa: E402
from monai_fairfl.model_files.recipe import save_model_file  # noqa: E402

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundles" / "prostate_mri_segmentation"
SMALL: dict[str, Any] = {"size": [32, 32], "channels": [4, 8, 16]}
GEOMETRY: dict[str, Any] = {"orientation": oblique(12, 25), "spacing": (0.8, 0.6), "step": 3.6}
ORIGIN = (11.5, -37.25, 4.0)


def prostate(noise: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Slices, rows and columns with a bright ellipsoid, off the centre, and where it is."""
    z, y, x = np.indices((9, 44, 60))
    blob = ((x - 27) / 10) ** 2 + ((y - 25) / 8) ** 2 + ((z - 5) / 3) ** 2 < 1
    image = 200 * blob + np.random.default_rng(noise).normal(100, 5, blob.shape)
    return image.astype(np.int16), blob


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
        **recipe.values,  # the file has no recipe, so every value must be given
        "network_def": {"_target_": "torch.nn.Identity"},
        "ckpt_path": str(tmp_path / "identity.pt"),
        "activation": {
            "_target_": "Activationsd",
            "keys": "pred",
            "other": "$lambda x: torch.sigmoid(4 * x - 8)",
        },
        "size": [96, 96],
        "field_of_view": 1.0,
    }


def infer(data: Path, **settings: Any) -> int:
    """Run the bundle on a folder; its outputs lie in ``out`` beside it. Returns the exit code."""
    made = ConfigWorkflow(
        config_file=str(BUNDLE / "configs" / "inference.json"),
        meta_file=str(BUNDLE / "configs" / "metadata.json"),
        logging_file=False,
        workflow_type="infer",
        **{
            "bundle_root": str(BUNDLE),
            "dataset_dir": str(data),
            "output_dir": str(data.parent / "out"),
        },
        **{"device": "cpu", **settings},
    )
    made.initialize()
    try:
        made.run()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def lines(out: Path) -> dict[str, dict[str, Any]]:
    return {line["case"]: line for line in json.loads((out / "volumes.json").read_text())["cases"]}


def check_outputs(case: dict[str, Any], sent: list[Any], out: Path) -> np.ndarray:
    """Check that all outputs of one series agree with it and with each other; return the mask."""
    image = nib.Nifti1Image.from_filename(out / case["mask"])
    mask = np.asanyarray(image.dataobj)
    affine = affine_of(GEOMETRY["orientation"], GEOMETRY["spacing"], GEOMETRY["step"], ORIGIN)
    np.testing.assert_allclose(image.affine, affine, atol=1e-4)
    assert mask.shape == (sent[0].Columns, sent[0].Rows, len(sent)) and mask.dtype == np.uint8
    assert case["millilitres"] == pytest.approx((mask > 0).sum() * 0.8 * 0.6 * 3.6 / 1000, abs=1e-3)
    assert case["voxel_size_mm"] == pytest.approx([0.6, 0.8, 3.6], abs=1e-4)
    assert case["slices_with_gland"] == int((mask > 0).any(axis=(0, 1)).sum())
    assert case["series_instance_uid"] == sent[0].SeriesInstanceUID
    uids = [dataset.SOPInstanceUID for dataset in sent]
    seg = highdicom.seg.segread(out / case["dicom_seg"])
    frames = seg.get_pixels_by_source_instance(uids, combine_segments=False)[..., 0]
    np.testing.assert_array_equal(frames.transpose(2, 1, 0), mask)
    (referenced,) = seg.ReferencedSeriesSequence
    assert {item.ReferencedSOPInstanceUID for item in referenced.ReferencedInstanceSequence} == set(
        uids
    )
    with Image.open(out / case["overlay"]) as overlay:
        assert overlay.mode == "RGB" and max(overlay.size) <= 960
    return mask


@pytest.mark.parametrize("order", [None, (3, 9, 1, 7, 5, 2, 8, 6, 4)], ids=["in order", "shuffled"])
def test_series_gives_mask_segmentation_volume_and_overlay_that_agree(
    order: tuple[int, ...] | None, model: Path, tmp_path: Path
) -> None:
    sent = write_series(
        tmp_path / "in" / "P1", prostate()[0], origin=ORIGIN, order=order, **GEOMETRY
    )
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 0
    mask = check_outputs(lines(tmp_path / "out")["P1"], sent, tmp_path / "out")
    assert 0 < mask.mean() < 1
    written = {"P1_pred.nii.gz", "P1_seg.dcm", "P1_overlay.png", "volumes.json", "model.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == written


def test_gland_of_a_series_is_found_where_it_is(bright: dict[str, Any], tmp_path: Path) -> None:
    image, blob = prostate()
    sent = write_series(
        tmp_path / "in", image, origin=ORIGIN, order=range(9, 0, -1), SeriesNumber=3, **GEOMETRY
    )
    assert infer(tmp_path / "in", **bright) == 0
    mask = check_outputs(lines(tmp_path / "out")["series3"], sent, tmp_path / "out")
    truth = blob.transpose(2, 1, 0)
    assert 2 * (mask * truth).sum() / (mask.sum() + truth.sum()) > 0.95


def test_series_and_its_nifti_copy_give_one_mask(model: Path, tmp_path: Path) -> None:
    image, _ = prostate()
    write_series(tmp_path / "in" / "series", image, origin=ORIGIN, **GEOMETRY)
    affine = affine_of(GEOMETRY["orientation"], GEOMETRY["spacing"], GEOMETRY["step"], ORIGIN)
    nib.save(nib.Nifti1Image(image.transpose(2, 1, 0), affine), tmp_path / "in" / "copy.nii.gz")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 0
    cases = lines(tmp_path / "out")
    masks = [
        nib.Nifti1Image.from_filename(tmp_path / "out" / case["mask"]).get_fdata()
        for case in cases.values()
    ]
    np.testing.assert_array_equal(*masks)
    assert masks[0].any() and cases["copy"]["millilitres"] == cases["series"]["millilitres"]
    assert "dicom_seg" not in cases["copy"]


def write_mixture(root: Path) -> dict[str, str]:
    """A hospital's export: one good series among faulty ones. Returns the faults by case."""
    image, _ = prostate()
    write_series(root / "P1" / "STUDY" / "T2", image, origin=ORIGIN, **GEOMETRY)
    write_series(
        root / "P1" / "STUDY" / "LOC", image[:3], ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"]
    )
    write_series(root / "P2", image, Modality="CT", SeriesNumber=1, names="ct{}.dcm")
    write_series(
        root / "P2", image, places=[0, 1, 2, 3, 5, 6, 7, 8, 9], SeriesNumber=2, names="a{}.dcm"
    )
    write_series(
        root / "P2",
        image,
        places=[0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5, 8.5],
        SeriesNumber=3,
        names="b{}.dcm",
    )
    (root / "P3").mkdir()
    (root / "P3" / "IM1.dcm").write_bytes(b"no DICOM")
    nib.save(nib.Nifti1Image(np.full((9, 9, 5), np.nan, np.float32), np.eye(4)), root / "P4.nii.gz")
    return {
        "P1_STUDY_LOC": "LOCALIZER",
        "P2_series1": "modality CT",
        "P2_series2": "1 slice is missing",
        "P2_series3": "steps between slices",
        "P3_IM1.dcm": "cannot be read as DICOM",
        "P4": "not finite",
    }


def check_mixture(out: Path, faults: dict[str, str]) -> None:
    cases = lines(out)
    good = cases.pop("P1_STUDY_T2")
    assert (
        good["status"] == "segmented"
        and (out / good["mask"]).is_file()
        and (out / good["dicom_seg"]).is_file()
    )
    assert cases.keys() == faults.keys()
    for name, fault in faults.items():
        (problem,) = cases[name]["problems"]
        assert cases[name]["status"] == "skipped" and fault in problem, name


def test_faulty_series_are_skipped_with_a_reason_and_the_good_one_is_segmented(
    model: Path, tmp_path: Path
) -> None:
    faults = write_mixture(tmp_path / "in")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 3
    check_mixture(tmp_path / "out", faults)


def test_a_folder_of_faulty_series_ends_with_code_2_and_a_table(
    model: Path, tmp_path: Path
) -> None:
    write_series(tmp_path / "in" / "P1", prostate()[0], Modality="CT")
    assert infer(tmp_path / "in", ckpt_path=str(model)) == 2
    assert lines(tmp_path / "out")["P1"]["status"] == "skipped"


def command(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command of the README, in the bundle's folder; ``before`` runs in the same interpreter
    first.
    """
    if not before:
        return warm_python.run(["-m", "monai.bundle", *arguments], BUNDLE)
    start = f"{before}; import runpy; runpy.run_module('monai.bundle', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", start, *arguments],
        cwd=BUNDLE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def readme(data: Path, model: Path) -> list[str]:
    """The arguments of the README's command, with this data, this model and its small network."""
    text = (BUNDLE / "docs" / "README.md").read_text()
    line = next(
        line
        for line in text.splitlines()
        if "configs/inference.json --bundle_root . --dataset_dir" in line
    )
    places = {"IMAGES": str(data), "OUT": str(data.parent / "out"), "models/model.pt": str(model)}
    arguments = [
        places.get(word, word) for word in line.removeprefix("python -m monai.bundle ").split()
    ]
    return [*arguments, "--device", "cpu"]


@pytest.mark.slow
def test_command_of_the_readme_takes_an_export_to_masks_and_says_what_it_skipped(
    model: Path, tmp_path: Path
) -> None:
    faults = write_mixture(tmp_path / "in")
    done = command(*readme(tmp_path / "in", model))
    assert done.returncode == 3, done.stderr[-2000:]
    check_mixture(tmp_path / "out", faults)
    for name, fault in faults.items():
        printed = (done.stdout + done.stderr).splitlines()
        (line,) = [line for line in printed if f"{name}: " in line]
        assert fault in line
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_command_of_the_readme_ends_with_code_0_when_all_went_well(
    model: Path, tmp_path: Path
) -> None:
    sent = write_series(tmp_path / "in" / "P1", prostate()[0], origin=ORIGIN, **GEOMETRY)
    done = command(*readme(tmp_path / "in", model))
    assert done.returncode == 0, done.stderr[-2000:]
    check_outputs(lines(tmp_path / "out")["P1"], sent, tmp_path / "out")


@pytest.mark.slow
def test_nifti_needs_neither_pydicom_nor_highdicom(model: Path, tmp_path: Path) -> None:
    image, _ = prostate()
    write_series(tmp_path / "in" / "P1", image)
    nib.save(nib.Nifti1Image(image.transpose(2, 1, 0), np.eye(4)), tmp_path / "in" / "P2.nii.gz")
    absent = "import sys; sys.modules['pydicom'] = sys.modules['highdicom'] = None"
    done = command(*readme(tmp_path / "in", model), before=absent)
    assert done.returncode == 3, done.stderr[-2000:]
    cases = lines(tmp_path / "out")
    assert cases["P2"]["status"] == "segmented" and (tmp_path / "out" / "P2_pred.nii.gz").is_file()
    assert "pip install 'monai-fairfl[dicom]'" in cases["DICOM"]["problems"][0]
