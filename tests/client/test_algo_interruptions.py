# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings that fail, diverge or are aborted: an error each, and no trace in the next round."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import measure, same, tiny_client, train
from helpers.known_faults import broken
from ignite.engine import Events
from monai.fl.utils.exchange_object import ExchangeObject

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.trainer_state import state_of
from monai_fairfl.errors import TransportAborted
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.model_spec import read_spec

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def two_steps(
    hospitals: Path, tmp_path_factory: pytest.TempPathFactory, weights: Weights
) -> list[Reply]:
    """As ``undisturbed``, with two steps a round; read only."""
    client = tiny_client(hospitals, tmp_path_factory.mktemp("two_steps"), batch_size=1)
    return [train(client, weights, number) for number in range(2)]


@pytest.mark.slow
def test_a_step_that_fails_is_an_error_and_not_a_shorter_epoch_and_a_retry_trains_all_of_it(
    prostate_client: Maker, weights: Weights, two_steps: list[Reply]
) -> None:
    client = prostate_client(batch_size=1)
    client.initialize({})
    loss = client.trainer.loss_function
    for number, expected in enumerate(two_steps):
        assert expected.num_steps == 2
        client.trainer.loss_function = broken(loss, 2, MemoryError("out of memory"))
        with pytest.raises(MemoryError, match="out of memory"):
            train(client, weights, number)
        client.trainer.loss_function = loss
        retried = train(client, weights, number)
        assert retried.num_steps == 2
        assert same(retried.update, expected.update)


def check_abort_in_round_1(
    client: FairMonaiAlgo,
    weights: Weights,
    expected: Reply,
    abort_at: int,
    **context: float,
) -> None:
    """Abort round 1 after so many steps, and train it again."""
    train(client, weights, 0, **context)
    steps = count(1)

    def abort() -> None:
        if next(steps) == abort_at:
            client.abort()

    with client.trainer.add_event_handler(Events.ITERATION_COMPLETED, abort):
        with pytest.raises(TransportAborted, match="aborted before the end of the data"):
            train(client, weights, 1, **context)
    assert not client.states.has("r", 1)

    again = train(client, weights, 1, **context)
    assert again.num_steps == 2
    assert same(again.update, expected.update)


def test_an_aborted_training_is_an_error_and_leaves_no_trace(
    prostate_client: Maker, weights: Weights, two_steps: list[Reply]
) -> None:
    check_abort_in_round_1(prostate_client(batch_size=1), weights, two_steps[1], abort_at=1)


@pytest.mark.slow
def test_an_aborted_training_of_the_personal_model_is_an_error_and_leaves_no_trace(
    prostate_client: Maker, weights: Weights, two_steps: list[Reply]
) -> None:
    # Of four steps the last two are the personal model's. The update is that of plain training.
    client = prostate_client(batch_size=1)
    check_abort_in_round_1(client, weights, two_steps[1], abort_at=3, ditto_lambda=0.1)


def test_an_aborted_measurement_is_an_error_and_the_next_is_whole(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(split_fractions=[0.25, 0.5, 0.25])
    expected = measure(client, weights, "score")
    evaluator = client.train_workflow.evaluator
    inferer = evaluator.inferer

    def abort_and_infer(*arguments: Any, **settings: Any) -> Any:
        client.abort()
        return inferer(*arguments, **settings)

    evaluator.inferer = abort_and_infer
    with evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: client.abort()):
        with pytest.raises(TransportAborted, match="aborted before the end of the data"):
            measure(client, weights, "score")
    evaluator.inferer = inferer
    assert measure(client, weights, "score") == expected


def test_abort_stops_the_evaluators_too(prostate_client: Maker) -> None:
    client = prostate_client()
    client.initialize({})
    evaluators = client._evaluators()
    assert len(evaluators) == 2
    for evaluator in evaluators:
        evaluator.should_interrupt = False
    client.abort()
    assert all(evaluator.should_interrupt for evaluator in evaluators)


def test_a_training_by_the_engine_between_two_requests_is_forgotten(
    prostate_client: Maker, weights: Weights, undisturbed: list[Reply]
) -> None:
    client = prostate_client()
    train(client, weights, 0)
    client.train(ExchangeObject(weights=client.spec.with_aliases(weights)))
    assert same(train(client, weights, 1).update, undisturbed[1].update)


@pytest.mark.slow
def test_a_training_that_diverged_leaves_no_trace_in_the_next_round(
    prostate_client: Maker, weights: Weights
) -> None:
    untouched = prostate_client(state="untouched")
    train(untouched, weights, 0)
    expected = train(untouched, weights, 2)

    client = prostate_client(state="diverged")
    train(client, weights, 0)
    loss = client.trainer.loss_function
    client.trainer.loss_function = lambda predicted, label: loss(predicted, label) * math.nan
    message = "'alder': the training diverged, .* is not finite.*learning_rate"
    with pytest.raises(ValueError, match=message):
        train(client, weights, 1)
    client.trainer.loss_function = loss

    found = train(client, weights, 2)
    assert same(found.update, expected.update)
    assert same(found.buffers, expected.buffers)


def test_a_constant_buffer_that_is_not_finite_is_no_divergence(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client()
    client.initialize({})
    network = client.trainer.network
    network.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    client.spec = read_spec(network)
    client._initial = state_of(client.trainer)
    mask = network.mask.clone()

    reply = train(client, {**weights, "mask": mask})
    assert torch.equal(reply.buffers["mask"], mask)  # type: ignore[index]

    network.mask.fill_(0.0)
    with pytest.raises(ValueError, match="'mask' is not finite"):
        client._require_finite({"mask": mask}, {"mask": torch.zeros(2, 2)})
    # What is no number is unchanged, too, and finite values beside it may change.
    nan = torch.tensor([math.nan, 1.0])
    client._require_finite({"mask": nan}, {"mask": nan + 1})
