# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From a hospital's export to masks, DICOM-SEG, volumes and overlays, by the bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

highdicom = pytest.importorskip("highdicom")

from helpers.dicom_series import affine_of, loaded, oblique, write_series  # noqa: E402
from helpers.shipped_bundles import INFERENCE, PROSTATE  # noqa: E402

GEOMETRY: dict[str, Any] = {
    "orientation": oblique(12, 25),
    "spacing": (0.8, 0.6),
    "step": 3.6,
    "origin": (11.5, -37.25, 4.0),
}
AFFINE = affine_of(*GEOMETRY.values())
SLICES_FIRST = [2, 1, 0, 3]
Z, Y, X = np.indices((9, 44, 60))
GLAND = ((X - 27) / 10) ** 2 + ((Y - 25) / 8) ** 2 + ((Z - 5) / 3) ** 2 < 1
IMAGE = (200 * GLAND + np.random.default_rng(0).normal(100, 5, GLAND.shape)).astype(np.int16)


def infer(folder: Path) -> dict[str, dict[str, Any]]:
    """The cases of the bundle's inference of ``in`` into ``out``; what is bright is gland."""
    torch.save({}, folder / "identity.pt")
    # The file has no recipe, so every value must be given.
    given = {
        **PROSTATE.config("inference")["defaults"],
        "output_dir": str(folder / "out"),
        "ckpt_path": str(folder / "identity.pt"),
        "network_def": {"_target_": "torch.nn.Identity"},
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
    PROSTATE.without_overrides().run(INFERENCE, folder / "in", folder, **given)
    table = json.loads((folder / "out" / "volumes.json").read_text())
    return {case["case"]: case for case in table["cases"]}


def write_export(root: Path) -> list[Any]:
    """A series and its copy as NIfTI, slices first; returns the images of the series."""
    order = (3, 9, 1, 7, 5, 2, 8, 6, 4)
    sent = write_series(root / "P1", IMAGE, order=order, **GEOMETRY)
    copy = nib.Nifti1Image(IMAGE, AFFINE[:, SLICES_FIRST])
    nib.save(copy, root / "copy.nii.gz")
    return sent


def test_a_series_is_segmented_and_all_its_outputs_agree(tmp_path: Path) -> None:
    sent = write_export(tmp_path / "in")
    out, cases = tmp_path / "out", infer(tmp_path)
    assert cases.keys() == {"P1", "copy"}
    case = cases["P1"]
    mask, affine = loaded(out / case["mask"])
    assert mask.dtype == np.uint8
    np.testing.assert_allclose(affine, AFFINE, atol=1e-4)
    truth = GLAND.transpose(2, 1, 0)
    assert 2 * (mask * truth).sum() / (mask.sum() + truth.sum()) > 0.95
    # Its NIfTI copy gives the same mask, and no DICOM.
    copied, affine = loaded(out / cases["copy"]["mask"])
    np.testing.assert_array_equal(copied.transpose(2, 1, 0), mask)
    np.testing.assert_allclose(affine, AFFINE[:, SLICES_FIRST], atol=1e-5)
    assert "dicom_seg" not in cases["copy"]

    assert case["millilitres"] == pytest.approx(mask.sum() * 0.8 * 0.6 * 3.6 / 1000, abs=1e-3)
    assert case["series_instance_uid"] == sent[0].SeriesInstanceUID
    segmentation = highdicom.seg.segread(out / case["dicom_seg"])
    uids = [dataset.SOPInstanceUID for dataset in sent]
    frames = segmentation.get_pixels_by_source_instance(uids, combine_segments=False)[..., 0]
    np.testing.assert_array_equal(frames.transpose(2, 1, 0), mask)
    # Nothing else is left: no copy of an image.
    written = {case[key] for key in ("mask", "overlay", "dicom_seg")}
    written |= {cases["copy"][key] for key in ("mask", "overlay")}
    tables = {"volumes.json", "volumes.csv", "model.json"}
    assert {path.name for path in out.iterdir()} == written | tables
