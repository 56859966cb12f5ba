# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client measures with the bundle's evaluators, and what measuring leaves alone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.client_requests import PROSTATE, after, measure, same, train
from helpers.known_faults import broken

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.measurements.leave_one_out import leave_one_out_model
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import value_of

# One case trains, and two of the four validate.
TWO_VALIDATION_CASES = [0.25, 0.5, 0.25]

Maker = Callable[..., FairMonaiAlgo]
Weights = dict[str, torch.Tensor]


def states_of_random_numbers() -> tuple[Any, list[int], list[int]]:
    of_numpy = np.random.get_state()[1]  # type: ignore[index] # noqa: NPY002
    return random.getstate(), list(of_numpy), torch.random.get_rng_state().tolist()  # type: ignore[arg-type]


def evaluator_state(evaluator: Any) -> tuple[float, dict[str, Any], int]:
    state = evaluator.state
    return state.best_metric, dict(state.metrics), state.epoch


@pytest.mark.slow
def test_a_measured_and_an_unmeasured_training_are_bit_equal(
    prostate_client: Maker, weights: Weights, undisturbed: list[Reply]
) -> None:
    names = ("global_score", "train_loss", "local_score", "global_loss", "local_loss", "sharpness")
    measured = train(prostate_client(), weights, 0, names)
    assert set(measured.measurements) == set(names)
    assert same(measured.update, undisturbed[0].update)
    assert same(measured.buffers, undisturbed[0].buffers)


@pytest.mark.slow
def test_probes_leave_best_checkpoint_metrics_random_state_and_weights_alone(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client()
    train(client, weights)
    trained = {name: tensor.clone() for name, tensor in client.trainer.network.state_dict().items()}
    evaluator = client.train_workflow.evaluator
    state = evaluator_state(evaluator)
    random_states = states_of_random_numbers()

    reply = client.answer(Request("alder", "measure", weights, ("score",), run="r", round=9))
    assert 0 <= value_of(reply.measurements["score"]) <= 1
    assert reply.update is None
    assert evaluator_state(evaluator) == state
    assert states_of_random_numbers() == random_states
    assert same(client.trainer.network.state_dict(), trained)
    assert not list((tmp_path / "alder" / "models").glob("*"))


def test_the_score_is_that_of_the_bundles_own_evaluator(
    prostate_client: Maker, weights: Weights, spec: ModelSpec
) -> None:
    client = prostate_client()
    probed = value_of(measure(client, weights, "score")["score"])
    evaluator = client.train_workflow.evaluator
    client.trainer.network.load_state_dict(spec.with_aliases(weights))
    evaluator.run()
    assert probed == pytest.approx(evaluator.state.metrics["val_mean_dice"], abs=1e-6)


def test_test_score_is_measured_on_the_testing_list_and_its_cases_stay_at_the_site(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    client = prostate_client()
    names = ("score", "test_score")
    request = Request("alder", "measure", weights, names, run="r", round=9, id=3)
    client.answer(request)
    # Only the last measurement of a run is stored.
    assert not list((tmp_path / "alder" / "state").glob("*.csv"))

    reply = client.answer(replace(request, context={"closing": 1.0}))
    assert set(reply.measurements) == set(names)
    file = tmp_path / "alder" / "state" / "r-test_score-9-3.csv"
    header, row, *_ = file.read_text().splitlines()
    assert header == "case,dice"
    case, dice = row.split(",")
    assert case in (tmp_path / "alder.json").read_text()
    assert float(dice) == pytest.approx(value_of(reply.measurements["test_score"]), abs=1e-5)


def test_a_bundle_without_evaluate_json_has_no_test_score(
    prostate_client: Maker, weights: Weights, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    leave_out = shutil.ignore_patterns("evaluate.json", "runs")
    shutil.copytree(PROSTATE, bundle, ignore=leave_out)
    client = prostate_client(bundle=bundle)
    assert set(measure(client, weights, "score", "test_score")) == {"score"}


@pytest.mark.slow
def test_a_case_that_cannot_be_scored_is_an_error_and_not_a_score_of_the_others(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(split_fractions=TWO_VALIDATION_CASES)
    expected = measure(client, weights, "score")["score"]["mean"]
    assert expected.n == 2
    evaluator = client.train_workflow.evaluator
    inferer = evaluator.inferer
    evaluator.inferer = broken(inferer, 2, OSError("Case07.nii.gz is truncated"))
    with pytest.raises(OSError, match="Case07"):
        measure(client, weights, "score")
    evaluator.inferer = inferer
    assert measure(client, weights, "score")["score"]["mean"] == expected


def cases_of_score(client: FairMonaiAlgo, weights: Weights) -> list[str]:
    """The cases of the file that a site stores at the end of a run."""
    measure(client, weights, "score", number=0, closing=1.0)
    _, *rows = (client.states.folder / "r-score-0-0.csv").read_text().splitlines()
    return [row.split(",")[0] for row in rows]


@pytest.mark.slow
def test_scores_of_shuffled_cases_are_not_given_the_names_of_others(
    prostate_client: Maker, weights: Weights
) -> None:
    settings: dict[str, Any] = {"split_fractions": TWO_VALIDATION_CASES}
    in_order = prostate_client(state="ordered", **settings)
    cases = cases_of_score(in_order, weights)
    assert all(case.startswith("Case") for case in cases)

    settings["validate#dataloader#shuffle"] = True
    shuffled = prostate_client(state="shuffled", **settings)
    assert cases_of_score(shuffled, weights) == ["0", "1"]


# ---- the leave-one-out error


def mixture(one: Weights, two: Weights, share: float) -> Weights:
    """``one`` with this share of ``two``; counters are those of ``two``."""
    mixed = {}
    for name, tensor in one.items():
        if tensor.is_floating_point():
            mixed[name] = (1 - share) * tensor + share * two[name]
        else:
            mixed[name] = two[name]
    return mixed


def test_leave_one_out_error_is_that_of_the_model_without_this_client(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client(learning_rate=0.02)
    local = after(weights, train(client, weights))
    mixed = mixture(weights, local, 0.4)
    reply = train(client, mixed, 1, ("leave_one_out_error",), previous_weight=0.4)

    without = leave_one_out_model(mixed, local, 0.4)
    dice = value_of(measure(client, without, "score")["score"])
    error = value_of(reply.measurements["leave_one_out_error"])
    assert error == pytest.approx(1 - dice, abs=1e-9)
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            assert torch.allclose(without[name], tensor, atol=1e-5)


@pytest.mark.slow
def test_leave_one_out_error_needs_the_state_of_exactly_the_previous_round(
    prostate_client: Maker, weights: Weights
) -> None:
    names = ("leave_one_out_error", "global_score")
    client = prostate_client()
    train(client, weights, 0)
    late = train(client, weights, 2, names, previous_weight=0.3)
    assert "leave_one_out_error" not in late.measurements
    alone = train(client, weights, 3, names, previous_weight=1.0)
    assert "leave_one_out_error" not in alone.measurements

    # The previous average is without a client that was absent.
    absent = train(client, weights, 5, names, previous_weight=0.0)
    score = value_of(absent.measurements["global_score"])
    error = value_of(absent.measurements["leave_one_out_error"])
    assert error == pytest.approx(1 - score)


def test_two_measurements_of_one_model_pass_over_the_images_once(
    prostate_client: Maker, weights: Weights
) -> None:
    client = prostate_client()
    train(client, weights)
    epochs = []
    client.train_workflow.evaluator.network.register_forward_pre_hook(
        lambda network, images: None if network.training else epochs.append(len(images[0]))
    )
    measure(client, weights, "score")
    one_pass = len(epochs)
    both = measure(client, weights, "global_score", "leave_one_out_error", previous_weight=0.0)
    assert len(epochs) == 2 * one_pass > 0
    error = value_of(both["leave_one_out_error"])
    assert error == pytest.approx(1 - value_of(both["global_score"]))


@pytest.mark.slow
def test_the_model_that_was_trained_last_is_read_from_disk_once(
    prostate_client: Maker, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("leave_one_out_error",)
    client = prostate_client(learning_rate=0.02)
    local = after(weights, train(client, weights))
    first_mixed = mixture(weights, local, 0.4)
    second = train(client, first_mixed, 1, names, previous_weight=0.4)
    mixed = mixture(weights, after(first_mixed, second), 0.3)
    # The tensors of a reply are the server's.
    for tensor in (second.buffers or {}).values():
        tensor.zero_()

    read = []
    load = client.states.load
    monkeypatch.setattr(
        client.states, "load", lambda run, number: read.append(number) or load(run, number)
    )
    third = train(client, mixed, 2, names, previous_weight=0.3)
    assert read == []
    in_another_process = train(
        prostate_client(learning_rate=0.02), mixed, 2, names, previous_weight=0.3
    )
    assert third.measurements == in_another_process.measurements
    assert same(third.update, in_another_process.update)
    # A resumed server repeats a round: the previous model is then an older one.
    repeated = train(client, first_mixed, 1, names, previous_weight=0.4)
    assert repeated.measurements == second.measurements
