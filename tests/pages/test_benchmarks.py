# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of engines compares like with like: whatever runs a federation, the same training
comes out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("nvflare")

from helpers.checkout import TINY  # noqa: E402

from benchmarks import engines  # noqa: E402
from monai_fairfl.utils.files import read_state_dict


@pytest.mark.slow
@pytest.mark.nvflare
@pytest.mark.simulator
@pytest.mark.extended
@pytest.mark.parametrize(("method", "rounds"), [("FedAvg", 1), ("FedCE", 2)])
def test_nvflares_own_recipes_train_what_ours_train(
    method: str, rounds: int, hospitals: Path, tmp_path: Path
) -> None:
    overrides = engines.OVERRIDES | TINY
    models = {}
    for i, engine in enumerate(engines.ENGINES):
        run = engines.Run(
            engine, method, rounds, str(hospitals), str(tmp_path / str(i)), 1, overrides=overrides
        )
        found = engines.measure(replace(run, warm=rounds - 1), timeout=300)
        assert found.each > 0 and found.rest > 0
        assert (found.all > found.server + 2.5 * found.client > found.server) == engine.endswith(
            "simulator"
        )  # 3 clients
        models[engine] = read_state_dict(run.file("model"))

    ours, theirs = models["ours, in process"], models["NVFlare, simulator"]
    start = torch.load(tmp_path / "2" / "initial.pt", weights_only=True)
    assert all(torch.equal(ours[name], models["ours, simulator"][name]) for name in ours)
    for name in ours:
        # The gradient of a bias before a batch normalisation is round-off; Adam makes it a step.
        if not (name.endswith("conv.bias") and name.replace("conv.bias", "adn.N.bias") in ours):
            torch.testing.assert_close(
                theirs[name], ours[name], rtol=0, atol=1e-4, check_dtype=False
            )
    assert any((ours[name] - start[name]).abs().max() > 1e-3 for name in ours)


def test_the_table_shows_the_better_repeat_its_spread_and_nvflares_ratio() -> None:
    own, other = engines.Found(2.0, 20.0, 400.0, 0.0, 400.0), engines.Found(
        2.5, 19.0, 500.0, 0.0, 500.0
    )
    peer = engines.Found(3.0, 30.0, 600.0, 300.0, 1500.0)

    lines = engines.table(
        {("FedAvg", "ours"): [own, other], ("FedAvg", "NVFlare, simulator"): [peer]}
    ).splitlines()

    assert (
        lines[2] == "| FedAvg | ours | 2.00 | 0.50 | 1.50 | 19.0 | 400 | 1.50 | 0 |  | 400 | 3.75 |"
    )
    assert {line.count("|") for line in lines} == {13}


def test_memory_is_that_of_the_server_and_of_each_process_with_clients() -> None:
    ours = [("python engines.py", 500.0), (f"python -c {engines.BOOT} []", 300.0)]
    assert engines.memory_of(ours) == (500.0, [300.0])
    assert engines.memory_of(ours[:1]) == (500.0, [])
    simulator = [*ours[:1], (f"python -m {engines.SERVER}", 400.0)]
    simulator.append((f"python -m {engines.WORKER}", 200.0))
    assert engines.memory_of(simulator) == (400.0, [200.0])


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_fails_shows_what_it_printed(tmp_path: Path) -> None:
    run = engines.Run(
        "ours, in process", "FedAvg", 1, str(tmp_path / "nowhere"), str(tmp_path / "run")
    )

    with pytest.raises(RuntimeError, match="nowhere"):
        engines.measure(run)
