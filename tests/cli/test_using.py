# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl infer`` and ``evaluate``: they end with an answer, and replace nothing."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from helpers import public_layouts as made
from helpers.command_line import run_json, write_run
from monai.handlers.utils import write_metrics_reports

from monai_fairfl.bundle.initial import bundle_recipe, initial_model
from monai_fairfl.bundle.shipped import copy_bundle, find_bundle
from monai_fairfl.cli import main
from monai_fairfl.cli.asked import state_of_files
from monai_fairfl.cli.evaluations import Evaluation
from monai_fairfl.cli.inference import _remove_previous_answer
from monai_fairfl.cli.named_models import bundle_of_model, model_file, site_of_run
from monai_fairfl.cli.running import MonaiLine
from monai_fairfl.cli.score_tables import cases_in_part, evaluation_text, scores_in
from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import save_model_file
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.run_folder.schedule import Schedule

PROSTATE = find_bundle("prostate_mri_segmentation")
SMALL = {"size": [32, 32], "channels": [4, 8, 8]}


@pytest.fixture(scope="module")
def run_folder(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the model that it would begin with, and the splits of two sites."""
    folder = tmp_path_factory.mktemp("using") / "run"
    (folder / "models").mkdir(parents=True)
    # A random network whose masks are neither empty nor full.
    torch.manual_seed(4)
    weights, spec = initial_model(PROSTATE, SMALL)
    full_run = {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}
    recipe = bundle_recipe(PROSTATE, SMALL, local_epochs=4, full_run=full_run)
    assert recipe is not None
    recipe = recipe.trained(strategy="FedCE", rounds=2, seed=7)
    save_model_file(folder / "models" / "global.pt", spec.with_aliases(weights), recipe)
    for site in ("alder", "elm"):
        site_datalist(hospitals / site, folder / "datalists" / f"{site}.json")
    (folder / "config.json").write_text(json.dumps({"sites": {"alder": {}, "elm": {}}}))
    return folder


@pytest.fixture(scope="module")
def scans(hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two volumes, and a file that is none."""
    folder = tmp_path_factory.mktemp("scans")
    for name in ("Case00.nii.gz", "Case01.nii.gz"):
        shutil.copy(hospitals / "alder" / name, folder / name)
    (folder / "broken.nii.gz").write_text("no volume")
    return folder


@pytest.mark.slow
def test_an_inference_ends_with_its_cases_and_is_not_done_twice(
    run_folder: Path, scans: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "masks"
    words = ["infer", str(run_folder), str(scans), "--out", str(out)]
    # One case could not be read.
    assert main([*words, "--no-pictures"]) == 3
    printed = capfd.readouterr()
    assert "python -m monai.bundle run --config_file" in printed.out
    assert "2 of 3 cases segmented." in printed.out
    [of_model] = [line for line in printed.out.splitlines() if "The model" in line]
    for word in ("FedCE", "2 rounds", "seed 7", "first look", "60 rounds"):
        assert word in of_model
    assert "broken: is damaged" in printed.out and "5 masks" in printed.out
    assert "eval()" not in printed.out + printed.err and "INFO" not in printed.out + printed.err
    assert not list(out.glob("*.png"))

    table = json.loads((out / "volumes.json").read_text())
    mask = nib.load(out / table["cases"][0]["mask"])
    voxels = int(np.asarray(mask.dataobj).sum())  # type: ignore[attr-defined]
    volume = voxels * np.prod(mask.header.get_zooms()) / 1000  # type: ignore[attr-defined]
    assert table["cases"][0]["millilitres"] == pytest.approx(volume, rel=1e-3)
    assert f"{volume:.1f} ml" in printed.out
    with (out / "volumes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["segmented", "segmented", "skipped"]

    # The broken one is mended: the same command does it all; then there is nothing left to do.
    shutil.copy(scans / "Case00.nii.gz", tmp_path / "broken.nii.gz")
    whole = tmp_path / "whole"
    shutil.copytree(scans, whole)
    shutil.copy(scans / "Case01.nii.gz", whole / "broken.nii.gz")
    again = ["infer", str(run_folder), str(whole), "--out", str(tmp_path / "all")]
    assert main([*again, "--no-pictures"]) == 0
    assert not list((tmp_path / "all").glob("*_overlay.png"))
    # Without that, the pictures are drawn; with it there is nothing to do.
    assert main(again) == 0
    assert len(list((tmp_path / "all").glob("*_overlay.png"))) == 3
    capfd.readouterr()
    assert main([*again, "--no-pictures"]) == 0
    assert "holds the answer already" in capfd.readouterr().out
    before = (tmp_path / "all" / "Case00_pred.nii.gz").stat().st_mtime_ns
    capfd.readouterr()
    assert main(again) == 0
    printed = capfd.readouterr()
    assert "holds the answer already" in printed.out and "3 of 3 cases" in printed.out
    assert (tmp_path / "all" / "Case00_pred.nii.gz").stat().st_mtime_ns == before

    # What has come since, and what was replaced, is segmented.
    shutil.copy(scans / "Case01.nii.gz", whole / "Case02.nii.gz")
    assert main([*again, "--no-pictures"]) == 2
    assert "pictures" in capfd.readouterr().err
    assert main(again) == 0
    printed = capfd.readouterr()
    assert "holds the answer already" not in printed.out and "4 of 4 cases" in printed.out
    # Another bundle may have another configuration.
    copy = copy_bundle("prostate_mri_segmentation", tmp_path / "bundle")
    inference = json.loads((copy / "configs" / "inference.json").read_text())
    inference["plausible_millilitres"] = [0, 1]
    (copy / "configs" / "inference.json").write_text(json.dumps(inference))
    assert main([*again, "--bundle", str(copy)]) == 0
    assert "0 to 1 ml" in capfd.readouterr().out

    # Masks of other images never come between these.
    assert main(["infer", str(run_folder), str(scans), "--out", str(tmp_path / "all")]) == 2
    assert str(tmp_path / "all") in capfd.readouterr().err


@pytest.mark.slow
def test_a_repeated_inference_leaves_no_output_of_images_that_are_gone_or_damaged(
    run_folder: Path, hospitals: Path, tmp_path: Path
) -> None:
    scans = tmp_path / "scans"
    out = tmp_path / "masks"
    scans.mkdir()
    for name, source in (("a", "Case00"), ("b", "Case01"), ("c", "Case02")):
        shutil.copy(hospitals / "alder" / f"{source}.nii.gz", scans / f"{name}.nii.gz")
    words = ["infer", str(run_folder), str(scans), "--out", str(out)]
    assert main(words) == 0
    assert len(list(out.glob("*_pred.nii.gz"))) == len(list(out.glob("*_overlay.png"))) == 3
    (out / "letter.txt").write_text("dear colleague")

    # One image goes, another one is cut short.
    (scans / "b.nii.gz").unlink()
    whole = (scans / "a.nii.gz").read_bytes()
    (scans / "a.nii.gz").write_bytes(whole[:900])
    assert main(words) == 3
    outputs = {path.name for path in out.iterdir()}
    assert {"c_pred.nii.gz", "c_overlay.png", "letter.txt"} <= outputs
    assert not [name for name in outputs if name.startswith(("a_", "b_"))]

    # No image is left: neither table shows a mask.
    (scans / "c.nii.gz").write_bytes(whole[:900])
    assert main(words) == 2
    assert json.loads((out / "volumes.json").read_text())["summary"] == {"skipped": 2}
    with (out / "volumes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["case"], row["status"]) for row in rows] == [("a", "skipped"), ("c", "skipped")]
    assert not list(out.glob("*_pred.nii.gz"))


def test_only_outputs_below_their_folder_that_a_table_names_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "masks"
    out.mkdir()
    kept = [tmp_path / "scan.nii.gz", tmp_path / "linked.png", out / "own_pred.nii.gz"]
    gone = [out / "a_pred.nii.gz", out / "a_seg.dcm", out / "volumes.csv"]
    for file in [*kept, *gone]:
        file.write_text("any")
    (out / "a_overlay.png").symlink_to(tmp_path / "linked.png")
    lines = [
        {
            "case": "a",
            "mask": "a_pred.nii.gz",
            "overlay": "a_overlay.png",
            "dicom_seg": "a_seg.dcm",
        },
        {"case": "b", "mask": "../scan.nii.gz", "overlay": str(tmp_path / "linked.png")},
        {"case": "c", "status": "skipped"},
    ]
    (out / "volumes.json").write_text(json.dumps({"summary": {}, "cases": lines}))
    _remove_previous_answer(out)
    for file in kept:
        assert file.is_file()
    assert {path.name for path in out.iterdir()} == {"own_pred.nii.gz", "a_overlay.png"}


def test_a_folder_with_something_else_is_refused(
    run_folder: Path, scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear colleague")
    words = ["infer", run_folder, scans, "--out", tmp_path]
    assert str(tmp_path) in run_json(capsys, *words, code=2)["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_model_is_a_file_or_the_folder_of_its_run(run_folder: Path, tmp_path: Path) -> None:
    assert model_file(str(run_folder)) == run_folder / "models" / "global.pt"
    with pytest.raises(ConfigError, match=str(tmp_path)):
        model_file(str(tmp_path))
    # Standalone has no trained global model, so one run is left to choose.
    weights, spec = initial_model(PROSTATE, SMALL)
    recipe = bundle_recipe(PROSTATE, SMALL)
    assert recipe is not None
    for name in ("FedCE", "Standalone", "FedAvg"):
        file = tmp_path / name / "models" / "global.pt"
        file.parent.mkdir(parents=True)
        save_model_file(file, spec.with_aliases(weights), recipe.trained(strategy=name))
        if name == "Standalone":
            assert model_file(str(tmp_path)) == tmp_path / "FedCE" / "models" / "global.pt"
    with pytest.raises(ConfigError, match=f"several .*{tmp_path}/FedAvg, {tmp_path}/FedCE$"):
        model_file(str(tmp_path))
    # The command try writes its runs one folder deeper.
    (tmp_path / "try" / "run").mkdir(parents=True)
    shutil.copytree(tmp_path / "FedCE", tmp_path / "try" / "run" / "FedCE")
    of_try = tmp_path / "try" / "run" / "FedCE" / "models" / "global.pt"
    assert model_file(str(tmp_path / "try")) == of_try
    with pytest.raises(ConfigError, match="Standalone"):
        model_file(str(tmp_path / "Standalone"))


def begun_run(folder: Path, *rounds: int) -> Path:
    """A run that stopped after these rounds, of twelve."""
    folder.mkdir(parents=True)
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.append({"kind": "start", "strategy": "FedAvg", "clients": ["elm"]})
    for number in rounds:
        ledger.append({"kind": "round", "round": number})
    Schedule.begun(folder, rounds=12, resumed=False)
    return folder


def test_a_run_that_stopped_has_no_model_yet(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun_run(tmp_path / "runs" / "FedAvg", 0)
    out = str(tmp_path / "out")
    error = run_json(capsys, "infer", str(run), str(scans), "--out", out, code=2)["error"]
    assert str(run) in error and "stopped" in error
    # So it is of a comparison whose run has not ended.
    with pytest.raises(ConfigError, match=f"{run} .*stopped"):
        model_file(str(run.parent))
    first = begun_run(tmp_path / "first")
    # A crash may cut the first line short.
    (first / "ledger.jsonl").write_text('{"kind"')
    with pytest.raises(ConfigError, match=f"{first} .*stopped"):
        model_file(str(first))


def test_a_run_without_a_global_model_is_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=f"{run} .*without"):
        model_file(str(run))


def test_a_comparison_over_seeds_has_no_model_but_those_of_its_trainings(tmp_path: Path) -> None:
    begun_run(tmp_path / "cells" / "CGSV" / "seed-0", 0)
    with pytest.raises(ConfigError, match=f"comparison.*{tmp_path / 'cells'}"):
        model_file(str(tmp_path))


def test_the_bundle_of_a_model_is_that_which_trained_it(run_folder: Path, tmp_path: Path) -> None:
    assert bundle_of_model(run_folder / "models" / "global.pt", None) == PROSTATE
    torch.save({"w": torch.zeros(1)}, tmp_path / "bare.pt")
    with pytest.raises(ConfigError, match="bare.pt .*recipe.*--bundle"):
        bundle_of_model(tmp_path / "bare.pt", None)
    weights, spec = initial_model(PROSTATE, SMALL)
    recipe = bundle_recipe(PROSTATE, SMALL)
    assert recipe is not None
    other = type(recipe).from_state({**recipe.state_dict(), "bundle": "Spleen"}, "a")
    save_model_file(tmp_path / "other.pt", spec.with_aliases(weights), other)
    with pytest.raises(ConfigError, match="other.pt .*'Spleen'"):
        bundle_of_model(tmp_path / "other.pt", None)


@pytest.mark.slow
def test_an_evaluation_scores_the_test_cases_of_the_models_own_run(
    run_folder: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sites"
    for site in ("alder", "elm"):
        shutil.copytree(hospitals / site, root / site)
    words = ["evaluate", str(run_folder), str(root), "--out", str(tmp_path / "scores")]
    assert main(words) == 0
    printed = capfd.readouterr().out
    lists = json.loads((run_folder / "datalists" / "elm.json").read_text())
    with (tmp_path / "scores" / "elm" / "val_mean_dice_raw.csv").open(newline="") as file:
        scored = [Path(row["filename"]).name for row in csv.DictReader(file)]
    assert scored == [Path(case["image"]).name for case in lists["testing"]]
    assert "Dice of slices: " in printed
    # One line of MONAI, though two hospitals were scored with it.
    assert printed.count("python -m monai.bundle") == 1 and "alder ...\nelm ...\n" in printed
    assert "alder, elm: the test cases of the run." in printed
    assert "hospital  cases  Dice" in printed and "The model: FedCE, 2 rounds" in printed

    # A hospital's own model lies deeper in the run: its training cases are no test.
    own = run_folder / "sites" / "elm" / "state" / "FedCE-own.pt"
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(run_folder / "models" / "global.pt", own)
    assert main(["evaluate", str(own), str(root), "--out", str(tmp_path / "own")]) == 0
    assert "elm: the test cases of the run." in capfd.readouterr().out

    # The same again reads what is there; another model is refused.
    assert main(words) == 0
    assert "python -m monai.bundle" not in capfd.readouterr().out
    # A label that was corrected since is scored again, and the other hospital is not. A table that
    # is of an earlier configuration goes.
    stale = tmp_path / "scores" / "elm" / "distance_raw.csv"
    shutil.copy(tmp_path / "scores" / "elm" / "hd95_raw.csv", stale)
    tested = Path(
        site_datalist(root / "elm", run_folder / "datalists" / "elm.json")["testing"][0]["label"]
    )
    mask = nib.load(tested)
    corrected = np.asarray(mask.dataobj).copy()
    corrected[4:-4, 4:-4] = 1
    nib.save(nib.Nifti1Image(corrected, mask.affine), tested)
    assert main(words) == 0
    again = capfd.readouterr().out
    assert "elm ...\n" in again and "alder ...\n" not in again
    assert again.splitlines()[-6] != printed.splitlines()[-6] and not stale.exists()
    weights, spec = initial_model(PROSTATE, SMALL)
    lone = tmp_path / "a" / "b" / "lone.pt"
    lone.parent.mkdir(parents=True)
    later = {name: value + 1 for name, value in weights.items()}
    save_model_file(lone, spec.with_aliases(later), bundle_recipe(PROSTATE, SMALL))
    assert main(["evaluate", str(lone), str(root), "--out", str(tmp_path / "scores")]) == 2
    assert "another model" in capfd.readouterr().err

    # A model from elsewhere: it is not known what it was trained on.
    assert main(["evaluate", str(lone), str(root / "elm"), "--out", str(tmp_path / "lone")]) == 0
    printed = capfd.readouterr().out
    assert "elm: all cases" in printed
    with (tmp_path / "lone" / "elm" / "val_mean_dice_raw.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4

    # A fifth case came: all cases are five.
    for name in ("Case00.nii.gz", "Case00_segmentation.nii.gz"):
        shutil.copy(root / "alder" / name, root / "elm" / name.replace("00", "09"))
    assert main(["evaluate", str(lone), str(root / "elm"), "--out", str(tmp_path / "lone")]) == 0
    with (tmp_path / "lone" / "elm" / "val_mean_dice_raw.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 5


def test_an_evaluation_names_the_hospitals_of_the_run_that_it_does_not_find(
    run_folder: Path, hospitals: Path, tmp_path: Path
) -> None:
    sites = sorted(json.loads((run_folder / "config.json").read_text())["sites"])
    present, *others = sites
    shutil.copytree(hospitals / present, tmp_path / "sites" / present)
    evaluation = Evaluation.of(str(run_folder), None, tmp_path / "sites", tmp_path / "out")
    assert others and evaluation.missing == others
    text = evaluation_text({}, tmp_path, "", evaluation.missing)
    [line] = [line for line in text.splitlines() if "Not scored" in line]
    assert ", ".join(others) in line

    # One hospital that was asked for by its folder is all of it.
    alone = tmp_path / "sites" / present
    assert not Evaluation.of(str(run_folder), None, alone, tmp_path / "out").missing
    # Hospitals that did not take part are no part of the run.
    (tmp_path / "sites" / present).rename(tmp_path / "sites" / "new")
    assert not Evaluation.of(str(run_folder), None, tmp_path / "sites", tmp_path / "out").missing


@pytest.mark.slow
def test_an_evaluation_names_the_faults_of_all_hospitals_before_it_scores_any(
    run_folder: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sites"
    for site in ("alder", "elm"):
        shutil.copytree(hospitals / site, root / site)
    lists = {}
    for site in ("alder", "elm"):
        lists[site] = site_datalist(root / site, run_folder / "datalists" / f"{site}.json")
    for site in ("alder", "elm"):
        tested = lists[site]["testing"][0]["label"]
        mask = nib.load(tested)
        nib.save(nib.Nifti1Image(np.asanyarray(mask.dataobj) * 0.4, mask.affine), tested)
    out = tmp_path / "scores"
    words = ["evaluate", str(run_folder), str(root), "--out", str(out)]
    assert main(words) == 2
    error = capfd.readouterr().err
    for site in ("alder", "elm"):
        assert f"site '{site}': {root / site}: 1 problem(s)" in error
    assert "has label values such as 0.4" in error and not list(out.glob("*/*_raw.csv"))

    # A fault in a case that is not tested stops nothing.
    for site in ("alder", "elm"):
        shutil.copy(hospitals / site / Path(lists[site]["testing"][0]["label"]).name, root / site)
        trained = lists[site]["training"][0]["label"]
        mask = nib.load(trained)
        nib.save(nib.Nifti1Image(np.asanyarray(mask.dataobj) * 0.4, mask.affine), trained)
        shutil.copy(hospitals / site / "Case00.nii.gz", root / site / "Case09.nii.gz")
    assert main(words) == 0
    assert "alder, elm: the test cases of the run." in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_paths_that_are_not_utf8_are_segmented_but_not_evaluated(
    run_folder: Path,
    scans: Path,
    hospitals: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    munich = Path(os.fsdecode(os.fsencode(tmp_path) + b"/M\xfcnchen"))
    shutil.copytree(run_folder, munich / "run")
    shutil.copytree(scans, munich / "scans", ignore=shutil.ignore_patterns("broken*"))
    out = munich / "masks"
    words = ["infer", str(munich / "run"), str(munich / "scans"), "--out", str(out)]
    assert main([*words, "--no-pictures"]) == 0
    model = json.loads((out / "model.json").read_text())["model"]
    assert model == str(munich / "run" / "models" / "global.pt")

    # MONAI writes the tables of scores, and cannot write these paths: nothing is scored.
    shutil.copytree(hospitals / "alder", munich / "alder")
    capfd.readouterr()
    words = ["evaluate", str(munich / "run"), str(munich / "alder"), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert ".nii.gz': this path is not UTF-8" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_evaluation_that_was_killed_goes_on(
    run_folder: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores"

    def killed(line: MonaiLine, log: Path, verbose: bool = False) -> None:
        # The tables are written one after the other.
        (out / "elm").mkdir(parents=True, exist_ok=True)
        (out / "elm" / "val_mean_dice_raw.csv").write_text("filename,mean\n")
        raise KeyboardInterrupt

    words = ["evaluate", str(run_folder), str(hospitals / "elm"), "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MonaiLine, "run", killed)
        assert main(words) == 130
    capfd.readouterr()
    assert main(words) == 0
    assert "elm ...\n" in capfd.readouterr().out
    assert len(scores_in(out / "elm")) == 1


def test_a_comma_in_a_path_moves_no_score(tmp_path: Path) -> None:
    """MONAI writes paths without quotes, and two structures have other scores than their mean."""
    images = ["/data, 2024/elm/Case00.png", "/data, 2024/elm/Case01, left.png"]
    dice = torch.tensor([[0.9, 0.5], [0.8, 0.4]])
    write_metrics_reports(str(tmp_path), images, None, {"val_mean_dice": dice}, None)
    scores = scores_in(tmp_path)
    assert list(scores) == images
    found = [scores[image]["val_mean_dice"] for image in images]
    assert found == pytest.approx([0.7, 0.6])


def test_a_case_without_a_score_is_neither_in_the_mean_nor_the_worst(tmp_path: Path) -> None:
    """MONAI's Dice of an empty label is not a number, and a site may lack a structure."""
    nan = float("nan")
    cases = {"a.nii": {"val_mean_dice": nan}, "b.nii": {"val_mean_dice": 0.8, "cup": 0.5}}
    cases["c.nii"] = {"val_mean_dice": 0.6, "cup": nan}
    found = {
        "alder": {"cases": cases, "split": "all cases"},
        "elm": {"cases": {"d.nii": {"val_mean_dice": nan}}, "split": "all cases"},
    }
    lines = evaluation_text(found, tmp_path, "").splitlines()
    assert lines[1].split() == ["alder", "3", "0.700", "0.500", "c.nii", "0.600"]
    assert lines[2].split() == ["elm", "1", "–", "–", "–"]
    assert lines[3].startswith("Dice of alder is of 2 of 3 cases")


def test_a_dice_that_mixes_structures_is_named(tmp_path: Path) -> None:
    """Two of three labels have the disc alone."""
    nan = float("nan")
    images = [f"/data, 2024/elm/{name}.png" for name in "abc"]
    dice = torch.tensor([[0.9, 0.5], [0.8, nan], [0.6, nan]])
    write_metrics_reports(str(tmp_path), images, None, {"val_mean_dice": dice}, None)
    in_part = cases_in_part(tmp_path)
    found = {"elm": {"cases": scores_in(tmp_path), "split": "all cases", "in_part": in_part}}
    lines = evaluation_text(found, tmp_path, "").splitlines()
    assert lines[2].startswith("Dice of elm mixes") and "2 of 3 cases" in lines[2]
    # Where no label has the cup, all are of the disc.
    write_metrics_reports(str(tmp_path), images, None, {"val_mean_dice": dice[:, :1]}, None)
    assert cases_in_part(tmp_path) == 0


def test_a_data_list_is_of_a_run_where_the_run_is(tmp_path: Path) -> None:
    model = tmp_path / "downloads" / "model.pt"
    file = tmp_path / "datalists" / "elm.json"
    file.parent.mkdir()
    file.write_text("{}")
    # As monai-fairfl datalist writes it: no model was trained with it.
    assert site_of_run(model, "elm") is None
    config = {"data": {"elm": str(tmp_path / "elm")}, "sites": {"elm": {}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = site_of_run(model, "elm")
    assert found is not None and found.datalist == file

    # Another hospital may have the same name.
    assert found.warning_of_other_data(tmp_path / "elm") == ""
    assert f"elm was in {tmp_path / 'elm'}" in found.warning_of_other_data(tmp_path / "b" / "elm")

    # The run had a list that was made by hand, and a comparison has written another one.
    own = tmp_path / "by_hand.json"
    config["sites"]["elm"] = {"datalist_file": str(own)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert site_of_run(model, "elm") is None
    own.write_text("{}")
    found = site_of_run(model, "elm")
    assert found is not None and found.datalist == own


@pytest.mark.slow
def test_a_hospital_is_scored_with_the_values_that_it_trained_with(
    run_folder: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One has another channel in its files; of another it is known that its pictures are pairs."""
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    weights, spec = initial_model(PROSTATE, SMALL)
    recipe = bundle_recipe(PROSTATE, SMALL, sites={"elm": {"channel": 1}, "alder": {}})
    save_model_file(run / "models" / "global.pt", spec.with_aliases(weights), recipe)
    config = {"overrides": {"stereo": False}, "sites": {"elm": {"channel": 1, "stereo": True}}}
    (run / "config.json").write_text(json.dumps(config))

    sites = {site: hospitals / site for site in ("alder", "elm")}
    evaluation = Evaluation(run / "models" / "global.pt", PROSTATE, sites, tmp_path)
    of_elm = evaluation._line_of("elm", tmp_path, run / "datalists" / "elm.json").arguments
    assert of_elm["channel"] == 1 and of_elm["own_values"] == ["channel"] and of_elm["stereo"]
    of_alder = evaluation._line_of("alder", tmp_path, run / "datalists" / "alder.json").arguments
    assert "channel" not in of_alder and of_alder["stereo"] is False

    (run / "config.json").write_text("{}")
    assert main(["evaluate", str(run), str(hospitals / "elm"), "--out", str(tmp_path / "o")]) == 0
    assert "--channel 1 --own_values '[\"channel\"]'" in capfd.readouterr().out


@pytest.mark.slow
def test_the_model_of_a_fold_is_scored_and_adapted_with_its_folds_cases(
    run_folder: Path, hospitals: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The list of a fold names its folds, and is refused where other ones are asked for."""
    fold = tmp_path / "cells" / "FedCE" / "seed-0-fold-1"
    shutil.copytree(run_folder / "models", fold / "models")
    (fold / "config.json").write_text("{}")
    file = fold / "datalists" / "elm.json"
    parts = site_datalist(hospitals / "elm", file, folds=2, fold=1, seed=3)
    words = [str(fold), str(hospitals / "elm"), "--out"]
    assert main(["evaluate", *words, str(tmp_path / "scores")]) == 0
    printed = capfd.readouterr().out
    assert "elm: the test cases of the run." in printed and "--split_fold 1" in printed
    with (tmp_path / "scores" / "elm" / "val_mean_dice_raw.csv").open(newline="") as table:
        scored = [row["filename"] for row in csv.DictReader(table)]
    assert scored == [case["image"] for case in parts["testing"]]

    assert main(["adapt", *words, str(tmp_path / "adapted"), "--epochs", "1"]) == 0
    assert f"Split into cases (that of the run): {file}" in capfd.readouterr().out


def test_a_data_list_of_nvflare_is_a_hospital_of_its_name(run_folder: Path, tmp_path: Path) -> None:
    """Its images lie beside the folder of the lists, and its run knows it by that name."""
    file = made.nvflare(tmp_path) / "datalist_2D" / "client_MSD.json"
    out = tmp_path / "out"
    evaluation = Evaluation.of(str(run_folder), None, file, out)
    assert evaluation.sites == {"client_MSD": file}
    lists, split = evaluation._cases_of("client_MSD")
    assert split.startswith("all cases")
    parts = site_datalist(file, lists)
    assert len(parts["testing"]) == 8 and not parts["training"]


@pytest.mark.slow
def test_an_evaluation_says_what_is_wrong_with_a_folders_files(
    run_folder: Path, hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "new"
    images.mkdir()
    shutil.copy(hospitals / "alder" / "Case00.nii.gz", images)
    unlabelled = tmp_path / "unlabelled"
    (unlabelled / "images").mkdir(parents=True)
    shutil.copy(hospitals / "alder" / "Case00.nii.gz", unlabelled / "images")
    for folder, words in (
        (images, "Case00.nii.gz has no mask"),
        (unlabelled, "masks/ is missing"),
        (tmp_path / "nothing", "does not exist"),
    ):
        out = tmp_path / "out"
        words_of_command = ["evaluate", str(run_folder), str(folder), "--out", str(out), "--json"]
        assert main(words_of_command) == 2
        assert words in json.loads(capsys.readouterr().out)["error"]
        assert not out.exists()


def test_a_file_that_may_not_be_looked_up_counts_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "a.dcm", tmp_path / "b.dcm"]
    for file in files:
        file.touch()
    whole = state_of_files(files)

    def refuse(self: Path, **given: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", refuse)
    assert state_of_files(files) == state_of_files(files) != whole
    assert state_of_files(files) != state_of_files(files[:1])
