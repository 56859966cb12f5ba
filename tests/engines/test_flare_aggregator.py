# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Strategies as aggregators of NVFlare's own FedAvg: its arithmetic is the oracle."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
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

from monai_fairfl import Strategy, read_ledger  # noqa: E402
from monai_fairfl.errors import ConfigError, FederationError  # noqa: E402
from monai_fairfl.strategies import (  # noqa: E402
    AFL,
    CGSV,
    FedAvg,
    FedCE,
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
FIRST = {name: torch.full(shape, 8.0) for name, shape in SHAPES.items()}
"""The first model; no variance becomes negative."""
ROUNDS = 9


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


class Workflow:
    """NVFlare's FedAvg around an aggregator, in the folder of a job."""

    def __init__(self, folder: Path, aggregator: Any, model: dict[str, Any] = FIRST):
        self.folder = folder
        self.aggregator = aggregator
        self.model = FLModel(ParamsType.FULL, dict(model), total_rounds=ROUNDS)
        workspace = workspace_of(folder, "server")
        engine = SimpleNamespace(get_workspace=lambda: workspace)
        self.task: Any = None
        self.context = SimpleNamespace(
            get_engine=lambda: engine,
            get_job_id=lambda: "job",
            get_prop={AppConstants.TRAIN_SHAREABLE: self}.get,
        )
        aggregator.handle_event(EventType.START_RUN, self.context)

    def round(self, models: Sequence[FLModel]) -> FLModel:
        """Play a round; returns what the clients receive next."""
        self.aggregator.reset_stats()
        task = FLModelUtils.to_shareable(self.model)
        self.context.get_prop = {AppConstants.TRAIN_SHAREABLE: task}.get
        self.aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, self.context)
        for model in models:
            self.aggregator.accept_model(model)
        self.model = FLModelUtils.update_model(self.model, self.aggregator.aggregate_model())
        return self.model

    def end(self) -> None:
        self.aggregator.handle_event(EventType.END_RUN, self.context)

    @property
    def run(self) -> Path:
        return self.folder / "job" / "fairfl"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rounds in the ledger."""
        records = read_ledger(self.run / "ledger.jsonl")
        return [record for record in records if record["kind"] == "round"]


Begun = Callable[..., Workflow]


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    """Maker of a job with a strategy; each is in a folder of its own where none is named."""
    numbers = itertools.count()

    def make(strategy: Strategy, folder: str = "", **arguments: Any) -> Workflow:
        model = arguments.pop("model", FIRST)
        aggregator = FairFLAggregator(strategy, TRAINABLE, **arguments)
        return Workflow(tmp_path / (folder or str(next(numbers))), aggregator, model)

    return make


def equal(first: FLModel, second: FLModel) -> bool:
    same = all(torch.equal(first.params[name], second.params[name]) for name in first.params)
    return same and first.params.keys() == second.params.keys() and first.metrics == second.metrics


def fedce() -> FedCE:
    """NVFlare's form of it."""
    return FedCE("sum", variant="revised")


# ---- numbers ----


def test_fedavg_of_changes_and_whole_models_equals_nvflares_own(begun: Begun) -> None:
    models = results(0)
    helper = WeightedAggregationHelper()
    for model in models:
        steps = model.meta["NUM_STEPS_CURRENT_ROUND"]
        helper.add(model.params, steps, model.meta["client_name"], 0)
    expected = helper.get_result()
    models[0].params_type = ParamsType.FULL
    models[0].params = {name: FIRST[name] + change for name, change in models[0].params.items()}
    found = begun(FedAvg()).round(models)
    assert found.params.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found.params[name] - FIRST[name], expected[name], atol=2e-6)


@pytest.mark.parametrize(("mode", "theirs"), [("sum", "plus"), ("multi", "times")])
def test_fedce_equals_nvflares_fedce_also_where_a_client_is_away(
    mode: str, theirs: str, tmp_path: Path
) -> None:
    ours = Workflow(tmp_path / "ours", FairFLAggregator(FedCE(mode, variant="revised"), TRAINABLE))
    peer = Workflow(tmp_path / "peer", FedCEModelAggregator(theirs, TRAINABLE))
    peer.aggregator.fl_ctx = None  # it would write a log there
    for number in range(6):
        # In the fourth round a client is away.
        clients = CLIENTS[:2] if number == 3 else CLIENTS
        found = ours.round(results(number, clients))
        expected = peer.round(results(number, clients))
        for client in clients:
            coefficient = expected.meta["fedce_coef"][client]
            assert found.meta["fedce_coef"][client] == pytest.approx(coefficient, abs=1e-6)
        if number == 3:  # NVFlare's helper would take out what is not in the model
            assert PTFedCEHelper.get_contribution_weight(found, CLIENTS[2]) == 0
        assert found.metrics == pytest.approx(expected.metrics, abs=1e-6)
        for name in SHAPES:
            np.testing.assert_allclose(found.params[name], expected.params[name], atol=1e-5)
    # The history stays at the server.
    assert set(found.meta) == {"fedce_coef"}


def test_steps_metrics_and_the_key_metric_as_the_ledger_has_them(begun: Begun) -> None:
    """The statistics of a MonaiAlgo with this package's handlers are measurements, too."""
    models = results(0)
    models[0].metrics = {
        "accuracy": torch.tensor(0.5),
        "n": np.float32(3),
        "bad": float("nan"),
        "table": [1, 2],
        "fairfl/train_loss": 0.25,
    }
    models[1].meta["NUM_STEPS_CURRENT_ROUND"] = "many"
    job = begun(FedAvg())
    job.round(models)
    [record] = job.records
    measured = {"accuracy": 0.5, "global_score": 0.5, "n": 3.0, "train_loss": 0.25}
    assert record["measurements"]["elm"] == {**measured, "leave_one_out_error": 1.0}
    # Steps stand for images; a script that sends none has one.
    shares = {"elm": 3 / 15, "poplar": 1 / 15, "sycamore": 11 / 15}
    assert record["aggregation"] == pytest.approx(shares)


def test_an_impossible_error_does_not_count_in_whatever_way_it_comes(begun: Begun) -> None:
    """Without its error, elm has the mean of the others; 9e5 would give it nearly all weight."""
    found = []
    for value, metric in ((None, None), (9e5, None), (-0.5, None), (None, 9e5)):
        job = begun(fedce())
        for number in range(2):
            models = results(number)
            models[0].meta["fedce_minus_val"] = value
            if metric is not None:
                models[0].metrics["leave_one_out_error"] = metric
            job.round(models)
        found.append(job.records[1]["aggregation"])
    for weights in found[1:]:
        assert weights == pytest.approx(found[0])


# ---- results that do not count ----

HARM: dict[str, Any] = {
    "finite": torch.tensor([torch.nan, 0, 0]),
    "shape": torch.zeros(2),
    "complex64": torch.ones(3, dtype=torch.complex64),
    "encryption": object(),
}


def test_each_bad_result_is_left_out_for_its_reason_and_the_others_count(begun: Begun) -> None:
    words = [*HARM, "unexpected", "missing", "read"]
    bad = dict(zip(words, results(0, [*CLIENTS, *words])[len(CLIENTS) :], strict=True))
    for word, harm in HARM.items():
        bad[word].params["conv.bias"] = harm
    bad["unexpected"].params["other.weight"] = torch.zeros(2)
    del bad["missing"].params["conv.bias"]
    bad["read"].meta["fedce_minus_val"] = "much"
    job = begun(FedAvg())
    found = job.round([*bad.values(), *results(0)])
    assert equal(found, begun(FedAvg()).round(results(0)))
    [record] = job.records
    assert set(record["missing"]) == set(words)
    assert all(word in record["missing"][word] for word in words)


def test_a_round_without_a_usable_result_fails(begun: Begun) -> None:
    empty = FLModel(ParamsType.DIFF, {}, meta={"client_name": "elm"})
    with refused("elm", "missing", by=FederationError):
        begun(FedAvg()).round([empty])


# ---- the run of a job ----


def test_a_server_that_is_started_again_goes_on_with_the_same_history(begun: Begun) -> None:
    """Also where a site joins or is away."""
    of_rounds = [CLIENTS, CLIENTS, CLIENTS[:2], [*CLIENTS, "willow"], CLIENTS]

    def played(folder: str, starts: Sequence[int]) -> Iterator[FLModel]:
        job = begun(AFL(step=0.5), folder)
        for number, clients in enumerate(of_rounds):
            if number in starts:
                job = begun(AFL(step=0.5), folder, model=job.model.params)
            made = job.round(results(number, clients))
            yield FLModel(made.params_type, dict(made.params), metrics=made.metrics)

    whole, cut = list(played("whole", [])), list(played("cut", [2, 3]))
    assert all(equal(one, two) for one, two in zip(whole, cut, strict=True))
    # It would be another run in the same folder.
    with refused("AFL", "FedAvg", by=FederationError):
        begun(FedAvg(), "cut", model=whole[-1].params).round(results(5))


# ---- strategies ----

NEEDS_MORE = {
    "a model for each client": CGSV(),
    "two exchanges": FedLWR(),
    "an output layer": ShapFed(),
    "its own training": FedAvg(training={"prox_mu": 0.1}),
}


@pytest.mark.parametrize("more", NEEDS_MORE)
def test_a_strategy_that_needs_more_is_refused_by_name(more: str, begun: Begun) -> None:
    strategy = NEEDS_MORE[more]
    with refused(strategy.name, by=ConfigError):
        begun(strategy).round(results(0))


def test_a_job_of_nvflares_recipe_keeps_the_aggregators_arguments(tmp_path: Path) -> None:
    strategy = FedCE("sum", weighting=Uniform(), cap=1.5)
    script = tmp_path / "client.py"
    script.touch()
    recipe = FedAvgRecipe(
        name="job",
        model=Net(),
        min_clients=2,
        train_script=str(script),
        aggregator=FairFLAggregator(strategy, ["w"], "dice", {"keep": 5}),
    )
    recipe.export(str(tmp_path / "out"))
    config = json.loads((tmp_path / "out/job/app/config/config_fed_server.json").read_text())
    written = config["workflows"][0]["args"]["aggregator"]["args"]
    assert written["strategy"]["args"] == {"mode": "sum"}
    parts = written["parts"]["args"]
    assert parts["weighting"]["path"].endswith("Uniform")
    assert parts["cap"] == 1.5 and written["federation"]["keep"] == 5
    assert (written["trainable_param_names"], written["key_metric"]) == (["w"], "dice")
