# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
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
from monai_fairfl.strategies import QFedAvg, qfedavg

WORKED = GOLDEN["qffl"]
LOSSES = reported("global_loss", WORKED["losses"])


@pytest.mark.parametrize("q", [0, 1, 2])
def test_the_step_is_the_worked_one(q: int) -> None:
    (result,) = play(QFedAvg(q=q, learning_rate=WORKED["eta"]), [UPDATES], [LOSSES], COMMON["w0"])
    np.testing.assert_allclose(result.weights["w"], WORKED[f"q{q}"]["new_global"], atol=2e-6)


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("chosen", [{"form": "loss_weighted"}, {"variant": "released"}])
def test_the_loss_weighted_form_is_a_plain_average(q: int, chosen: dict[str, str]) -> None:
    (result,) = play(QFedAvg(q=q, **chosen), [UPDATES], [LOSSES], COMMON["w0"])
    np.testing.assert_allclose(
        values(result.aggregation), WORKED[f"ffl4mia_weights_q{q}"], atol=2e-6
    )
    if q == 1:
        np.testing.assert_allclose(result.weights["w"], WORKED["ffl4mia_new_global_q1"], atol=2e-6)


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


@pytest.mark.parametrize("arguments", [{"q": -1.0}, {"learning_rate": 0.0}, {"form": "x"}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="QFedAvg"):
        QFedAvg(**arguments)  # type: ignore[arg-type]


def test_one_clients_negative_loss_counts_as_absent_and_negative_losses_alone_are_refused() -> None:
    (result,) = play(
        QFedAvg(form="loss_weighted"),
        [UPDATES],
        [reported("global_loss", [0.1, -0.8, 0.3])],
        COMMON["w0"],
    )
    assert result.aggregation == pytest.approx({"1": 1 / 6, "2": 1 / 3, "3": 1 / 2})
    assert result.notes == {
        "2": "global_loss -0.8, below 0, 0.2 used: mean of the others",
    }
    with pytest.raises(FederationError, match="loss of '2' is -0.8: .*1 - Dice"):
        play(QFedAvg(), [UPDATES], [reported("global_loss", [-0.1, -0.8, -0.2])], COMMON["w0"])


@pytest.mark.parametrize("losses", [[100.0, 1.0, 2.0], [1e-3, 2e-3, 1e-4]])
@pytest.mark.parametrize("form", ["lipschitz", "loss_weighted"])
def test_powers_too_large_or_too_small_for_a_float_leave_the_weights_to_the_largest_loss(
    form: str, losses: list[float]
) -> None:
    (result,) = play(
        QFedAvg(q=200.0, form=form), [UPDATES], [reported("global_loss", losses)], COMMON["w0"]
    )
    largest = str(1 + losses.index(max(losses)))
    assert result.aggregation[largest] == pytest.approx(1) and result.weights["w"].isfinite().all()


def test_the_step_does_not_depend_on_the_unit_of_the_powers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """h_k and F_k^q are divided by the same power, so that their ratio stays."""
    given = [UPDATES], [reported("global_loss", [0.3, 0.8, 0.5])], COMMON["w0"]
    (plain,) = play(QFedAvg(q=2.0), *given)
    monkeypatch.setattr(qfedavg, "unit_of_powers", lambda losses, power: max(losses.values()))
    (scaled,) = play(QFedAvg(q=2.0), *given)
    torch.testing.assert_close(scaled.weights["w"], plain.weights["w"])
    assert scaled.details["scale"] == pytest.approx(plain.details["scale"])
