# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rewards: the sparsified step, and mixtures of the global and the own model."""

from __future__ import annotations

from helpers.driving import drive, vector
from helpers.given_strategy import equal

from monai_fairfl import ModelSpec, compose
from monai_fairfl.strategies import Sparsified


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
