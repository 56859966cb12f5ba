# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg: steps weighed by powers of the losses."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import (
    COMMON,
    GOLDEN,
    SPEC,
    UPDATES,
    play,
    play_round,
    reported,
    values,
    vector,
)

from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import QFedAvg

WORKED = GOLDEN["qffl"]
LOSSES = reported("global_loss", WORKED["losses"])


def test_the_step_is_the_worked_one() -> None:
    for q in (0, 1, 2):
        strategy = QFedAvg(q=q, learning_rate=WORKED["eta"])
        (result,) = play(strategy, [UPDATES], [LOSSES], COMMON["w0"])
        np.testing.assert_allclose(result.weights["w"], WORKED[f"q{q}"]["new_global"], atol=2e-6)


@pytest.mark.parametrize("chosen", [{"form": "loss_weighted"}, {"variant": "released"}])
def test_the_loss_weighted_form_is_a_plain_average(chosen: dict[str, str]) -> None:
    for q in (1, 2):
        (result,) = play(QFedAvg(q=q, **chosen), [UPDATES], [LOSSES], COMMON["w0"])
        expected = WORKED[f"ffl4mia_weights_q{q}"]
        np.testing.assert_allclose(values(result.aggregation), expected, atol=2e-6)
        if q == 1:
            model = WORKED["ffl4mia_new_global_q1"]
            np.testing.assert_allclose(result.weights["w"], model, atol=2e-6)


def test_least_squares_clients_converge_to_the_minimum_of_the_q_objective() -> None:
    """sum_k F_k^2 / 2, F_k = |w - t_k|^2 / 2: at its minimum the gradients F_k (w - t_k) cancel."""
    targets, rate = {"A": 0.0, "B": 1.0, "C": 5.0}, 0.1
    strategy, w = QFedAvg(q=1, learning_rate=rate), 2.0
    strategy.start({"w": vector([w])}, sorted(targets), SPEC)
    for _ in range(400):
        updates = {c: [-rate * (w - t)] for c, t in targets.items()}  # one step of gradient descent
        losses = {c: {"global_loss": (w - t) ** 2 / 2} for c, t in targets.items()}
        strategy.weights = play_round(strategy, updates, losses).weights
        w = strategy.weights["w"].item()
    assert sum((w - t) ** 3 for t in targets.values()) == pytest.approx(0, abs=1e-4)
    assert w > np.mean(list(targets.values()))  # nearer to the client that fares worst


@pytest.mark.parametrize("losses", [[100.0, 1.0, 2.0], [1e-3, 2e-3, 1e-4]])
@pytest.mark.parametrize("form", ["lipschitz", "loss_weighted"])
def test_powers_beyond_a_float_leave_the_weights_to_the_largest_loss(
    form: str, losses: list[float]
) -> None:
    measured = [reported("global_loss", losses)]
    (result,) = play(QFedAvg(q=200.0, form=form), [UPDATES], measured, COMMON["w0"])
    largest = str(1 + losses.index(max(losses)))
    assert result.aggregation[largest] == pytest.approx(1) and result.weights["w"].isfinite().all()


@pytest.mark.parametrize(("q", "losses"), [(2.0, [0.3, 0.8, 0.5]), (200.0, [100.0, 99.0, 2.0])])
def test_the_step_is_algorithm_2s_also_where_its_powers_would_overflow(
    q: float, losses: list[float]
) -> None:
    """h_k and F_k^q are divided by the same power here, so that their ratio stays."""
    lipschitz = 10.0
    steps = lipschitz * np.array([UPDATES[client] for client in UPDATES])
    largest = max(losses)
    shares = np.array(losses) / largest
    h = q * shares ** (q - 1) / largest * (steps**2).sum(1) + lipschitz * shares**q
    expected = np.array(COMMON["w0"]) + shares**q @ steps / h.sum()
    strategy = QFedAvg(q=q, learning_rate=1 / lipschitz)
    measured = [reported("global_loss", losses)]
    (result,) = play(strategy, [UPDATES], measured, COMMON["w0"])
    np.testing.assert_allclose(result.weights["w"], expected, rtol=1e-8)


def test_one_clients_negative_loss_counts_as_absent_and_negative_losses_alone_are_refused() -> None:
    given = [reported("global_loss", [0.1, -0.8, 0.3])]
    (result,) = play(QFedAvg(form="loss_weighted"), [UPDATES], given, COMMON["w0"])
    assert result.aggregation == pytest.approx({"1": 1 / 6, "2": 1 / 3, "3": 1 / 2})
    assert set(result.notes) == {"2"} and "-0.8" in result.notes["2"]
    negative = [reported("global_loss", [-0.1, -0.8, -0.2])]
    with pytest.raises(FederationError, match="'2' is -0.8"):
        play(QFedAvg(), [UPDATES], negative, COMMON["w0"])


@pytest.mark.parametrize("arguments", [{"q": -1.0}, {"learning_rate": 0.0}, {"form": "x"}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="|".join(arguments)):
        QFedAvg(**arguments)  # type: ignore[arg-type]
