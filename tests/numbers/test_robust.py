# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Robust averages and weightings, beside NumPy's and SciPy's own medians, means and minimisers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import agree, drive, play, values
from helpers.updates import SPEC, START, honest, statistics_of, tensors_of
from scipy import optimize, stats

from monai_fairfl import Reply, Request, RoundResult
from monai_fairfl.strategies import (
    ClippedMean,
    FedAvg,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
)

NAMES = "ABCDEFG"


def updates_of(count: int, seed: int = 0) -> np.ndarray:
    """Honest updates near a common one, one a row."""
    return np.stack(list(honest(NAMES[:count], 0.8, seed).values()))


def averaged(part: Mapping[str, Any], updates: np.ndarray) -> RoundResult:
    """One round of clients with equal images, whose average or weighting is this part."""
    rows = dict(zip(NAMES, updates, strict=False))

    def answer(request: Request) -> Reply:
        return request.reply(tensors_of(rows[request.client]), 10, buffers=statistics_of())

    strategy = FedAvg(**part)
    strategy.start(START, list(rows), SPEC)
    return drive(strategy, list(rows), answer, SPEC)[0]


def step_of(part: Mapping[str, Any], updates: np.ndarray) -> np.ndarray:
    """The step of the parameters, flat."""
    found = averaged(part, updates).weights
    parts = [(found[name] - START[name]).flatten() for name in SPEC.parameters]
    return torch.cat(parts).double().numpy()


def test_the_median_is_numpys() -> None:
    for count in (1, 6, 7):
        updates = updates_of(count)
        expected = np.median(updates.astype(np.float32), axis=0)
        agree(step_of({"average": Median()}, updates), expected, 1e-5)


def test_the_trimmed_mean_is_scipys() -> None:
    for count, trim in ((3, 1), (7, 1), (6, 2)):
        updates = updates_of(count)
        expected = stats.trim_mean(updates, trim / count, axis=0)
        found = step_of({"average": TrimmedMean(trim)}, updates)
        agree(found, expected, 1e-5)


def test_clipping_cuts_to_the_median_length_and_no_shorter_update() -> None:
    updates = updates_of(5) * np.array([[1.0], [2.0], [3.0], [0.5], [80.0]])
    cut = updates * np.array([[1.0], [1.0], [2 / 3], [1.0], [2 / 80]])
    found = step_of({"average": ClippedMean()}, updates)
    agree(found, cut.mean(0), 2e-5)


def krum_by_hand(updates: np.ndarray, attackers: int, chosen: int) -> np.ndarray:
    """Blanchard et al., Section 4, from the vectors themselves."""
    count = len(updates)
    scores = np.zeros(count)
    for i in range(count):
        distances = [np.sum((updates[i] - updates[j]) ** 2) for j in range(count) if j != i]
        scores[i] = np.sum(np.sort(distances)[: count - attackers - 2])
    weights = np.zeros(count)
    weights[np.argsort(scores)[:chosen]] = 1 / chosen
    return weights


def test_krum_is_its_definition() -> None:
    updates = updates_of(7) * np.random.default_rng(0).uniform(0.5, 2, size=(7, 1))
    for attackers, chosen in ((0, 1), (2, 1), (2, 4), (1, 7)):
        part = {"weighting": Krum(attackers, chosen)}
        found = values(averaged(part, updates).aggregation, tuple(NAMES))
        np.testing.assert_allclose(found, krum_by_hand(updates, attackers, chosen))
    # Of two that are nearest to each other the first is taken, whatever rounding says.
    count = updates.shape[1]
    rows = np.random.default_rng(2).normal(size=(3, count)) * np.logspace(0, -5, count)
    found = values(averaged({"weighting": Krum(0)}, rows).aggregation, tuple("ABC"))
    np.testing.assert_allclose(found, krum_by_hand(rows, 0, 1))


def test_the_geometric_median_is_the_minimum_of_the_distances() -> None:
    points = np.random.default_rng(0).normal(size=(5, 3))
    updates = {name: point.tolist() for name, point in zip(NAMES, points, strict=False)}
    strategy = FedAvg(weighting=GeometricMedian())
    (result,) = play(strategy, [updates], [{}], [0.0] * 3)
    best = optimize.minimize(
        lambda z: np.linalg.norm(points - z, axis=1).sum(), points.mean(0), tol=1e-12
    )
    agree(result.weights["w"], best.x, 1e-5)
    assert sum(values(result.aggregation, tuple("ABCDE"))) == pytest.approx(1)
