# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site answers a job's tasks: its training, its state, and what it refuses of a job."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from helpers.client_requests import tiny_model  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from helpers.flare_job import Executed  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402

from monai_fairfl import find_bundle  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402

CODE = "__import__('os').getcwd()"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Executed]]:
    """Maker of the site elm with its own settings and a job's, in one workspace."""
    made: list[Executed] = []

    def make(own: dict[str, Any], **job: Any) -> Executed:
        (tmp_path / "local").mkdir(exist_ok=True)
        (tmp_path / "local" / "fairfl.json").write_text(json.dumps(own))
        settings = {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu", **job}
        made.append(Executed("elm", tmp_path, settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@cache
def weights() -> Any:
    return tiny_model()[0]


def asked(site: Executed, **stamp: Any) -> dict[str, Any]:
    """The values of the site's reply to a request for training."""
    plain = {"task": "train", "measure": [], "context": {}, "id": 0, "run": "r", "run_id": "0e"}
    plain |= {"round": 0, "seed": 3, "ledger_head": "", "format": 1, "package": "0", **stamp}
    plain |= {"site": "elm", "rounds": 2}
    answer = site(FLModel("FULL", dict(weights()), meta={"fairfl": plain}))
    values: dict[str, Any] = answer.meta["fairfl"]
    return values


def reason(site: Executed, **stamp: Any) -> str:
    """Why the site refuses."""
    return str(asked(site, **stamp)["error"])


def test_the_sites_own_settings_win_at_every_depth(
    hospitals: Path, site: Callable[..., Executed], tmp_path: Path
) -> None:
    """The job's device is not here, its images are elsewhere, and its batches are larger."""
    deep = {"train::dataloader::batch_size": 64, "train#trainer#device": "cuda:7", "batch_size": 64}
    own = {"dataset_dir": str(hospitals / "elm"), "device": "cpu", "overrides": {"batch_size": 1}}
    elm = site(own, device="cuda:7", overrides={**SETTINGS, **deep, "dataset_dir": "/other"})
    before = os.umask(0o022)
    try:
        reply = asked(elm)
    finally:
        os.umask(before)
    assert (reply["error"], reply["num_cases"], reply["num_steps"]) == (None, 2, 2)

    # Only the site's account can enter what stays at the hospital.
    own_folder = tmp_path / "fairfl" / "elm"
    for folder in (own_folder.parent, own_folder, own_folder / "state"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (own_folder / "datalist.json").stat().st_mode & 0o777 == 0o600
    assert (own_folder / "state" / "r-round-0000.pt").exists()


def test_files_are_checked_before_a_sites_first_round_of_a_run_and_not_in_each(
    hospitals: Path, site: Callable[..., Executed], tmp_path: Path
) -> None:
    """A process that goes on from the site's state does not check again; another run does."""
    images = shutil.copytree(hospitals / "elm", tmp_path / "images")
    own = {"dataset_dir": str(images)}
    assert asked(site(own))["error"] is None
    good = (images / "Case00.nii.gz").read_bytes()
    (images / "Case00.nii.gz").write_bytes(b"damaged")
    # The training finds it.
    assert "DataError" not in reason(site(own), round=1)
    for other in ({"run": "other"}, {"run_id": "0f"}):
        error = reason(site(own), round=2, **other)
        assert "DataError" in error and "Case00" in error
    assert "DataError" not in reason(site({**own, "check": False}), round=2, run="other")
    (images / "Case00.nii.gz").write_bytes(good)
    assert asked(site(own), round=2, run="other")["error"] is None


def test_a_job_sets_only_what_the_configuration_has(
    hospitals: Path,
    site: Callable[..., Executed],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MONAI would read a file of this name, and run what is in it."""
    monkeypatch.chdir(tmp_path)
    ran = {"handlers_id": {}, "configs": {"x": f"$open('{tmp_path}/ran', 'w')"}}
    Path("mlflow.json").write_text(json.dumps(ran))
    own = {"dataset_dir": str(hospitals / "elm"), "bundle": BUNDLE}
    for name in ("tracking", "init_id", "no_such_key"):
        assert name in reason(site(own, overrides={**SETTINGS, name: "mlflow.json"}))
    assert not (tmp_path / "ran").exists()


OTHER = "/other/Case00.nii.gz"
ELSEWHERE = str(find_bundle(BUNDLE) / "configs" / "train.json")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an expression": ({"overrides": {"size": f"${CODE}"}}, "expression"),
    "a class": ({"overrides": {"network_def": {"_target_": "os.system"}}}, "expression"),
    "a folder of images": ({"overrides": {"datalist": {"dataset_dir": "other"}}}, "dataset_dir"),
    "a site's images": ({"dataset_dir": "/other"}, "dataset_dir"),
    "a reference": ({"overrides": {"size": ["@network", 3]}}, "code"),
    "code as a device": ({"device": f"cpu' if {CODE} else 'cpu"}, "device"),
    "code as a group": ({"groups": {f"${CODE}": ["elm"]}}, "groups"),
    "another folder": ({"overrides": {"ckpt_dir": "../../other"}}, "../other"),
    "other images": ({"overrides": {"train#dataset#data": [{"image": OTHER}]}}, "/other"),
    "an absolute file": ({"config": [ELSEWHERE]}, ELSEWHERE),
    "a bundle of the site": ({"bundle": "/kit/earlier-job/app"}, "/kit/earlier-job/app"),
    "a model of the site": ({"alone": "/models/alone.pt"}, "alone"),
    "an unknown setting": ({"bundel": "x"}, "bundel"),
}


def test_a_job_that_brings_code_orders_data_or_endless_work_is_refused_and_nothing_runs(
    site: Callable[..., Executed], tmp_path: Path
) -> None:
    """The site names its images, which are not here, or none."""
    for name, (job, word) in REFUSED.items():
        own = {} if word == "dataset_dir" else {"dataset_dir": "/nowhere"}
        error = reason(site(own, **job))
        assert "the job" in error and word in error and len(error) < 1000, name
    assert not (tmp_path / "fairfl").exists()


def test_a_fault_of_the_sites_own_file_is_named(site: Callable[..., Executed]) -> None:
    error = reason(site({"bundel": "x"}))
    assert "local/fairfl.json" in error and "bundel" in error


def test_in_a_trial_on_one_machine_the_lead_names_folders(
    hospitals: Path, site: Callable[..., Executed], tmp_path: Path
) -> None:
    bundle = shutil.copytree(find_bundle(BUNDLE), tmp_path.parent / f"{tmp_path.name}-bundle")
    own_list = tmp_path.parent / f"{tmp_path.name}-list.json"
    overrides = {**SETTINGS, "datalist_file": str(own_list)}
    elm = site({}, sites_root=str(hospitals), bundle=str(bundle), overrides=overrides)
    assert asked(elm)["error"] is None and own_list.exists()
    assert "elm" in reason(site({}, sites_root=str(hospitals / "elm")))

    # A bundle is code: what an earlier job left in the workspace is not run.
    left = shutil.copytree(bundle, tmp_path / "earlier-job" / "bundle")
    error = reason(site({}, bundle=str(left), sites_root=str(hospitals)))
    assert str(left) in error and "local/fairfl.json" in error


def test_a_sites_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other"):
        Executed("../../other", tmp_path, {"bundle": BUNDLE})


def test_a_task_that_the_site_cannot_read_is_answered_with_the_reason(
    site: Callable[..., Executed],
) -> None:
    elm = site({})
    assert "9.0.0" in reason(elm, format=99, package="9.0.0")
    answer = elm(FLModel("FULL", {"w": torch.ones(1)}, meta={}))
    assert "'fairfl'" in answer.meta["fairfl"]["error"]
