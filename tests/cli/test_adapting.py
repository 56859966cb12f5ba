# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl adapt``: a finished model is trained further at one hospital, and taken or not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import warm_python
from helpers.command_line import FUNDUS, Commands, wait_until

from monai_fairfl.model_files import read_recipe, save_model_file, state_of_file


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """The model of the run, outside of it."""
    return Path(shutil.copy(trained / "models" / "global.pt", tmp_path / "model.pt"))


@pytest.fixture
def hospital(sites: Path, tmp_path: Path) -> Path:
    """Alder, to be changed."""
    return Path(shutil.copytree(sites / "alder", tmp_path / "alder"))


def datalist(file: Path, training: int, validation: int) -> Path:
    """Write a list of so many cases of two parts, with no case to test."""
    cases = []
    for number in range(4):
        name = f"Case0{number}"
        cases.append({"image": f"{name}.nii.gz", "label": f"{name}_segmentation.nii.gz"})
    judging = cases[training : training + validation]
    parts = {"training": cases[:training], "validation": judging, "testing": []}
    file.write_text(json.dumps(parts))
    return file


def test_the_adapted_model_gains_says_how_it_was_adapted_and_is_the_same_after_ctrl_c(
    model: Path, hospital: Path, tmp_path: Path, cli: Commands
) -> None:
    file = datalist(tmp_path / "list.json", training=1, validation=3)
    words = ["adapt", model, hospital, "--epochs", "2", "--rate", "0.001", "--datalist", file]
    found = cli.json(*words, "--out", tmp_path / "first")
    gain = found["gain"]
    assert gain["n"] == 3 and gain["value"] > gain["stderr"]
    before, after = (found[when]["score"]["mean"]["value"] for when in ("before", "after"))
    assert gain["value"] == pytest.approx(after - before, abs=1e-6)
    assert found["model"] == str(tmp_path / "first" / "model.pt")
    recipe, given = read_recipe(found["model"]), read_recipe(model)
    assert recipe is not None and given is not None
    adapted = {"hospital": "alder", "epochs": found["epochs"], "rate": 0.001}
    assert recipe.training == {**given.training, "adapted": adapted}
    assert recipe.values == given.values
    given_weights, weights = state_of_file(model), state_of_file(found["model"])
    assert given_weights.keys() == weights.keys()
    assert any(not torch.equal(weights[name], given_weights[name]) for name in weights)

    # A used folder is refused.
    first = (tmp_path / "first" / "model.pt").read_bytes()
    assert str(tmp_path / "first") in cli.refusal(*words, "--out", tmp_path / "first")
    assert (tmp_path / "first" / "model.pt").read_bytes() == first

    # After Ctrl-C the same command works again, and the same seed gives the same bytes.
    out, log = tmp_path / "out", tmp_path / "log"
    words += ["--out", out]
    many = ["-m", "monai_fairfl", *map(str, words), "--epochs", "1000"]
    process = warm_python.start(many, tmp_path, stderr=log)
    # What was received is scored, and the training begins.
    wait_until(lambda: any((out / "site" / "state").glob("*.csv")), process, log)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert [path.name for path in out.iterdir()] == ["log.txt"]
    cli.json(*words)
    assert (out / "model.pt").read_bytes() == first


def test_a_model_is_not_taken_without_two_cases_to_judge_it(
    model: Path, hospital: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "out"
    words = ["adapt", model, hospital, "--epochs", "1", "--out", out]
    # A new split of four cases has one.
    found = cli.json(*words)
    assert found["gain"]["n"] == 1 and found["model"] is None
    assert (out / "datalist.json").is_file() and not (out / "model.pt").exists()


def test_a_model_that_this_bundle_did_not_train_is_refused(
    model: Path, hospital: Path, tmp_path: Path, cli: Commands
) -> None:
    bare, mine, out = tmp_path / "bare.pt", tmp_path / "mine.pt", tmp_path / "out"
    weights, recipe = state_of_file(model), read_recipe(model)
    assert recipe is not None
    torch.save(dict(weights), bare)
    save_model_file(mine, weights, replace(recipe, files={**recipe.files, "mine.json": "0" * 64}))
    for given, named in (
        ([model, hospital, "--bundle", FUNDUS], ["model.pt", "Prostate"]),
        ([bare, hospital], ["bare.pt", "recipe"]),
        ([mine, hospital], ["mine.json"]),
        ([model, hospital, "--datalist", "absent.json"], ["absent.json"]),
    ):
        said = cli.refusal("adapt", *given, "--out", out)
        for word in named:
            assert word in said
        assert not list(out.glob("*.pt"))
    for rate in ("0", "-0.01", "nan", "inf", "fast"):
        assert "--rate" in cli.refusal("adapt", model, hospital, f"--rate={rate}")
