# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of engines compares like with like: whatever runs a federation, the same training
comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engines
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
from engines_watch import Found
from helpers.checkout import TINY

from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.saved_files import read_state_dict


def trained(
    compared: Sequence[str], method: str, rounds: int, hospitals: Path, folder: Path
) -> list[Weights]:
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
        models.append(read_state_dict(run.file("model")))
    return models


def assert_trained_alike(ours: Weights, over_engine: Weights, theirs: Weights, file: Path) -> None:
    """Ours agree to the last bit, the engine's own nearly, and something was learnt."""
    start = torch.load(file, weights_only=True)
    assert all(torch.equal(ours[name], over_engine[name]) for name in ours)
    for name in ours:
        # The gradient of a bias before a batch normalisation is round-off; Adam makes it a step.
        if not (name.endswith("conv.bias") and name.replace("conv.bias", "adn.N.bias") in ours):
            torch.testing.assert_close(
                theirs[name], ours[name], rtol=0, atol=1e-4, check_dtype=False
            )
    assert any((ours[name] - start[name]).abs().max() > 1e-3 for name in ours)


@pytest.mark.slow
@pytest.mark.nvflare
@pytest.mark.simulator
@pytest.mark.extended
@pytest.mark.parametrize(("method", "rounds"), [("FedAvg", 1), ("FedCE", 2)])
def test_nvflares_own_recipes_train_what_ours_train(
    method: str, rounds: int, hospitals: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nvflare")
    compared = (IN_PROCESS, OURS_OVER_NVFLARE, NVFLARES_OWN)
    models = trained(compared, method, rounds, hospitals, tmp_path)
    assert_trained_alike(*models, tmp_path / "2" / INITIAL)


@pytest.mark.parametrize(("words", "runs"), [(engines_watch.LOST_CLIENT, 2), ("NaN", 1)])
def test_a_run_that_lost_a_client_begins_again_once(
    words: str, runs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = []

    def fails(run: engines_runs.Run, timeout: float) -> None:
        Path(run.folder).mkdir()
        begun.append(run)
        raise RuntimeError(f"not done: {words}")

    monkeypatch.setattr(engines_watch, "_measure", fails)
    run = engines_runs.Run(OURS_OVER_NVFLARE, "FedAvg", 1, "", str(tmp_path / "run"), 1)
    with pytest.raises(RuntimeError, match=words):
        engines_watch.measure(run)
    assert len(begun) == runs


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.flower
def test_flowers_own_strategy_trains_what_ours_trains(hospitals: Path, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    compared = (IN_PROCESS, OURS_OVER_FLOWER, FLOWERS_OWN)
    models = trained(compared, "FedAvg", 2, hospitals, tmp_path)
    assert_trained_alike(*models, tmp_path / "2" / INITIAL)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.flower
def test_a_client_of_flowers_own_goes_on_in_another_process(
    hospitals: Path, tmp_path: Path
) -> None:
    """Any process of Ray's may answer for a client: its optimizer is in the context."""
    pytest.importorskip("flwr")
    from engines_peer_algo import algo_of
    from engines_peer_flower import train
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from helpers.flower_grid import identify

    overrides = engines_runs.OVERRIDES | TINY
    run = engines_runs.Run(
        FLOWERS_OWN, "FedAvg", 2, str(hospitals), str(tmp_path), 1, overrides=overrides
    )
    engines_runs.write_initial_model(run)
    initial = ArrayRecord(torch.load(tmp_path / INITIAL, weights_only=True))
    settings = str(run.write_settings())
    identify(node=1)

    def second_round(another_process: bool) -> Weights:
        algo_of.cache_clear()
        context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
        arrays = initial
        for number in (1, 2):
            if another_process:
                algo_of.cache_clear()
            config = ConfigRecord({"settings": settings, "server-round": number})
            content = RecordDict({"arrays": arrays, "config": config})
            arrays = train(Message(content, 1, "train"), context).content["arrays"]
        return dict(arrays.to_torch_state_dict())

    expected, found = second_round(False), second_round(True)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_tables_show_the_better_repeat_its_spread_and_the_engines_ratio() -> None:
    own = Found(2.0, 20.0, 400.0, 0.0, 400.0)
    other = Found(2.5, 19.0, 500.0, 0.0, 500.0)
    peer = Found(3.0, 30.4, 600.0, 300.0, 1500.0)

    founds = {("FedAvg", IN_PROCESS): [own, other], ("FedAvg", NVFLARES_OWN): [peer]}
    lines = engines.tables(founds).splitlines()

    assert lines[2] == "| FedAvg | ours, in process | 2.00 | 0.50 | 19.0 | 400 | 0 | 400 |"
    assert lines[3] == "| FedAvg | NVFlare's own | 3.00 | 0.00 | 30.4 | 600 | 300 | 1500 |"
    assert lines[-1] == (
        "| FedAvg | NVFlare's own / ours, in process | 1.50 | 1.60 | 1.50 |  | 3.75 |"
    )
    assert {line.count("|") for line in lines} == {9, 0, 8}


def test_memory_is_that_of_the_server_and_of_each_process_with_clients() -> None:
    ours = [("python engines_runs.py", 500.0), (f"python -c {engines_watch.BOOT} []", 300.0)]
    assert engines_watch.memory_of(ours) == (500.0, [300.0], 0)
    assert engines_watch.memory_of(ours[:1]) == (500.0, [], 0)
    simulator = [*ours[:1], (f"python -m {engines_watch.SERVER}", 400.0)]
    simulator.append((f"python -m {engines_watch.WORKERS[0]}", 200.0))
    assert engines_watch.memory_of(simulator) == (400.0, [200.0], 0)
    ray = [*ours[:1], ("lib/ray/core/gcs_server", 50.0), ("ray::ClientAppActor.run", 250.0)]
    ray.append(("ray::DashboardAgent", 60.0))
    assert engines_watch.memory_of(ray) == (500.0, [250.0], 110.0)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_fails_shows_what_it_printed(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    run = engines_runs.Run(IN_PROCESS, "FedAvg", 1, missing, str(tmp_path / "run"))

    with pytest.raises(RuntimeError, match="nowhere"):
        engines_watch.measure(run)
