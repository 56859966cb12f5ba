# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl infer``: masks and their table, done once, and never mixed with others."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.command_line import Commands, bytes_of
from helpers.reports import rows_of
from helpers.tiny_networks import federation

from monai_fairfl.model_files import ModelRecipe, read_recipe, save_model_file, state_of_file
from monai_fairfl.strategies import Standalone


@pytest.fixture
def scans(sites: Path, tmp_path: Path) -> Path:
    """Three volumes, a to c."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for number, name in enumerate("abc"):
        shutil.copy(sites / "alder" / f"Case0{number}.nii.gz", folder / f"{name}.nii.gz")
    return folder


def recipe_of(run: Path) -> ModelRecipe:
    """How the model of a run was trained."""
    recipe = read_recipe(run / "models" / "global.pt")
    assert recipe is not None
    return recipe


def test_every_case_is_in_the_table_and_the_model_says_how_it_was_trained(
    trained: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    (scans / "c.nii.gz").write_text("no volume")
    out = tmp_path / "masks"
    # One case could not be read.
    found = cli.json("infer", trained, scans, "--out", out, "--no-pictures", code=3)
    assert found["summary"] == {"segmented": 2, "skipped": 1}
    statuses = {row["case"]: row["status"] for row in rows_of(out / "volumes.csv")}
    assert statuses == {"a": "segmented", "b": "segmented", "c": "skipped"}
    assert all(case["millilitres"] > 0 for case in found["cases"][:2])
    assert not list(out.glob("*.png"))
    training = json.loads((out / "model.json").read_text())["recipe"]["training"]
    assert (training["strategy"], training["rounds"], training["seed"]) == ("FedCE-sum", 2, 0)


def test_a_used_folder_is_refused_and_stays_as_it_is(
    trained: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "masks"
    words = ["infer", trained, scans, "--out", out]
    for name in "bc":
        (scans / f"{name}.nii.gz").unlink()
    # A mistake leaves nothing that would refuse the same command.
    (tmp_path / "scans").rename(tmp_path / "later")
    assert str(scans) in cli.refusal(*words)
    (tmp_path / "later").rename(scans)
    cli.run(*words)
    assert len(list(out.glob("*_overlay.png"))) == 1
    before = bytes_of(out, "*")
    for used in (out, scans):
        assert str(used) in cli.refusal("infer", trained, scans, "--out", used)
    assert bytes_of(out, "*") == before


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_paths_that_are_not_utf8_are_segmented(
    trained: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    munich = Path(os.fsdecode(os.fsencode(tmp_path) + b"/M\xfcnchen"))
    shutil.copytree(trained, munich / "run")
    scans.rename(munich / "scans")
    out = munich / "masks"
    cli.run("infer", munich / "run", munich / "scans", "--out", out, "--no-pictures")
    model = json.loads((out / "model.json").read_text())["model"]
    assert model == str(munich / "run" / "models" / "global.pt")


# --- which model is meant


def refused(cli: Commands, model: Path, scans: Path, *words: object) -> None:
    """A model is refused with these words, and nothing is written."""
    out = scans.parent / "never"
    said = cli.refusal("infer", model, scans, "--out", out)
    for word in words:
        assert str(word) in said
    assert not out.exists()


def test_a_folder_stands_for_the_model_of_its_only_federation(
    trained: Path, small: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    both = tmp_path / "both"
    federation(Standalone(), tmp_path / "alone", rounds=1).run()
    shutil.move(tmp_path / "alone" / "run", both / "Standalone")
    # Nobody trained the global model of Standalone.
    refused(cli, both / "Standalone", scans, "Standalone", "hospital")
    shutil.copytree(trained, both / "FedCE")
    assert cli.json("export", both)["recipe"]["training"]["strategy"] == "FedCE-sum"
    shutil.copytree(small / "run", both / "FedAvg")
    refused(cli, both, scans, both / "FedAvg", both / "FedCE")


def test_a_folder_that_has_no_model_is_refused_with_the_reason(
    small: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    refused(cli, tmp_path / "none", scans, tmp_path / "none")
    refused(cli, scans, scans, scans, "no run")
    shutil.rmtree(small / "run" / "models", ignore_errors=True)
    # Killed after its first round, or in its first line.
    ledger = small / "run" / "ledger.jsonl"
    for end in (ledger.read_text().index("\n") + 1, 7):
        ledger.write_text(ledger.read_text()[:end])
        for folder in (small / "run", small):
            refused(cli, folder, scans, small / "run")


def test_a_model_whose_bundle_is_not_known_needs_one(
    trained: Path, scans: Path, tmp_path: Path, cli: Commands
) -> None:
    bare, other = tmp_path / "bare.pt", tmp_path / "other.pt"
    weights = state_of_file(trained / "models" / "global.pt")
    torch.save(dict(weights), bare)
    save_model_file(other, weights, replace(recipe_of(trained), bundle="Spleen"))
    refused(cli, bare, scans, bare, "recipe", "--bundle")
    refused(cli, other, scans, other, "Spleen", "--bundle")
    assert str(bare) in cli.refusal("export", bare)
