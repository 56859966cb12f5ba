# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl value``: what each hospital was worth to a run that recorded its updates."""

from __future__ import annotations

import shutil
from pathlib import Path

import monai.bundle  # noqa: F401  # its logger writes to the standard output of its first import
import pytest
from helpers.command_line import FEDCE, TINY, Commands, bytes_of


def test_recorded_updates_give_both_values_with_intervals_and_train_nothing(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    run = tmp_path / "run"
    words = ["train", sites, "--out", run, *FEDCE, *TINY, "--rounds", "1", "--record-updates"]
    words += ["--local-epochs", "1", "--report", "False", "--evaluate", "[]"]
    code, _, said = cli.shown(*words)
    assert code == 0 and "GB" in said
    # One of a comparison over seeds has none either.
    shutil.rmtree(run / "checkpoints")
    before = bytes_of(run, "ledger.jsonl", "models/*.pt")
    said = cli.refusal(*words, "--strategy", "FedCE('cos')")
    assert "mode" in said
    answer = cli.json("value", run)
    assert Path(answer["report"]).exists()
    found = answer["values"]["FedCE-sum"]
    [shapley] = [one for one in found if one["method"] == "exact"]
    assert len(found) == 2
    assert bytes_of(run, "ledger.jsonl", "models/*.pt") == before
    values = {site: found["value"] for site, found in shapley["values"].items()}
    assert sum(values.values()) == pytest.approx(shapley["total"])
    for site, value in values.items():
        low, high = shapley["intervals"][site]
        assert low <= value <= high


def test_a_run_without_updates_says_what_training_takes_and_trains_nothing(
    trained: Path, cli: Commands
) -> None:
    before = bytes_of(trained, "*")
    said = cli.refusal("value", trained)
    assert "3 federations" in said and "--retrain" in said
    assert bytes_of(trained, "*") == before
