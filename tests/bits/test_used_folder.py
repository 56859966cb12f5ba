# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A used folder: nothing in it is replaced unasked, and what goes on trains as it was begun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.bundle_runs import federation
from helpers.linear_federation import in_place_of_training
from helpers.made_once import MadeOnce

from monai_fairfl import History
from monai_fairfl.data import check_cases
from monai_fairfl.errors import DataError, FairFLError, FederationError
from monai_fairfl.strategies import FedAvg, FedGA, Standalone, Strategy

SITES = ["alder", "cedar"]


def run(
    root: Path, run_dir: Path, strategies: Sequence[Strategy], **settings: Any
) -> list[History]:
    given = {"rounds": 1, "local_epochs": 1, "site_names": SITES, "evaluate": (), "final": ()}
    with pytest.MonkeyPatch.context() as patch:
        in_place_of_training(patch)
        return federation(root, run_dir, list(strategies), **{**given, **settings}).run()


@pytest.fixture
def compared(hospitals: Path, made_once: MadeOnce, tmp_path: Path) -> Path:
    """A copy of a comparison of Standalone and FedAvg."""
    both = [Standalone(), FedAvg()]
    made = made_once("compared_in_one_round", lambda root: run(hospitals, root / "run", both))
    return Path(shutil.copytree(made / "run", tmp_path / "compared"))


@pytest.fixture
def single(hospitals: Path, tmp_path: Path) -> Path:
    """A run of FedAvg."""
    run(hospitals, tmp_path / "single", [FedAvg()], check=check_cases)
    return tmp_path / "single"


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def require_refused(
    error: type[FairFLError], words: str, sites: Path, run_dir: Path,
    strategies: Sequence[Strategy], **settings: Any,
) -> str:  # fmt: skip
    """The run is refused before anything is written; the reason, which has these words."""
    used = content(run_dir)
    with pytest.raises(error, match=words) as refused:
        run(sites, run_dir, strategies, **settings)
    assert content(run_dir) == used
    return str(refused.value)


# --- a used folder is left as it is


def test_a_single_run_and_a_comparison_never_share_a_folder(
    hospitals: Path, compared: Path, single: Path
) -> None:
    words = "compared .*Standalone, FedAvg"
    both = [Standalone(), FedAvg()]
    for resume in (False, True):
        require_refused(FederationError, words, hospitals, compared, [FedGA()], resume=resume)
        require_refused(FederationError, "single ", hospitals, single, both, resume=resume)


# --- a comparison grows


def test_a_resumed_comparison_grows_and_loses_no_former_strategy(
    hospitals: Path, compared: Path
) -> None:
    former = {name: (compared / name / "ledger.jsonl").read_bytes() for name in
              ("Standalone", "FedAvg")}  # fmt: skip
    histories = run(hospitals, compared, [FedGA(), FedAvg("uniform")], resume=True)
    assert [history.run_dir.name for history in histories] == ["FedGA", "FedAvg-uniform"]
    names = [*former, "FedGA", "FedAvg-uniform"]
    assert json.loads((compared / "settings.json").read_text())["strategies"] == names
    for name, ledger in former.items():
        assert (compared / name / "ledger.jsonl").read_bytes() == ledger


def test_a_comparison_does_not_grow_by_runs_of_other_settings(
    hospitals: Path, compared: Path
) -> None:
    others = [FedGA(), FedAvg("uniform")]
    for setting in ("seed", "local_epochs"):
        grown = {"resume": True, setting: 5}
        require_refused(FederationError, rf"\b{setting} = ", hospitals, compared, others, **grown)


# --- the data of a run that goes on


def test_a_run_whose_images_or_labels_changed_is_not_resumed(
    hospitals: Path, single: Path, tmp_path: Path
) -> None:
    sites = Path(shutil.copytree(hospitals, tmp_path / "hospitals"))
    file = single / "settings.json"
    file.write_text(file.read_text().replace(str(hospitals), str(sites)))
    # A label, corrected in one voxel.
    label = next((sites / "cedar").glob("Case00_*.nii.gz"))
    nifti = nib.load(label)
    voxels = np.asarray(nifti.dataobj).copy()
    voxels[0, 0, 0] = 1 - voxels[0, 0, 0]
    nib.save(nib.Nifti1Image(voxels, nifti.affine, nifti.header), label)
    again: dict[str, Any] = {"rounds": 2, "resume": True, "check": check_cases}
    reason = require_refused(DataError, "'cedar': 1 of 4", sites, single, [FedAvg()], **again)
    assert "alder" not in reason
