# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Bundles of MONAI's model zoo, as they are, are adopted and trained with one command each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.zoo import write_frames, write_prostates, write_spleens, zoo_bundle

from monai_fairfl.cli import main
from monai_fairfl.run_folder.ledger import read_ledger

SMALL = {
    "endoscopic_tool_segmentation": {"train#deterministic_transforms#3#spatial_size": [64, 64]},
    "spleen_ct_segmentation": {"train#dataloader#batch_size": 1},
    "prostate_mri_anatomy": {"train#dataloader#batch_size": 1},
}
"""Overrides with which one step is short."""

ONE_STEP = {"epoch_length": 1, "validation_length": 1}


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "library"),
    [
        ("spleen_ct_segmentation", write_spleens, "torch"),
        ("prostate_mri_anatomy", write_prostates, "pandas"),
        ("endoscopic_tool_segmentation", write_frames, "torch"),
    ],
)
def test_a_bundle_of_the_model_zoo_is_adopted_and_trained_as_it_is(
    name: str, write: Callable[[Path], Path], library: str, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    bundle = zoo_bundle(name, tmp_path)
    data = write(tmp_path / "data")
    overrides = json.dumps(SMALL[name])
    assert main(["adopt", str(bundle), "--data", str(data), "--overrides", overrides]) == 0

    words = ["train", str(data), "--bundle", str(bundle), "--out", str(tmp_path / "run")]
    words += ["--strategy", "FedCE", "--rounds", "1", "--local-epochs", "1", "--jobs", "1"]
    assert main([*words, "--overrides", json.dumps({**ONE_STEP, **SMALL[name]})]) == 0

    end = read_ledger(tmp_path / "run" / "ledger.jsonl")[-1]
    assert end["kind"] == "end"
    for site in "AB":
        for measured in ("score", "test_score"):
            assert 0 <= end["scores"][site]["own"][measured]["mean"]["value"] <= 1
