# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The main job on real volumes of real hospitals, small; skipped, and said so, where they are
absent.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
from helpers.bundle_runs import command, infer, run

from monai_fairfl import read_ledger


def test_a_federation_of_real_hospitals_learns_and_its_model_segments_real_volumes(
    realdata: Path, tmp_path: Path
) -> None:
    root = realdata / "prostate"
    arguments = ["--strategy", "FedCE", "--rounds", "3", "--local_epochs", "4"]
    arguments += ["--site_names", "['HK','RUNMC']", "--final", "['score']"]
    arguments += ["--overrides", "{'size': [48, 48], 'channels': [8, 16, 32]}"]
    done = run(command(root, tmp_path / "run", *arguments), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    records = read_ledger(tmp_path / "run" / "ledger.jsonl")
    scores = {
        site: own["own"]["score"]["mean"]["value"] for site, own in records[-1]["scores"].items()
    }
    first = {
        site: m["global_score"]["mean"]["value"] for site, m in records[1]["measurements"].items()
    }
    assert set(scores) == {"HK", "RUNMC"}
    assert sum(scores.values()) > sum(first.values())  # three short rounds beat the untrained model

    (tmp_path / "in").mkdir()
    volumes = [sorted((root / site).glob("*.nii.gz"))[0] for site in ("HK", "RUNMC")]
    for volume in volumes:
        shutil.copy(volume, tmp_path / "in" / volume.name)
    inferred = infer(tmp_path / "run", tmp_path / "in", tmp_path / "out")
    assert inferred.returncode == 0, inferred.stderr[-2000:]
    for volume in volumes:
        (mask,) = (tmp_path / "out").rglob(f"{volume.name.removesuffix('.nii.gz')}*.nii.gz")
        image, result = nib.load(volume), nib.load(mask)
        assert result.shape == image.shape and np.allclose(result.affine, image.affine, atol=1e-4)
        assert result.get_data_dtype() == np.uint8
