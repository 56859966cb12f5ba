# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: the sparsified step, and mixtures of the global and the own model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.driving import SPEC, drive, play, vector
from helpers.given_strategy import Given, equal
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl import ModelSpec, Reply, Request, RoundResult, compose
from monai_fairfl.strategies import FedAvg, Mixed, Reward, Sparsified

finite = st.floats(-1e3, 1e3, allow_nan=False, width=32)


def rewarded(
    reward: Reward, updates: dict[str, list[float]], contributions: dict[str, float]
) -> RoundResult:
    """One round of equal weights from zero."""
    strategy = compose(equal(tuple(updates), contributions), reward=reward)
    (result,) = play(strategy, [updates], [{}], [0.0] * len(updates["A"]))
    return result


@given(
    arrays(np.float32, st.integers(1, 40), elements=finite),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_each_client_gets_the_largest_entries_of_the_step(
    step: np.ndarray, counts: list[int]
) -> None:
    """Beside a sort for each client; ties go to the lower index."""
    size = len(step)
    counts = [size, *(min(count, size) for count in counts)]
    names = "ABCDEF"[: len(counts)]
    contributions = {name: count / size for name, count in zip(names, counts, strict=True)}
    # All of the step comes from the first client, and the others begin at zero.
    strategy = compose(
        Given(dict.fromkeys(names, 1 / len(names)), contributions),
        reward=Sparsified(ratio="share", rounding="floor"),
    )
    zeros = torch.zeros(size)
    whole = {"w": len(names) * torch.from_numpy(step)}
    strategy.start({"w": zeros}, names, SPEC)

    def answer(request: Request) -> Reply:
        return request.reply(whole if request.client == "A" else {"w": zeros}, 1)

    result, _ = drive(strategy, names, answer)
    assert result.rewards is not None
    moved = result.weights["w"].numpy()
    order = np.argsort(-np.abs(moved), kind="stable")
    for name, count in zip(names, counts, strict=True):
        expected = np.zeros(size, np.float32)
        expected[order[:count]] = moved[order[:count]]
        np.testing.assert_array_equal(result.rewards[name]["w"].numpy(), expected)
        assert result.details["kept"][name] == pytest.approx(count / size)


def test_a_share_of_one_is_the_whole_step_even_of_a_single_bias() -> None:
    found = rewarded(Sparsified(), {"A": [4.0], "B": [2.0]}, {"A": 1.0, "B": 0.0})
    assert found.rewards is not None
    assert found.rewards["A"]["w"].item() == 3.0 and found.rewards["B"]["w"].item() == 0.0
    assert found.details["kept"] == {"A": 1.0, "B": 0.0}
    # The authors' code leaves one entry out, even for the greatest contributor.
    found = rewarded(
        Sparsified(leave_one=True), {"A": [4.0, 1.0], "B": [2.0, 1.0]}, {"A": 1, "B": 1}
    )
    assert found.details["kept"] == {"A": 0.5, "B": 0.5}


def test_infinite_altruism_gives_everybody_everything() -> None:
    everything = Sparsified(beta=math.inf)
    found = rewarded(everything, {"A": [4.0, 1.0], "B": [2.0, 1.0]}, {"A": 0.9, "B": 0.01})
    assert found.details["kept"] == {"A": 1.0, "B": 1.0}
    for arguments in ({"beta": 0.0}, {"ratio": "x"}, {"rounding": "up"}, {"rest": "no"}):
        with pytest.raises(ValueError, match="|".join(arguments)):
            Sparsified(**arguments)  # type: ignore[arg-type]


def test_a_mask_may_extend_over_a_tensor_or_over_the_model() -> None:
    spec = ModelSpec(("a", "b"), layers={"a": "a", "b": "b"})
    update = {"a": vector([4.0, 3.0]), "b": vector([2.0, 1.0])}
    for scope, expected in (("layer", [[4.0, 0.0], [2.0, 0.0]]), ("global", [[4.0, 3.0], [0, 0]])):
        reward = Sparsified(ratio="share", mask_scope=scope)
        strategy = compose(equal("AB", {"A": 1.0, "B": 0.5}), reward=reward)
        strategy.start({name: 0 * one for name, one in update.items()}, "AB", spec)
        result, _ = drive(strategy, "AB", lambda request: request.reply(update, 1), spec)
        assert result.rewards is not None
        assert [result.rewards["B"][name].tolist() for name in "ab"] == expected


@pytest.mark.parametrize("kind", ["before", "own"])
def test_what_one_client_is_not_given_is_not_taken_from_the_others(kind: str) -> None:
    update = [1.0, 0.5, 0.25, 0.1]
    images = {"1": 60, "2": 40}
    reward = Sparsified(ratio="share", rounding="floor", rest=kind)
    strategy = FedAvg(reward=reward)
    strategy.start({"w": vector([0.0] * 4)}, ("1", "2"), SPEC)
    for _ in range(12):
        drive(strategy, ("1", "2"), lambda r: r.reply({"w": vector(update)}, images[r.client]))
    grown = [12 * value for value in update]
    assert strategy.weights["w"].tolist() == pytest.approx(grown)
    assert strategy.rewards["1"]["w"].tolist() == pytest.approx(grown)  # it is given everything
    # floor(4 * 40 / 60) entries; the rest as before, or as trained.
    withheld = [12.0, 6.0, 0.0, 0.0] if kind == "before" else grown
    assert strategy.rewards["2"]["w"].tolist() == pytest.approx(withheld)


# ---- mixtures


def test_mixed_at_one_is_the_global_model_and_at_zero_the_clients_own() -> None:
    updates = {"A": [1.0, 2.0], "B": [3.0, 4.0]}
    found = rewarded(Mixed(), updates, {"A": 1.0, "B": 0.0}).rewards
    assert found is not None
    assert found["A"]["w"].tolist() == [2.0, 3.0] and found["B"]["w"].tolist() == [3.0, 4.0]
    scaled = rewarded(Mixed("max"), updates, {"A": 0.4, "B": 0.1})
    assert scaled.rewards is not None
    assert scaled.rewards["A"]["w"].tolist() == [2.0, 3.0]
    assert scaled.details["mixing"] == pytest.approx({"A": 1.0, "B": 0.25})


def test_a_mask_of_minus_infinity_stays_one_in_every_mixture() -> None:
    mask = torch.tensor([0.0, -math.inf])
    spec = ModelSpec(("w",), buffers=("mask",), layers={"w": "fc", "mask": "fc"})
    strategy = compose(equal("AB", {"A": 0.5, "B": 0.0}), reward=Mixed())
    strategy.start({"w": torch.zeros(2), "mask": mask.clone()}, "AB", spec)
    sent = {"A": torch.ones(2), "B": torch.full((2,), 5.0)}

    def answer(request: Request) -> Reply:
        return request.reply({"w": sent[request.client]}, 1, buffers={"mask": mask.clone()})

    result, _ = drive(strategy, "AB", answer, spec)
    assert result.rewards is not None and result.rewards["A"]["w"].tolist() == [2.0, 2.0]
    for model in (result.weights, *result.rewards.values()):
        assert torch.equal(model["mask"], mask)
