# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: the sparsified step, and mixtures of the global and the own model."""

from __future__ import annotations

import pytest
from helpers.driving import drive, play, vector
from helpers.given_strategy import equal

from monai_fairfl import ModelSpec, RoundResult, compose
from monai_fairfl.strategies import Mixed, Reward, Sparsified


def rewarded(
    reward: Reward, updates: dict[str, list[float]], contributions: dict[str, float]
) -> RoundResult:
    """One round of equal weights from zero."""
    strategy = compose(equal(tuple(updates), contributions), reward=reward)
    (result,) = play(strategy, [updates], [{}], [0.0] * len(updates["A"]))
    return result


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
