# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Test cases that are training or validation cases give no test score, and everybody learns why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.checkout import CHECKOUT
from helpers.client_requests import tiny_model
from helpers.driving import SPEC, vector
from helpers.own_bundle import OWN_BUNDLE, write_noisy_balls

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.case_lists import overlap_of
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import IN_TRAINING, IN_VALIDATION, Estimate, Measurement
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.server.closing import closing_requests, closing_scores
from monai_fairfl.server.global_models import GlobalModels
from monai_fairfl.strategies import Ditto, FedAvg

Maker = Callable[..., FairMonaiAlgo]


def engine(*files: Any) -> Any:
    """Something with the list of cases of an ignite engine: the files of their images."""
    dataset = SimpleNamespace(data=[{"image": file} for file in files])
    return SimpleNamespace(data_loader=SimpleNamespace(dataset=dataset))


def test_a_link_to_a_training_case_is_that_case(tmp_path: Path) -> None:
    (tmp_path / "a.nii").touch()
    (tmp_path / "link.nii").symlink_to(tmp_path / "a.nii")
    found = overlap_of(
        "elm", engine(tmp_path / "link.nii", "t"), engine(str(tmp_path / "a.nii")), engine("v")
    )
    assert found is not None and (len(found.training), len(found.validation), found.cases) == (
        1,
        0,
        2,
    )


def test_images_of_several_files_are_compared_by_all_of_them() -> None:
    tested, trained = engine(["t2", "adc"]), engine(["t2", "flair"])
    assert overlap_of("elm", tested, trained, None) is None
    assert overlap_of("elm", tested, engine(["t2", "adc"]), None) is not None


@pytest.mark.parametrize("unknown", ["evaluator", "trainer", "validator"])
def test_lists_that_cannot_be_compared_are_named_in_the_log(
    unknown: str, caplog: pytest.LogCaptureFixture
) -> None:
    engines = {"evaluator": engine("t"), "trainer": engine("a"), "validator": engine("v")}
    engines[unknown] = engine(np.zeros(3))
    assert overlap_of("elm", **engines) is None
    part = {"evaluator": "test", "trainer": "training", "validator": "validation"}[unknown]
    assert f"client elm: its {part} cases are no list of files" in caplog.text


def answered(client: FairMonaiAlgo, *names: str) -> dict[str, Any]:
    request = Request(
        "alder", "measure", tiny_model()[0], names, {"closing": 1.0}, run="r", round=1
    )
    return dict(client.answer(request).measurements)


def prostate_with(tested: str, folder: Path) -> str:
    """A copy of the prostate bundle whose evaluator scores these cases."""
    bundle = folder / "bundle"
    shutil.copytree(CHECKOUT / "bundles" / "prostate_mri_segmentation", bundle)
    file = bundle / "configs" / "evaluate.json"
    config = json.loads(file.read_text())
    assert config["validate#dataset#data"] == "$@datalist['testing']"
    file.write_text(json.dumps(config | {"validate#dataset#data": tested}))
    return str(bundle)


def test_an_evaluator_of_validation_cases_measures_no_test_score(
    prostate_client: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = prostate_client(bundle=prostate_with("$@datalist['validation']", tmp_path))
    found = answered(client, "score", "test_score")
    assert set(found) == {"score", IN_VALIDATION, IN_TRAINING}
    assert found[IN_VALIDATION] == Estimate(1.0, None, 1) and found[IN_TRAINING] == Estimate(
        0.0, None, 1
    )
    assert (
        "client alder: its evaluator scores its 1 validation cases, not test cases" in caplog.text
    )
    assert not list((tmp_path / "alder" / "state").glob("*test_score*"))


def test_training_cases_among_the_test_cases_are_counted_and_named_in_the_sites_log(
    prostate_client: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = "$@datalist['testing'] + @datalist['training'][:1]"
    client = prostate_client(bundle=prostate_with(mixed, tmp_path))
    found = answered(client, "test_score")
    assert found == {IN_VALIDATION: Estimate(0.0, None, 2), IN_TRAINING: Estimate(1.0, None, 2)}
    listed = json.loads((tmp_path / "alder.json").read_text())["training"][0]["image"]
    assert f"of its 2 test cases, 1 is used in training ({listed})" in caplog.text


def test_test_cases_that_are_nothing_else_are_scored(
    prostate_client: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(answered(prostate_client(), "test_score")) == {"test_score"}
    assert "test cases" not in caplog.text


def test_the_last_score_of_a_personal_model_is_never_the_global_models() -> None:
    """Where a site has no test score, its personal validation score still is its own."""
    models = GlobalModels({"w": vector([0.0])})
    final = ("score", "test_score")
    requests = closing_requests(models, Ditto.personal, ["elm"], final)
    measured: dict[str, Measurement] = {
        "score": 0.2,
        "personal_score": 0.9,
        IN_VALIDATION: 3.0,
        IN_TRAINING: 0.0,
    }
    replies = Replies([Reply("elm", None, 0, measured)], requests, SPEC)
    scores = closing_scores(replies, Ditto.personal, final)
    assert scores["elm"]["own"] == {"score": 0.9, IN_VALIDATION: 3.0, IN_TRAINING: 0.0}
    assert scores["elm"]["global"] == {"score": 0.2}


@pytest.fixture
def spleens(tmp_path: Path) -> Path:
    """Two hospitals with three volumes each: a noisy ball."""
    root = tmp_path / "data"
    write_noisy_balls(root, ("elm", "oak"), side=16, centres=(6, 10), squared_radius=25)
    return root


@pytest.mark.slow
def test_a_bundle_whose_evaluator_takes_the_validation_list_is_reported_as_validation_dice(
    spleens: Path, tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    bundle = tmp_path / "bundle"
    shutil.copytree(OWN_BUNDLE, bundle)
    # As spleen_ct of MONAI's model zoo.
    evaluate = {"validate#handlers": [], "run": ["$@validate#evaluator.run()"]}
    (bundle / "configs" / "evaluate.json").write_text(json.dumps(evaluate))
    run = tmp_path / "run"
    BundleFederation(str(bundle), str(spleens), FedAvg(), rounds=1, run_dir=str(run)).run()
    closing = read_ledger(run / "ledger.jsonl")[-1]["scores"]
    assert all(
        "test_score" not in found["own"] and "score" in found["own"] for found in closing.values()
    )
    report = json.loads((run / "report.json").read_text())
    assert report["measurement"] == "score"
    page = (run / "report.html").read_text()
    for site in ("elm", "oak"):
        [warning] = [text for text in report["warnings"] if site in text]
        assert "evaluator" in warning and warning in page
    assert "test Dice" not in page
