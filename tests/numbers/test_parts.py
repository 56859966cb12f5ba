# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The parts that every strategy takes: weightings, caps, clipped reports, training, and rewards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers.driving import (
    CLIENTS,
    COMMON,
    SAMPLES,
    UPDATES,
    drive,
    play,
    play_round,
    reported,
    values,
    vector,
)
from helpers.fixed_sites import federate, vectors
from helpers.given_strategy import Given, equal
from hypothesis import given
from hypothesis import strategies as st
from monai.bundle import ConfigParser

from monai_fairfl import ModelSpec, Strategy, Train, compose, normalise
from monai_fairfl.errors import ConfigError
from monai_fairfl.replies import uniform
from monai_fairfl.strategies import (
    CGSV,
    BySamples,
    Ditto,
    FairFed,
    FedAvg,
    FedCE,
    Mixed,
    Proportional,
    QFedAvg,
    Reward,
    Sparsified,
    Uniform,
    Weighting,
)

START = COMMON["w0"]


def weights_by(weighting: Weighting, contributions: dict[str, float]) -> list[float]:
    strategy = compose(equal(CLIENTS, contributions), weighting=weighting)
    (result,) = play(strategy, [UPDATES], [{}], START, SAMPLES)
    assert dict(result.contributions) == contributions
    return values(result.aggregation)


def test_weightings() -> None:
    contributions = {"1": 0.1, "2": 0.3, "3": -0.2}
    assert weights_by(Uniform(), contributions) == pytest.approx([1 / 3] * 3)
    assert weights_by(BySamples(), contributions) == pytest.approx(COMMON["p"])
    assert weights_by(Proportional(2.0), contributions) == pytest.approx([0.1, 0.9, 0.0])
    for power in (0, np.float64(0.5)):
        equal_ones = dict.fromkeys(CLIENTS, 0.5)
        assert weights_by(Proportional(power), equal_ones) == pytest.approx([1 / 3] * 3)
    # Powers that are 0 as a float leave all to the greatest.
    tiny = {"1": 1e-3, "2": 2e-3, "3": 0.0}
    assert weights_by(Proportional(500.0), tiny) == pytest.approx([0, 1, 0])


def test_a_client_whose_contribution_or_weight_is_no_number_is_named() -> None:
    for bad in (math.nan, math.inf):
        numbers = {"1": 0.1, "2": 0.3, "3": bad}
        for strategy in (equal(CLIENTS, numbers), Given(numbers, dict.fromkeys(CLIENTS, 0.1))):
            with pytest.raises(ConfigError, match="Given.*'3'"):
                play(strategy, [UPDATES], [{}], START)


def test_numbers_of_another_form_are_refused_by_the_strategys_name() -> None:
    class Wrong(FedAvg):
        given: ClassVar[Any]

        def round(self, clients):  # type: ignore[no-untyped-def]
            local = yield [Train(client, self.start_of(client)) for client in clients]
            return self.finish(local, self.given, contributions=self.given)

    for numbers in ({"1": 1.0, "2": 0.0, "3": 0.0}, [0.5, 0.5], "abc"):
        strategy = Wrong()
        strategy.given = numbers
        with pytest.raises(ConfigError, match="Wrong.*3 numbers"):
            play(strategy, [UPDATES], [{}], START)


def test_scores_are_normalised_at_every_size() -> None:
    assert normalise([1.5e308, 1.5e308, 0.0]).tolist() == [0.5, 0.5, 0.0]
    assert normalise([-5.0, 3.0], floor=1.0).tolist() == [0.25, 0.75]
    assert normalise([0.0, 0.0]).tolist() == [0.5, 0.5]


# ---- compositions


def test_fedces_contribution_with_cgsvs_reward_as_config() -> None:
    config = {
        "strategy": {
            "_target_": "monai_fairfl.strategies.compose",
            "strategy": {"_target_": "monai_fairfl.strategies.FedCE", "mode": "cos"},
            "reward": {"_target_": "monai_fairfl.strategies.Sparsified", "beta": 1.0},
        }
    }
    strategy: Strategy = ConfigParser(config).get_parsed_content("strategy")
    (result,) = play(strategy, [UPDATES], [{}], START)
    (plain,) = play(FedCE("cos"), [UPDATES], [{}], START)
    assert values(result.aggregation) == values(plain.aggregation)
    assert result.weights["w"].equal(plain.weights["w"]) and result.rewards is not None
    worth = [math.tanh(w) for w in values(plain.aggregation)]
    kept = [4 * share for share in values(result.details["kept"])]
    assert kept == [math.ceil(4 * w / max(worth)) for w in worth]
    best = CLIENTS[int(np.argmax(worth))]
    np.testing.assert_allclose(result.rewards[best]["w"], result.weights["w"])


def test_a_client_receives_the_weight_with_which_another_weighting_averaged_it() -> None:
    strategy = FedCE("cos", weighting=BySamples())
    (result,) = play(strategy, [UPDATES], [{}], START, SAMPLES)
    assert values(result.aggregation) == pytest.approx(COMMON["p"])
    sent = [request.context["previous_weight"] for request in next(strategy.round(CLIENTS))]
    assert sent == pytest.approx(COMMON["p"])
    assert values(result.contributions) != pytest.approx(COMMON["p"])


def test_a_users_reward_may_share_out_the_step_of_the_global_model() -> None:
    class Nothing(Reward):
        shares_global_step = True

        def __call__(self, replies, old, new, contributions):  # type: ignore[no-untyped-def]
            return {}, {}

    strategy = FedAvg("uniform", reward=Nothing())
    strategy.start({"w": vector([1.0])}, CLIENTS, ModelSpec(("w",), layers={"w": "fc"}))
    strategy.rewards = {client: {"w": vector([100.0 * int(client)])} for client in CLIENTS}
    result = play_round(strategy, {client: [0.5] for client in CLIENTS}, {})
    assert result.weights["w"].tolist() == [1.5]


def test_who_has_no_reward_continues_from_the_new_model_and_the_absent_from_theirs() -> None:
    class ForTheFirst(FedAvg):
        def round(self, clients):  # type: ignore[no-untyped-def]
            local = yield [Train(client, self.start_of(client)) for client in clients]
            own = {local.clients[0]: {"w": vector([7.0])}}
            return self.finish(local, uniform(local), (), own)

    strategy = ForTheFirst()
    strategy.start({"w": vector([0.0])}, CLIENTS, ModelSpec(("w",), layers={"w": "fc"}))
    strategy.rewards = {"3": {"w": vector([5.0])}}
    result = play_round(strategy, {"1": [1.0], "2": [1.0]}, {})
    assert result.rewards is not None
    models = {client: model["w"].item() for client, model in result.rewards.items()}
    assert models == {"1": 7.0, "2": 1.0, "3": 5.0}


def test_a_strategy_with_parts_keeps_those_that_are_not_replaced_and_names_them() -> None:
    training = {"prox_mu": 0.1, "local_epochs": 2.0}
    strategy = FedCE("cos", weighting=Uniform(), training=training, cap=1.5)
    compose(strategy, reward=Mixed(), training={"prox_mu": 0.2}, clip_reports=3.0)
    parts = strategy.parts
    assert isinstance(parts.weighting, Uniform) and isinstance(parts.reward, Mixed)
    assert parts.training == {"prox_mu": 0.2, "local_epochs": 2.0}
    assert (parts.cap, parts.clip_reports) == (1.5, 3.0)
    assert compose(strategy, cap=np.float32(2.5)).parts.cap == 2.5
    names = [FedAvg(reward=Sparsified(beta)).name for beta in (1.0, 2.0)]
    assert len({*names, FedAvg().name}) == 3


def test_a_composed_training_is_in_every_training_request(tmp_path: Path) -> None:
    strategy = FedCE("cos", training={"sam_rho": 0.05})
    asked = federate(strategy, tmp_path, [vectors(UPDATES)]).asked
    trained = [request for request in asked if request.task == "train"]
    assert [request.context["sam_rho"] for request in trained] == [0.05] * 3


def test_a_training_that_no_client_could_do_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prox_mo": 0.1}, "prox_mo.*prox_mu"),
        ({"previous_weight": 0.1}, "previous_weight"),
        ({"prox_mu": "0.1"}, "prox_mu"),
        ({"prox_mu": -1.0}, "prox_mu"),
        ({"sam_rho": math.nan}, "sam_rho"),
        ({"gsam_alpha": 0.1}, "sam_rho"),
        ({"reset_optimizer": 2}, "reset_optimizer"),
        ({"local_epochs": 2.7}, "local_epochs"),
        ({"local_epochs": 0}, "local_epochs"),
    ]
    for training, words in wrong:
        with pytest.raises(ValueError, match=words):
            FedAvg(training=training)
    inner = FedAvg(training={"sam_rho": 0.05, "reset_optimizer": True})
    outer = compose(inner, training={"gsam_alpha": 0.1, "local_epochs": 2})
    assert set(outer.parts.training) == {"sam_rho", "gsam_alpha", "reset_optimizer", "local_epochs"}


# ---- limits of weights and reports


def test_a_cap_limits_the_methods_own_weights_and_leaves_its_contributions() -> None:
    reports = reported("global_loss", [0.1, 0.1, 8.0])
    (plain,) = play(QFedAvg(variant="released"), [UPDATES], [reports], START)
    strategy = QFedAvg(variant="released", cap=1.5)
    (result,) = play(strategy, [UPDATES], [reports], START)
    assert values(plain.aggregation)[2] > 0.9 and result.contributions == plain.contributions
    assert values(result.aggregation) == pytest.approx([0.25, 0.25, 0.5])
    # The weights of a weighting, too.
    given = equal(CLIENTS, {"1": 0.2, "2": 0.3, "3": 0.4})
    (weighted,) = play(
        compose(given, weighting=Proportional(50.0), cap=0.5), [UPDATES], [{}], START
    )
    assert max(values(weighted.aggregation)) == pytest.approx(0.5)
    step = sum(weight * np.array(UPDATES[client]) for client, weight in result.aggregation.items())
    assert result.weights["w"].numpy() == pytest.approx(np.array(START) + step, abs=1e-6)


def test_a_cap_limits_each_layer() -> None:
    by_layer = {"conv": {"1": 0.8, "2": 0.2}, "fc": {"1": 0.5, "2": 0.5}}
    spec = ModelSpec(("a", "b"), layers={"a": "conv", "b": "fc"})
    strategy = compose(Given(by_layer, {"1": 0.5, "2": 0.5}), cap=0.6)
    strategy.start({"a": vector([0.0]), "b": vector([0.0])}, ("1", "2"), spec)
    update = {"a": vector([1.0]), "b": vector([1.0])}
    result, _ = drive(strategy, ("1", "2"), lambda r: r.reply(update, 1), spec)
    assert result.aggregation["conv"] == pytest.approx({"1": 0.6, "2": 0.4})
    assert result.aggregation["fc"] == {"1": 0.5, "2": 0.5}


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda found: sum(found) > 1e-6),
    st.floats(0.05, 4),
)
def test_capped_weights_keep_their_sum_their_order_and_the_limit(
    numbers: list[float], most: float
) -> None:
    shares = {str(row): share for row, share in enumerate(normalise(numbers).tolist())}
    names = tuple(shares)
    strategy = compose(Given(shares), cap=most)
    (result,) = play(strategy, [dict.fromkeys(names, [1.0])], [{}], [0.0])
    found = values(result.aggregation, names)
    limit = most / len(names) if most >= 1 else max(most, 1 / len(names))
    assert sum(found) == pytest.approx(1)
    assert max(found) <= limit * (1 + 1e-9)
    if max(shares.values()) <= limit:
        assert found == values(shares, names)
    ranked = sorted(range(len(names)), key=lambda number: shares[names[number]])
    for lower, higher in zip(ranked, ranked[1:]):
        assert found[lower] <= found[higher] * (1 + 1e-9)


def test_clipped_reports_are_noted_and_weigh_as_the_band_allows() -> None:
    reports = reported("global_loss", [0.5, 0.6, 50.0])
    strategy = QFedAvg(q=1.0, variant="released", clip_reports=2.0)
    (result,) = play(strategy, [UPDATES], [reports], START)
    # The median is 0.6, the median distance to it 0.1.
    assert values(result.aggregation) == pytest.approx(np.array([0.5, 0.6, 0.8]) / 1.9)
    assert set(result.notes) == {"3"} and "0.8" in result.notes["3"]


def test_a_report_that_brings_no_weight_is_not_limited() -> None:
    """QFedAvg weighs by the loss: a low one stays. Of FairFed, both sides are limited."""
    losses = [reported("global_loss", [0.1, 0.6, 0.7])]
    strategy = QFedAvg(q=1.0, variant="released", clip_reports=1.0)
    (result,) = play(strategy, [UPDATES], losses, START)
    assert values(result.aggregation) == pytest.approx(np.array([0.1, 0.6, 0.7]) / 1.4)
    assert result.notes == {}
    for both, name in ((QFedAvg(q=0.5), "global_loss"), (FairFed(), "global_score")):
        low = [reported(name, [0.1, 0.6, 0.7])]
        (result,) = play(compose(both, clip_reports=1.0), [UPDATES], low, START)
        assert set(result.notes) == {"1"} and "0.5" in result.notes["1"]


def test_limits_out_of_range_and_parts_in_a_wrong_place_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"cap": 0.0},
        {"cap": math.inf},
        {"cap": "2"},
        {"clip_reports": -1.0},
        {"average": Uniform()},
        {"weighting": Mixed()},
        {"reward": FedAvg()},
    ]
    for part in wrong:
        with pytest.raises((ValueError, TypeError), match="|".join(part)):
            FedCE("cos", **part)
        with pytest.raises((ValueError, TypeError), match="|".join(part)):
            compose(FedAvg(), **part)


def test_a_part_may_have_the_place_of_a_methods_own_choice() -> None:
    for made, composed in (
        (FedAvg(weighting=BySamples()), compose(FedAvg(), weighting=BySamples())),
        (Ditto(weighting=Uniform()), compose(Ditto(), weighting=Uniform())),
        (CGSV(reward=Mixed()), compose(CGSV(), reward=Mixed())),
    ):
        assert made.name == composed.name
        parts = (made.parts.weighting, made.parts.reward)
        others = (composed.parts.weighting, composed.parts.reward)
        assert list(map(type, parts)) == list(map(type, others))
