# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN, play, play_round, replies_of, reported
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.leave_one_out import leave_one_out_model
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.strategies import FedCE, Median, Sparsified, compose
from monai_fairfl.strategies.fedce import leave_one_out_cosines

COMMON = GOLDEN["common"]
WORKED = GOLDEN["fedce"]
CLIENTS = ("1", "2", "3")
UPDATES = [
    dict(zip(CLIENTS, COMMON["updates"], strict=True)),
    dict(zip(CLIENTS, WORKED["updates_round1"], strict=True)),
]
ERRORS = [{}, reported("leave_one_out_error", [1 - dice for dice in WORKED["minus_dice_round1"]])]
NAMES = {"paper": "paper_equations", "revised": "revised_code", "released": "original_code"}
MODES = {"multi": "times", "sum": "plus", "cos": "cos", "err": "err"}
CASES = [(v, m) for v in NAMES for m in MODES if MODES[m] in WORKED[NAMES[v]]]


@pytest.mark.parametrize(("variant", "mode"), CASES)
def test_two_rounds_give_the_worked_weights(variant: str, mode: str) -> None:
    results = play(FedCE(mode, variant), UPDATES, ERRORS, COMMON["w0"])
    for number, result in enumerate(results):
        expected = WORKED[NAMES[variant]][MODES[mode]][f"rho_round{number}"]
        np.testing.assert_allclose([result.aggregation[c] for c in CLIENTS], expected, atol=2e-6)  # type: ignore[misc]


def test_leave_one_out_cosines_are_the_worked_ones_and_the_direct_ones() -> None:
    prior = dict.fromkeys(CLIENTS, 1 / 3)
    cosines = leave_one_out_cosines(replies_of(UPDATES[0]), prior)
    np.testing.assert_allclose(
        [cosines[c] for c in CLIENTS], WORKED["cos_round0_uniform_prior"], atol=2e-6
    )
    rows = np.array(COMMON["updates"])
    for i, client in enumerate(CLIENTS):
        rest = np.delete(rows, i, axis=0).sum(0)
        direct = rows[i] @ rest / np.linalg.norm(rows[i]) / np.linalg.norm(rest)
        assert cosines[client] == pytest.approx(direct)


def test_the_model_without_a_client_is_the_reweighted_mean_of_the_others() -> None:
    example = WORKED["minus_model_example"]
    whole = {"w": torch.tensor(example["global_new"], dtype=torch.float64)}
    rho, models = np.array(example["rho"]), np.array(example["local_models"])
    for i in range(3):
        local = {"w": torch.tensor(models[i])}
        without = leave_one_out_model(whole, local, rho[i])["w"].numpy()
        np.testing.assert_allclose(without, example["minus_models"][i], atol=5e-6)
        others = np.delete(rho, i) @ np.delete(models, i, axis=0) / (1 - rho[i])
        np.testing.assert_allclose(without, others, atol=5e-6)


def test_a_mask_of_minus_infinity_is_the_same_without_a_client() -> None:
    mask = torch.tensor([0.0, -math.inf])
    without = leave_one_out_model({"mask": mask}, {"mask": mask.clone()}, 0.3)
    assert torch.equal(without["mask"], mask)


def test_no_error_is_asked_for_before_there_is_a_model_to_leave_anyone_out_of() -> None:
    strategy = FedCE()
    play(strategy, UPDATES[:1], ERRORS[:1], COMMON["w0"])
    requests = next(strategy.round(CLIENTS))
    assert all(request.measure == ("leave_one_out_error",) for request in requests)
    assert sum(request.context["previous_weight"] for request in requests) == pytest.approx(1.0)
    fresh = FedCE()
    fresh.start(strategy.weights, CLIENTS, strategy.spec)
    for request in next(fresh.round(CLIENTS)):
        assert request.measure == () and request.context["previous_weight"] == 0.0


def test_a_client_whose_update_was_shortened_cannot_take_itself_out_of_the_model() -> None:
    strategy = FedCE()
    strategy.start({"w": torch.zeros(4, dtype=torch.float64)}, CLIENTS, ModelSpec(("w",)))
    training = strategy.round(CLIENTS)
    next(training)
    with pytest.raises(StopIteration) as played:
        training.send(replies_of(UPDATES[0]).scaled({0: 0.1}))
    strategy.weights = played.value.value.weights

    # Client 1 holds another model than the one that was averaged, so it is not asked.
    result = play_round(strategy, UPDATES[1], reported("leave_one_out_error", [1.0, 0.2, 0.4]))
    assert result.notes == {"1": "leave_one_out_error absent, 0.3 used: mean of the others"}

    # In the round after, it is asked again.
    asked = {request.client: request.measure for request in next(strategy.round(CLIENTS))}
    assert asked == dict.fromkeys(CLIENTS, ("leave_one_out_error",))


def test_where_nobody_who_was_asked_for_its_error_answers_the_errors_are_equal() -> None:
    strategy = FedCE()
    strategy.start({"w": torch.zeros(4, dtype=torch.float64)}, CLIENTS, ModelSpec(("w",)))
    training = strategy.round(CLIENTS)
    next(training)
    with pytest.raises(StopIteration) as played:
        training.send(replies_of(UPDATES[0]).scaled({0: 0.1, 1: 0.1}))
    strategy.weights = played.value.value.weights

    training = strategy.round(CLIENTS)
    next(training)
    with pytest.raises(StopIteration) as played:
        training.send(replies_of({client: UPDATES[1][client] for client in "12"}))
    assert sum(played.value.value.aggregation.values()) == pytest.approx(1)


@pytest.mark.parametrize("part", [{"average": Median()}, {"reward": Sparsified()}])
def test_the_model_without_a_client_needs_the_own_average_and_no_reward(
    part: dict[str, Any],
) -> None:
    for mode in ("multi", "sum", "err"):
        with pytest.raises(ConfigError, match="FedCE takes each client out .* use mode 'cos'"):
            compose(FedCE(mode), **part)
    assert compose(FedCE("cos"), **part).parts != FedCE().parts


def test_each_client_receives_its_own_weight_only() -> None:
    strategy = FedCE("sum")
    (result,) = play(strategy, UPDATES[:1], ERRORS[:1], COMMON["w0"])
    for request in next(strategy.round(CLIENTS)):
        assert dict(request.context) == {"previous_weight": result.aggregation[request.client]}
        assert strategy.context_of(request.client) == dict(request.context)


@pytest.mark.parametrize("variant", ["revised", "released"])
def test_a_running_mean_of_errors_becomes_the_error_of_this_round(variant: str) -> None:
    strategy = FedCE("sum", variant)
    assert strategy.value_from_mean("1", "leave_one_out_error", 0.3) == 0.3
    play(strategy, UPDATES[:1], ERRORS[:1], COMMON["w0"])
    first_error = 1 - strategy.history["1"]["dice"]
    mean = (first_error + 0.25) / 2
    found = strategy.value_from_mean("1", "leave_one_out_error", mean)
    assert found == pytest.approx(0.25)
    assert strategy.value_from_mean("1", "another", mean) == mean
    assert FedCE("sum").value_from_mean("1", "leave_one_out_error", mean) == mean


def test_a_missing_error_becomes_the_mean_of_the_others_and_is_noted() -> None:
    partial = {c: m for c, m in ERRORS[1].items() if c != "2"}
    results = play(FedCE(), UPDATES, [{}, partial], COMMON["w0"])
    assert "leave_one_out_error absent, 0.35 used: mean of the others" in results[1].notes["2"]
    complete = {**partial, "2": {"leave_one_out_error": 0.35}}
    filled = play(FedCE(), UPDATES, [{}, complete], COMMON["w0"])
    assert results[1].aggregation == pytest.approx(filled[1].aggregation)


def test_absence_is_no_penalty_and_the_next_context_shows_it() -> None:
    without_2 = {client: UPDATES[1][client] for client in ("1", "3")}
    updates = [UPDATES[0], without_2, UPDATES[0]]
    errors = [{}, ERRORS[1], ERRORS[1]]
    strategy = FedCE("sum")
    results = play(strategy, updates, errors, COMMON["w0"])
    assert set(results[1].aggregation) == {"1", "3"}
    assert strategy.history["2"]["rounds"] == 2 and strategy.history["1"]["rounds"] == 3
    again = FedCE("sum")
    play(again, updates[:2], errors[:2], COMMON["w0"])
    contexts = {r.client: r.context["previous_weight"] for r in next(again.round(CLIENTS))}
    assert contexts["2"] == 0.0 and contexts["1"] + contexts["3"] == pytest.approx(1.0)


@pytest.mark.parametrize("variant", list(NAMES))
@pytest.mark.parametrize("updates", [[[1.0, 0.0]] * 3, [[0.0, 0.0]] * 3])
def test_identical_or_zero_updates_give_uniform_weights(
    variant: str, updates: list[list[float]]
) -> None:
    by_client = dict(zip(CLIENTS, updates, strict=True))
    (result,) = play(FedCE("cos", variant), [by_client], [{}], [0.0, 0.0])
    assert result.aggregation == pytest.approx(dict.fromkeys(CLIENTS, 1 / 3))


def test_the_released_variant_may_sum_to_more_than_one_and_revised_never() -> None:
    lonely = dict(zip("ABCDEFGHIJ", [[1.0, 0.0]] * 9 + [[-1.0, 0.0]], strict=True))
    released = play(FedCE("multi", "released"), [lonely], [{}], [0.0, 0.0])[0].aggregation
    revised = play(FedCE("multi", "revised"), [lonely], [{}], [0.0, 0.0])[0].aggregation
    assert sum(released.values()) > 1.0 and sum(revised.values()) == pytest.approx(1.0)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(
    rows=st.lists(
        st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), min_size=2, max_size=5
    ),
    mode=st.sampled_from(list(MODES)),
    variant=st.sampled_from(["paper", "revised"]),
)
def test_weights_are_shares_and_do_not_depend_on_the_order_of_clients(
    rows: list[list[float]], mode: str, variant: str
) -> None:
    names = "ABCDE"[: len(rows)]
    (result,) = play(FedCE(mode, variant), [dict(zip(names, rows, strict=True))], [{}], [0.0] * 3)
    renamed = dict(zip(reversed(names), rows, strict=True))
    (other,) = play(FedCE(mode, variant), [renamed], [{}], [0.0] * 3)
    weights = [float(weight) for weight in result.aggregation.values()]  # type: ignore[arg-type]
    assert sum(weights) == pytest.approx(1.0) and min(weights) >= 0
    for name, twin in zip(names, reversed(names), strict=True):
        assert result.aggregation[name] == pytest.approx(other.aggregation[twin], abs=1e-9)


def test_state_survives_json_and_continues_to_the_same_weights() -> None:
    strategy = FedCE("sum")
    whole = play(strategy, [*UPDATES, UPDATES[0]], [*ERRORS, ERRORS[1]], COMMON["w0"])
    first = FedCE("sum")
    play(first, UPDATES, ERRORS, COMMON["w0"])
    resumed = FedCE("sum")
    resumed.start(first.weights, CLIENTS, first.spec)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert play_round(resumed, UPDATES[0], ERRORS[1]).aggregation == whole[2].aggregation


def test_contributions_carry_a_standard_error_from_the_second_round_on() -> None:
    first, second = play(FedCE(), UPDATES, ERRORS, COMMON["w0"])
    assert all(isinstance(c, Estimate) and c.stderr is None for c in first.contributions.values())
    for client, estimate in second.contributions.items():
        assert isinstance(estimate, Estimate) and estimate.n == 2 and estimate.stderr is not None
        assert estimate.value == second.aggregation[client]

    # Of two rounds the standard error is half the distance of the scores, scaled like the weight.
    terms = WORKED["paper_equations"]["times"]
    score0 = 9 * terms["gamma_cos_round0"][0] / 3
    score1 = 9 * terms["gamma_cos_round1"][0] * terms["gamma_err_round1"][0]
    mean = (score0 + score1) / 2
    expected = abs(score0 - score1) / 2 * second.aggregation["1"] / mean  # type: ignore[operator]
    assert second.contributions["1"].stderr == pytest.approx(expected, rel=1e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "words"), [({"mode": "plus"}, "'plus'"), ({"variant": "new"}, "'new'")]
)
def test_unknown_mode_or_variant_is_refused(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FedCE(**arguments)


def test_statistics_averaged_with_other_weights_are_refused() -> None:
    spec = ModelSpec(("w",), buffers=("running_mean",), layers={"w": "fc", "running_mean": "bn"})
    weights = {"w": torch.zeros(2), "running_mean": torch.zeros(1)}
    for mode in ("multi", "err"):
        strategy = FedCE(mode)
        strategy.buffers = "samples"
        with pytest.raises(ConfigError, match="'aggregation' or 'local'"):
            strategy.start(weights, ["A", "B"], spec)
    by_cosine_alone = FedCE("cos")
    by_cosine_alone.buffers = "samples"
    by_cosine_alone.start(weights, ["A", "B"], spec)
