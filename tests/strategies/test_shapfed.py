# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from helpers.driving import CLIENTS, COMMON, GOLDEN, drive
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec, read_spec
from monai_fairfl.strategies import ShapFed
from monai_fairfl.strategies.base import RoundResult

WORKED = GOLDEN["shapfed"]
SPEC = ModelSpec(
    ("body", "head.bias", "head.weight"),
    layers={"body": "", "head.bias": "head", "head.weight": "head"},
    output=("head", 0),
)
ROWS = dict(zip(CLIENTS, np.array(WORKED["last_layer_updates"]), strict=True))
BODY = dict(zip(CLIENTS, COMMON["updates"], strict=True))


def one_round(strategy: ShapFed, rows: Mapping[str, np.ndarray] = ROWS) -> RoundResult:
    def answer(request: Request) -> Reply:
        head = torch.tensor(rows[request.client])
        update = {
            "body": torch.tensor(BODY[request.client], dtype=torch.float64),
            "head.weight": head[:, :2].clone(),
        }
        return Reply(request.client, {**update, "head.bias": head[:, 2].clone()}, 1)

    return drive(strategy, CLIENTS, answer, SPEC)[0]


def begin(strategy: ShapFed, spec: ModelSpec = SPEC, classes: int = 2) -> ShapFed:
    weights = {
        "body": torch.tensor(COMMON["w0"], dtype=torch.float64),
        "head.weight": torch.zeros(classes, 2, dtype=torch.float64),
        "head.bias": torch.zeros(classes, dtype=torch.float64),
    }
    strategy.start(weights, CLIENTS, spec)
    return strategy


def class_values(result: RoundResult) -> list[list[float]]:
    return [list(result.details["class_value"][client].values()) for client in CLIENTS]


def column(numbers: Mapping[str, object]) -> Sequence[float]:
    return [float(numbers[client]) for client in CLIENTS]  # type: ignore[arg-type]


def test_class_values_contributions_and_weights_are_the_worked_ones() -> None:
    result = one_round(begin(ShapFed()))
    np.testing.assert_allclose(class_values(result), WORKED["Gamma"], atol=2e-6)
    np.testing.assert_allclose(column(result.contributions), WORKED["gamma_paper"], atol=2e-6)
    np.testing.assert_allclose(column(result.aggregation), WORKED["gamma_tilde_paper"], atol=2e-6)
    np.testing.assert_allclose(result.weights["body"], WORKED["w_s_paper"], atol=2e-6)


def test_personal_models_are_the_worked_ones() -> None:
    result = one_round(begin(ShapFed(personalised=True)))
    for client, expected in zip(CLIENTS, WORKED["personalised_paper"], strict=True):
        np.testing.assert_allclose(result.rewards[client]["body"], expected, atol=3e-6)  # type: ignore[index]


def test_the_released_code_takes_the_raw_cosine() -> None:
    result = one_round(begin(ShapFed(variant="released", personalised=True)))
    np.testing.assert_allclose(column(result.contributions), WORKED["code_mean_cos"], atol=2e-6)
    np.testing.assert_allclose(column(result.aggregation), WORKED["code_weights"], atol=2e-6)
    # It mixes with the weights, and not with the contributions.
    mixing = result.details["mixing"]
    np.testing.assert_allclose(column(mixing), WORKED["code_weights"], atol=2e-6)


def test_the_paper_averages_with_the_previous_weights() -> None:
    result = one_round(begin(ShapFed(variant="paper")))
    assert column(result.aggregation) == pytest.approx([1 / 3] * 3)


def test_class_values_have_momentum() -> None:
    strategy = begin(ShapFed(mu=0.9))
    smoothed = [
        strategy._smoothed(old, new)
        for old, new in zip(WORKED["Gamma"], WORKED["Gamma_new"], strict=True)
    ]
    np.testing.assert_allclose(smoothed, WORKED["Gamma_smoothed_mu0.9"], atol=2e-6)
    one_round(strategy)

    # With all updates reversed, the cosines with the server's stay.
    second = one_round(strategy, {c: -rows for c, rows in ROWS.items()})
    assert np.abs(np.array(class_values(second)) - np.array(WORKED["Gamma"])).max() < 0.1


def test_a_class_nobody_trained_counts_half() -> None:
    rows = {c: r * [[1, 1, 1], [0, 0, 0]] for c, r in ROWS.items()}
    result = one_round(begin(ShapFed()), rows)
    assert all(values[1] == 0 for values in class_values(result))
    gamma = (np.array(WORKED["Gamma"])[:, 0] + 1) / 4 + 0.25
    np.testing.assert_allclose(column(result.contributions), gamma, atol=2e-6)


def test_one_class_only_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    begin(ShapFed(), classes=2)
    assert not caplog.records
    begin(ShapFed(), classes=1)
    assert "one class only" in caplog.text


def test_a_model_whose_output_layer_nobody_knows_is_refused_before_a_round() -> None:
    unknown = ModelSpec(parameters=("w",), layers={"w": ""})
    with pytest.raises(ConfigError, match=r"ShapFed looks at .*ShapFed\(output_layer='head'\)"):
        ShapFed().check_model(unknown, "aggregation")
    named = ModelSpec(parameters=("head.weight",), layers={"head.weight": "head"})
    ShapFed(output_layer="head").check_model(named, "aggregation")


def test_a_wrong_output_layer_is_refused_before_anything_is_sent() -> None:
    network = nn.Sequential()
    for name, layer in (("conv", nn.Conv2d(1, 4, 3)), ("norm", nn.BatchNorm2d(4))):
        network.add_module(name, layer)
    network.add_module("head", nn.Conv2d(4, 2, 1))
    spec = read_spec(network, torch.zeros(1, 1, 8, 8))
    for wrong, words in (
        ("haed", r"such as \['conv', 'head'\], got 'haed'; did you mean 'head'\?"),
        ("tail", "got 'tail'"),
        ("norm", "got 'norm'"),  # it has no classes
    ):
        with pytest.raises(ConfigError, match=f"ShapFed: output_layer must be .*{words}"):
            ShapFed(output_layer=wrong).start(spec.tensors_of(network), ["A", "B"], spec)
    ShapFed(output_layer="conv").check_model(spec, "aggregation")


def of_transposed_head(strategy: ShapFed, bias: bool) -> RoundResult:
    """One round on a network whose logits a transposed convolution makes."""
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ConvTranspose2d(16, 2, 2, stride=2, bias=bias), nn.Softmax(1)
    )
    spec = read_spec(network, torch.zeros(1, 1, 8, 8))
    weights = spec.tensors_of(network)

    def answer(request: Request) -> Reply:
        generator = torch.Generator().manual_seed(int(request.client))
        update = {}
        for name in spec.parameters:
            update[name] = torch.randn(weights[name].shape, generator=generator)
        return Reply(request.client, update, 1)

    strategy.start(weights, CLIENTS, spec)
    return drive(strategy, CLIENTS, answer, spec)[0]


@pytest.mark.parametrize("bias", [False, True])
def test_the_output_layer_that_the_network_shows_has_the_same_classes_by_its_name(
    bias: bool,
) -> None:
    found = of_transposed_head(ShapFed(), bias)
    named = of_transposed_head(ShapFed(output_layer="1"), bias)
    assert set(found.details["class_value"]["1"]) == {"0", "1"}
    assert named.details == found.details
    assert named.aggregation == found.aggregation


def test_a_layer_whose_bias_has_another_number_of_classes_is_refused() -> None:
    network = nn.Sequential(nn.ConvTranspose2d(3, 2, 2), nn.Conv2d(2, 2, 1))
    spec = read_spec(network, torch.zeros(1, 3, 8, 8))
    words = "weight of output layer '0' has 3 classes, and its bias has 2: name a convolution"
    with pytest.raises(ConfigError, match=words):
        ShapFed(output_layer="0").start(spec.tensors_of(network), CLIENTS, spec)


def test_an_output_layer_that_is_not_trained_is_refused_before_anything_is_sent() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1))
    network[1].requires_grad_(False)
    spec = read_spec(network, torch.zeros(1, 1, 8, 8))
    with pytest.raises(ConfigError, match="output_layer must be a trained layer .*got '1'"):
        ShapFed().check_model(spec, "aggregation")


def play_with(
    strategy: ShapFed,
    clients: Sequence[str],
    rows: Mapping[str, np.ndarray] = ROWS,
    labelled: Mapping[str, tuple[bool, ...]] | None = None,
) -> RoundResult:
    def answer(request: Request) -> Reply:
        head = torch.tensor(rows[request.client])
        update = {
            "body": torch.zeros(4, dtype=torch.float64),
            "head.weight": head[:, :2],
            "head.bias": head[:, 2],
        }
        return Reply(request.client, update, 1, labelled=(labelled or {}).get(request.client, ()))

    return drive(strategy, clients, answer, SPEC)[0]


def test_a_class_that_has_no_partner_in_a_round_keeps_its_value() -> None:
    labelled = {"3": (True, False)}
    strategy = begin(ShapFed())
    for _ in range(3):
        play_with(strategy, CLIENTS, labelled=labelled)
    before = strategy.classes["1"][1]
    play_with(strategy, ("1", "3"), labelled=labelled)  # nobody else labels the second class
    assert strategy.classes["1"][1] == before and before is not None

    # Another cosine moves it by its momentum at most.
    changed = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    play_with(strategy, CLIENTS, changed, labelled)
    after = strategy.classes["1"][1]
    assert after is not None and abs(after - before) <= 2 * (1 - strategy.mu)


@pytest.mark.parametrize("variant", ["recommended", "paper", "released"])
def test_a_client_that_was_absent_weighs_as_much_as_its_equals_when_it_is_back(
    variant: str,
) -> None:
    strategy = begin(ShapFed(variant=variant))
    same = dict.fromkeys(CLIENTS, ROWS["1"])
    for clients in (CLIENTS, ("1",), CLIENTS):
        found = play_with(strategy, clients, same).aggregation
    assert column(found) == pytest.approx([1 / 3] * 3)


def class_value(result: RoundResult, client: str, number: int) -> float | None:
    value: float | None = result.details["class_value"][client][str(number)]
    return value


@pytest.mark.parametrize("variant", ["recommended", "paper", "released"])
def test_a_good_value_of_a_class_that_is_no_longer_labelled_does_not_count(variant: str) -> None:
    """Client 1 stops training its better class, and says that it does not label it."""
    strategy = begin(ShapFed(variant=variant))
    first = play_with(strategy, CLIENTS)
    good = class_value(first, "1", 1)
    assert good is not None and good > (class_value(first, "1", 0) or 0)

    reversed_row = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    second = play_with(strategy, CLIENTS, reversed_row, {"1": (True, False)})
    assert class_value(second, "1", 1) is None
    of_disc = class_value(second, "1", 0)
    assert of_disc is not None
    expected = of_disc if variant == "released" else (1 + of_disc) / 2
    assert second.contributions["1"] == pytest.approx(expected)
    assert second.contributions["1"] < first.contributions["1"]  # type: ignore[operator]
    assert second.notes == {
        "1": f"class 1 is no longer labelled: its class value {good:.3g} of earlier rounds counts "
        "only where it is below the mean of the labelled classes"
    }


def test_a_bad_value_of_a_class_that_is_no_longer_labelled_still_counts() -> None:
    strategy = begin(ShapFed())
    first = play_with(strategy, CLIENTS)
    bad = class_value(first, "2", 1)
    assert bad is not None and bad < (class_value(first, "2", 0) or 0)

    second = play_with(strategy, CLIENTS, labelled={"2": (True, False)})
    assert class_value(second, "2", 1) == bad
    assert "class 1 is no longer labelled" in second.notes["2"]


def test_a_class_that_is_labelled_again_goes_on_from_its_old_value() -> None:
    """Else one round without the label would wipe out a bad value."""
    strategy = begin(ShapFed())
    play_with(strategy, CLIENTS)
    before = strategy.classes["1"][1]
    play_with(strategy, CLIENTS, labelled={"1": (True, False)})
    assert strategy.classes["1"][1] == before and before is not None

    reversed_row = {**ROWS, "1": ROWS["1"] * np.array([[1.0], [-1.0]])}
    again = play_with(strategy, CLIENTS, reversed_row)
    value = class_value(again, "1", 1)
    assert value is not None and abs(value - before) <= 2 * (1 - strategy.mu) and not again.notes


def test_who_labels_nothing_any_more_keeps_no_credit_for_it() -> None:
    strategy = begin(ShapFed())
    assert play_with(strategy, CLIENTS).contributions["1"] > 0.5  # type: ignore[operator]
    result = play_with(strategy, CLIENTS, labelled={"1": (False, False)})
    assert result.contributions["1"] == 0.5
    assert "class 0 is no longer labelled" in result.notes["1"]
    assert "class 1 is no longer labelled" in result.notes["1"]


def test_a_class_that_is_not_labelled_from_the_start_is_hidden() -> None:
    """As the method's page says of a false report: nothing shows it."""
    honest = play_with(begin(ShapFed()), CLIENTS)
    assert honest.contributions["2"] == pytest.approx(0.818, abs=5e-4)
    hidden = play_with(begin(ShapFed()), CLIENTS, labelled={"2": (True, False)})
    assert hidden.contributions["2"] == pytest.approx(0.978, abs=5e-4)
    assert not hidden.notes


def test_a_class_that_was_never_labelled_has_neither_value_nor_note() -> None:
    strategy = begin(ShapFed())
    for _ in range(3):
        result = play_with(strategy, CLIENTS, labelled={"3": (True, False)})
        assert class_value(result, "3", 1) is None and not result.notes


UNIT = st.floats(-1, 1)


@given(st.lists(st.tuples(UNIT, st.booleans()), min_size=1, max_size=5))
def test_nobody_gains_by_not_labelling_a_class(classes: list[tuple[float, bool]]) -> None:
    """Neither beside its contribution with all values, nor beside that of the labelled classes."""
    strategy = ShapFed()
    values = [value for value, _ in classes]
    labelled = [is_labelled for _, is_labelled in classes]
    of_labelled = [value if is_labelled else None for value, is_labelled in classes]
    found = strategy._contribution(strategy._counted(values, labelled))
    assert found <= strategy._contribution(of_labelled) + 1e-12
    if any(labelled):
        assert found <= strategy._contribution(values) + 1e-12
    if all(labelled):
        assert found == strategy._contribution(values)
