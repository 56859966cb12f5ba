# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Robust averages and weightings, beside NumPy's and SciPy's own medians, means and minimisers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.driving import play, replies_of
from helpers.updates import PARAMETERS, SPEC, honest, replies_with, statistics_of, tensors_of
from scipy import optimize, stats

from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import (
    CGSV,
    Average,
    ClippedMean,
    FedAvg,
    FedCE,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
    Weighting,
    compose,
)

NAMES = "ABCDEFG"


def updates_of(count: int, seed: int = 0) -> np.ndarray:
    """Honest updates near a common one, one a row."""
    return np.stack(list(honest(NAMES[:count], 0.8, seed).values()))


def as_replies(updates: np.ndarray) -> Replies:
    return replies_with(dict(zip(NAMES, updates, strict=False)))


def step_of(average: Average, replies: Replies) -> np.ndarray:
    """The step of the parameters, flat."""
    weights = {client: 1 / len(replies) for client in replies.clients}
    model = average(replies, weights, "aggregation", None, None)
    start = replies.start(replies[0])
    parts = [(model[name] - start[name]).flatten() for name in SPEC.parameters]
    return torch.cat(parts).double().numpy()


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_the_median_is_numpys(count: int) -> None:
    updates = updates_of(count)
    expected = np.median(updates.astype(np.float32), axis=0)
    np.testing.assert_allclose(step_of(Median(), as_replies(updates)), expected, atol=1e-5)


@pytest.mark.parametrize(("count", "trim"), [(3, 1), (7, 1), (7, 3), (6, 2)])
def test_the_trimmed_mean_is_scipys(count: int, trim: int) -> None:
    updates = updates_of(count)
    expected = stats.trim_mean(updates, trim / count, axis=0)
    np.testing.assert_allclose(step_of(TrimmedMean(trim), as_replies(updates)), expected, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_more_trimming_than_clients_allow_leaves_the_median(count: int) -> None:
    replies = as_replies(updates_of(count))
    np.testing.assert_array_equal(step_of(TrimmedMean(9), replies), step_of(Median(), replies))


def test_clipping_cuts_to_the_median_length_and_no_shorter_update() -> None:
    updates = updates_of(5) * np.array([[1.0], [2.0], [3.0], [0.5], [80.0]])
    cut = updates * np.array([[1.0], [1.0], [2 / 3], [1.0], [2 / 80]])
    found = step_of(ClippedMean(), as_replies(updates))
    np.testing.assert_allclose(found, cut.mean(0), atol=1e-5)


def test_clipping_takes_lengths_as_the_strategy_scales_them() -> None:
    replies = replies_of({"A": [3.0, 0.0], "B": [0.0, 1.0], "C": [2.0, 0.0]})
    scale = {"A": 1.0, "B": 4.0, "C": 0.5}
    weights = dict.fromkeys("ABC", 1 / 3)
    model = ClippedMean()(replies, weights, "aggregation", None, scale)
    np.testing.assert_allclose(model["w"], [(3 + 1) / 3, 3 / 3])


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("attackers", "chosen"), [(0, 1), (1, 1), (2, 1), (2, 4), (1, 7)])
def test_krum_is_its_definition(seed: int, attackers: int, chosen: int) -> None:
    generator = np.random.default_rng(seed)
    updates = updates_of(7, seed) * generator.uniform(0.5, 2, size=(7, 1))
    weights = Krum(attackers, chosen)(as_replies(updates), {})
    expected = krum_by_hand(updates, attackers, chosen)
    assert list(weights) == list(NAMES)
    np.testing.assert_allclose(list(weights.values()), expected)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_end_nothing(count: int) -> None:
    replies = as_replies(updates_of(count))
    for weighting in (Krum(2, 3), GeometricMedian()):
        assert sum(weighting(replies, {}).values()) == pytest.approx(1)


def test_the_geometric_median_is_the_minimum_of_the_distances() -> None:
    points = np.random.default_rng(0).normal(size=(5, 3))
    replies = replies_of({name: list(point) for name, point in zip(NAMES, points, strict=False)})
    weights = GeometricMedian()(replies, {})
    found = np.array(list(weights.values())) @ points
    best = optimize.minimize(
        lambda z: np.linalg.norm(points - z, axis=1).sum(), points.mean(0), tol=1e-12
    )
    np.testing.assert_allclose(found, best.x, atol=1e-5)
    assert sum(weights.values()) == pytest.approx(1)


def test_identical_and_empty_updates_are_averaged_as_ever() -> None:
    for updates in (np.tile(updates_of(1), (5, 1)), np.zeros((5, updates_of(1).shape[1]))):
        replies = as_replies(updates)
        assert GeometricMedian()(replies, {}) == pytest.approx(dict.fromkeys("ABCDE", 0.2))
        assert Krum(1, 2)(replies, {}) == {"A": 0.5, "B": 0.5, "C": 0, "D": 0, "E": 0}
        for average in (Median(), TrimmedMean(), ClippedMean()):
            np.testing.assert_allclose(step_of(average, replies), updates[0], atol=1e-5)


def weighted(weighting: Weighting) -> Callable[[Replies], np.ndarray]:
    def step(replies: Replies) -> np.ndarray:
        weights = weighting(replies, {})
        rows = replies.matrix.rows.double().numpy()
        return np.array([weights[reply.client] for reply in replies]) @ rows

    return step


RULES: dict[str, Callable[[Replies], np.ndarray]] = {
    "median": lambda replies: step_of(Median(), replies),
    "trimmed mean": lambda replies: step_of(TrimmedMean(3), replies),
    "geometric median": weighted(GeometricMedian()),
    "krum": weighted(Krum(attackers=2)),
    "multi-krum": weighted(Krum(attackers=2, chosen=3)),
}
MOST = {"krum": 2, "multi-krum": 2}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("hostile", [-1.0, 1e3, 1e6])
def test_fewer_attackers_than_the_breakdown_point_move_the_step_little(
    name: str, hostile: float
) -> None:
    updates = updates_of(7)
    attackers = MOST.get(name, 3)
    attacked = updates.copy()
    attacked[-attackers:] = hostile * updates[0]
    step = RULES[name](as_replies(attacked))
    to_honest = np.linalg.norm(step - updates[:-attackers].mean(0))
    assert to_honest < 1.0
    plain = np.linalg.norm(attacked.mean(0) - updates[:-attackers].mean(0))
    assert abs(hostile) == 1 or plain > 100 * to_honest


@pytest.mark.parametrize("name", ["median", "trimmed mean", "geometric median"])
def test_beyond_the_breakdown_point_the_step_is_theirs(name: str) -> None:
    updates = updates_of(7)
    updates[-4:] = 1e6 * updates[0]
    assert np.linalg.norm(RULES[name](as_replies(updates))) > 1e5


@pytest.mark.parametrize("weighting", [Krum(1, 3), GeometricMedian()])
def test_a_row_of_a_class_that_a_site_does_not_label_makes_no_distance(
    weighting: Weighting,
) -> None:
    """Sites A and B do not label the last class: their rows of it are not trained."""
    labels = {"A": (True, True, False), "B": (True, False, False)}

    def weights_with(factor: float) -> dict[str, float]:
        updates = updates_of(5)
        rows = slice(PARAMETERS - 100, PARAMETERS)  # the last class of out.weight
        updates[0, rows] *= factor
        updates[1, rows] *= -factor
        replies = as_replies(updates)
        partial = [replace(reply, labelled=labels.get(reply.client, ())) for reply in replies]
        return weighting(Replies(partial, replies.requests.values(), SPEC), {})

    assert weights_with(1.0) == pytest.approx(weights_with(30.0), abs=1e-4)


def test_a_class_is_the_median_of_those_who_label_it_and_statistics_are_medians() -> None:
    updates = dict(zip("ABC", updates_of(3), strict=True))
    wild = {"C": statistics_of(mean=9.0, variance=100.0, batches=7)}
    replies = replies_with(updates, wild)
    labels = {"A": (True, True, True), "B": (True, True, True), "C": (True, True, False)}
    partial = [replace(reply, labelled=labels[reply.client]) for reply in replies]
    found = Replies(partial, replies.requests.values(), SPEC)
    model = Median()(found, {}, "aggregation", None, None)

    rows = {client: tensors_of(update)["out.weight"] for client, update in updates.items()}
    step = model["out.weight"] - replies.start(replies[0])["out.weight"]
    middle = torch.stack([rows[c][0] for c in "ABC"]).median(0).values
    torch.testing.assert_close(step[0], middle, atol=1e-5, rtol=0)
    torch.testing.assert_close(step[2], (rows["A"][2] + rows["B"][2]) / 2, atol=1e-5, rtol=0)
    assert model["norm.running_var"].tolist() == [1.0] * 4
    assert model["norm.running_mean"].tolist() == [0.0] * 4
    assert int(model["norm.num_batches_tracked"]) == 7
    assert "norm.running_var" not in Median()(found, {}, "local", None, None)


def test_clients_that_began_from_different_models_have_the_median_of_their_models() -> None:
    replies = replies_of({"A": [1.0], "B": [2.0], "C": [3.0]})
    own = []
    for start, request in zip((10.0, 0.0, 0.0), replies.requests.values(), strict=True):
        own.append(replace(request, weights={"w": torch.tensor([start], dtype=torch.float64)}))
    apart = Replies(list(replies), own, replies.spec)
    assert Median()(apart, {}, "aggregation", None, None)["w"].item() == 3.0
    start = {"w": torch.tensor([5.0], dtype=torch.float64)}
    assert Median()(apart, {}, "aggregation", start, None)["w"].item() == 7.0


UPDATES: list[Mapping[str, list[float]]] = [{"A": [1.0, 0.0], "B": [0.0, 1.0], "C": [50.0, 50.0]}]


@pytest.mark.parametrize(
    ("part", "step"),
    [
        ({"average": Median()}, [1.0, 1.0]),
        ({"average": TrimmedMean(1)}, [1.0, 1.0]),
        ({"average": ClippedMean()}, [(1 + 0.5**0.5) / 3] * 2),
        ({"weighting": Krum(0, 2)}, [0.5, 0.5]),
    ],
)
def test_they_go_with_a_strategy(part: dict[str, object], step: list[float]) -> None:
    [result] = play(compose(FedAvg(), **part), UPDATES, [{}], [0.0, 0.0])  # type: ignore[arg-type]
    np.testing.assert_allclose(result.weights["w"], step)
    assert sum(dict(result.aggregation).values()) == pytest.approx(1)  # type: ignore[arg-type]


def test_weights_that_play_no_part_are_recorded_as_equal_and_contributions_stay() -> None:
    samples = {"A": 80, "B": 10, "C": 10}
    [result] = play(compose(FedAvg(), average=Median()), UPDATES, [{}], [0.0, 0.0], samples)
    assert result.aggregation == pytest.approx(dict.fromkeys("ABC", 1 / 3))
    assert result.contributions == pytest.approx({"A": 0.8, "B": 0.1, "C": 0.1})
    [clipped] = play(compose(FedAvg(), average=ClippedMean()), UPDATES, [{}], [0.0, 0.0], samples)
    assert clipped.aggregation == pytest.approx({"A": 0.8, "B": 0.1, "C": 0.1})


def test_a_method_with_rewards_shares_out_the_robust_step() -> None:
    composed = compose(CGSV(gamma=None), average=Median())
    [result] = play(composed, UPDATES, [{}], [0.0, 0.0])
    assert result.rewards is not None
    largest = max(float(model["w"].max()) for model in result.rewards.values())
    assert largest == pytest.approx(float(result.weights["w"].max()))


def test_names_and_bad_arguments() -> None:
    assert compose(FedCE("cos"), average=TrimmedMean(2)).name == "FedCE-cos-TrimmedMean-trim_2"
    assert compose(FedAvg(), Krum(2, 3)).name == "FedAvg-Krum-attackers_2-chosen_3"
    for make in (
        lambda: TrimmedMean(0),
        lambda: TrimmedMean(True),
        lambda: Krum(-1),
        lambda: Krum(1, 0),
        lambda: GeometricMedian(0.0),
        lambda: GeometricMedian(math.inf),
    ):
        with pytest.raises(ValueError, match="must be"):
            make()
