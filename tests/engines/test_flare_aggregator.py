# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as aggregators of NVFlare's own FedAvg: its arithmetic is the oracle."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from helpers.flare_job import CLIENTS, Net, workspace_of  # noqa: E402
from helpers.refusals import refused  # noqa: E402
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

from monai_fairfl import Strategy  # noqa: E402
from monai_fairfl.errors import ConfigError, FederationError  # noqa: E402
from monai_fairfl.strategies import (  # noqa: E402
    AFL,
    CFFL,
    CGSV,
    FedAvg,
    FedCE,
    FedISM,
    FedLWR,
    ShapFed,
    Uniform,
)
from monai_fairfl.transports.flare import FairFLAggregator  # noqa: E402

SHAPES = {
    "conv.weight": (40, 60),
    "conv.bias": (3,),
    "norm.running_mean": (3,),
    "norm.running_var": (3,),
}
TRAINABLE = ["conv.bias", "conv.weight"]
SENT = {name: torch.full(shape, 8.0) for name, shape in SHAPES.items()}
"""The model of a round; no variance becomes negative."""


def results(number: int, clients: Sequence[str] = CLIENTS) -> list[FLModel]:
    """What scripts send in round ``number``: a client's own direction, its score and its steps."""
    models = []
    for i, client in enumerate(clients):
        own, draw = (np.random.default_rng([i, seed]) for seed in (99, number))
        params = {}
        for name, shape in SHAPES.items():
            values = own.normal(size=shape) + draw.normal(size=shape)
            params[name] = torch.tensor(values, dtype=torch.float32)
        # NVFlare's scripts send the mean of their errors, which begin with 1.
        errors = [1.0, *np.random.default_rng(i).uniform(0.2, 0.9, size=10)[:number]]
        meta = {
            "client_name": client,
            "NUM_STEPS_CURRENT_ROUND": 3 + 4 * i,
            "fedce_minus_val": float(np.mean(errors)),
        }
        metrics = {"accuracy": float(draw.uniform()), "global_loss": 0.5 + i, "note": "text"}
        models.append(
            FLModel(ParamsType.DIFF, params, metrics=metrics, current_round=number, meta=meta)
        )
    return models


def one_round(
    aggregator: Any, models: Sequence[FLModel], sent: dict[str, torch.Tensor] | None = None
) -> FLModel:
    """A round; with ``sent`` the aggregator sees the model that is sent, as in a job."""
    aggregator.reset_stats()
    if sent is not None:
        task = FLModelUtils.to_shareable(FLModel(ParamsType.FULL, sent))
        context = SimpleNamespace(get_prop=lambda name: task)
        aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, context)
    for model in models:
        aggregator.accept_model(model)
    return aggregator.aggregate_model()


def begun(
    folder: Path, strategy: Strategy, connected: Sequence[str] = CLIENTS, **arguments: Any
) -> FairFLAggregator:
    """The aggregator of the job in this folder; a second one there is a server started again."""
    workspace = workspace_of(folder, "server")
    engine = SimpleNamespace(
        get_workspace=lambda: workspace,
        get_clients=lambda: [SimpleNamespace(name=client) for client in connected],
    )
    aggregator = FairFLAggregator(strategy, TRAINABLE, **arguments)
    context = SimpleNamespace(
        get_engine=lambda: engine, get_job_id=lambda: "job", get_prop=lambda name: None
    )
    aggregator.handle_event(EventType.START_RUN, context)
    return aggregator


def state_in(folder: Path) -> dict[str, Any]:
    """The file that the page names."""
    state: dict[str, Any] = json.loads((folder / "job" / "fairfl_aggregator.json").read_text())
    return state


def equal(first: FLModel, second: FLModel) -> bool:
    same = all(torch.equal(first.params[name], second.params[name]) for name in first.params)
    return same and first.params.keys() == second.params.keys() and first.metrics == second.metrics


def fedce() -> FedCE:
    """NVFlare's form of it."""
    return FedCE("sum", variant="revised")


# ---- numbers ----


def test_fedavg_equals_nvflares_own_weighted_average() -> None:
    models = results(0)
    helper = WeightedAggregationHelper()
    for model in models:
        steps = model.meta["NUM_STEPS_CURRENT_ROUND"]
        helper.add(model.params, steps, model.meta["client_name"], 0)
    expected = helper.get_result()
    found = one_round(FairFLAggregator(FedAvg()), models)
    assert found.params_type == ParamsType.DIFF and found.params.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found.params[name], expected[name], atol=1e-6)


@pytest.mark.parametrize(("mode", "theirs"), [("sum", "plus"), ("multi", "times")])
def test_fedce_equals_nvflares_fedce_over_five_rounds(mode: str, theirs: str) -> None:
    """Without names: BatchNorm's statistics are known by what they are called."""
    ours = FairFLAggregator(FedCE(mode, variant="revised"))
    peer = FedCEModelAggregator(theirs, TRAINABLE)
    for number in range(5):
        found = one_round(ours, results(number))
        expected = one_round(peer, results(number))
        assert found.meta["fedce_coef"] == pytest.approx(expected.meta["fedce_coef"], abs=1e-6)
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-6)
        assert found.current_round == number
        for name in SHAPES:
            np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-6)
    # The history stays at the server.
    assert set(found.meta) == {"fedce_coef", "nr_aggregated"}


def test_results_in_any_order_give_the_same_bits() -> None:
    found = []
    for order in itertools.permutations(range(3)):
        models = results(0)
        found.append(one_round(FairFLAggregator(fedce()), [models[i] for i in order]))
    assert all(equal(found[0], other) for other in found[1:])


def whole_results() -> list[FLModel]:
    """The results, as clients send them that know of no differences."""
    whole = results(0)
    for model in whole:
        model.params_type = ParamsType.FULL
        model.params = {name: SENT[name] + change for name, change in model.params.items()}
    return whole


def test_whole_parameters_are_differences_from_the_sent_model_and_refused_without_it() -> None:
    whole = whole_results()
    found = one_round(FairFLAggregator(fedce()), whole, SENT)
    expected = one_round(FairFLAggregator(fedce()), results(0))
    for name in SHAPES:
        np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-5)
    with refused("elm", "DIFF", by=FederationError):
        FairFLAggregator(FedAvg()).accept_model(whole[0])


def test_a_whole_tensor_of_another_shape_is_refused_though_it_could_be_broadcast() -> None:
    whole = whole_results()
    name = max(SHAPES, key=lambda name: len(SHAPES[name]))
    whole[0].params[name] = torch.ones(1)
    found = one_round(FairFLAggregator(FedAvg()), whole, SENT)
    expected = one_round(FairFLAggregator(FedAvg()), results(0)[1:])
    np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-5)


@pytest.mark.parametrize("claim", [float("nan"), 1e30])
def test_an_impossible_metric_enters_no_mean(claim: float) -> None:
    models = results(0)
    models[0].metrics["accuracy"] = claim
    found = one_round(FairFLAggregator(FedAvg()), models).metrics
    others = [model.metrics["accuracy"] for model in models[1:]]
    assert found["accuracy"] == pytest.approx(np.average(others, weights=[7, 11]))
    assert found["global_loss"] == pytest.approx(np.average([0.5, 1.5, 2.5], weights=[3, 7, 11]))
    assert "note" not in found


def test_fedces_error_counts_only_in_the_way_on_which_it_is_checked() -> None:
    weights = []
    for claim in (None, 9e5):
        aggregator = FairFLAggregator(FedCE("sum"))
        for number in range(2):
            models = results(number)
            models[0].meta["fedce_minus_val"] = None
            if claim is not None:
                models[0].metrics["leave_one_out_error"] = claim
            found = one_round(aggregator, models)
        weights.append(found.meta["fedce_coef"])
    assert weights[0] == weights[1]


def test_a_client_outside_the_model_is_told_that_it_has_no_weight() -> None:
    """NVFlare's helper would take out what is not in there."""
    absent = FairFLAggregator(fedce(), TRAINABLE)
    one_round(absent, results(0))
    sent = one_round(absent, results(1, CLIENTS[:2]))
    assert PTFedCEHelper.get_contribution_weight(sent, "sycamore") == 0
    assert sum(sent.meta["fedce_coef"].values()) == pytest.approx(1)

    models = results(0)
    models[1].params = {name: 1000 * change for name, change in models[1].params.items()}
    shortened = one_round(FairFLAggregator(fedce(), TRAINABLE), models)
    weights = [PTFedCEHelper.get_contribution_weight(shortened, client) for client in CLIENTS]
    assert weights[1] == 0 and min(weights[0], weights[2]) > 0


# ---- tensors of all kinds ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2, torch.float64], ids=str)
def test_one_clients_precision_does_not_become_that_of_the_job(dtype: torch.dtype) -> None:
    """The first by name: its own update is rounded, and nothing else is."""
    aggregator, plain = FairFLAggregator(FedAvg()), FairFLAggregator(FedAvg())
    models = results(0)
    for name in TRAINABLE:
        models[0].params[name] = models[0].params[name].to(dtype)
    found = one_round(aggregator, models)
    one_round(plain, results(0))
    assert {value.dtype for value in found.params.values()} == {torch.float32}
    assert equal(one_round(aggregator, results(1)), one_round(plain, results(1)))


def test_the_types_are_those_of_the_sent_model_where_it_is_known() -> None:
    sent = {name: value.double() for name, value in SENT.items()}
    found = one_round(FairFLAggregator(FedAvg()), results(0), sent)
    assert {value.dtype for value in found.params.values()} == {torch.float64}


def test_of_two_models_the_one_of_most_clients_and_else_the_sent_one_counts() -> None:
    models = results(0)
    models[0].params["more"] = torch.ones(1)
    for given, sent in ((models, None), (models[:2], SENT)):
        found = one_round(FairFLAggregator(FedAvg()), given, sent)
        assert found.params.keys() == SHAPES.keys()
    found = one_round(FairFLAggregator(FedAvg()), models[:2])
    assert equal(found, one_round(FairFLAggregator(FedAvg()), models[1::-1]))


def test_arrays_come_back_where_most_clients_sent_arrays_and_counters_stay_whole() -> None:
    models = results(0)
    for i, model in enumerate(models):
        model.params = {name: tensor.numpy() for name, tensor in model.params.items()}
        model.params["norm.seen"] = np.array(i)
    found = one_round(FairFLAggregator(FedAvg()), models).params
    assert {type(value) for value in found.values()} == {np.ndarray}
    assert found["norm.seen"] == 2 and found["norm.seen"].dtype == np.array(1).dtype


def test_tensors_that_wait_on_disk_are_read() -> None:
    models = results(0)
    for model in models:
        for name, tensor in model.params.items():
            model.params[name] = SimpleNamespace(materialize=lambda tensor=tensor: tensor)
    expected = one_round(FairFLAggregator(FedAvg()), results(0))
    assert equal(one_round(FairFLAggregator(FedAvg()), models), expected)


# ---- results that do not count ----

HARM: dict[str, torch.Tensor] = {
    "finite": torch.tensor([torch.nan, 0, 0]),
    "shape": torch.zeros(2),
    "int64": torch.ones(3, dtype=torch.int64),
    "complex64": torch.ones(3, dtype=torch.complex64),
}


@pytest.mark.parametrize("word", [*HARM, "unexpected", "missing"])
def test_one_bad_result_is_left_out_and_the_others_count(word: str, tmp_path: Path) -> None:
    """The first by name does not decide which tensors the model has."""
    models = results(0)
    params = models[0].params
    if word in HARM:
        params["conv.bias"] = HARM[word]
    elif word == "unexpected":
        params["other.weight"] = torch.zeros(2)
    else:
        del params["conv.bias"]
    found = one_round(begun(tmp_path, FedAvg()), models)
    assert equal(found, one_round(FairFLAggregator(FedAvg(), TRAINABLE), results(0)[1:]))
    [record] = state_in(tmp_path)["rounds"]
    assert set(record["missing"]) == {"elm"} and word in record["missing"]["elm"]


def test_results_that_cannot_be_read_are_refused_when_they_come(tmp_path: Path) -> None:
    aggregator = FairFLAggregator(FedAvg())
    elm, poplar, sycamore = results(0)
    aggregator.accept_model(elm)
    with refused("elm", "second", by=FederationError):
        aggregator.accept_model(results(0)[0])
    poplar.meta.pop("client_name")
    with refused("client_name", by=FederationError):
        aggregator.accept_model(poplar)
    sycamore.params["conv.bias"] = object()
    with refused("sycamore", "conv.bias", "tensor", by=FederationError):
        aggregator.accept_model(sycamore)
    assert aggregator.aggregate_model().meta["nr_aggregated"] == 1

    none = FairFLAggregator(FedAvg())
    empty = FLModel(ParamsType.DIFF, {}, meta={"client_name": "elm"})
    with refused("elm", "parameters", by=FederationError):
        none.accept_model(empty)
    with refused("elm", "parameters", by=FederationError):
        none.aggregate_model()


# ---- the state of a job ----


def test_a_server_that_is_started_again_goes_on_with_the_same_history(tmp_path: Path) -> None:
    """Also where other sites are connected; a round that it repeats counts once."""
    everybody = [*CLIENTS, "willow"]
    of_rounds = [CLIENTS, CLIENTS, CLIENTS[:2], everybody, CLIENTS]

    def played(folder: Path, starts: Sequence[int]) -> list[FLModel]:
        """Rounds, of which those in ``starts`` begin with a new server."""
        found: dict[int, FLModel] = {}
        aggregator = begun(folder, AFL(step=0.5))
        for number in [0, 1, 2, *starts, 3, 4]:
            if number in starts and number in found:
                aggregator = begun(folder, AFL(step=0.5), everybody)
            found[number] = one_round(aggregator, results(number, of_rounds[number]))
        return list(found.values())

    whole, cut = played(tmp_path / "whole", []), played(tmp_path / "cut", [2, 2])
    assert all(equal(a, b) for a, b in zip(whole, cut, strict=True))
    state = state_in(tmp_path / "cut")
    assert state == state_in(tmp_path / "whole")
    assert [record["round"] for record in state["rounds"]] == [0, 1, 2, 3, 4]
    assert state["states"][-1]["clients"] == everybody

    with refused("round 3", "round 4", by=ConfigError):
        one_round(begun(tmp_path / "cut", AFL(step=0.5)), results(2))
    with refused("AFL", "FedAvg", by=ConfigError):
        one_round(begun(tmp_path / "cut", FedAvg()), results(5))
    # A job that begins is not one that goes on.
    again = one_round(begun(tmp_path / "cut", AFL(step=0.5)), results(0))
    assert equal(again, whole[0])


def test_the_round_is_the_engines_and_else_that_of_most_results(tmp_path: Path) -> None:
    """A server that is started again goes by it: no client decides."""
    aggregator = begun(tmp_path, FedAvg())
    models = results(0)
    models[0].current_round = 99
    assert one_round(aggregator, models).current_round == 0
    aggregator.fl_ctx.get_prop = {AppConstants.CURRENT_ROUND: 1}.get
    for model in models:
        model.current_round = 99
    assert one_round(aggregator, models).current_round == 1


def test_a_number_of_steps_counts_as_it_was_first_reported(tmp_path: Path) -> None:
    one_round(begun(tmp_path, FedAvg()), results(0))
    claimed = results(1)
    claimed[2].meta["NUM_STEPS_CURRENT_ROUND"] = 10_000
    one_round(begun(tmp_path, FedAvg()), claimed)
    first, second = state_in(tmp_path)["rounds"]
    assert second["aggregation"] == first["aggregation"]
    note = second["notes"]["sycamore"]
    assert "10000" in note and "11" in note


def test_a_round_that_failed_makes_nothing_known(tmp_path: Path) -> None:
    aggregator = begun(tmp_path, FedAvg())
    one_round(aggregator, results(0, CLIENTS[:2]))
    spoilt = results(1)
    for model in spoilt:
        model.meta["NUM_STEPS_CURRENT_ROUND"] = 50
        model.params["conv.bias"] = model.params["conv.bias"] * torch.nan
    with refused("elm", "finite", by=FederationError):
        one_round(aggregator, spoilt)
    one_round(aggregator, results(1))
    assert state_in(tmp_path)["rounds"][1]["facts"] == {"sycamore": {"samples": 11}}


# ---- guards ----


def test_a_repeated_step_is_found_by_a_server_that_was_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the sent model is not known, no step is compared, and the log says so once."""
    verdicts = []
    for known in (SENT, None):
        folder = tmp_path / ("known" if known else "unknown")
        step = one_round(begun(folder, FedAvg(), guards=["Replayed"]), results(0), known)
        repeated = results(1)
        repeated[2].params = step.params
        moved = known and {name: SENT[name] + step.params[name] for name in SENT}
        one_round(begun(folder, FedAvg(), guards=["Replayed"]), repeated, moved)
        verdicts.append(state_in(folder)["rounds"][1]["verdicts"])
    assert set(verdicts[0]) == {"sycamore"} and verdicts[1] == {}
    assert "Replayed" in caplog.text


def test_a_negative_variance_is_found_where_the_sent_model_is_known(tmp_path: Path) -> None:
    models = results(0)
    models[1].params["norm.running_var"] = torch.full((3,), -11.0)
    aggregator = begun(tmp_path, FedAvg(), guards=["BatchStatistics"])
    one_round(aggregator, models, SENT)
    one_round(aggregator, results(1), None)
    first, second = state_in(tmp_path)["rounds"]
    assert "running_var" in first["missing"]["poplar"]
    assert second["missing"] == {}


# ---- strategies ----

NEEDS_MORE = {
    "a model for each client": CGSV(),
    "another training": FedISM(),
    "two exchanges": FedLWR(),
    "an output layer": ShapFed(),
    "its own training": FedAvg(training={"prox_mu": 0.1}),
}


@pytest.mark.parametrize("more", NEEDS_MORE)
def test_a_strategy_that_needs_more_is_refused_by_name(more: str) -> None:
    strategy = NEEDS_MORE[more]
    with refused(strategy.name, by=ConfigError):
        FairFLAggregator(strategy)


def test_what_no_script_sends_is_named() -> None:
    with refused("CFFL", "local_score", by=FederationError):
        one_round(FairFLAggregator(CFFL()), results(0))
    with refused("ToLong", by=ConfigError):
        FairFLAggregator(FedAvg(), guards=["ToLong"])
    with refused("conv.wieght", "conv.bias", by=ConfigError):
        one_round(FairFLAggregator(FedAvg(), ["conv.wieght"]), results(0))


def test_a_job_of_nvflares_recipe_keeps_the_aggregators_arguments(tmp_path: Path) -> None:
    strategy = FedCE("sum", weighting=Uniform(), cap=1.5, clip_reports=3.0)
    script = tmp_path / "client.py"
    script.touch()
    recipe = FedAvgRecipe(
        name="job",
        model=Net(),
        min_clients=2,
        train_script=str(script),
        aggregator=FairFLAggregator(strategy, ["w"], "dice"),
    )
    recipe.export(str(tmp_path / "out"))
    config = json.loads((tmp_path / "out/job/app/config/config_fed_server.json").read_text())
    written = config["workflows"][0]["args"]["aggregator"]["args"]
    assert written["strategy"]["args"] == {"mode": "sum"}
    assert written["weighting"]["path"].endswith("Uniform")
    kept = ("trainable_param_names", "key_metric", "cap", "clip_reports")
    assert [written[name] for name in kept] == [["w"], "dice", 1.5, 3.0]
