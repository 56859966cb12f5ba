# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Aborts and failures: after them ours trains and scores as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.algo_calls import KINDS, Abort, FailOnce, both, evaluate, steps, train
from monai.fl.client import MonaiAlgo

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.errors import TransportAborted

Maker = Callable[..., Any]
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def zeros(weights: Weights) -> Weights:
    """Another model than ``weights``, with other scores."""
    return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}


@both
def test_an_aborted_training_returns_and_reports_the_steps_that_were_done(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    client = built(kind)
    Abort(client, client.trainer)
    train(client, weights)
    assert steps(client) == 1


@both
def test_abort_and_finalize_are_safe_before_and_after(
    built: Maker, weights: Weights, kind: type[MonaiAlgo]
) -> None:
    client = built(kind, initialize=False)
    client.abort()
    client.finalize()

    client.initialize({})
    # Nothing runs: it has no effect on the next training.
    client.abort()
    train(client, weights)
    assert steps(client) == 2

    client.finalize()
    client.finalize()
    client.abort()


@pytest.mark.slow
def test_after_an_abort_ours_trains_a_whole_round_and_the_stock_client_the_old_rest_too(
    built: Maker, weights: Weights
) -> None:
    done = {}
    for kind in KINDS:
        client = built(kind)
        Abort(client, client.trainer)
        train(client, weights)
        train(client, weights)
        done[kind] = steps(client)
    assert done == {MonaiAlgo: 3, FairMonaiAlgo: 2}

    # Ours counts whole epochs: the aborted one does not count.
    train(client, weights)
    statistics = client.get_weights().statistics
    assert statistics["current_epoch"] == 2
    assert statistics["current_iteration"] == 4


@pytest.mark.slow
def test_after_a_failure_ours_trains_a_whole_round_and_the_stock_client_nothing(
    built: Maker, weights: Weights
) -> None:
    done = {}
    for kind in KINDS:
        client = built(kind)
        client.trainer.loss_function = FailOnce(client.trainer.loss_function)
        with pytest.raises(MemoryError):
            train(client, weights)
        train(client, weights)
        done[kind] = steps(client)
    assert done == {MonaiAlgo: 0, FairMonaiAlgo: 2}


@pytest.mark.slow
def test_after_a_failed_evaluation_ours_scores_again_and_the_stock_client_repeats_the_old_scores(
    built: Maker, weights: Weights, zeros: Weights
) -> None:
    right = {}
    for kind in KINDS:
        of_zeros = evaluate(built(kind), zeros)
        client = built(kind)
        assert evaluate(client, weights) != of_zeros
        client.evaluator.inferer = FailOnce(client.evaluator.inferer)
        with pytest.raises(MemoryError):
            evaluate(client, zeros)
        right[kind] = evaluate(client, zeros) == of_zeros
    assert right == {MonaiAlgo: False, FairMonaiAlgo: True}


@pytest.mark.slow
def test_an_aborted_evaluation_is_an_error_and_never_the_scores_of_the_model_before(
    built: Maker, weights: Weights, zeros: Weights
) -> None:
    two_test_cases = {"split_fractions": [0.25, 0.25, 0.5]}
    stock = built(MonaiAlgo, two_test_cases)
    ours = built(FairMonaiAlgo, two_test_cases)
    expected = evaluate(stock, zeros)
    for client in (stock, ours):
        evaluate(client, weights)
        Abort(client, client.evaluator)

    # An abort does not reach the stock client's evaluator.
    assert evaluate(stock, zeros) == expected
    with pytest.raises(TransportAborted, match="aborted before the end of the data"):
        evaluate(ours, zeros)
    assert evaluate(ours, zeros) == expected
