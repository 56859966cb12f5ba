# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scripts of NVFlare's FedCE recipe under a federation of this package.

NVFlare's own run of them is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.script_model import CLIENTS, Net

from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import CGSV, FairFed, FedAvg, FedCE, ShapFed, Standalone, Strategy

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_opt.pt.fedce import FedCEModelAggregator, PTFedCEHelper  # noqa: E402

from monai_fairfl.transports.flare import wire  # noqa: E402
from monai_fairfl.transports.flare.job.user_model import initial_of  # noqa: E402
from monai_fairfl.transports.flare.server.script_messages import (  # noqa: E402
    ScriptMessages,
    reply_from,
    settings_for_scripts,
)
from monai_fairfl.transports.flare.wire import META, reply_model  # noqa: E402

pytestmark = pytest.mark.nvflare


def started(strategy: Strategy | None = None) -> tuple[Strategy, dict[str, torch.Tensor]]:
    """A strategy that began with a small network."""
    torch.manual_seed(0)
    weights, spec = initial_of(Net())
    strategy = strategy or FedCE("sum", variant="revised")
    strategy.start(weights, CLIENTS, spec)
    return strategy, dict(weights)


def asked(
    weights: Mapping[str, torch.Tensor], context: Mapping[str, float] | None = None, **stamp: Any
) -> Request:
    given = {"id": 3, "run": "run", "round": 1, **stamp}
    return Request("elm", "train", weights, context=dict(context or {}), **given)


def sent_by(
    script: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], full: bool = False
) -> FLModel:
    """A trained ``state_dict`` on its way, as differences or as it is."""
    if full:
        return FLModel(ParamsType.FULL, dict(script), meta={})
    differences = {name: value - weights[name] for name, value in script.items()}
    return FLModel(ParamsType.DIFF, differences, meta={})


def test_a_script_is_sent_a_whole_state_dict_and_its_own_weight_only() -> None:
    strategy, weights = started()
    model = ScriptMessages(strategy).request_model(
        asked(weights, {"previous_weight": 0.3}), rounds=5
    )
    Net().load_state_dict(model.params)
    assert model.meta["fedce_coef"] == {"elm": 0.3}
    assert PTFedCEHelper.get_contribution_weight(model, "elm") == 0.3
    assert (model.params_type, model.current_round, model.total_rounds) == (ParamsType.FULL, 1, 5)


@pytest.mark.parametrize("context", [{"previous_weight": 0.0}, {}, {"previous_weight": 1.0}])
def test_without_a_usable_weight_nvflares_helper_takes_nothing_out_of_the_model(
    context: dict[str, float],
) -> None:
    """In round 0, for methods without such a weight, and where nobody else is in the model."""
    strategy, weights = started()
    model = ScriptMessages(strategy).request_model(asked(weights, context), rounds=5)
    weight = PTFedCEHelper.get_contribution_weight(model, "elm")
    network = Net()
    network.load_state_dict(model.params)
    local = {name: value + 1 for name, value in network.state_dict().items()}
    without = PTFedCEHelper.make_minus_model(network, local, weight)
    assert weight == 0
    for name, value in without.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


@pytest.mark.parametrize("kind", ["diff", "full", "arrays"])
def test_differences_and_whole_parameters_become_the_same_reply(kind: str) -> None:
    strategy, weights = started()
    network = Net()
    network(torch.randn(4, 2))  # moves BatchNorm's statistics and counter
    trained = {name: value.detach().clone() for name, value in network.state_dict().items()}
    whole = strategy.spec.with_aliases(weights)
    model = sent_by(trained, whole, full=kind == "full")
    if kind == "arrays":
        model.params = {name: value.numpy() for name, value in model.params.items()}
        model.params["body.1.num_batches_tracked"] = np.float32(1)  # averaging made it a float
    reply = ScriptMessages(strategy).reply_of(model, asked(weights))
    assert reply.error is None and refusal(asked(weights), reply, strategy.spec) is None
    assert set(reply.update or {}) == set(strategy.spec.parameters)
    assert "second_head.weight" not in strategy.spec.parameters
    for name, change in (reply.update or {}).items():
        torch.testing.assert_close(weights[name] + change, trained[name])
    for name, value in (reply.buffers or {}).items():
        torch.testing.assert_close(value, trained[name])
        assert value.dtype == weights[name].dtype
    assert reply.buffers is not None and set(reply.buffers) == set(strategy.spec.buffers)
    assert reply.buffers["body.1.num_batches_tracked"] == 1


@pytest.mark.parametrize(
    ("steps", "known"),
    [(7, 7), (7.0, 7), (np.int64(3), 3), (None, 1), ("many", 1), (0, 1), (float("nan"), 1)],
)
def test_steps_stand_for_samples(steps: Any, known: int) -> None:
    strategy, weights = started()
    model = FLModel(ParamsType.DIFF, dict(weights), meta={"NUM_STEPS_CURRENT_ROUND": steps})
    reply = ScriptMessages(strategy).reply_of(model, asked(weights))
    assert (reply.num_samples, reply.num_steps) == (known, known)


@pytest.mark.parametrize(("mode", "score"), [("max", 0.7), ("min", -0.7)])
def test_metrics_are_measurements_and_the_key_metric_scores_the_received_model(
    mode: str, score: float
) -> None:
    strategy, weights = started()
    metrics = {
        "dice": torch.tensor(0.7),
        "loss": np.float32(0.5),
        "n": 3,
        "text": "good",
        "table": [1, 2],
        "bad": np.nan,
    }
    model = FLModel(ParamsType.DIFF, dict(weights), metrics=metrics, meta={"fedce_minus_val": 0.25})
    measured = ScriptMessages(strategy, "dice", mode).reply_of(model, asked(weights)).measurements
    assert measured == pytest.approx(
        {"dice": 0.7, "loss": 0.5, "n": 3.0, "global_score": score, "leave_one_out_error": 0.25}
    )


@pytest.mark.parametrize("error", [85.0, -0.5, float("inf")])
def test_an_error_outside_of_zero_to_one_does_not_count(
    error: float, caplog: pytest.LogCaptureFixture
) -> None:
    strategy, weights = started(FedCE())
    model = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": error})
    reply = ScriptMessages(strategy).reply_of(model, asked(weights))
    assert reply.error is None and "leave_one_out_error" not in reply.measurements
    assert f"client elm: fedce_minus_val is {error:g}, outside of 0 to 1" in caplog.text


@pytest.mark.parametrize("variant", ["paper", "revised"])
@pytest.mark.parametrize("way", ["metrics", "meta of the package"])
def test_an_impossible_error_does_not_count_in_whatever_way_it_comes(
    way: str, variant: str, tmp_path: Path
) -> None:
    """Without the error, elm has the mean of the others; 9e5 gave it nearly all of the weight."""

    def weights_where_elm_claims(claim: float | None) -> Mapping[str, float]:
        sites = {name: Site(name) for name in CLIENTS}
        strategy = FedCE("sum", variant=variant)

        def answer(model: FLModel, name: str) -> FLModel:
            result = sites[name].answer(model)
            if name != "elm":
                return result
            del result.meta["fedce_minus_val"]
            if claim is None:
                return result
            if way == "metrics":
                result.metrics["leave_one_out_error"] = claim
                return result
            request = wire.request_of(model, name)
            scripted = reply_from(result, request, strategy.spec, {})
            return reply_model(replace(scripted, measurements={"leave_one_out_error": claim}))

        run = federation(tmp_path / str(claim), answer, strategy, rounds=2)
        found: Mapping[str, float] = run.run().rounds[-1]["aggregation"]
        return found

    assert weights_where_elm_claims(9e5) == pytest.approx(weights_where_elm_claims(None))


def test_names_of_the_package_count_only_in_the_way_that_the_page_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, weights = started()
    metrics = {"leave_one_out_error": 0.5, "global_score": 9e5, "accuracy": 0.7, "loss": 0.1}
    model = FLModel(ParamsType.DIFF, dict(weights), metrics=metrics, meta={})
    measured = ScriptMessages(strategy).reply_of(model, asked(weights)).measurements
    assert measured == {"accuracy": 0.7, "loss": 0.1, "global_score": 0.7}
    assert "client elm: metrics['leave_one_out_error'] does not count" in caplog.text
    assert "must send this number as meta['fedce_minus_val']" in caplog.text

    by_that_name = ScriptMessages(strategy, "global_score", "min").reply_of(model, asked(weights))
    assert by_that_name.measurements == {"accuracy": 0.7, "loss": 0.1, "global_score": -9e5}


def leave_one_out_error(
    strategy: Strategy, weights: Mapping[str, torch.Tensor], mean: float
) -> float:
    """What a script's mean becomes in its reply."""
    model = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": mean})
    reply = ScriptMessages(strategy).reply_of(model, asked(weights))
    return float(reply.measurements["leave_one_out_error"])


@pytest.mark.parametrize("variant", ["revised", "released"])
def test_fedce_arrives_at_the_very_mean_that_a_script_sends(variant: str) -> None:
    """A script's mean counts as NVFlare counts it: as it is, not averaged once more."""
    strategy, weights = started(FedCE("sum", variant=variant))
    sums = {"rounds": 1, "cos": 0.1, "dice": 0.0}
    strategy.history = {"elm": sums}
    errors = [1.0]
    for error_of_round in (0.9, 0.0, 1.0, 0.35):
        errors.append(error_of_round)
        mean = sum(errors) / len(errors)
        error = leave_one_out_error(strategy, weights, mean)
        assert error == pytest.approx(error_of_round, abs=1e-9) and 0 <= error <= 1
        # As a round of the strategy adds it.
        sums["rounds"] += 1
        sums["dice"] += 1 - error
        assert 1 - sums["dice"] / sums["rounds"] == pytest.approx(mean)


@pytest.mark.parametrize(("mean", "nearest"), [(1.0, 1.0), (0.0, 0.0)])
def test_no_mean_leads_to_an_impossible_error_of_a_round(
    mean: float, nearest: float, caplog: pytest.LogCaptureFixture
) -> None:
    """After ten rounds of 0.4, a mean of 1 would need an error of 7, and a mean of 0 one of -4."""
    strategy, weights = started(FedCE("sum", variant="revised"))
    strategy.history = {"elm": {"rounds": 10, "cos": 1.0, "dice": 6.0}}
    assert leave_one_out_error(strategy, weights, mean) == nearest
    needed = 11 * mean - 4
    assert f"fedce_minus_val is {mean:g}, which needs an error of {needed:g}" in caplog.text
    assert "client elm" in caplog.text and "must send the mean of its errors" in caplog.text


def test_the_means_of_script_and_server_come_together_after_the_script_was_started_again() -> None:
    strategy, weights = started(FedCE("sum", variant="revised"))
    sums = {"rounds": 10, "cos": 1.0, "dice": 6.0}
    strategy.history = {"elm": sums}
    for rounds in range(1, 10):
        # The script has forgotten ten rounds: it begins with 1 again, and every error is 0.4.
        mean = (1.0 + 0.4 * (rounds - 1)) / rounds
        sums["dice"] += 1 - leave_one_out_error(strategy, weights, mean)
        sums["rounds"] += 1
    assert 1 - sums["dice"] / sums["rounds"] == pytest.approx(mean)


def test_the_papers_fedce_takes_the_number_itself() -> None:
    strategy, weights = started(FedCE())
    strategy.history = {"elm": {"rounds": 1, "score": 1.0, "square": 1.0}}
    assert leave_one_out_error(strategy, weights, 0.4) == 0.4


def test_what_does_not_fit_the_model_is_refused_with_its_name() -> None:
    strategy, weights = started()

    def refused(model: FLModel) -> str | None:
        reply = ScriptMessages(strategy).reply_of(model, asked(weights))
        return refusal(asked(weights), reply, strategy.spec)

    def reason(change: Callable[[dict[str, Any]], object], full: bool = False) -> str | None:
        params = dict(weights)
        change(params)
        kind = ParamsType.FULL if full else ParamsType.DIFF
        return refused(FLModel(kind, params, meta={}))

    assert reason(lambda params: params.pop("body.1.num_batches_tracked")) is None
    assert "missing ['head.bias']" in str(reason(lambda params: params.pop("head.bias")))
    for full in (False, True):
        assert "unexpected ['tail']" in str(
            reason(lambda params: params.update(tail=torch.zeros(1)), full)
        )
        assert "'body.0.bias' has shape ()" in str(
            reason(lambda p: p.update({"body.0.bias": torch.tensor(1.0)}), full)
        )
        assert "'head.bias' has shape (2,)" in str(
            reason(lambda p: p.update({"head.bias": torch.zeros(2)}), full)
        )
        assert "'body.1.running_var' has shape ()" in str(
            reason(lambda p: p.update({"body.1.running_var": torch.tensor(1.0)}), full)
        )
    assert "'head.bias' is a object, not a tensor" in str(
        reason(lambda params: params.update({"head.bias": object()}))
    )
    nothing = FLModel(metrics={"accuracy": 1.0}, meta={})
    assert refused(nothing) == "trained but sent no update"
    unread = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": "much"})
    assert "cannot be read (ValueError" in str(
        ScriptMessages(strategy).reply_of(unread, asked(weights)).error
    )


def test_a_reply_of_this_package_is_understood_and_an_echo_of_the_request_is_not_one() -> None:
    strategy, weights = started()
    scripts, request = ScriptMessages(strategy), asked(weights)
    update = {name: torch.zeros_like(weights[name]) for name in strategy.spec.parameters}
    own = Reply("elm", update, 12, {"global_loss": 0.5}, {}, id=3, run="run", round=1)
    assert scripts.reply_of(reply_model(own), request).num_samples == 12
    echo = FLModel(
        ParamsType.DIFF, dict(weights), meta=dict(scripts.request_model(request, 5).meta)
    )
    assert META in echo.meta and scripts.reply_of(echo, request).error is None


@pytest.mark.parametrize("others", [{}, {f"metric {number}": 1e9 for number in range(30)}])
def test_the_score_of_a_client_of_this_package_is_a_dice_also_among_scripts(
    others: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    strategy, weights = started()
    scripts, request = ScriptMessages(strategy), asked(weights)
    update = {name: torch.zeros_like(weights[name]) for name in strategy.spec.parameters}

    def measured(score: float) -> Mapping[str, Any]:
        sent = {**others, "global_score": score}
        own = Reply("elm", update, 12, sent, {}, id=3, run="run", round=1)
        return scripts.reply_of(reply_model(own), request).measurements

    assert measured(0.8) == {**others, "global_score": 0.8}
    assert "does not count" not in caplog.text
    assert measured(9e5) == others
    assert "client elm: global_score does not count" in caplog.text


class InProcessScripts:
    """Runs a script's answer for every request, as the Client API would."""

    def __init__(
        self, script: Callable[[FLModel, str], FLModel | None], strategy: Strategy, **options: str
    ):
        self.script = script
        self.scripts = ScriptMessages(strategy, **options)
        self.clients = CLIENTS

    def exchange(
        self,
        requests: Sequence[Request],
        arrived: Callable[[Reply], None],
        timeout: float | None = None,
    ) -> None:
        for request in reversed(requests):
            model = self.script(self.scripts.request_model(request, 4), request.client)
            if model is not None:
                arrived(self.scripts.reply_of(model, request))

    def close(self) -> None:
        pass


class Site:
    """What client.py of the page does, with a step of its own in place of training."""

    def __init__(self, name: str):
        self.name = name
        self.trained = None
        self.errors = [1.0]
        self.weights = []

    def answer(self, model: FLModel) -> FLModel:
        network = Net()
        network.load_state_dict(model.params)
        self.weights.append(PTFedCEHelper.get_contribution_weight(model, self.name))
        draw = torch.Generator().manual_seed(sum(map(ord, self.name)) + model.current_round)
        images = torch.randn(8, 2, generator=draw) + len(self.name)
        if self.trained is not None:
            without = PTFedCEHelper.make_minus_model(network, self.trained, self.weights[-1]).eval()
            self.errors.append(torch.sigmoid(without(images)).mean().item())
        before = {name: value.clone() for name, value in network.state_dict().items()}
        network.train()(images).square().mean().backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.05 * parameter.grad
        self.trained = {name: value.clone() for name, value in network.state_dict().items()}
        params = {name: value - before[name] for name, value in self.trained.items()}
        metrics = {"loss": float(len(self.name) - model.current_round)}
        result = FLModel(
            ParamsType.DIFF, params, metrics=metrics, current_round=model.current_round, meta={}
        )
        return PTFedCEHelper.set_minus_model_score(result, sum(self.errors) / len(self.errors))


def federation(
    folder: Path, script: Any, strategy: Strategy, rounds: int = 4, **options: Any
) -> Federation:
    def initial() -> Any:
        torch.manual_seed(0)
        return initial_of(Net())

    transport = InProcessScripts(script, strategy, **options)
    settings = settings_for_scripts({"final": (), "evaluate": ()})
    return Federation(strategy, transport, rounds, initial, run_dir=folder, **settings)


@pytest.mark.slow
def test_four_rounds_equal_nvflares_fedce(tmp_path: Path) -> None:
    """Weights, parameters, BatchNorm statistics, and the weight that every client receives."""
    ours = {name: Site(name) for name in CLIENTS}
    strategy = FedCE("sum", variant="revised")
    history = federation(tmp_path, lambda model, name: ours[name].answer(model), strategy).run()

    peers = {name: Site(name) for name in CLIENTS}
    aggregator = FedCEModelAggregator("plus", list(strategy.spec.parameters))
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in Net().state_dict().items()}
    meta: dict[str, Any] = {}
    for number in range(4):
        aggregator.reset_stats()
        for name in CLIENTS:
            sent = FLModel(ParamsType.FULL, dict(weights), current_round=number, meta=dict(meta))
            result = peers[name].answer(sent)
            result.meta["client_name"] = name
            aggregator.accept_model(result)
        aggregated = aggregator.aggregate_model()
        weights = {name: value + aggregated.params[name] for name, value in weights.items()}
        meta = aggregated.meta
        assert history.rounds[number]["aggregation"] == pytest.approx(meta["fedce_coef"], abs=1e-5)
    for name, value in strategy.weights.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, weights[name], atol=1e-5, rtol=0)
    for name in CLIENTS:
        assert ours[name].weights == pytest.approx(peers[name].weights, abs=1e-5)
    assert history.finished and history.records[-1]["kind"] == "end"


def test_the_best_model_has_the_lowest_loss_where_low_is_good(tmp_path: Path) -> None:
    sites = {name: Site(name) for name in CLIENTS}
    run = federation(
        tmp_path,
        lambda model, name: sites[name].answer(model),
        FedAvg(),
        key_metric="loss",
        key_metric_mode="min",
    )
    history: History = run.run()
    # The loss that clients report in round 3, of the model of round 2.
    lowest = float(np.mean([len(name) - 3 for name in CLIENTS]))
    assert run.models.best == {"round": 2, "score": pytest.approx(-lowest)}
    assert history.rounds[1]["measurements"]["elm"]["loss"] == 2.0


def test_a_script_that_stops_answering_leaves_the_others_in_the_federation(tmp_path: Path) -> None:
    sites = {name: Site(name) for name in CLIENTS}

    def script(model: FLModel, name: str) -> FLModel | None:
        return None if (name, model.current_round) == ("poplar", 2) else sites[name].answer(model)

    history = federation(tmp_path, script, FedCE("sum", variant="revised")).run()
    assert set(history.rounds[2]["missing"]) == {"poplar"} and history.rounds[3]["missing"] == {}
    # The received model does not hold it.
    assert sites["poplar"].weights[-1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [Standalone(), CGSV(), FairFed(), ShapFed(output_layer="head")],
    ids=lambda s: s.name,
)
def test_other_methods_run_with_the_same_scripts(strategy: Strategy, tmp_path: Path) -> None:
    sites = {name: Site(name) for name in CLIENTS}
    run = federation(
        tmp_path, lambda model, name: sites[name].answer(model), strategy, key_metric="loss"
    )
    assert run.run().finished
