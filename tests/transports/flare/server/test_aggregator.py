# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as aggregators of NVFlare's own FedAvg: its arithmetic is the oracle."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.strategies import (
    AFL,
    CFFL,
    CGSV,
    Ditto,
    FairFed,
    FedAvg,
    FedCE,
    FedCI,
    FedGA,
    FedISM,
    FedLWR,
    LeaveOneOut,
    Mixed,
    QFedAvg,
    ShapFed,
    Standalone,
    Strategy,
    Uniform,
    compose,
)

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from helpers.flare_pages import run_block, write_blocks  # noqa: E402
from nvflare.apis.event_type import EventType  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_common.aggregators.weighted_aggregation_helper import (  # noqa: E402
    WeightedAggregationHelper,
)
from nvflare.app_common.app_constant import AppConstants  # noqa: E402
from nvflare.app_common.app_event_type import AppEventType  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare.app_opt.pt.fedce import FedCEModelAggregator, PTFedCEHelper  # noqa: E402
from nvflare.app_opt.pt.recipes import FedAvgRecipe  # noqa: E402

from monai_fairfl.transports.flare import FairFLAggregator  # noqa: E402
from monai_fairfl.transports.flare.server.aggregator_state import STATE  # noqa: E402

pytestmark = pytest.mark.nvflare
CLIENTS = ["elm", "poplar", "sycamore"]
SHAPES = {
    "conv.weight": (3, 2),
    "conv.bias": (3,),
    "norm.running_mean": (3,),
    "norm.running_var": (3,),
}
TRAINABLE = ["conv.bias", "conv.weight"]


def results(number: int, seed: int = 0, clients: list[str] = CLIENTS) -> list[FLModel]:
    """What scripts send in round ``number``: differences of a client's own direction, score and
    steps.
    """
    models = []
    for i, client in enumerate(clients):
        own = np.random.default_rng(100 * seed + i)
        draw = np.random.default_rng(10_000 * (number + 1) + 100 * seed + i)
        params = {}
        for name, shape in SHAPES.items():
            values = own.normal(size=shape) + draw.normal(size=shape)
            params[name] = torch.tensor(values, dtype=torch.float32)
        meta = {
            "client_name": client,
            "NUM_STEPS_CURRENT_ROUND": 3 + 4 * i,
            "fedce_minus_val": mean_error(number, 100 * seed + i),
        }
        metrics = {
            "accuracy": float(draw.uniform()),
            "global_loss": float(draw.uniform(0.1, 2)),
            "note": "text",
        }
        models.append(
            FLModel(ParamsType.DIFF, params, metrics=metrics, current_round=number, meta=meta)
        )
    return models


def mean_error(number: int, seed: int) -> float:
    """The mean of a client's errors up to round ``number``; NVFlare's scripts begin with 1."""
    later_errors = np.random.default_rng(50_000 + seed).uniform(0.2, 0.9, size=10)
    errors = [1.0, *later_errors[:number]]
    return float(np.mean(errors))


def one_round(aggregator: Any, models: list[FLModel]) -> FLModel:
    aggregator.reset_stats()
    for model in models:
        aggregator.accept_model(model)
    return aggregator.aggregate_model()


def job_of(folder: Path, clients: list[str] = CLIENTS) -> Any:
    """As much of NVFlare's context as the aggregator looks at."""
    workspace = SimpleNamespace(get_run_dir=lambda job: str(folder / job))
    names = [SimpleNamespace(name=client) for client in clients]
    engine = SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: names)
    return SimpleNamespace(
        get_engine=lambda: engine, get_job_id=lambda: "job", get_prop=lambda name: None
    )


def equal(first: FLModel, second: FLModel) -> bool:
    same = all(torch.equal(first.params[name], second.params[name]) for name in first.params)
    return same and first.params.keys() == second.params.keys() and first.metrics == second.metrics


def test_fedavg_equals_nvflares_own_weighted_average() -> None:
    models, helper = results(0), WeightedAggregationHelper()
    for model in models:
        helper.add(
            model.params, model.meta["NUM_STEPS_CURRENT_ROUND"], model.meta["client_name"], 0
        )
    expected = helper.get_result()
    found = one_round(FairFLAggregator(FedAvg()), models)
    assert found.params_type == ParamsType.DIFF and found.params.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found.params[name], expected[name], atol=1e-6)


@pytest.mark.parametrize("names", [TRAINABLE, None])
@pytest.mark.parametrize(("mode", "theirs"), [("sum", "plus"), ("multi", "times")])
def test_fedce_equals_nvflares_fedce_over_five_rounds(
    mode: str, theirs: str, names: list[str] | None
) -> None:
    """Also without names, where BatchNorm's statistics are known by what they are called."""
    ours = FairFLAggregator(FedCE(mode, variant="revised"), names)
    peer = FedCEModelAggregator(theirs, TRAINABLE)
    for number in range(5):
        found = one_round(ours, results(number))
        expected = one_round(peer, results(number))
        assert found.meta["fedce_coef"] == pytest.approx(expected.meta["fedce_coef"], abs=1e-6)
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-6)
        assert found.current_round == number
        for name in SHAPES:
            np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-6)


@pytest.mark.parametrize(
    "strategy", [FedAvg(), FedCE("sum", variant="revised"), QFedAvg()], ids=lambda s: s.name
)
def test_the_same_results_in_any_order_give_the_same_bits(strategy: Strategy) -> None:
    fresh = json.dumps(strategy.state_dict())
    found = []
    for order in itertools.permutations(range(3)):
        strategy.load_state_dict(json.loads(fresh))
        aggregator = FairFLAggregator(strategy)
        rounds = []
        for number in range(2):
            models = results(number)
            rounds.append(one_round(aggregator, [models[i] for i in order]))
        found.append((rounds, strategy.state_dict()))
    first_rounds, first_state = found[0]
    for rounds, state in found[1:]:
        for expected, other in zip(first_rounds, rounds, strict=True):
            assert equal(expected, other)
        assert state == first_state


def test_which_model_counts_where_two_clients_disagree_does_not_depend_on_who_is_first() -> None:
    models = results(0)[:2]
    models[1].params["more"] = torch.ones(1)
    found = [one_round(FairFLAggregator(FedAvg()), order) for order in (models, models[::-1])]
    assert equal(*found) and "more" not in found[0].params


def test_limits_of_the_strategy_are_arguments_of_its_job() -> None:
    """NVFlare writes the job from these attributes; a strategy's parts are none of them."""
    aggregator = FairFLAggregator(compose(FedCE(variant="revised"), cap=1.5, clip_reports=3.0))
    assert (aggregator.cap, aggregator.clip_reports) == (1.5, 3.0)
    at_the_server = FairFLAggregator(FedCE(variant="revised"), cap=1.5, clip_reports=3.0)
    assert at_the_server.strategy.parts == aggregator.strategy.parts


def test_whole_parameters_are_compared_with_the_model_that_was_sent() -> None:
    sent = {name: torch.full(shape, 0.5) for name, shape in SHAPES.items()}
    sent["norm.running_var"] = torch.full((3,), 8.0)  # no variance becomes negative
    differences, whole = results(0), results(0)
    for model in whole:
        model.params_type = ParamsType.FULL
        model.params = {name: sent[name] + change for name, change in model.params.items()}
    aggregator = FairFLAggregator(FedCE("sum", variant="revised"))
    knows_sent(aggregator, sent, 0)
    for model in whole:
        aggregator.accept_model(model)
    found = aggregator.aggregate_model()
    expected = one_round(FairFLAggregator(FedCE("sum", variant="revised")), differences)
    assert found.params_type == ParamsType.DIFF
    for name in SHAPES:
        np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-6)


def in_type(model: FLModel, dtype: torch.dtype) -> FLModel:
    """A result whose parameters have another type, and no others do."""
    for name in TRAINABLE:
        model.params[name] = model.params[name].to(dtype)
    return model


def knows_sent(aggregator: FairFLAggregator, sent: dict[str, torch.Tensor], number: int) -> None:
    """Begin a round, and show the aggregator the model that is sent, as NVFlare's FedAvg does."""
    aggregator.reset_stats()
    task = FLModelUtils.to_shareable(FLModel(ParamsType.FULL, sent, current_round=number))
    aggregator.handle_event(
        AppEventType.BEFORE_TRAIN_TASK, SimpleNamespace(get_prop=lambda name: task)
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn, torch.float64],
    ids=str,
)
def test_one_clients_precision_does_not_become_that_of_the_job(dtype: torch.dtype) -> None:
    """The first by name: its own update is rounded, and nothing else is."""
    aggregator = FairFLAggregator(FedAvg())
    first, *others = results(0)
    found = [one_round(aggregator, [in_type(first, dtype), *others])]
    found.append(one_round(aggregator, results(1)))
    assert all(value.dtype == torch.float32 for value in found[0].params.values())
    honest = FairFLAggregator(FedAvg())
    one_round(honest, results(0))
    assert equal(found[1], one_round(honest, results(1)))


@pytest.mark.parametrize("clients", [CLIENTS, CLIENTS[:2]], ids=len)
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
def test_one_client_that_sends_no_floating_point_numbers_is_refused_by_name(
    dtype: torch.dtype, clients: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, *others = results(0, clients=clients)
    aggregator = FairFLAggregator(FedAvg())
    found = one_round(aggregator, [in_type(first, dtype), *others])
    assert equal(found, one_round(FairFLAggregator(FedAvg()), others))
    assert f"client elm: its result is left out: refused: update 'conv.bias' has type {dtype}" in (
        caplog.text
    )


def test_the_types_are_those_of_the_sent_model_where_it_is_known() -> None:
    sent = {name: torch.ones(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    aggregator = FairFLAggregator(FedAvg())
    knows_sent(aggregator, sent, 0)
    for model in results(0):
        aggregator.accept_model(model)
    found = aggregator.aggregate_model()
    assert {value.dtype for value in found.params.values()} == {torch.float64}


def test_of_two_clients_that_disagree_the_one_that_fits_the_sent_model_counts() -> None:
    sent = {name: torch.full(shape, 8.0) for name, shape in SHAPES.items()}
    aggregator = FairFLAggregator(FedAvg())
    knows_sent(aggregator, sent, 0)
    first, second = results(0)[:2]
    first.params["more"] = torch.ones(1)
    for model in (first, second):
        aggregator.accept_model(model)
    assert aggregator.aggregate_model().params.keys() == SHAPES.keys()


def test_arrays_come_back_where_most_clients_sent_arrays() -> None:
    models = results(0)
    models[0].params = {name: tensor.numpy() for name, tensor in models[0].params.items()}
    found = one_round(FairFLAggregator(FedAvg()), models).params
    assert all(isinstance(value, torch.Tensor) for value in found.values())


def test_a_result_that_cannot_be_computed_with_is_refused_when_it_comes() -> None:
    """PyTorch raises a RuntimeError for a difference of such types."""
    sent = {name: torch.full(shape, 8.0) for name, shape in SHAPES.items()}
    aggregator = FairFLAggregator(FedAvg())
    knows_sent(aggregator, sent, 0)
    first, *others = results(0)
    first = in_type(first, torch.float8_e5m2)
    first.params_type = ParamsType.FULL
    with pytest.raises(FederationError, match="client elm: Promotion for Float8"):
        aggregator.accept_model(first)
    for model in others:
        aggregator.accept_model(model)
    assert aggregator.aggregate_model().meta["nr_aggregated"] == 2


def test_the_round_is_that_of_most_results_where_the_engine_does_not_tell_it() -> None:
    """One client's number must not be recorded: a server that is started again goes by it."""
    aggregator = FairFLAggregator(FedAvg())
    for number in range(2):
        models = results(number)
        models[0].current_round = 99
        assert one_round(aggregator, models).current_round == number


def test_the_round_is_the_engines_whatever_the_clients_send(tmp_path: Path) -> None:
    aggregator = FairFLAggregator(FedAvg())
    aggregator.fl_ctx = job_of(tmp_path)
    rounds = {}
    aggregator.fl_ctx.get_prop = rounds.get
    for number in range(2):
        rounds[AppConstants.CURRENT_ROUND] = number
        models = results(number)
        for model in models:
            model.current_round = 99
        one_round(aggregator, models)
    assert [record["round"] for record in rounds_in(tmp_path)] == [0, 1]


@pytest.mark.parametrize("claim", [float("nan"), float("inf"), 1e30, -1e30])
def test_a_metric_that_is_not_finite_or_impossible_enters_no_mean(claim: float) -> None:
    models = results(0)
    models[0].metrics["accuracy"] = claim
    models[0].metrics["global_loss"] = 0.5
    found = one_round(FairFLAggregator(FedAvg()), models).metrics
    steps = [model.meta["NUM_STEPS_CURRENT_ROUND"] for model in models]
    others = [model.metrics["accuracy"] for model in models[1:]]
    losses = [model.metrics["global_loss"] for model in models]
    assert found["accuracy"] == pytest.approx(np.average(others, weights=steps[1:]))
    assert found["global_loss"] == pytest.approx(np.average(losses, weights=steps))


def test_whole_parameters_without_the_sent_model_are_refused_with_the_fix() -> None:
    model = results(0)[0]
    model.params_type = ParamsType.FULL
    with pytest.raises(FederationError, match="client elm.*params_transfer_type=TransferType.DIFF"):
        FairFLAggregator(FedAvg()).accept_model(model)


def test_arrays_come_back_as_arrays_and_counters_as_whole_numbers() -> None:
    models = results(0)
    for i, model in enumerate(models):
        model.params = {name: tensor.numpy() for name, tensor in model.params.items()}
        model.params["norm.seen"] = np.array(i)
    found = one_round(FairFLAggregator(FedAvg()), models).params
    assert all(isinstance(value, np.ndarray) for value in found.values())
    assert found["norm.seen"].dtype == np.array(1).dtype and found["norm.seen"] == 2


def test_tensors_that_wait_on_disk_are_read() -> None:
    models = results(0)
    expected = one_round(FairFLAggregator(FedAvg()), results(0))
    for model in models:
        model.params = {
            name: SimpleNamespace(materialize=lambda tensor=tensor: tensor)
            for name, tensor in model.params.items()
        }
    assert equal(one_round(FairFLAggregator(FedAvg()), models), expected)


def test_results_that_cannot_count_are_refused_when_they_come() -> None:
    aggregator = FairFLAggregator(FedAvg())
    elm, poplar, sycamore = results(0)
    aggregator.accept_model(elm)
    with pytest.raises(FederationError, match="elm sent a second result"):
        aggregator.accept_model(results(0)[0])
    poplar.meta.pop("client_name")
    with pytest.raises(FederationError, match="client_name"):
        aggregator.accept_model(poplar)
    sycamore.params["conv.bias"] = object()
    with pytest.raises(
        FederationError, match="client sycamore: 'conv.bias' is a object, not a tensor"
    ):
        aggregator.accept_model(sycamore)
    found = aggregator.aggregate_model()
    assert torch.equal(found.params["conv.bias"], elm.params["conv.bias"])
    assert found.meta["nr_aggregated"] == 1


@pytest.mark.parametrize("harm", ["nan", "shape", "foreign", "lacking"])
def test_one_bad_result_is_left_out_and_the_others_count(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    models = results(0)
    # The first by name must not decide which tensors the model has.
    params = models[0].params
    if harm == "nan":
        params["conv.bias"][0] = torch.nan
    elif harm == "shape":
        params["conv.bias"] = torch.zeros(2)
    elif harm == "foreign":
        params["other.weight"] = torch.zeros(2)
    else:
        del params["conv.bias"]
    aggregator = FairFLAggregator(FedAvg())
    with caplog.at_level(logging.WARNING):
        found = one_round(aggregator, models)
    assert equal(found, one_round(FairFLAggregator(FedAvg()), results(0)[1:]))
    assert "client elm" in caplog.text


def test_a_round_of_bad_results_only_says_why_of_each() -> None:
    models = results(0)[:2]
    models[0].params["conv.weight"][0, 0] = torch.inf
    aggregator = FairFLAggregator(FedAvg())
    with pytest.raises(FederationError, match="none came"):
        one_round(aggregator, [])
    aggregator.reset_stats()
    aggregator.accept_model(models[0])
    models[1].params = {}
    with pytest.raises(FederationError, match="no parameters"):
        aggregator.accept_model(models[1])
    with pytest.raises(FederationError, match="elm.*not finite.*poplar.*no parameters"):
        aggregator.aggregate_model()


NEEDS_MORE = [
    Standalone(),
    Ditto(),
    CGSV(),
    ShapFed(output_layer="conv", personalised=True),
    FedISM(),
    FedLWR(),
    FedCI(),
    LeaveOneOut(),
    compose(FedAvg(), reward=Mixed()),
    compose(FedAvg(), training={"prox_mu": 0.1}),
    ShapFed(),
]


@pytest.mark.parametrize("strategy", NEEDS_MORE, ids=lambda strategy: strategy.name)
def test_a_strategy_that_needs_more_is_refused_by_name(strategy: Strategy) -> None:
    with pytest.raises(ConfigError, match=f"^{strategy.name} .*(FairFLRecipe|output_layer)"):
        FairFLAggregator(strategy)


WORKS = [
    FedAvg(),
    FedCE(),
    FedCE("cos"),
    CGSV(reward=None),
    ShapFed(output_layer="conv"),
    FairFed(),
    QFedAvg(),
    AFL(),
    AFL(form="worst_client"),
    compose(FedCE(), weighting=Uniform()),
]


@pytest.mark.parametrize("strategy", WORKS, ids=lambda strategy: strategy.name)
def test_a_strategy_of_one_model_works_with_what_scripts_send(strategy: Strategy) -> None:
    fresh = json.dumps(strategy.state_dict())
    aggregator = FairFLAggregator(strategy, TRAINABLE)
    # The trial round has left no trace.
    assert json.dumps(strategy.state_dict()) == fresh
    for number in range(3):
        # poplar joins after the first round.
        clients = CLIENTS if number else ["elm", "sycamore"]
        found = one_round(aggregator, results(number, clients=clients))
        assert all(torch.isfinite(tensor).all() for tensor in found.params.values())
        assert found.metrics is not None and set(found.metrics) == {"accuracy", "global_loss"}
    assert ("fedce_coef" in found.meta) == isinstance(strategy, FedCE)


def test_a_measurement_that_no_script_sends_is_named() -> None:
    with pytest.raises(FederationError, match="FedGA needs 'local_loss'"):
        aggregator = FairFLAggregator(FedGA())
        for number in range(2):
            one_round(aggregator, results(number))
    with pytest.raises(FederationError, match="CFFL needs 'local_score'"):
        one_round(FairFLAggregator(CFFL()), results(0))


@pytest.mark.parametrize("variant", ["paper", "revised"])
def test_an_error_among_the_metrics_does_not_count(variant: str) -> None:
    """FedCE's error has a way of its own, on which it is checked."""
    weights = []
    for claim in (None, 0.9, 9e5):
        aggregator = FairFLAggregator(FedCE("sum", variant=variant))
        for number in range(2):
            models = results(number)
            models[0].meta["fedce_minus_val"] = None
            if claim is not None:
                models[0].metrics["leave_one_out_error"] = claim
            found = one_round(aggregator, models)
        weights.append(found.meta["fedce_coef"])
    assert weights[0] == weights[1] == weights[2]


def test_fairfed_scores_by_the_key_metric() -> None:
    models = results(0)
    for model, score in zip(models, (0.9, 0.5, 0.1), strict=True):
        model.metrics, model.meta["NUM_STEPS_CURRENT_ROUND"] = {"dice": score}, 1
    strategy = FairFed(beta=0.5)
    one_round(FairFLAggregator(strategy, key_metric="dice"), models)
    gap = 0.4 - 0.8 / 3  # of the outer two, less the mean: Algorithm 1 by hand
    assert strategy.weight["elm"] == pytest.approx(1 / 3 - 0.5 * gap)
    assert strategy.weight["poplar"] == pytest.approx(1 / 3 + gap)


def test_metrics_are_averaged_with_the_rounds_weights_or_not_at_all() -> None:
    models = results(0)
    steps = [model.meta["NUM_STEPS_CURRENT_ROUND"] for model in models]
    found = one_round(FairFLAggregator(FedAvg()), models)
    expected = np.average([model.metrics["accuracy"] for model in models], weights=steps)
    assert found.metrics["accuracy"] == pytest.approx(expected) and "note" not in found.metrics
    models[1].metrics = None
    assert one_round(FairFLAggregator(FedAvg()), models).metrics is None


def test_an_absent_client_receives_no_weight_since_the_model_does_not_hold_it() -> None:
    """NVFlare would send its last weight, and its helper would take out what is not in there."""
    aggregator = FairFLAggregator(FedCE("sum", variant="revised"), TRAINABLE)
    one_round(aggregator, results(0))
    sent = one_round(aggregator, results(1, clients=CLIENTS[:2]))
    assert PTFedCEHelper.get_contribution_weight(sent, "sycamore") == 0
    assert sum(sent.meta["fedce_coef"].values()) == pytest.approx(1)


def test_the_first_model_holds_nobody() -> None:
    assert PTFedCEHelper.get_contribution_weight(FLModel(params={}, meta={}), "elm") == 0


def test_a_server_that_is_started_again_goes_on_with_the_same_history(tmp_path: Path) -> None:
    whole = begun_aggregator(tmp_path / "whole", FedCE("sum", variant="revised"))
    expected = [one_round(whole, results(number)) for number in range(4)]
    first = begun_aggregator(tmp_path / "cut", FedCE("sum", variant="revised"))
    early = [one_round(first, results(number)) for number in range(2)]
    second = begun_aggregator(tmp_path / "cut", FedCE("sum", variant="revised"))
    late = [one_round(second, results(number)) for number in (2, 3)]
    assert all(equal(a, b) for a, b in zip(expected, early + late, strict=True))
    assert late[-1].meta == expected[-1].meta
    written = (tmp_path / "cut/job" / STATE).read_text()
    assert written == (tmp_path / "whole/job" / STATE).read_text()
    assert [record["round"] for record in json.loads(written)["rounds"]] == [0, 1, 2, 3]
    # A job that begins is not one that goes on.
    beginning = begun_aggregator(tmp_path / "cut", FedCE("sum", variant="revised"))
    assert equal(one_round(beginning, results(0)), expected[0])
    other = begun_aggregator(tmp_path / "cut", FedAvg())
    with pytest.raises(ConfigError, match="written by FedCE-sum-revised, now it is FedAvg"):
        one_round(other, results(1))


def test_a_round_that_a_restarted_server_repeats_counts_once(tmp_path: Path) -> None:
    def fedce(folder: str) -> FairFLAggregator:
        return begun_aggregator(tmp_path / folder, FedCE("sum", variant="revised"))

    whole = fedce("whole")
    for number in range(4):
        one_round(whole, results(number))

    first = fedce("cut")
    for number in range(3):
        one_round(first, results(number))
    # Twice a server stops after the state of round 2 was written, and before its model was saved.
    for _ in range(2):
        one_round(fedce("cut"), results(2))
    one_round(fedce("cut"), results(3))
    written = json.loads((tmp_path / "cut/job" / STATE).read_text())
    assert written == json.loads((tmp_path / "whole/job" / STATE).read_text())

    for number in (2, 5):
        words = (
            f"after round 2 and round 3, and round {number} needs the one after round {number - 1}"
        )
        with pytest.raises(ConfigError, match=words):
            one_round(fedce("cut"), results(number))


@pytest.mark.parametrize("connected", [CLIENTS[:2], [*CLIENTS, "willow"]])
def test_the_numbers_are_the_same_with_other_sites_connected_when_a_server_starts_again(
    tmp_path: Path, connected: list[str]
) -> None:
    """AFL's mixture holds all known clients: willow is none before its first result."""
    everybody = [*CLIENTS, "willow"]
    of_rounds = [CLIENTS, CLIENTS, CLIENTS[:2], everybody, CLIENTS]
    whole = begun_aggregator(tmp_path / "whole", AFL(step=0.5))
    expected = []
    for number, clients in enumerate(of_rounds):
        expected.append(one_round(whole, results(number, clients=clients)))

    cut = begun_aggregator(tmp_path / "cut", AFL(step=0.5))
    found = []
    for number, clients in enumerate(of_rounds):
        if number == 2:
            cut = begun_aggregator(tmp_path / "cut", AFL(step=0.5), connected)
        found.append(one_round(cut, results(number, clients=clients)))
    assert all(equal(a, b) for a, b in zip(expected, found, strict=True))
    written = (tmp_path / "cut/job" / STATE).read_text()
    assert written == (tmp_path / "whole/job" / STATE).read_text()
    assert json.loads(written)["states"][-1]["clients"] == everybody


def test_a_round_that_failed_makes_no_client_known(tmp_path: Path) -> None:
    aggregator = begun_aggregator(tmp_path, FedAvg())
    one_round(aggregator, results(0))
    spoilt = results(1, clients=[*CLIENTS, "willow"])
    for model in spoilt:
        model.params["conv.bias"] = model.params["conv.bias"] * float("nan")
    with pytest.raises(FederationError, match="no client's result of this round can be used"):
        one_round(aggregator, spoilt)
    assert aggregator.strategy.clients == CLIENTS


def begun_aggregator(
    folder: Path, strategy: Strategy, connected: list[str] = CLIENTS
) -> FairFLAggregator:
    """An aggregator of the job in this folder, as NVFlare begins it."""
    aggregator = FairFLAggregator(strategy, TRAINABLE)
    aggregator.handle_event(EventType.START_RUN, job_of(folder, connected))
    return aggregator


@pytest.mark.parametrize("restarted", [False, True])
def test_a_number_of_steps_counts_as_it_was_first_reported(
    tmp_path: Path, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = aggregator_of_job(tmp_path)
    first = one_round(aggregator, results(0))
    if restarted:
        aggregator = aggregator_of_job(tmp_path)
    claimed = results(1)
    claimed[2].meta["NUM_STEPS_CURRENT_ROUND"] = 10_000
    found = one_round(aggregator, claimed)

    honest = aggregator_of_job(tmp_path / "honest")
    assert equal(one_round(honest, results(0)), first)
    assert equal(one_round(honest, results(1)), found)
    note = "samples 10000 reported, 11 counts: it was reported first"
    assert f"client sycamore: {note}" in caplog.text
    one, two = rounds_in(tmp_path)
    assert one["facts"] == {
        "elm": {"samples": 3},
        "poplar": {"samples": 7},
        "sycamore": {"samples": 11},
    }
    assert (one["notes"], two["facts"]) == ({}, {})
    assert set(two["notes"]) == {"sycamore"} and note in two["notes"]["sycamore"]


def test_a_round_that_failed_makes_no_number_of_steps_known(tmp_path: Path) -> None:
    aggregator = aggregator_of_job(tmp_path)
    spoilt = results(0)
    for model in spoilt:
        model.meta["NUM_STEPS_CURRENT_ROUND"] = 50
        model.params["conv.bias"] = model.params["conv.bias"] * float("nan")
    with pytest.raises(FederationError, match="no client's result of this round can be used"):
        one_round(aggregator, spoilt)
    one_round(aggregator, results(0))
    [record] = rounds_in(tmp_path)
    assert record["facts"]["elm"] == {"samples": 3} and record["notes"] == {}


def aggregator_of_job(folder: Path) -> FairFLAggregator:
    """An aggregator of the job in this folder; another one there is a server started again."""
    aggregator = FairFLAggregator(FedAvg())
    aggregator.fl_ctx = job_of(folder)
    return aggregator


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    """The records that an aggregator wrote."""
    rounds: list[dict[str, Any]] = json.loads((folder / "job" / STATE).read_text())["rounds"]
    return rounds


def test_clients_receive_no_history() -> None:
    """FedAvg sends the result's meta to all of them."""
    aggregator = FairFLAggregator(FedCE("sum", variant="revised"), TRAINABLE)
    assert set(one_round(aggregator, results(0)).meta) == {"fedce_coef", "nr_aggregated"}
    assert set(one_round(FairFLAggregator(FairFed()), results(0)).meta) == {"nr_aggregated"}


def test_names_that_nobody_sends_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="trainable_param_names.*'conv.wieght'.*such as.*'conv.bias'"
    ):
        one_round(FairFLAggregator(FedAvg(), ["conv.wieght"]), results(0))


def test_a_job_keeps_strategy_names_and_weighting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blocks(tmp_path)
    monkeypatch.chdir(tmp_path)
    aggregator = FairFLAggregator(compose(FedCE("sum"), weighting=Uniform()), ["w"], "dice")
    recipe = FedAvgRecipe(
        name="job",
        model={"class_path": "net.Net"},
        min_clients=2,
        train_script="client.py",
        aggregator=aggregator,
    )
    recipe.export(str(tmp_path / "out"))
    # The installed package is what runs.
    assert not list((tmp_path / "out/job/app/custom").rglob("__init__.py"))
    config = json.loads((tmp_path / "out/job/app/config/config_fed_server.json").read_text())
    (workflow,) = config["workflows"]
    written = workflow["args"]["aggregator"]
    assert written["path"] == "monai_fairfl.transports.flare.server.aggregator.FairFLAggregator"
    assert written["args"]["strategy"]["args"] == {"mode": "sum"}
    assert written["args"]["weighting"]["path"] == "monai_fairfl.strategies.parts.Uniform"
    assert written["args"]["trainable_param_names"] == ["w"]
    assert written["args"]["key_metric"] == "dice"


@pytest.mark.slow
@pytest.mark.simulator
@pytest.mark.extended
def test_the_pages_job_keeps_nvflares_fedavg_in_the_simulator(tmp_path: Path) -> None:
    write_blocks(tmp_path)
    run_block(tmp_path, "keep.py", "run")
    server = tmp_path / "run/discs/server/simulate_job"
    state = json.loads((server / STATE).read_text())
    assert [record["round"] for record in state["rounds"]] == [0, 1, 2]
    assert state["strategy"] == "FedCE-sum-revised"
    for client in CLIENTS:
        first, *later = (tmp_path / f"run-received-{client}.txt").read_text().splitlines()
        assert first == "0.0 []"
        weights = [float(line.partition(" ")[0]) for line in later]
        assert weights == [record["aggregation"][client] for record in state["rounds"][:-1]]
    assert (server / "app_server/FL_global_model.pt").exists()


def test_an_update_that_a_guard_shortened_is_not_taken_out_of_the_model() -> None:
    strategy = FedCE("sum")
    aggregator = FairFLAggregator(strategy, TRAINABLE)
    models = results(0)
    models[1].params = {name: 1000 * change for name, change in models[1].params.items()}
    one_round(aggregator, models)
    assert strategy.shortened == [CLIENTS[1]]
    sent = {client: strategy.context_of(client)["previous_weight"] for client in CLIENTS}
    assert sent[CLIENTS[1]] == 0 and min(sent[CLIENTS[0]], sent[CLIENTS[2]]) > 0
