# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: worked class values, weights and personal models; classes that are not labelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, COMMON, GOLDEN, agree, drive, values
from hypothesis import given, settings
from hypothesis import strategies as st

from monai_fairfl import ModelSpec, Reply, Request, RoundResult
from monai_fairfl.strategies import Mixed, ShapFed

WORKED = GOLDEN["shapfed"]
SPEC = ModelSpec(
    ("body", "head.bias", "head.weight"),
    layers={"body": "", "head.bias": "head", "head.weight": "head"},
    output=("head", 0),
)
ROWS = dict(zip(CLIENTS, np.array(WORKED["last_layer_updates"]), strict=True))
BODY = dict(zip(CLIENTS, COMMON["updates"], strict=True))


def begin(strategy: ShapFed | None = None, classes: int = 2) -> ShapFed:
    strategy = strategy or ShapFed()
    weights = {
        "body": torch.tensor(COMMON["w0"], dtype=torch.float64),
        "head.weight": torch.zeros(classes, 2, dtype=torch.float64),
        "head.bias": torch.zeros(classes, dtype=torch.float64),
    }
    strategy.start(weights, CLIENTS, SPEC)
    return strategy


def play_with(
    strategy: ShapFed,
    rows: Mapping[str, np.ndarray] = ROWS,
    labelled: Mapping[str, tuple[bool, ...]] | None = None,
) -> RoundResult:
    """One round; a row has a class's two weights and its bias."""

    def answer(request: Request) -> Reply:
        head = torch.tensor(rows[request.client], dtype=torch.float64)
        update = {
            "body": torch.tensor(BODY[request.client], dtype=torch.float64),
            "head.weight": head[:, :2].clone(),
            "head.bias": head[:, 2].clone(),
        }
        return request.reply(update, 1, labelled=(labelled or {}).get(request.client, ()))

    return drive(strategy, CLIENTS, answer, SPEC)[0]


def class_values(result: RoundResult) -> list[list[Any]]:
    """Of each client, of each class; None where it does not label it."""
    return [list(result.details["class_value"][client].values()) for client in CLIENTS]


def test_class_values_contributions_and_weights_are_the_worked_ones() -> None:
    result = play_with(begin())
    agree(class_values(result), WORKED["Gamma"])
    agree(result.contributions, WORKED["gamma_paper"])
    agree(result.aggregation, WORKED["gamma_tilde_paper"])
    agree(result.weights["body"], WORKED["w_s_paper"])


def test_personal_models_are_the_worked_ones() -> None:
    result = play_with(begin(ShapFed(personalised=True)))
    assert result.rewards is not None
    for client, expected in zip(CLIENTS, WORKED["personalised_paper"], strict=True):
        agree(result.rewards[client]["body"], expected, 3e-6)
    scaled = play_with(begin(ShapFed(reward=Mixed("max"))))
    gamma = np.array(WORKED["gamma_paper"])
    agree(scaled.details["mixing"], gamma / gamma.max())


def test_the_released_code_takes_the_raw_cosine_and_mixes_with_the_weights() -> None:
    result = play_with(begin(ShapFed(variant="released", personalised=True)))
    agree(result.contributions, WORKED["code_mean_cos"])
    agree(result.aggregation, WORKED["code_weights"])
    agree(result.details["mixing"], WORKED["code_weights"])


def test_the_paper_averages_with_the_previous_weights() -> None:
    strategy = begin(ShapFed(variant="paper"))
    assert values(play_with(strategy).aggregation) == pytest.approx([1 / 3] * 3)
    second = play_with(strategy)
    agree(second.aggregation, WORKED["gamma_tilde_paper"])


def test_a_class_nobody_trained_counts_half() -> None:
    rows = {client: row * [[1, 1, 1], [0, 0, 0]] for client, row in ROWS.items()}
    result = play_with(begin(), rows=rows)
    assert all(of_client[1] == 0 for of_client in class_values(result))
    gamma = (np.array(WORKED["Gamma"])[:, 0] + 1) / 4 + 0.25
    agree(result.contributions, gamma)


# ---- classes that a site does not label


NUMBERS = st.floats(-1, 1).map(lambda x: round(x, 3))
HEAD = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=3, max_size=3)


@settings(max_examples=30)
@given(HEAD, st.lists(st.booleans(), min_size=3, max_size=3))
def test_nobody_gains_by_not_labelling_a_class(own: list[list[float]], labels: list[bool]) -> None:
    """Bad values of classes that it no longer labels count on, and good ones do not."""
    rows = {client: np.vstack([ROWS[client], ROWS[client][:1] + 0.2]) for client in CLIENTS}
    rows["1"] = np.array(own)
    strategy = begin(classes=3)
    old = class_values(play_with(strategy, rows=rows))[0]
    second = play_with(strategy, rows=rows, labelled={"1": tuple(labels)})
    found = values(second.contributions)[0]
    new = [value for value, label in zip(class_values(second)[0], labels) if label]
    if not new:
        assert found <= 0.5
        return
    kept = [value for value, label in zip(old, labels, strict=True) if not label]
    counted = [*new, *(value for value in kept if value < np.mean(new))]
    assert found == pytest.approx((1 + np.mean(counted)) / 2)
