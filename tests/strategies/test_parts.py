# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    SAMPLES,
    SPEC,
    UPDATES,
    play,
    play_round,
    replies_of,
    reported,
    values,
    vector,
)
from hypothesis import given
from hypothesis import strategies as st
from monai.bundle import ConfigParser

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import capped, in_each_layer
from monai_fairfl.protocol.messages import CONTEXT_KEYS, Reply
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import (
    CGSV,
    BySamples,
    FairFed,
    FedAvg,
    FedCE,
    Mixed,
    Proportional,
    QFedAvg,
    Reward,
    ShapFed,
    Sparsified,
    Strategy,
    Uniform,
    compose,
)
from monai_fairfl.strategies.composition import TRAINING
from monai_fairfl.strategies.configuration import configuration_of, strategy_from


def test_weightings() -> None:
    replies, contributions = replies_of(UPDATES, SAMPLES), {"1": 0.1, "2": 0.3, "3": -0.2}
    assert values(Uniform()(replies, contributions)) == pytest.approx([1 / 3] * 3)
    assert values(BySamples()(replies, contributions)) == pytest.approx(COMMON["p"])
    assert values(Proportional(2.0)(replies, contributions)) == pytest.approx([0.1, 0.9, 0.0])


def test_fedces_contribution_with_cgsvs_reward_as_config() -> None:
    config = {
        "strategy": {
            "_target_": "monai_fairfl.strategies.compose",
            "strategy": {"_target_": "monai_fairfl.strategies.FedCE", "mode": "cos"},
            "reward": {"_target_": "monai_fairfl.strategies.Sparsified", "beta": 1.0},
        }
    }
    strategy: Strategy = ConfigParser(config).get_parsed_content("strategy")
    (result,) = play(strategy, [UPDATES], [{}], COMMON["w0"])
    (plain,) = play(FedCE("cos"), [UPDATES], [{}], COMMON["w0"])
    assert strategy.name == "FedCE-cos-Sparsified"
    assert values(result.aggregation) == values(plain.aggregation) and result.weights["w"].equal(
        plain.weights["w"]
    )
    worth = [math.tanh(w) for w in values(plain.aggregation)]
    assert [4 * k for k in values(result.details["kept"])] == [
        math.ceil(4 * w / max(worth)) for w in worth
    ]
    best = max(CLIENTS, key=lambda c: float(plain.aggregation[c]))  # type: ignore[arg-type]
    np.testing.assert_allclose(result.rewards[best]["w"], result.weights["w"])  # type: ignore[index]


def test_a_client_receives_the_weight_with_which_another_weighting_averaged_it() -> None:
    strategy = compose(FedCE("cos"), weighting=BySamples())
    (result,) = play(strategy, [UPDATES], [{}], COMMON["w0"], SAMPLES)
    assert values(result.aggregation) == pytest.approx(COMMON["p"])
    assert [r.context["previous_weight"] for r in next(strategy.round(CLIENTS))] == pytest.approx(
        COMMON["p"]
    )
    assert [float(c) for c in result.contributions.values()] != pytest.approx(COMMON["p"])  # type: ignore[arg-type]


def test_training_of_one_method_goes_with_the_contributions_of_another() -> None:
    strategy = compose(ShapFed(), training={"sam_rho": 0.05, "gsam_alpha": 0.1})
    assert strategy.parts.training == {"sam_rho": 0.05, "gsam_alpha": 0.1}
    assert strategy.name == "ShapFed-sam_rho_0.05-gsam_alpha_0.1"


def test_parts_belong_to_one_strategy() -> None:
    compose(FedAvg(), training={"prox_mu": 1.0}, reward=Sparsified())
    assert FedAvg().parts.name_words() == [] and CGSV().parts.reward is None
    more_equal = compose(FedAvg(), reward=Sparsified(2.0))
    assert more_equal.name != compose(FedAvg(), reward=Sparsified()).name


def test_a_users_reward_may_share_out_the_step_of_the_global_model() -> None:
    class Nothing(Reward):
        shares_global_step = True

        def __call__(self, replies, old, new, contributions):  # type: ignore[no-untyped-def]
            return {}, {}

    strategy = compose(FedAvg("uniform"), reward=Nothing())
    strategy.start({"w": vector([1.0])}, CLIENTS, SPEC)
    strategy.rewards = {client: {"w": vector([100.0 * int(client)])} for client in CLIENTS}
    result = play_round(strategy, {client: [0.5] for client in CLIENTS}, {})
    assert result.weights["w"].tolist() == [1.5]


def test_what_follows_from_the_variant_is_not_in_the_name() -> None:
    assert QFedAvg(variant="released").name == "QFedAvg-released"


def test_a_users_strategy_may_have_a_variant_and_arguments_without_a_default() -> None:
    class Mine(Strategy):
        def __init__(self, power: float, step: float | None = None, variant: str = "paper"):
            self.power = power
            self.step = (0.5 if variant == "paper" else 0.1) if step is None else step
            self.variant = variant

        def round(self, clients):  # type: ignore[no-untyped-def]
            yield []

    assert Mine(2.0).name == "Mine-power_2.0"
    assert Mine(2.0, variant="released").name == "Mine-power_2.0-released"
    assert Mine(2.0, 0.1).name == "Mine-power_2.0-step_0.1"


def test_an_absent_client_keeps_its_model() -> None:
    strategy = CGSV()
    (first,) = play(strategy, [UPDATES], [{}], COMMON["w0"])
    strategy.rewards = first.rewards or {}
    second = play_round(strategy, {c: UPDATES[c] for c in ("1", "2")}, {})
    assert second.rewards is not None and second.rewards["3"] is strategy.rewards["3"]


def test_who_is_not_even_known_to_a_resumed_run_keeps_its_reward() -> None:
    strategy = CGSV()
    (first,) = play(strategy, [UPDATES], [{}], COMMON["w0"])
    state, rewards = strategy.state_dict(), first.rewards or {}
    strategy.start(first.weights, ("1", "2"), strategy.spec)  # 3 is offline
    strategy.load_state_dict(state)
    strategy.rewards = rewards
    second = play_round(strategy, {c: UPDATES[c] for c in ("1", "2")}, {})
    assert second.rewards is not None and second.rewards["3"] is rewards["3"]


@pytest.mark.parametrize("kind", ["before", "own"])
def test_what_one_client_is_not_given_is_not_taken_from_the_others(kind: str) -> None:
    update = {"1": [1.0, 0.5, 0.25, 0.1], "2": [1.0, 0.5, 0.25, 0.1]}
    samples = {"1": 60, "2": 40}
    strategy = compose(FedAvg(), reward=Sparsified(ratio="share", rounding="floor", rest=kind))
    strategy.start({"w": vector([0.0] * 4)}, ("1", "2"), SPEC)
    for _ in range(12):
        generator = strategy.round(("1", "2"))
        requests = [replace(request, id=i) for i, request in enumerate(next(generator))]
        replies = [
            Reply(r.client, {"w": vector(update[r.client])}, samples[r.client], id=r.id)
            for r in requests
        ]
        with pytest.raises(StopIteration) as stop:
            generator.send(Replies(replies, requests, SPEC))
        strategy.weights, strategy.rewards = stop.value.value.weights, stop.value.value.rewards
    grown = [12 * value for value in update["1"]]
    assert strategy.weights["w"].tolist() == pytest.approx(grown)
    assert strategy.rewards["1"]["w"].tolist() == pytest.approx(grown)  # it is given everything
    withheld = (
        [12.0, 6.0, 0.0, 0.0] if kind == "before" else grown
    )  # floor(4 * 40 / 60) entries; the rest as trained
    assert strategy.rewards["2"]["w"].tolist() == pytest.approx(withheld)


def test_a_cap_limits_the_methods_own_weights_and_leaves_its_contributions() -> None:
    reports = reported("global_loss", [0.1, 0.1, 8.0])
    (plain,) = play(QFedAvg(form="loss_weighted"), [UPDATES], [reports], COMMON["w0"])
    strategy = compose(QFedAvg(form="loss_weighted"), cap=1.5)
    (result,) = play(strategy, [UPDATES], [reports], COMMON["w0"])
    assert plain.aggregation["3"] > 0.9 and result.contributions == plain.contributions
    assert values(result.aggregation) == pytest.approx([0.25, 0.25, 0.5])
    step = sum(weight * np.array(UPDATES[client]) for client, weight in result.aggregation.items())
    assert result.weights["w"].numpy() == pytest.approx(np.array(COMMON["w0"]) + step, abs=1e-6)
    assert strategy.name.endswith("-cap_1.5")


def test_a_cap_limits_each_layer_and_the_weights_of_a_weighting() -> None:
    weights = {"conv": {"1": 0.8, "2": 0.2}, "fc": {"1": 0.5, "2": 0.5}}
    by_layer: Any = in_each_layer(weights, partial(capped, most=0.6))
    assert by_layer["conv"] == pytest.approx({"1": 0.6, "2": 0.4})
    assert by_layer["fc"] == {"1": 0.5, "2": 0.5}
    with_weighting = compose(FedCE("cos"), Proportional(50.0), cap=0.5)
    (result,) = play(with_weighting, [UPDATES], [{}], COMMON["w0"])
    (free,) = play(compose(FedCE("cos"), Proportional(50.0)), [UPDATES], [{}], COMMON["w0"])
    assert max(values(free.aggregation)) > 0.6
    assert max(values(result.aggregation)) == pytest.approx(0.5)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda found: sum(found) > 1e-6),
    st.floats(0.05, 4),
)
def test_capped_weights_keep_their_sum_their_order_and_the_limit(
    given_weights: list[float], most: float
) -> None:
    weights = {str(number): value for number, value in enumerate(given_weights)}
    found = capped(weights, most)
    total = sum(given_weights)
    share = most / len(weights) if most >= 1 else max(most, 1 / len(weights))
    assert sum(found.values()) == pytest.approx(total)
    assert max(found.values()) <= max(share * total, 0) * (1 + 1e-9)
    if max(given_weights) <= share * total:
        assert found == weights
    ranked = sorted(weights, key=lambda client: weights[client])
    for lower, higher in zip(ranked, ranked[1:]):
        assert found[lower] <= found[higher] * (1 + 1e-9)


def test_clipped_reports_are_noted_and_weigh_as_the_band_allows() -> None:
    reports = reported("global_loss", [0.5, 0.6, 50.0])
    strategy = compose(QFedAvg(q=1.0, form="loss_weighted"), clip_reports=2.0)
    (result,) = play(strategy, [UPDATES], [reports], COMMON["w0"])
    # The median is 0.6, the median distance to it 0.1.
    assert values(result.aggregation) == pytest.approx(np.array([0.5, 0.6, 0.8]) / 1.9)
    words = "global_loss 50 clipped to 0.8: it reported more than the others"
    assert result.notes == {"3": words}


def test_a_report_that_brings_no_weight_is_not_limited() -> None:
    """QFedAvg weighs by the loss: a low one stays. Of FairFed, both sides are limited."""
    losses = [reported("global_loss", [0.1, 0.6, 0.7])]
    strategy = compose(QFedAvg(q=1.0, form="loss_weighted"), clip_reports=1.0)
    (result,) = play(strategy, [UPDATES], losses, COMMON["w0"])
    assert values(result.aggregation) == pytest.approx(np.array([0.1, 0.6, 0.7]) / 1.4)
    assert result.notes == {}
    for both, name in ((QFedAvg(q=0.5), "global_loss"), (FairFed(), "global_score")):
        low = [reported(name, [0.1, 0.6, 0.7])]
        (result,) = play(compose(both, clip_reports=1.0), [UPDATES], low, COMMON["w0"])
        words = f"{name} 0.1 clipped to 0.5: it reported less than the others"
        assert result.notes == {"1": words}


def test_limits_are_recorded_and_made_again_and_bad_ones_are_refused() -> None:
    strategy = compose(FedCE(), cap=2.0, clip_reports=3.0)
    recorded = configuration_of(strategy)
    assert recorded is not None and strategy_from(recorded).parts == strategy.parts
    assert "cap" not in (configuration_of(compose(FedCE(), Uniform())) or {"cap": 0})
    for limits in ({"cap": 0.0}, {"cap": math.inf}, {"clip_reports": -1.0}):
        with pytest.raises(ValueError, match="compose: .* must be a finite number"):
            compose(FedCE(), **limits)
        with pytest.raises(ConfigError, match="compose cannot take"):
            strategy_from({**recorded, **limits})


def test_a_strategy_with_parts_keeps_those_that_are_not_replaced() -> None:
    training = {"prox_mu": 0.1, "local_epochs": 2.0}
    strategy = compose(FedCE("cos"), Uniform(), training=training, cap=1.5)
    compose(strategy, reward=Mixed(), training={"prox_mu": 0.2}, clip_reports=3.0)
    parts = strategy.parts
    assert isinstance(parts.weighting, Uniform) and isinstance(parts.reward, Mixed)
    assert parts.training == {"prox_mu": 0.2, "local_epochs": 2.0}
    assert (parts.cap, parts.clip_reports) == (1.5, 3.0)
    assert compose(strategy, cap=2.0).parts.cap == 2.0


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"prox_mo": 0.1}, "no key 'prox_mo'; did you mean 'prox_mu'"),
        (
            {"prox_mu": "0.1"},
            "prox_mu in training must be a finite number of at least 0, got '0.1'",
        ),
        ({"prox_mu": math.nan}, "a finite number of at least 0, got nan"),
        ({"prox_mu": -1.0}, "a finite number of at least 0, got -1.0"),
        ({"sam_rho": -1}, "sam_rho in training must be a finite number of at least 0, got -1"),
        ({"sam_rho": 0.1, "gsam_alpha": -1}, "gsam_alpha in training must be .* 0, got -1"),
        ({"gsam_alpha": 0.1}, "gsam_alpha in training needs sam_rho"),
        ({"reset_optimizer": 2}, "reset_optimizer in training must be 0 or 1, got 2"),
        ({"local_epochs": True}, "must be a whole number from 1, got True"),
        ({"local_epochs": 2.7}, "must be a whole number from 1, got 2.7"),
        ({"local_epochs": 0}, "must be a whole number from 1, got 0"),
    ],
)
def test_a_training_that_no_client_could_do_is_refused(training: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"compose: .*{words}"):
        compose(FedAvg(), training=training)


@pytest.mark.parametrize("key", sorted(set(CONTEXT_KEYS) - set(TRAINING)))
def test_what_a_strategy_or_the_run_sends_is_no_training(key: str) -> None:
    with pytest.raises(ValueError, match=f"compose: training has no key '{key}'"):
        compose(FedAvg(), training={key: 1.0})


def test_gsam_may_refine_the_radius_of_an_inner_composition() -> None:
    inner = compose(FedAvg(), training={"sam_rho": 0.05, "reset_optimizer": True})
    outer = compose(inner, training={"gsam_alpha": 0.1, "local_epochs": 2})
    assert set(outer.parts.training) == set(TRAINING) - {"prox_mu"}


@pytest.mark.parametrize("power", [-1.0, math.nan, math.inf, "a", True, None])
def test_a_power_that_some_contributions_do_not_have_is_refused(power: Any) -> None:
    words = f"Proportional: power must be a finite number of at least 0, got {power!r}"
    with pytest.raises(ValueError, match=words):
        Proportional(power)


@pytest.mark.parametrize("limit", [np.int64(2), np.float32(1.5)])
def test_limits_may_be_numbers_of_numpy(limit: float) -> None:
    parts = compose(FedAvg(), cap=limit, clip_reports=limit).parts
    assert (parts.cap, parts.clip_reports) == (limit, limit)


@pytest.mark.parametrize("power", [0, 2, np.float64(0.5)])
def test_whole_numbers_and_those_of_numpy_are_powers(power: float) -> None:
    weights = Proportional(power)(replies_of(UPDATES), dict.fromkeys(CLIENTS, 0.5))
    assert values(weights) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("part", [Proportional(), Sparsified(), Mixed()])
@pytest.mark.parametrize(
    ("third", "words"),
    [
        ({}, "client '3' answered and has no contribution"),
        ({"3": math.nan}, "the contribution of client '3' is nan"),
    ],
)
def test_a_client_without_a_contribution_is_named(
    part: Any, third: dict[str, float], words: str
) -> None:
    contributions = {"1": 0.1, "2": 0.3, **third}
    models = {"w": vector([0.0] * 4)}
    arguments = () if isinstance(part, Proportional) else (models, models)
    with pytest.raises(ConfigError, match=f"{type(part).__name__}: {words}"):
        part(replies_of(UPDATES), *arguments, contributions)
