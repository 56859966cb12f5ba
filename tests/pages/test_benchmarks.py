# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks compare like with like: with any engine, the same training comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engines_runs
import engines_watch
import pytest
import torch
from engines_runs import (
    FLOWERS_OWN,
    IN_PROCESS,
    INITIAL,
    NVFLARES_OWN,
    OURS_OVER_FLOWER,
    OURS_OVER_NVFLARE,
)
from helpers.checkout import TINY

from monai_fairfl.model_files import state_of_file


def trained(
    compared: Sequence[str], method: str, rounds: int, hospitals: Path, folder: Path
) -> list[dict[str, torch.Tensor]]:
    """The models that engines train, each in ``folder/NUMBER``, after a look at what was
    measured.
    """
    overrides = engines_runs.OVERRIDES | TINY
    models = []
    for i, engine in enumerate(compared):
        run = engines_runs.Run(
            engine, method, rounds, str(hospitals), str(folder / str(i)), 1, overrides=overrides
        )
        found = engines_watch.measure(replace(run, warm=rounds - 1), timeout=300)
        assert found.each > 0 and found.rest > 0
        three_processes = found.all > found.server + 2.5 * found.client > found.server
        assert three_processes == (engine != IN_PROCESS)
        models.append(state_of_file(run.file("model")))
    return models


def assert_trained_alike(models: Sequence[dict[str, torch.Tensor]], file: Path) -> None:
    """Ours agree to the last bit, the engine's own nearly, and something was learnt."""
    start = torch.load(file, weights_only=True)
    ours, over_engine, theirs = models
    for name in ours:
        assert torch.equal(ours[name], over_engine[name])
        # The gradient of a bias before a batch normalisation is round-off; Adam makes it a step.
        if not (name.endswith("conv.bias") and name.replace("conv.bias", "adn.N.bias") in ours):
            torch.testing.assert_close(
                theirs[name], ours[name], rtol=0, atol=1e-4, check_dtype=False
            )
    assert any((ours[name] - start[name]).abs().max() > 1e-3 for name in ours)


@pytest.mark.engines
@pytest.mark.parametrize(("method", "rounds"), [("FedAvg", 1), ("FedCE", 2)])
def test_nvflares_own_recipes_train_what_ours_train(
    method: str, rounds: int, hospitals: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nvflare")
    compared = (IN_PROCESS, OURS_OVER_NVFLARE, NVFLARES_OWN)
    models = trained(compared, method, rounds, hospitals, tmp_path)
    assert_trained_alike(models, tmp_path / "2" / INITIAL)


@pytest.mark.engines
def test_flowers_own_strategy_trains_what_ours_trains(hospitals: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    compared = (IN_PROCESS, OURS_OVER_FLOWER, FLOWERS_OWN)
    models = trained(compared, "FedAvg", 2, hospitals, tmp_path)
    assert_trained_alike(models, tmp_path / "2" / INITIAL)
