# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl bundle adopt``: a bundle of others federates, and commands take its models."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.command_line import Commands
from helpers.foreign_bundles import write_foreign_bundle, write_nested_balls
from helpers.made_once import MadeOnce
from helpers.page_blocks import blocks_of_page

from monai_fairfl import read_ledger
from monai_fairfl.cli import main

SITES = ["A", "B"]
RUN = "runs/first/FedCE"
# Images of another scale score otherwise: the adopted bundle declares no values.
SCALE = {"preprocessing#2#minv": 5.0, "preprocessing#2#maxv": 9.0}


@pytest.fixture(scope="session")
def adopted(made_once: MadeOnce) -> Path:
    """A folder in which the page's commands ran on ``my_bundle`` and ``hospitals``; read only."""

    def make(root: Path) -> None:
        write_foreign_bundle(root / "my_bundle", "segresnet_ds", 3)
        write_nested_balls(root / "hospitals", SITES, 16, 3, longer=8)
        [block] = [block for block in blocks_of_page("docs/adopt.md") if block.runs]
        # CGSV needs nothing of a site that FedCE does not need.
        text = block.text.replace("FedAvg FedCE CGSV", "FedCE")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            for command in text.replace("\\\n", " ").strip().splitlines():
                words = shlex.split(command)[1:]
                if words[0] == "train":
                    # Worker processes take longer to start than to train these.
                    words += ["--jobs", "1", "--rounds", "1", "--overrides", json.dumps(SCALE)]
                assert main(words) == 0

    return made_once("adopted", make)


def test_the_pages_commands_train_every_kind_of_method(adopted: Path) -> None:
    first = adopted / "runs" / "first"
    for name in json.loads((first / "report.json").read_text())["strategies"]:
        end = read_ledger(first / name / "ledger.jsonl")[-1]
        assert end["kind"] == "end" and not end["missing"], name
        for site in SITES:
            for measured in ("score", "test_score"):
                assert 0 <= end["scores"][site]["own"][measured]["mean"]["value"] <= 1
    # Each site split all its cases, and stored its images in a folder of its own.
    for site in SITES:
        parts = json.loads((first / "datalists" / f"{site}.json").read_text())
        assert [len(parts[part]) for part in ("training", "validation", "testing")] == [3, 2, 1]
        assert list((first / "FedCE" / "sites" / site / "cache").glob("*.pt"))
    assert not (adopted / "my_bundle" / "cache").exists()


def test_adapt_judges_by_the_validation_cases(adopted: Path, tmp_path: Path, cli: Commands) -> None:
    of_bundle = ["--bundle", adopted / "my_bundle"]
    # A model that left its run: the hospital's files are split anew, by the bundle's own list.
    model = shutil.copy(adopted / RUN / "models" / "global.pt", tmp_path)
    words = ["adapt", model, adopted / "hospitals" / "A", "--epochs", "1", *of_bundle]
    found = cli.json(*words, "--out", tmp_path / "adapted")
    assert found["gain"]["n"] == 2
    assert (found["model"] is not None) == (tmp_path / "adapted" / "model.pt").exists()


def test_infer_needs_an_inference_that_takes_the_model(
    adopted: Path, tmp_path: Path, cli: Commands
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(adopted / "my_bundle", bundle)
    words = ["infer", adopted / RUN, adopted / "hospitals" / "A" / "volumes"]
    words += ["--bundle", bundle, "--out", tmp_path / "masks"]
    assert "monai.bundle run" in cli.refusal("evaluate", *words[1:])
    words.append("--no-pictures")
    assert "inference.json" in cli.refusal(*words)
    # Of others: it shows which model it was given.
    copied = "$shutil.copy(@ckpt_path, @output_dir)"
    inference = {"imports": ["$import shutil"], "bundle_root": ".", "run": [copied]}
    inference |= dict.fromkeys(["ckpt_path", "dataset_dir", "output_dir"], "none")
    file = bundle / "configs" / "inference.json"
    # Without the key it would segment with the bundle's own weights.
    file.write_text(json.dumps(inference).replace("ckpt_path", "weights"))
    assert "ckpt_path" in cli.refusal(*words)
    file.write_text(json.dumps(inference))
    assert cli.json(*words)["files"] == ["global.pt"]
    model = adopted / RUN / "models" / "global.pt"
    assert (tmp_path / "masks" / "global.pt").read_bytes() == model.read_bytes()
