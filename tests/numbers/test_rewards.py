# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: the sparsified step, and mixtures of the global and the own model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.driving import SPEC, drive, play, vector
from helpers.given_strategy import Given, equal
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl import ModelSpec, Reply, Request, RoundResult, compose
from monai_fairfl.strategies import Mixed, Reward, Sparsified

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
