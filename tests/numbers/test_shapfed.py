# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""ShapFed: worked class values, weights and personal models; classes that are not labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, COMMON, GOLDEN, drive, values
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from monai_fairfl import ModelSpec, Reply, Request, RoundResult, read_spec
from monai_fairfl.errors import ConfigError
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
    clients: Sequence[str] = CLIENTS,
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

    return drive(strategy, clients, answer, SPEC)[0]


def class_values(result: RoundResult) -> list[list[Any]]:
    """Of each client, of each class; None where it does not label it."""
    return [list(result.details["class_value"][client].values()) for client in CLIENTS]


def cosines_with_server(rows: Mapping[str, np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Oracle: client, class -> cosine of its row with the server's."""
    of_clients = np.array([rows[client] for client in CLIENTS])
    server = np.tensordot(np.array(weights), of_clients, 1)
    products = (of_clients * server).sum(2)
    lengths = np.linalg.norm(of_clients, axis=2) * np.linalg.norm(server, axis=1)
    return products / lengths


def test_class_values_contributions_and_weights_are_the_worked_ones() -> None:
    result = play_with(begin())
    np.testing.assert_allclose(class_values(result), WORKED["Gamma"], atol=2e-6)
    np.testing.assert_allclose(values(result.contributions), WORKED["gamma_paper"], atol=2e-6)
    np.testing.assert_allclose(values(result.aggregation), WORKED["gamma_tilde_paper"], atol=2e-6)
    np.testing.assert_allclose(result.weights["body"], WORKED["w_s_paper"], atol=2e-6)


def test_personal_models_are_the_worked_ones() -> None:
    result = play_with(begin(ShapFed(personalised=True)))
    assert result.rewards is not None
    for client, expected in zip(CLIENTS, WORKED["personalised_paper"], strict=True):
        np.testing.assert_allclose(result.rewards[client]["body"], expected, atol=3e-6)
    scaled = play_with(begin(ShapFed(reward=Mixed("max"))))
    gamma = np.array(WORKED["gamma_paper"])
    np.testing.assert_allclose(values(scaled.details["mixing"]), gamma / gamma.max(), atol=2e-6)


def test_the_released_code_takes_the_raw_cosine_and_mixes_with_the_weights() -> None:
    result = play_with(begin(ShapFed(variant="released", personalised=True)))
    np.testing.assert_allclose(values(result.contributions), WORKED["code_mean_cos"], atol=2e-6)
    np.testing.assert_allclose(values(result.aggregation), WORKED["code_weights"], atol=2e-6)
    np.testing.assert_allclose(values(result.details["mixing"]), WORKED["code_weights"], atol=2e-6)


def test_the_paper_averages_with_the_previous_weights() -> None:
    strategy = begin(ShapFed(variant="paper"))
    assert values(play_with(strategy).aggregation) == pytest.approx([1 / 3] * 3)
    second = play_with(strategy)
    np.testing.assert_allclose(values(second.aggregation), WORKED["gamma_tilde_paper"], atol=2e-6)


def test_class_values_have_momentum_and_the_servers_rows_the_previous_weights() -> None:
    strategy = begin(ShapFed(mu=0.5))
    play_with(strategy)
    rows = {client: -ROWS[client] * [[1.0], [-0.5]] + 0.1 for client in CLIENTS}
    found = class_values(play_with(strategy, rows=rows))
    fresh = cosines_with_server(rows, WORKED["gamma_tilde_paper"])
    np.testing.assert_allclose(found, (np.array(WORKED["Gamma"]) + fresh) / 2, atol=3e-6)


def test_a_class_nobody_trained_counts_half() -> None:
    rows = {client: row * [[1, 1, 1], [0, 0, 0]] for client, row in ROWS.items()}
    result = play_with(begin(), rows=rows)
    assert all(of_client[1] == 0 for of_client in class_values(result))
    gamma = (np.array(WORKED["Gamma"])[:, 0] + 1) / 4 + 0.25
    np.testing.assert_allclose(values(result.contributions), gamma, atol=2e-6)


def test_a_client_that_was_absent_weighs_as_much_as_its_equals_when_it_is_back() -> None:
    same = dict.fromkeys(CLIENTS, ROWS["1"])
    for variant in ("recommended", "paper", "released"):
        strategy = begin(ShapFed(variant=variant))
        for clients in (CLIENTS, ("1",), CLIENTS):
            found = play_with(strategy, clients, same).aggregation
        assert values(found) == pytest.approx([1 / 3] * 3)


# ---- the output layer


def test_one_class_only_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    begin(classes=2)
    assert not caplog.records
    begin(classes=1)
    assert "class" in caplog.text


def test_classes_of_a_transposed_convolution_are_on_its_second_axis() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ConvTranspose2d(16, 2, 2, stride=2), nn.Softmax(1)
    )
    spec = read_spec(network, torch.zeros(1, 1, 8, 8))
    weights = spec.tensors_of(network)
    generator = torch.Generator().manual_seed(0)
    updates, rows = {}, {}
    for client in CLIENTS:
        updates[client] = update = {
            name: torch.randn(weights[name].shape, generator=generator) for name in spec.parameters
        }
        kernel = update["1.weight"].double().transpose(0, 1).flatten(1)
        rows[client] = torch.cat([kernel, update["1.bias"].double()[:, None]], 1).numpy()
    expected = cosines_with_server(rows, [1 / 3] * 3)
    for strategy in (ShapFed(), ShapFed(output_layer="1")):
        strategy.start(weights, CLIENTS, spec)
        result, _ = drive(strategy, CLIENTS, lambda r: r.reply(updates[r.client], 1), spec)
        np.testing.assert_allclose(class_values(result), expected, atol=1e-6)


def test_a_layer_that_is_not_known_or_not_trained_is_refused_before_anything_is_sent() -> None:
    network = nn.Sequential()
    for name, layer in (("conv", nn.Conv2d(1, 4, 3)), ("norm", nn.BatchNorm2d(4))):
        network.add_module(name, layer)
    network.add_module("head", nn.Conv2d(4, 2, 1))
    spec = read_spec(network, torch.zeros(1, 1, 8, 8))
    weights = spec.tensors_of(network)
    # The normalisation has no classes.
    for wrong in ("haed", "tail", "norm"):
        with pytest.raises(ConfigError, match=f"output_layer.*{wrong}"):
            ShapFed(output_layer=wrong).start(weights, ["A", "B"], spec)
    # Another layer than the last has its classes on the first axis.
    other = ShapFed(output_layer="conv")
    other.start(weights, ["A", "B"], spec)
    ones = {name: torch.ones_like(weights[name]) for name in spec.parameters}
    result, _ = drive(other, ["A", "B"], lambda request: request.reply(ones, 1), spec)
    assert len(result.details["class_value"]["A"]) == 4

    network.head.requires_grad_(False)
    frozen = read_spec(network, torch.zeros(1, 1, 8, 8))
    with pytest.raises(ConfigError, match="head"):
        ShapFed().start(frozen.tensors_of(network), ["A", "B"], frozen)

    unknown = ModelSpec(("w",), layers={"w": ""})
    with pytest.raises(ConfigError, match="output_layer"):
        ShapFed().start({"w": torch.zeros(2, 1)}, ["A", "B"], unknown)

    transposed = nn.Sequential(nn.ConvTranspose2d(3, 2, 2), nn.Conv2d(2, 2, 1))
    spec = read_spec(transposed, torch.zeros(1, 3, 8, 8))
    with pytest.raises(ConfigError, match="3 classes.* 2"):
        ShapFed(output_layer="0").start(spec.tensors_of(transposed), CLIENTS, spec)


# ---- classes that a site does not label


def test_a_class_that_has_no_partner_in_a_round_keeps_its_value() -> None:
    labelled = {"3": (True, False)}
    strategy = begin()
    for _ in range(3):
        before = class_values(play_with(strategy, labelled=labelled))[0][1]
    # Nobody else labels the second class.
    alone = play_with(strategy, ("1", "3"), labelled=labelled)
    assert alone.details["class_value"]["1"]["1"] == before
    # Another cosine moves it by its momentum at most.
    changed = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    after = class_values(play_with(strategy, rows=changed, labelled=labelled))[0][1]
    assert 0 < abs(after - before) <= 2 * 0.1


@pytest.mark.parametrize("variant", ["recommended", "released"])
def test_a_good_value_of_a_class_that_is_no_longer_labelled_does_not_count(variant: str) -> None:
    """Client 1 stops training its better class, and says that it does not label it."""
    strategy = begin(ShapFed(variant=variant))
    other, good = class_values(play_with(strategy))[0]
    assert good > other

    reversed_row = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    second = play_with(strategy, rows=reversed_row, labelled={"1": (True, False)})
    of_disc, of_cup = class_values(second)[0]
    assert of_cup is None
    expected = of_disc if variant == "released" else (1 + of_disc) / 2
    assert second.contributions["1"] == pytest.approx(expected)
    assert set(second.notes) == {"1"} and f"{good:.3g}" in second.notes["1"]


def test_a_class_that_is_labelled_again_goes_on_from_its_old_value() -> None:
    """Else one round without the label would wipe out a bad value."""
    strategy = begin()
    before = class_values(play_with(strategy))[0][1]
    play_with(strategy, labelled={"1": (True, False)})
    reversed_row = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    again = play_with(strategy, rows=reversed_row)
    assert abs(class_values(again)[0][1] - before) <= 2 * 0.1 and not again.notes


def test_a_class_that_is_not_labelled_from_the_start_has_neither_value_nor_note() -> None:
    """As the method's page says of a false report: nothing shows it."""
    strategy = begin()
    for contribution in (0.978, None):
        result = play_with(strategy, labelled={"2": (True, False)})
        assert class_values(result)[1][1] is None and not result.notes
        if contribution is not None:
            assert result.contributions["2"] == pytest.approx(contribution, abs=5e-4)
    honest = play_with(begin())
    assert honest.contributions["2"] == pytest.approx(0.818, abs=5e-4)


NUMBERS = st.floats(-1, 1).map(lambda x: round(x, 3))
HEAD = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=3, max_size=3)


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
