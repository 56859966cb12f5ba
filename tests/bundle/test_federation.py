# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A bundle's federation by its command: what reaches sites and files, and runs that are stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers import warm_python
from helpers.bundle_runs import OVERRIDES, command, federation, run
from helpers.checkout import wait_for
from helpers.command_line import lines_in, wait_until
from helpers.linear_federation import in_place_of_training
from helpers.made_once import MadeOnce
from helpers.worker_clients import all_end

from monai_fairfl import read_ledger
from monai_fairfl.data import check_cases
from monai_fairfl.errors import DataError, DataWarning
from monai_fairfl.model_files import state_of_file
from monai_fairfl.strategies import FedAvg

ROUNDS = 4
OF_CEDAR = {"cedar": {"slices_per_volume": 2}}
ARGUMENTS = [
    *("--strategy#_target_", "monai_fairfl.strategies.FedCE", "--rounds", str(ROUNDS)),
    *("--sites", json.dumps(OF_CEDAR), "--site_names", "['alder', 'cedar']"),
    *("--seed", "7", "--overrides", json.dumps({**OVERRIDES, "network_def#norm_name": "instance"})),
]


def train(sites: Path, folder: Path) -> None:
    done = run(command(sites, folder / "run", *ARGUMENTS), folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def whole(hospitals: Path, made_once: MadeOnce) -> Path:
    """A run by the command that nothing stopped; read only."""
    return made_once("whole_run_of_a_bundle", partial(train, hospitals)) / "run"


def test_the_command_trains_with_what_it_was_given_and_each_site_adds_its_own(whole: Path) -> None:
    start, *rounds, end = read_ledger(whole / "ledger.jsonl")
    assert (start["strategy"], start["seed"], len(rounds)) == ("FedCE", 7, ROUNDS)
    samples = rounds[0]["samples"]
    assert samples["cedar"] < samples["alder"]
    assert set(rounds[1]["measurements"]["alder"]) == {"global_score", "leave_one_out_error"}
    # The bundle's own closing measurements.
    assert set(end["scores"]["alder"]["own"]) == {"score", "test_score", "test_hd95"}
    assert not any("running_mean" in name for name in state_of_file(whole / "models" / "global.pt"))
    config = json.loads((whole / "settings.json").read_text())
    assert config["sites"] == {"alder": {}, **OF_CEDAR}


def test_a_run_that_is_killed_and_stopped_by_ctrl_c_has_the_bits_of_one_that_nothing_stopped(
    whole: Path, hospitals: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    ledger, shown = run_dir / "ledger.jsonl", tmp_path / "shown.txt"
    words = command(hospitals, run_dir, *ARGUMENTS)
    process = warm_python.start(words, tmp_path, shown)
    wait_until(lambda: lines_in(ledger) > 1, process, shown)
    process.kill()
    process.join(60)

    words += ["--resume", "True"]
    process = warm_python.start([*words, "--jobs", "2"], tmp_path, shown, shared=True)
    wait_for("both workers", lambda: len(warm_python.forks()) == 3)
    processes = warm_python.forks()
    # As a terminal does, to all processes of its group; the workers have yet to answer.
    for pid in processes:
        os.kill(pid, signal.SIGINT)
    process.join(120)
    assert process.exitcode == 0 and all_end(processes)
    # No worker was lost: it would be said, and the round repeated.
    assert "--resume True" in shown.read_text() and "SIGKILL" not in shown.read_text()
    assert read_ledger(ledger)[-1]["kind"] == "round"

    assert run(words, tmp_path).returncode == 0
    for file in ("ledger.jsonl", "models/global.pt"):
        assert (run_dir / file).read_bytes() == (whole / file).read_bytes(), file


def test_a_run_begins_from_the_model_that_it_is_given_at_the_sites_that_it_is_given(
    whole: Path, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    settings: dict[str, Any] = {
        "initial": str(whole / "models" / "global.pt"),
        "overrides": {**OVERRIDES, "network_def#norm_name": "instance"},
        "sites": {"far": {"dataset_dir": str(hospitals / "elm")}},
        "site_names": ["far", "cedar"],
    }
    federated = federation(hospitals, tmp_path / "run", FedAvg(), **settings)
    [history] = federated.run()
    assert sorted(history.rounds[0]["samples"]) == ["cedar", "far"]
    assert history.records[0]["model"] == read_ledger(whole / "ledger.jsonl")[-1]["model"]


# --- the sites' images


def test_faults_of_all_sites_files_are_named_at_once_before_anything_is_trained(
    hospitals: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(hospitals, tmp_path / "sites"))
    (root / "alder" / "Case01_segmentation.nii.gz").unlink()
    damaged = root / "birch" / "Case01.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    other = root / "cedar" / "Case01_segmentation.nii.gz"
    label: Any = nib.load(other)
    nib.save(nib.Nifti1Image(np.asarray(label.dataobj)[:-1], label.affine), other)
    shutil.rmtree(root / "elm")
    (root / "elm").mkdir()
    (root / "elm" / ".DS_Store").touch()
    with pytest.raises(DataError) as refused:
        federation(root, tmp_path / "run", FedAvg(), check=check_cases).run()
    lines = str(refused.value)
    for site, file in (
        ("alder", "Case01"),
        ("birch", "Case01"),
        ("cedar", other.name),
        ("elm", "elm"),
    ):
        assert f"site {site!r}" in lines and file in lines
    # The check is this bundle's own: nobody is told to switch it off.
    assert "federate.json" not in lines and "hazel" not in lines
    assert not (tmp_path / "run").exists()


def test_an_image_that_two_sites_have_is_a_warning(hospitals: Path, tmp_path: Path) -> None:
    for site in ("alder", "elm"):
        shutil.copytree(hospitals / site, tmp_path / "sites" / site)
    for end in (".nii.gz", "_segmentation.nii.gz"):
        copy = tmp_path / "sites" / "elm" / f"Case01{end}"
        shutil.copy(tmp_path / "sites" / "alder" / f"Case00{end}", copy)
    given = federation(tmp_path / "sites", tmp_path / "run", FedAvg(), check=check_cases)
    with pytest.warns(DataWarning) as caught:
        given.check_settings()
    [note] = [str(warning.message) for warning in caught]
    assert "alder/Case00.nii.gz" in note and "elm/Case01.nii.gz" in note
