# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    GOLDEN,
    SAMPLES,
    UPDATES,
    play,
    play_round,
    values,
    vector,
)
from helpers.updates import PARAMETERS
from helpers.updates import SPEC as IN_CLASSES
from helpers.updates import honest, replies_with

from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import CGSV, Sparsified, Uniform, compose
from monai_fairfl.strategies.cgsv import _closeness, _SparsifiedBy

WORKED = GOLDEN["cgsv"]
SECOND = dict(zip(CLIENTS, GOLDEN["fedce"]["updates_round1"], strict=True))


def first(**arguments: object) -> tuple[CGSV, object]:
    strategy = CGSV(**arguments)  # type: ignore[arg-type]
    (result,) = play(strategy, [UPDATES], [{}], COMMON["w0"], SAMPLES)
    return strategy, result


def test_other_weights_of_the_step_change_neither_cosines_nor_their_meaning() -> None:
    """The cosines are of the step by reputations, whatever compose makes the server's step of."""
    start, sizes = COMMON["w0"], {"1": 10, "2": 1, "3": 1}
    own = play(CGSV(gamma=None), [UPDATES] * 2, [{}] * 2, start, sizes)
    composed = compose(CGSV(gamma=None), weighting=Uniform())
    other = play(composed, [UPDATES] * 2, [{}] * 2, start, sizes)
    for of_own, of_other in zip(own, other, strict=True):
        assert of_own.aggregation != of_other.aggregation
        assert dict(of_own.details["cosine"]) == dict(of_other.details["cosine"])
    meaning = CGSV.quantities["cosine"].meaning
    assert "by the reputations before the round" in meaning and "unless compose" in meaning


def test_two_rounds_give_the_worked_steps_cosines_and_reputations() -> None:
    strategy = CGSV()
    one, two = play(strategy, [UPDATES, SECOND], [{}, {}], COMMON["w0"], SAMPLES)
    step = one.weights["w"].numpy() - np.array(COMMON["w0"])
    np.testing.assert_allclose(step, WORKED["u_N_round1"], atol=2e-6)
    np.testing.assert_allclose(values(one.details["cosine"]), WORKED["psi"], atol=2e-6)
    np.testing.assert_allclose(values(one.details["reputation"]), WORKED["r_round1"], atol=2e-6)
    np.testing.assert_allclose(
        (two.weights["w"] - one.weights["w"]).numpy(), WORKED["u_N_round2"], atol=2e-6
    )
    np.testing.assert_allclose(values(two.details["cosine"]), WORKED["psi_round2"], atol=2e-6)
    np.testing.assert_allclose(values(two.details["reputation"]), WORKED["r_round2"], atol=2e-6)
    # The step is averaged with the previous reputations.
    np.testing.assert_allclose(values(two.aggregation), WORKED["r_round1"], atol=2e-6)


def test_the_servers_own_model_moves_by_its_step_wherever_the_clients_models_are() -> None:
    strategy = CGSV()
    play(strategy, [UPDATES], [{}], COMMON["w0"], SAMPLES)
    far_apart = {client: {"w": vector([100.0 * int(client)] * 4)} for client in CLIENTS}
    strategy.rewards = far_apart
    before = strategy.weights["w"].clone()
    after = play_round(strategy, SECOND, {}, SAMPLES).weights["w"]
    np.testing.assert_allclose((after - before).numpy(), WORKED["u_N_round2"], atol=2e-6)


@pytest.mark.parametrize("beta", [1, 2])
@pytest.mark.parametrize(
    ("variant", "key"),
    [
        ("paper", "paper_floor"),
        ("recommended", "ceil_no_cap"),
        ("released", "code_ceil_cap_len_minus_1"),
    ],
)
def test_each_client_keeps_the_worked_number_of_entries(beta: int, variant: str, key: str) -> None:
    _, result = first(beta=beta, variant=variant)
    kept = [4 * share for share in values(result.details["kept"])]  # type: ignore[attr-defined]
    np.testing.assert_allclose(kept, WORKED[f"kept_beta{beta}_{key}"])


@pytest.mark.parametrize("beta", [1, 2])
def test_the_rewards_are_the_worked_ones_and_the_best_gets_the_whole_step(beta: int) -> None:
    _, result = first(beta=beta, variant="paper")
    for client, reward in zip(CLIENTS, WORKED[f"reward_beta{beta}_paper_floor"], strict=True):
        got = result.rewards[client]["w"].numpy() - np.array(COMMON["w0"])  # type: ignore[attr-defined]
        np.testing.assert_allclose(got, reward, atol=2e-6)


def test_the_exact_contribution_is_the_shapley_value_by_all_orders() -> None:
    _, result = first(exact=True)
    exact = values(result.details["cosine"])  # type: ignore[attr-defined]
    np.testing.assert_allclose(exact, WORKED["exact_cosine_shapley"], atol=2e-6)
    u, p = np.array(WORKED["u"]), np.array(COMMON["p"])

    def worth(coalition: tuple[int, ...]) -> float:
        a, b = p[list(coalition)] @ u[list(coalition)], p @ u
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) if coalition else 0.0

    orders = list(permutations(range(3)))
    direct = [
        np.mean([worth(o[: o.index(i) + 1]) - worth(o[: o.index(i)]) for o in orders])
        for i in range(3)
    ]
    np.testing.assert_allclose(exact, direct, atol=2e-6)


def test_baselines_of_the_reward() -> None:
    _, by_size = first(reward="data_size", variant="paper")
    expected = [math.floor(4 * q) for q in WORKED["DW_q"]]
    assert [4 * k for k in values(by_size.details["kept"])] == expected  # type: ignore[attr-defined]
    _, by_distance = first(reward="euclidean", variant="paper")
    expected = [math.floor(4 * q) for q in WORKED["EU_q_one_minus_share_over_max"]]
    assert [4 * k for k in values(by_distance.details["kept"])] == expected  # type: ignore[attr-defined]
    assert first(reward=None)[1].rewards is None  # type: ignore[attr-defined]
    strategy = CGSV(reward="round_robin")
    results = play(strategy, [UPDATES] * 4, [{}] * 4, COMMON["w0"], SAMPLES)
    receiver = [max(CLIENTS, key=lambda c: r.details["kept"][c]) for r in results]
    assert [CLIENTS.index(c) for c in receiver] == WORKED["RR_receiver_rounds_1_to_4"]
    others = results[0].rewards
    np.testing.assert_allclose(others["2"]["w"], np.array(COMMON["w0"]) + UPDATES["2"])  # type: ignore[index]


def test_everybody_receives_the_whole_step_while_no_value_is_above_zero() -> None:
    """As the model is in early rounds, when no coalition's Dice is above 0."""
    dice_values = dict.fromkeys(CLIENTS, 0.0)
    reward = _SparsifiedBy(Sparsified(), dice_values)
    assert reward.ratios == dict.fromkeys(CLIENTS, 1.0)


def test_without_gamma_the_clients_own_steps_decide_the_length() -> None:
    _, result = first(gamma=None)
    _, half = first(gamma=0.5)
    mean = np.mean(np.linalg.norm(list(UPDATES.values()), axis=1))
    w0 = np.array(COMMON["w0"])
    direction = (result.weights["w"].numpy() - w0) / mean  # type: ignore[attr-defined]
    expected = (half.weights["w"].numpy() - w0) / 0.5  # type: ignore[attr-defined]
    np.testing.assert_allclose(direction, expected, atol=1e-9)


@pytest.mark.parametrize(("gamma", "warnings"), [(0.5, 0), (0.01, 1), (5.0, 1), (None, 0)])
def test_a_fixed_length_far_from_the_updates_is_warned_of_once_in_a_run(
    gamma: float | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    # The mean length of these updates is 0.49.
    strategy = CGSV(gamma=gamma)
    for run in (1, 2):
        play(strategy, [UPDATES, SECOND], [{}, {}], COMMON["w0"], SAMPLES)
        found = [record.getMessage() for record in caplog.records if "CGSV" in record.getMessage()]
        assert len(found) == run * warnings
    for text in found:
        assert f"gamma={gamma:g}" in text and "gamma=None" in text


def test_the_reward_by_distance_leaves_out_rows_of_classes_that_a_site_does_not_label() -> None:
    """A change of such a row changes no ratio."""
    ratios = []
    for factor in (1.0, 30.0):
        updates = honest(CLIENTS, 0.5)
        updates["1"][PARAMETERS - 100 :] *= factor  # the last class of out.weight
        replies = replies_with(updates)
        labels = {"1": (True, True, False)}
        partial = [replace(reply, labelled=labels.get(reply.client, ())) for reply in replies]
        ratios.append(_closeness(Replies(partial, replies.requests.values(), IN_CLASSES)))
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-6)


def test_a_zero_update_contributes_nothing_and_breaks_nothing() -> None:
    strategy = CGSV()
    updates = {**UPDATES, "3": [0.0] * 4}
    (result,) = play(strategy, [updates], [{}], COMMON["w0"], SAMPLES)
    assert result.details["cosine"]["3"] == 0 and np.isfinite(result.weights["w"].numpy()).all()


@pytest.mark.parametrize(
    "arguments",
    [{"alpha": 1.0}, {"gamma": 0.0}, {"beta": 0.0}, {"reward": "money"}, {"variant": "x"}],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="|".join(arguments)):
        CGSV(**arguments)  # type: ignore[arg-type]
