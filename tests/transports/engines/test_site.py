# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site answers requests: its training, its state, its checks and its refusals."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.client_requests import tiny_model
from helpers.federations import BUNDLE, SETTINGS
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls

from monai_fairfl.bundle.adoption import adopt_bundle
from monai_fairfl.bundle.first_look import recipe as training_of
from monai_fairfl.bundle.initial import initial_model
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.transports.engines.initial_files import read_initial_recipe
from monai_fairfl.transports.engines.site import Site
from monai_fairfl.transports.engines.site_settings import SITE_FILE


def ask(site: Site, **given: Any) -> Reply:
    """The site's reply to a training request."""
    weights, _ = tiny_model()
    stamp = {"run": "r", "round": 0, "seed": 3, **given}
    request = Request(site.name, "train", weights, (), {}, **stamp)
    return site.answer(request, 2)


def names_its_data(workspace: Path, folder: Path) -> None:
    """Write the site's own file, which alone may name its images."""
    (workspace / SITE_FILE).parent.mkdir(parents=True, exist_ok=True)
    (workspace / SITE_FILE).write_text(json.dumps({"dataset_dir": str(folder)}))


def test_a_site_trains_its_own_data_and_keeps_its_state_in_its_workspace(
    hospitals: Path, tmp_path: Path
) -> None:
    names_its_data(tmp_path, hospitals / "elm")
    site = Site("elm", tmp_path, {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu"})

    reply = ask(site)

    assert reply.error is None and reply.client == "elm" and reply.num_cases == 2
    assert (tmp_path / "fairfl" / "elm" / "state" / "r-round-0000.pt").exists()
    site.close()


@pytest.mark.slow
def test_a_site_of_an_adopted_bundle_finds_and_checks_images_in_a_layout_that_only_the_bundle_knows(
    tmp_path: Path,
) -> None:
    bundle = adopt_bundle(write_foreign_bundle(tmp_path / "bundle", "segresnet")).bundle
    data = write_nested_balls(tmp_path / "data", ["A", "B"], side=16, cases=4)
    found = training_of(bundle)
    job = {"bundle": str(bundle), "config": found.config, "sites_root": str(data), "device": "cpu"}
    weights, _ = initial_model(bundle, {}, config=found.config)
    request = Request("A", "train", weights, (), {}, run="r", round=0)

    site = Site("A", tmp_path / "A", job)
    reply = site.answer(request, 2)
    assert reply.error is None and reply.num_cases == 2
    site.close()

    (data / "B" / "volumes" / "case1.nii.gz").write_bytes(b"damaged")
    reply = Site("B", tmp_path / "B", job).answer(replace(request, client="B"), 2)
    assert "case1.nii.gz cannot be read" in reply.error


def test_only_the_sites_account_can_enter_what_stays_at_the_hospital(
    hospitals: Path, tmp_path: Path
) -> None:
    names_its_data(tmp_path, hospitals / "elm")
    site = Site("elm", tmp_path, {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu"})
    before = os.umask(0o022)
    try:
        assert ask(site).error is None
    finally:
        os.umask(before)
        site.close()

    storage = tmp_path / "fairfl"
    modes = {}
    for path in (storage, storage / "elm", storage / "elm" / "state"):
        modes[path.name] = f"{path.stat().st_mode & 0o777:o}"
    assert modes == {"fairfl": "700", "elm": "700", "state": "700"}
    assert (storage / "elm" / "datalist.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("own", [True, False])
def test_a_site_without_gpu_refuses_one_before_it_reads_an_image(own: bool, tmp_path: Path) -> None:
    names_its_data(tmp_path, tmp_path / "nowhere")
    job = {"bundle": BUNDLE, "overrides": SETTINGS}
    if own:
        settings = {"dataset_dir": "nowhere", "device": "cuda:0"}
        (tmp_path / SITE_FILE).write_text(json.dumps(settings))
    else:
        job["device"] = "cuda:0"
    error = str(ask(Site("elm", tmp_path, job)).error)
    assert error == (
        "ConfigError: site elm: device cuda:0: PyTorch finds no CUDA device here. Leave "
        "the device out, or install a CUDA build of PyTorch. "
        f"It is set in {tmp_path / SITE_FILE}, or by the job"
    )


@pytest.mark.parametrize("name", ["tracking", "init_id", "no_such_key"])
def test_a_job_sets_only_what_the_sites_configuration_has(
    name: str, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    (tmp_path / SITE_FILE).write_text(
        json.dumps({"dataset_dir": str(hospitals / "elm"), "bundle": BUNDLE})
    )
    # MONAI would read it, and run what is in it.
    mlflow = Path("mlflow.json")
    mlflow.write_text(
        json.dumps({"handlers_id": {}, "configs": {"x": f"$open('{tmp_path}/ran', 'w')"}})
    )
    site = Site("elm", tmp_path, {"overrides": {**SETTINGS, name: str(mlflow)}, "device": "cpu"})

    reply = ask(site)

    assert f"override '{name}' names nothing" in str(reply.error)
    assert not (tmp_path / "ran").exists()


def test_a_site_without_a_data_folder_names_the_file_for_it(tmp_path: Path) -> None:
    error = str(ask(Site("elm", tmp_path, {"bundle": BUNDLE})).error)

    assert 'Write {"dataset_dir": "/path"} into' in error and SITE_FILE in error


def test_a_site_without_the_bundle_says_what_to_do(tmp_path: Path) -> None:
    error = str(ask(Site("elm", tmp_path, {"bundle": "/nowhere/bundle"})).error)

    assert "'/nowhere/bundle' is neither a folder" in error and SITE_FILE in error


def test_a_site_runs_no_bundle_from_the_folder_in_which_jobs_leave_their_files(
    tmp_path: Path,
) -> None:
    left = tmp_path / "kit" / "earlier-job" / "bundle"
    shutil.copytree(find_bundle(BUNDLE), left)
    site = Site("elm", tmp_path / "kit", {"bundle": str(left), "sites_root": str(tmp_path)})

    error = str(ask(site).error)

    assert "lies in the workspace" in error and SITE_FILE in error


def test_a_site_checks_its_files_before_the_first_round(hospitals: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "Case00.nii.gz").write_bytes(b"no image")
    names_its_data(tmp_path, tmp_path / "data")
    site = Site("elm", tmp_path, {"bundle": BUNDLE, "overrides": SETTINGS})

    assert "Case00" in str(ask(site).error)


@pytest.mark.slow
def test_a_bundle_that_names_no_check_needs_none(hospitals: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(find_bundle(BUNDLE), tmp_path / "bundle")
    file = bundle / "configs" / "federate.json"
    keys = json.loads(file.read_text())
    del keys["check"]
    file.write_text(json.dumps(keys))
    names_its_data(tmp_path / "elm", hospitals / "elm")
    own = json.loads((tmp_path / "elm" / SITE_FILE).read_text())
    (tmp_path / "elm" / SITE_FILE).write_text(json.dumps({**own, "bundle": str(bundle)}))

    site = Site("elm", tmp_path / "elm", {"overrides": SETTINGS, "device": "cpu"})
    assert ask(site).error is None
    site.close()


def site_without_labels(hospitals: Path, folder: Path) -> Site:
    shutil.copytree(hospitals / "elm", folder / "elm")
    for file in (folder / "elm").glob("*segmentation*"):
        image = nib.load(file)
        nib.save(nib.Nifti1Image(np.zeros(image.shape, np.uint8), image.affine), file)  # type: ignore[attr-defined]
    names_its_data(folder, folder / "elm")
    return Site("elm", folder, {"bundle": BUNDLE, "overrides": SETTINGS})


@pytest.mark.parametrize("rounds", [(0, 0, 1), (5,)])
def test_a_site_whose_files_fail_the_check_never_takes_part_unchecked(
    rounds: tuple[int, ...], hospitals: Path, tmp_path: Path
) -> None:
    site = site_without_labels(hospitals, tmp_path)

    for number in rounds:
        assert "labels are empty" in str(ask(site, round=number).error)


@pytest.mark.slow
def test_files_are_checked_once_and_not_again_when_a_process_goes_on_from_the_sites_state(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    monkeypatch.setattr(Site, "_check", lambda site: checks.append(site.name))
    names_its_data(tmp_path, hospitals / "elm")
    job = {"bundle": BUNDLE, "overrides": SETTINGS, "device": "cpu"}
    first = Site("elm", tmp_path, job)

    for number in (0, 0, 1):
        assert ask(first, round=number).error is None
    assert len(checks) == 1
    assert ask(Site("elm", tmp_path, job), round=2).error is None
    assert len(checks) == 1
    assert ask(Site("elm", tmp_path, job), run="another", round=2).error is None
    assert checks == ["elm", "elm"]
    # Another run of the same name.
    assert ask(Site("elm", tmp_path, job), run_id="0f", round=3).error is None
    assert checks == ["elm", "elm", "elm"]


def test_what_a_site_cannot_read_it_answers_with_the_reason(tmp_path: Path) -> None:
    answer = Site("elm", tmp_path, {}).cannot_read(ValueError("of another workflow"))

    assert (answer.client, answer.error) == ("elm", "ValueError: of another workflow")


def test_a_jobs_recipe_that_is_damaged_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("[1]")
    with pytest.raises(ConfigError, match="recipe.json.*list"):
        read_initial_recipe(tmp_path)
