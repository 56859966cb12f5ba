# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""From round to round: the state that a client stores, restarts and repeated rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import after, same, train

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


def learning_rate(optimizer: dict[str, Any]) -> float:
    rate: float = optimizer["param_groups"][0]["lr"]
    return rate


@pytest.mark.slow
def test_a_new_process_continues_to_the_bit_optimizer_and_schedule_included(
    prostate_client: Maker, weights: Weights
) -> None:
    lasting = prostate_client(state="lasting")
    expected = weights
    found = weights
    for number in range(3):
        expected = after(expected, train(lasting, expected, number))
        restarted = prostate_client(state="restarted")
        found = after(found, train(restarted, found, number))
    assert same(found, expected)


@pytest.mark.slow
def test_a_repeated_round_gives_the_same_update(prostate_client: Maker, weights: Weights) -> None:
    client = prostate_client()
    middle = after(weights, train(client, weights, 0))
    once = train(client, middle, 1)
    # The server crashed after this and begins round 1 again.
    train(client, after(middle, once), 2)
    assert same(train(client, middle, 1).update, once.update)
    restarted = prostate_client()
    assert same(train(restarted, middle, 1).update, once.update)


@pytest.mark.slow
def test_local_epochs_and_optimizer_reset_act(prostate_client: Maker, weights: Weights) -> None:
    client = prostate_client()
    first = train(client, weights, 0)
    initial = learning_rate(client._initial["optimizer"])
    assert learning_rate(client.trainer.optimizer.state_dict()) < initial

    twice = train(client, weights, 1, local_epochs=2.0, reset_optimizer=1.0)
    assert twice.num_steps == 2 * first.num_steps
    assert twice.num_samples == first.num_samples


@pytest.mark.slow
def test_a_lost_state_starts_clean(
    prostate_client: Maker, weights: Weights, undisturbed: list[Reply], tmp_path: Path
) -> None:
    train(prostate_client(), weights, 0)
    shutil.rmtree(tmp_path / "alder" / "state")
    assert same(train(prostate_client(), weights, 0).update, undisturbed[0].update)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_run_of_the_same_name_takes_nothing_of_the_old_one(
    restarted: bool, prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    """Also where the site is absent in round 0, in which states begin anew anyway."""
    # Buffers stay at the site, so that they come from its state.
    parameters = {name: weights[name] for name in spec.parameters}

    def round_of(run_id: str, number: int) -> Request:
        return Request(
            "alder", "train", parameters, run="r", round=number, seed=number, run_id=run_id
        )

    expected = prostate_client(state="clean").answer(round_of("new", 1))
    client = prostate_client(state="used")
    client.answer(round_of("old", 0))
    if restarted:
        client = prostate_client(state="used")
    found = client.answer(round_of("new", 1))
    assert same(found.update, expected.update)
    # The next round of the new run goes on.
    assert client.states.before("r", 2) == [1]


@pytest.mark.slow
def test_clients_do_not_disturb_each_other(
    prostate_client: Maker, weights: Weights, undisturbed: list[Reply], tmp_path: Path
) -> None:
    client = prostate_client("alder")
    other = prostate_client("elm")
    other.answer(Request("elm", "train", weights, ("global_score",), run="r", round=0, seed=1))
    assert same(train(client, weights).update, undisturbed[0].update)
    assert {path.name for path in tmp_path.iterdir()} >= {"alder", "elm"}


@pytest.mark.slow
def test_a_run_with_a_long_name_stores_its_state_its_cases_and_its_model(
    prostate_client: Maker, weights: Weights, spec: ModelSpec, tmp_path: Path
) -> None:
    run = "fundus_disc_cup_segmentation-ShapFed-personalised-2.".ljust(128, "x")
    client = prostate_client()
    parameters = {name: weights[name] for name in spec.parameters}
    client.answer(Request("alder", "train", parameters, run=run, round=0))
    closing = Request(
        "alder",
        "measure",
        parameters,
        ("test_score",),
        {"closing": 1.0},
        run=run,
        round=60,
        id=3,
    )
    client.answer(closing)
    stored = {path.name for path in (tmp_path / "alder" / "state").iterdir()}
    assert stored == {
        f"{run}-round-0000.pt",
        f"{run}-test_score-60-3.csv",
        f"{run}-own.pt",
        f"{run}-own.recipe.json",
    }
