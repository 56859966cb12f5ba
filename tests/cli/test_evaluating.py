# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl evaluate``: the scores of the run, of its own test cases, and of no other ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import monai.bundle
import nibabel as nib
import numpy as np
import pytest
import torch
from helpers.command_line import Commands
from monai.handlers.utils import write_metrics_reports

from monai_fairfl import read_ledger
from monai_fairfl.data import site_datalist
from monai_fairfl.model_files import read_recipe, save_model_file, state_of_file


@pytest.fixture
def data(sites: Path, tmp_path: Path) -> Path:
    """Both hospitals, to be changed."""
    return Path(shutil.copytree(sites, tmp_path / "sites"))


def test_the_scores_are_those_of_the_runs_end(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    found = cli.json("evaluate", trained, sites, "--out", tmp_path / "scores")
    end = read_ledger(trained / "ledger.jsonl")[-1]["scores"]
    for site in ("alder", "elm"):
        entry = found["sites"][site]
        listed = json.loads((trained / "datalists" / f"{site}.json").read_text())["testing"]
        assert sorted(Path(image).name for image in entry["cases"]) == sorted(
            Path(case["image"]).name for case in listed
        )
        for name, of_run in (
            ("val_mean_dice", end[site]["own"]["test_score"]["mean"]),
            ("hd95", end[site]["own"]["test_hd95"]),
        ):
            mean = np.mean([scores[name] for scores in entry["cases"].values()])
            assert mean == pytest.approx(of_run["value"], rel=1e-4)
    # Scores never replace others.
    assert "--out" in cli.refusal("evaluate", trained, sites, "--out", tmp_path / "scores")


def test_a_model_outside_of_its_run_is_scored_on_all_cases_that_there_are(
    trained: Path, data: Path, tmp_path: Path, cli: Commands
) -> None:
    model = tmp_path / "away" / "model.pt"
    model.parent.mkdir()
    shutil.copy(trained / "models" / "global.pt", model)
    words = ["evaluate", model, data / "elm", "--out", tmp_path / "scores"]
    found = cli.json(*words)["sites"]["elm"]
    assert len(found["cases"]) == 4 and "all cases" in found["split"]

    # Lists without a run beside them are of no model. A hospital's own model lies deeper in the
    # run: its training cases are no test.
    shutil.copytree(trained, tmp_path / "run")
    own = tmp_path / "run" / "sites" / "elm" / "state" / "own.pt"
    shutil.copy(model, own)
    words = ["evaluate", own, data / "elm", "--out"]
    assert len(cli.json(*words, tmp_path / "own")["sites"]["elm"]["cases"]) == 1
    (tmp_path / "run" / "settings.json").unlink()
    trained_on = site_datalist(data / "elm", tmp_path / "run" / "datalists" / "elm.json")
    image = Path(trained_on["training"][0]["image"])
    image.write_text("no volume")
    assert image.name in cli.refusal(*words, tmp_path / "all")


def test_every_fault_of_all_test_cases_is_named_before_any_is_scored(
    trained: Path, data: Path, tmp_path: Path, cli: Commands
) -> None:
    faulty = []
    for site in ("alder", "elm"):
        listed = site_datalist(data / site, trained / "datalists" / f"{site}.json")
        label = listed["testing"][0]["label"]
        mask = nib.load(label)
        nib.save(nib.Nifti1Image(mask.get_fdata() * 0.4, mask.affine), label)
        faulty.append(label)
    out = tmp_path / "scores"
    said = cli.refusal("evaluate", trained, data, "--out", out)
    for word in ("alder", "elm", "0.4", *faulty):
        assert word in said
    assert not list(out.glob("*"))


def test_what_is_no_hospital_is_refused_by_evaluate_and_adapt(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    images = tmp_path / "new"
    images.mkdir()
    shutil.copy(sites / "alder" / "Case00.nii.gz", images)
    out = tmp_path / "out"
    for folder, word in ((images, "Case00.nii.gz"), (tmp_path / "nowhere", "nowhere")):
        for command in ("evaluate", "adapt"):
            assert word in cli.refusal(command, trained, folder, "--out", out)
            assert not list(out.glob("[!l]*"))  # log.txt alone
    # One hospital is adapted to.
    said = cli.refusal("adapt", trained, sites, "--out", out)
    assert "alder" in said and not list(out.glob("[!l]*"))


def test_scores_are_read_as_monai_writes_them(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes paths without quotes, and the mean of all structures last."""
    images = ["/data, 2024/elm/Case00.png", "/data, 2024/elm/left, 1.png", "/data/c.png"]
    nan = float("nan")
    dice = {"val_mean_dice": torch.tensor([[0.9, 0.5], [0.8, nan], [nan, nan]])}

    def run(config_file: list[str], output_dir: str, **keys: object) -> None:
        write_metrics_reports(output_dir, images, None, dice, None)

    monkeypatch.setattr(monai.bundle, "run", run)
    words = ["evaluate", trained, sites / "elm", "--out", tmp_path / "scores"]
    entry = cli.json(*words)["sites"]["elm"]
    found = [entry["cases"][image]["val_mean_dice"] for image in images]
    # A case without a score is no zero.
    assert found == [pytest.approx(0.7), pytest.approx(0.8), None]


def test_an_error_at_a_later_hospital_costs_no_scores_of_those_before(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config_file: list[str], output_dir: str, **keys: object) -> None:
        if output_dir.endswith("elm"):
            raise RuntimeError("no memory left")
        write_metrics_reports(output_dir, ["a"], None, {"val_mean_dice": torch.ones(1, 1)}, None)

    monkeypatch.setattr(monai.bundle, "run", run)
    out = tmp_path / "scores"
    assert "no memory left" in cli.refusal("evaluate", trained, sites, "--out", out)
    assert "1.0" in (out / "alder" / "val_mean_dice_raw.csv").read_text()


def test_a_hospital_is_scored_with_the_values_that_it_trained_with(
    trained: Path, sites: Path, tmp_path: Path, cli: Commands
) -> None:
    model = tmp_path / "run" / "models" / "global.pt"
    shutil.copytree(trained, tmp_path / "run")
    recipe = read_recipe(model)
    assert recipe is not None
    own = replace(recipe, sites={"elm": {"channel": 1}})
    save_model_file(model, state_of_file(model), own)
    # Of its images it is known that they are pairs; others are none.
    config = {"overrides": {"stereo": False}, "sites": {"elm": {"stereo": True}}}
    (tmp_path / "run" / "settings.json").write_text(json.dumps(config))
    for site, channel, stereo in (("elm", "1", "True"), ("alder", None, "False")):
        words = ["evaluate", tmp_path / "run", sites / site, "--out", tmp_path / site]
        found = cli.keys(*words)
        assert (found.get("channel"), found["stereo"]) == (channel, stereo)
