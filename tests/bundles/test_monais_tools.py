# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""MONAI's own FL client, data statistics and export work with both bundles."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from helpers.shipped_bundles import TRAIN, Bundle
from monai.bundle import ConfigParser, ckpt_export
from monai.fl.client import MonaiAlgo, MonaiAlgoStats
from monai.fl.utils.constants import FlStatistics
from monai.fl.utils.exchange_object import ExchangeObject


def client(bundle: Bundle, site: Path, out: Path) -> MonaiAlgo:
    given = {
        "dataset_dir": str(site),
        **bundle.small,
        "ckpt_dir": str(out),
        "output_dir": str(out / "eval"),
        "device": "cpu",
    }
    algo = MonaiAlgo(
        str(bundle.root), local_epochs=1, train_kwargs=dict(given), eval_kwargs=dict(given)
    )
    with warnings.catch_warnings():
        # MONAI reminds that a bundle is executable.
        warnings.simplefilter("ignore")
        algo.initialize()
    return algo


@pytest.mark.slow
def test_monais_client_trains_sends_and_evaluates(
    bundle: Bundle, site: Path, tmp_path: Path
) -> None:
    algo = client(bundle, site, tmp_path)
    assert algo.trainer is not None
    received = {}
    for name, value in algo.trainer.network.state_dict().items():
        received[name] = value.clone()

    algo.train(ExchangeObject(weights=dict(received)))
    update = algo.get_weights()
    assert update.weights.keys() == received.keys()
    assert any(bool(change.any()) for change in update.weights.values())
    assert update.statistics[FlStatistics.NUM_EXECUTED_ITERATIONS] >= 1

    evaluated = algo.evaluate(ExchangeObject(weights=dict(received)))
    assert set(evaluated.metrics) == bundle.metrics
    algo.finalize()


@pytest.mark.slow
def test_data_statistics_of_a_site_come_from_the_bundle(
    bundle: Bundle, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The analyser writes train_data_stats.yaml to the working directory.
    monkeypatch.chdir(tmp_path)
    stats = MonaiAlgoStats(str(bundle.root), workflow=bundle.workflow(TRAIN, site, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats.initialize()

    channels = 1 if bundle.images == "." else 3
    asked = {
        FlStatistics.HIST_BINS: [10] * channels,
        FlStatistics.HIST_RANGE: [[0, 1000]] * channels,
    }
    result = stats.get_data_stats(asked).statistics
    counts = {}
    for part in ("train", "eval", FlStatistics.TOTAL_DATA):
        counts[part] = result[part][FlStatistics.DATA_COUNT]
    assert counts == {"train": 2, "eval": 1, FlStatistics.TOTAL_DATA: 3}
    assert result["train"][FlStatistics.FAIL_COUNT] == 0


@pytest.mark.slow
def test_monais_own_export_gives_the_networks_numbers(
    bundle: Bundle, trained: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**bundle.config("inference"), "ckpt_path": str(trained)}))
    files = (str(trained), str(bundle.configs / "metadata.json"), str(small))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ckpt_export("network_def", str(tmp_path / "model.ts"), *files, "model")

    network = ConfigParser(json.loads(small.read_text())).get_parsed_content("network_def")
    network.load_state_dict(torch.load(trained, weights_only=True)["model"])
    exported = torch.jit.load(str(tmp_path / "model.ts"))
    channels = bundle.config("metadata")["network_data_format"]["inputs"]["image"]["num_channels"]
    image = torch.rand(2, channels, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(exported.eval()(image), network.eval()(image))
