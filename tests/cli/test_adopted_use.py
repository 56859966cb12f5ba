# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a user does after ``adopt`` and ``train``, with files that lie as only the bundle knows."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls

from monai_fairfl.bundle.adaptation import recipe_of_training
from monai_fairfl.cli import main
from monai_fairfl.model_files.recipe import read_recipe, save_model_file, state_of_file
from monai_fairfl.run_folder.ledger import read_ledger

pytestmark = [pytest.mark.slow, pytest.mark.long]

SITES = ["A", "B", "C"]
CASES = 6

INFERENCE = {
    "bundle_root": ".",
    "ckpt_path": "$@bundle_root + '/models/model.pt'",
    "dataset_dir": "/workspace/data",
    "output_dir": "$@bundle_root + '/eval'",
    "device": "$torch.device('cpu')",
    "images": "$sorted(glob.glob(@dataset_dir + '/*.nii.gz'))",
    "dataset": {
        "_target_": "Dataset",
        "data": "$[{'image': i} for i in @images]",
        "transform": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "LoadImaged", "keys": "image"},
                {"_target_": "EnsureChannelFirstd", "keys": "image"},
                {"_target_": "ScaleIntensityd", "keys": "image"},
            ],
        },
    },
    "evaluator": {
        "_target_": "SupervisedEvaluator",
        "device": "@device",
        "val_data_loader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1},
        "network": "$@network_def.to(@device)",
        "inferer": {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 16]},
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
                {"_target_": "SaveImaged", "keys": "pred", "output_dir": "@output_dir"},
            ],
        },
        "val_handlers": [
            {
                "_target_": "CheckpointLoader",
                "load_path": "@ckpt_path",
                "load_dict": {"model": "$@evaluator#network"},
            }
        ],
    },
    "run": ["$@evaluator.run()"],
}


@pytest.fixture(scope="module")
def adopted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``bundle``, ``data`` and ``run``; read only."""
    root = tmp_path_factory.mktemp("adopted")
    write_foreign_bundle(root / "bundle", "segresnet", 3)
    write_nested_balls(root / "data", SITES, 16, 3, CASES, longer=8)
    assert main(["adopt", str(root / "bundle"), "--data", str(root / "data")]) == 0
    words = ["train", str(root / "data"), "--bundle", str(root / "bundle"), "--jobs", "1"]
    words += ["--strategies", "FedAvg", "--rounds", "2", "--local-epochs", "1"]
    assert main([*words, "--out", str(root / "run")]) == 0
    return root


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run a command to its end, and return what it says to programs."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_evaluate_gives_the_scores_of_the_runs_end(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(adopted / "run"), str(adopted / "data"), "--bundle"]
    found = answer(capsys, *words, str(adopted / "bundle"), "--out", str(tmp_path / "scores"))
    end = read_ledger(adopted / "run" / "ledger.jsonl")[-1]
    assert list(found["sites"]) == SITES
    for site in SITES:
        of_run = end["scores"][site]["own"]["test_score"]
        cases = found["sites"][site]["cases"].values()
        assert found["sites"][site]["split"] == "the test cases of the run"
        for name, of_table in {"mean": "val_mean_dice", "ball 1": "ball 1"}.items():
            mean = np.mean([scores[of_table] for scores in cases])
            assert mean == pytest.approx(of_run[name]["value"], abs=1e-5)


def test_overrides_of_the_training_are_those_of_the_scores(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The adopted bundle declares no values, and images of another scale score otherwise."""
    of_bundle = ["--bundle", str(adopted / "bundle")]
    scale = json.dumps({"preprocessing#2#minv": 5.0, "preprocessing#2#maxv": 9.0})
    words = ["train", str(adopted / "data"), *of_bundle, "--jobs", "1", "--rounds", "3"]
    words += ["--local-epochs", "2", "--overrides", scale, "--out", str(tmp_path / "run")]
    assert main(words) == 0
    end = read_ledger(tmp_path / "run" / "ledger.jsonl")[-1]
    words = ["evaluate", str(tmp_path / "run"), str(adopted / "data"), *of_bundle]
    found = answer(capsys, *words, "--out", str(tmp_path / "scores"))
    for site in SITES:
        of_run = end["scores"][site]["own"]["test_score"]["mean"]["value"]
        cases = found["sites"][site]["cases"].values()
        mean = np.mean([scores["val_mean_dice"] for scores in cases])
        assert mean == pytest.approx(of_run, abs=1e-5)

    # A hospital's own model in the run names no overrides of its own.
    own = tmp_path / "run" / "sites" / "A" / "state" / "FedAvg-own.pt"
    bare = dataclasses.replace(read_recipe(tmp_path / "run" / "models" / "global.pt"), training={})
    save_model_file(own, state_of_file(tmp_path / "run" / "models" / "global.pt"), bare)
    recipe = recipe_of_training(own)
    assert recipe is not None and recipe.training["overrides"] == json.loads(scale)


def test_a_model_that_left_its_run_is_evaluated_on_all_cases(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copy(adopted / "run" / "models" / "global.pt", tmp_path)
    words = ["evaluate", str(model), str(adopted / "data" / "B"), "--bundle"]
    found = answer(capsys, *words, str(adopted / "bundle"), "--out", str(tmp_path / "scores"))
    assert len(found["sites"]["B"]["cases"]) == CASES
    assert found["sites"]["B"]["split"].startswith("all cases")


def test_evaluate_and_adapt_refuse_files_that_are_at_fault(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hospital = tmp_path / "A"
    shutil.copytree(adopted / "data" / "A", hospital)
    lists = json.loads((adopted / "run" / "datalists" / "A.json").read_text())
    faulty = hospital / lists["testing"][0]["image"]
    image = nib.load(faulty)
    voxels = np.asanyarray(image.dataobj).astype(np.float32)
    voxels[0, 0, 0] = np.nan
    nib.save(nib.Nifti1Image(voxels, image.affine), faulty)
    for command in ("evaluate", "adapt"):
        words = [command, str(adopted / "run"), str(hospital), "--out", str(tmp_path / command)]
        capsys.readouterr()
        assert main([*words, "--bundle", str(adopted / "bundle"), "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert f"{faulty} has values that are not finite" in error


def test_adapt_judges_by_the_validation_cases(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapt", str(adopted / "run"), str(adopted / "data" / "A"), "--epochs", "1"]
    words += ["--bundle", str(adopted / "bundle"), "--out", str(tmp_path / "adapted")]
    found = answer(capsys, *words)
    assert found["gain"]["n"] == 2
    assert (found["model"] is not None) == (tmp_path / "adapted" / "model.pt").exists()


def test_a_comparison_in_folds_tests_every_case_once(adopted: Path, tmp_path: Path) -> None:
    words = ["compare", str(adopted / "data"), "--bundle", str(adopted / "bundle"), "--folds", "2"]
    words += ["--strategies", "FedAvg", "Standalone", "--rounds", "1", "--local-epochs", "1"]
    assert main([*words, "--jobs", "1", "--out", str(tmp_path / "compared")]) == 0
    with (tmp_path / "compared" / "cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    tested = []
    for row in rows:
        if row["strategy"] == "FedAvg" and row["metric"] == "test_score:dice":
            tested.append((row["site"], row["case"]))
    expected = []
    for site in SITES:
        expected += [(site, f"case{case}.nii.gz") for case in range(CASES)]
    assert sorted(tested) == expected


def test_infer_needs_an_inference_that_takes_the_model(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(adopted / "bundle", bundle)
    images = adopted / "data" / "A" / "volumes"
    words = ["infer", str(adopted / "run"), str(images), "--bundle", str(bundle)]
    words += ["--no-pictures", "--out", str(tmp_path / "masks")]
    assert main(words) == 2
    assert "inference.json does not exist" in capsys.readouterr().err

    network = json.loads((bundle / "configs" / "train.json").read_text())["network_def"]
    inference = {"imports": ["$import glob"], **INFERENCE, "network_def": network}
    file = bundle / "configs" / "inference.json"
    # Without the key it would segment with the bundle's own weights.
    other = {name: value for name, value in inference.items() if name != "ckpt_path"}
    file.write_text(json.dumps(other))
    assert main(words) == 2
    assert "has no ckpt_path" in capsys.readouterr().err

    file.write_text(json.dumps(inference))
    found = answer(capsys, *words)
    assert len(found["files"]) == CASES
    mask = nib.load(tmp_path / "masks" / found["files"][0]).get_fdata()
    assert mask.shape == (24, 16, 16) and set(np.unique(mask)) <= {0, 1, 2, 3}


@pytest.mark.nvflare
@pytest.mark.simulator
@pytest.mark.extended
def test_the_simulator_trains_the_same_model(
    adopted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvflare")
    words = ["simulate-flare", "--bundle", str(adopted / "bundle"), "--strategy", "FedAvg"]
    words += ["--sites-root", str(adopted / "data"), "--workspace", str(tmp_path / "flare")]
    found = answer(capsys, *words, "--num-rounds", "2", "--local-epochs", "1")
    ends = []
    for run in (adopted / "run", Path(found["run"])):
        ends.append(read_ledger(run / "ledger.jsonl")[-1])
    assert ends[0]["scores"] == ends[1]["scores"]
    assert not ends[1]["missing"]
