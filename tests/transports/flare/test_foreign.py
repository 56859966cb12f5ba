# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scripts of NVFlare's FedCE recipe under this package's controller: NVFlare's own run of them is
the oracle.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import CGSV, FairFed, FedAvg, FedCE, ShapFed, Standalone, Strategy

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from helpers.flare_pages import run_block, switched, write_blocks  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_opt.pt.fedce import FedCEModelAggregator, PTFedCEHelper  # noqa: E402
from nvflare.app_opt.pt.recipes import FedCERecipe  # noqa: E402

from monai_fairfl.transports.flare import FairFLRecipe  # noqa: E402
from monai_fairfl.transports.flare.job.initial import read_initial  # noqa: E402
from monai_fairfl.transports.flare.job.scripts import initial_of, key_mode  # noqa: E402
from monai_fairfl.transports.flare.server import controller as flare_controller  # noqa: E402
from monai_fairfl.transports.flare.server.controller import FairFLController  # noqa: E402
from monai_fairfl.transports.flare.server.foreign import Scripts  # noqa: E402
from monai_fairfl.transports.flare.wire import META, reply_model  # noqa: E402

pytestmark = pytest.mark.nvflare
CLIENTS = ["elm", "poplar", "sycamore"]


class Net(nn.Module):
    """With BatchNorm, and a head that shares its weight, which ``state_dict`` names twice."""

    def __init__(self, width: int = 3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 1)
        self.second_head = self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


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
    params = {name: value if full else value - weights[name] for name, value in script.items()}
    return FLModel(ParamsType.FULL if full else ParamsType.DIFF, params, meta={})


# ---- requests ------------------------------------------------------------------------------------------------


def test_a_script_is_sent_a_whole_state_dict_and_its_own_weight_only() -> None:
    strategy, weights = started()
    model = Scripts(strategy).request_model(asked(weights, {"previous_weight": 0.3}), rounds=5)
    Net().load_state_dict(model.params)
    assert model.meta["fedce_coef"] == {"elm": 0.3}
    assert PTFedCEHelper.get_contribution_weight(model, "elm") == 0.3
    assert (model.params_type, model.current_round, model.total_rounds) == (ParamsType.FULL, 1, 5)


@pytest.mark.parametrize("context", [{"previous_weight": 0.0}, {}, {"previous_weight": 1.0}])
def test_without_a_usable_weight_nvflares_helper_takes_nothing_out_of_the_model(
    context: dict[str, float],
) -> None:
    """In the first round, for methods without such a weight, and where nobody else is in the model."""
    strategy, weights = started()
    model = Scripts(strategy).request_model(asked(weights, context), rounds=5)
    weight = PTFedCEHelper.get_contribution_weight(model, "elm")
    network = Net()
    network.load_state_dict(model.params)
    local = {name: value + 1 for name, value in network.state_dict().items()}
    without = PTFedCEHelper.make_minus_model(network, local, weight)
    assert weight == 0
    for name, value in without.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


# ---- replies -------------------------------------------------------------------------------------------------


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
    reply = Scripts(strategy).reply_of(model, asked(weights))
    assert reply.error is None and refusal(asked(weights), reply, strategy.spec) is None
    assert set(reply.update or {}) == set(strategy.spec.parameters)
    assert "second_head.weight" not in strategy.spec.parameters
    for name, change in (reply.update or {}).items():
        torch.testing.assert_close(weights[name] + change, trained[name])
    for name, value in (reply.buffers or {}).items():
        torch.testing.assert_close(value, trained[name])
        assert value.dtype == weights[name].dtype
    assert set(reply.buffers or {}) == set(strategy.spec.buffers) and reply.buffers["body.1.num_batches_tracked"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("steps", "known"),
    [(7, 7), (7.0, 7), (np.int64(3), 3), (None, 1), ("many", 1), (0, 1), (float("nan"), 1)],
)
def test_steps_stand_for_samples(steps: Any, known: int) -> None:
    strategy, weights = started()
    model = FLModel(ParamsType.DIFF, dict(weights), meta={"NUM_STEPS_CURRENT_ROUND": steps})
    reply = Scripts(strategy).reply_of(model, asked(weights))
    assert (reply.num_samples, reply.num_steps) == (known, known)


@pytest.mark.parametrize(("mode", "score"), [("max", 0.7), ("min", -0.7)])
def test_metrics_are_measurements_and_the_key_metric_scores_the_received_model(
    mode: str, score: float
) -> None:
    strategy, weights = started()
    metrics = {
        "dice": torch.tensor(0.7), "loss": np.float32(0.5), "n": 3, "text": "good", "table": [1, 2], "bad": np.nan,
    }  # fmt: skip
    model = FLModel(ParamsType.DIFF, dict(weights), metrics=metrics, meta={"fedce_minus_val": 0.25})
    measured = Scripts(strategy, "dice", mode).reply_of(model, asked(weights)).measurements
    assert measured == pytest.approx(
        {"dice": 0.7, "loss": 0.5, "n": 3.0, "global_score": score, "leave_one_out_error": 0.25}
    )


@pytest.mark.parametrize("variant", ["revised", "released"])
def test_fedce_arrives_at_the_very_mean_that_a_script_sends(variant: str) -> None:
    """Whatever a script sends counts as NVFlare counts it: as it is, not averaged once more."""
    strategy, weights = started(FedCE("sum", variant=variant))
    strategy.history = {"elm": {"rounds": 1, "cos": 0.1, "dice": 0.0}}
    for mean in (0.9, 0.2, 0.35):
        model = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": mean})
        error = (
            Scripts(strategy).reply_of(model, asked(weights)).measurements["leave_one_out_error"]
        )
        strategy._remember("elm", cos=0.0, dice=1 - float(error))  # as its round does
        assert 1 - strategy._mean("elm", "dice") == pytest.approx(mean)


def test_the_papers_fedce_takes_the_number_itself() -> None:
    strategy, weights = started(FedCE())
    strategy.history = {"elm": {"rounds": 1, "score": 1.0, "square": 1.0}}
    model = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": 0.4})
    assert (
        Scripts(strategy).reply_of(model, asked(weights)).measurements["leave_one_out_error"] == 0.4
    )


def test_what_does_not_fit_the_model_is_refused_with_its_name() -> None:
    strategy, weights = started()

    def reason(change: Callable[[dict[str, Any]], object], full: bool = False) -> str | None:
        params = dict(weights)
        change(params)
        model = FLModel(ParamsType.FULL if full else ParamsType.DIFF, params, meta={})
        return refusal(
            asked(weights), Scripts(strategy).reply_of(model, asked(weights)), strategy.spec
        )

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
    nothing = Scripts(strategy).reply_of(
        FLModel(metrics={"accuracy": 1.0}, meta={}), asked(weights)
    )
    assert refusal(asked(weights), nothing, strategy.spec) == "trained but sent no update"
    unread = FLModel(ParamsType.DIFF, dict(weights), meta={"fedce_minus_val": "much"})
    assert "cannot be read (ValueError" in str(
        Scripts(strategy).reply_of(unread, asked(weights)).error
    )


def test_a_reply_of_this_package_is_understood_and_an_echo_of_the_request_is_not_one() -> None:
    strategy, weights = started()
    scripts, request = Scripts(strategy), asked(weights)
    update = {name: torch.zeros_like(weights[name]) for name in strategy.spec.parameters}
    own = Reply("elm", update, 12, {"global_loss": 0.5}, {}, id=3, run="run", round=1)
    assert scripts.reply_of(reply_model(own), request).num_samples == 12
    echo = FLModel(
        ParamsType.DIFF, dict(weights), meta=dict(scripts.request_model(request, 5).meta)
    )
    assert META in echo.meta and scripts.reply_of(echo, request).error is None


# ---- whole federations, without an engine
# -----------------------------------------------------------------------


class InProcessScripts:
    """Runs a script's answer for every request, as the Client API would."""

    def __init__(
        self, script: Callable[[FLModel, str], FLModel | None], strategy: Strategy, **options: str
    ):
        self.script, self.scripts, self.clients = script, Scripts(strategy, **options), CLIENTS

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
        self.name, self.trained, self.errors, self.weights = name, None, [1.0], []

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
    return Federation(strategy, transport, rounds, initial, run_dir=folder, final=(), evaluate=())


def test_four_rounds_equal_nvflares_fedce(tmp_path: Path) -> None:
    """Weights, parameters, BatchNorm statistics, and what every client is told of itself."""
    ours = {name: Site(name) for name in CLIENTS}
    strategy = FedCE("sum", variant="revised")
    history = federation(tmp_path, lambda model, name: ours[name].answer(model), strategy).run()

    peers, aggregator = {name: Site(name) for name in CLIENTS}, FedCEModelAggregator(
        "plus", list(strategy.spec.parameters)
    )
    torch.manual_seed(0)
    weights, meta = {name: value.clone() for name, value in Net().state_dict().items()}, {}
    for number in range(4):
        aggregator.reset_stats()
        for name in CLIENTS:
            result = peers[name].answer(
                FLModel(ParamsType.FULL, dict(weights), current_round=number, meta=dict(meta))
            )
            result.meta["client_name"] = name
            aggregator.accept_model(result)
        aggregated = aggregator.aggregate_model()
        weights, meta = {
            name: value + aggregated.params[name] for name, value in weights.items()
        }, aggregated.meta
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
    lowest = float(
        np.mean([len(name) - 3 for name in CLIENTS])
    )  # what round 3 says of the model of round 2
    assert run.models.best == {"round": 2, "score": pytest.approx(-lowest)}
    assert history.rounds[1]["measurements"]["elm"]["loss"] == 2.0


def test_a_script_that_stops_answering_leaves_the_others_in_the_federation(tmp_path: Path) -> None:
    sites = {name: Site(name) for name in CLIENTS}

    def script(model: FLModel, name: str) -> FLModel | None:
        return None if (name, model.current_round) == ("poplar", 2) else sites[name].answer(model)

    history = federation(tmp_path, script, FedCE("sum", variant="revised")).run()
    assert set(history.rounds[2]["missing"]) == {"poplar"} and history.rounds[3]["missing"] == {}
    assert sites["poplar"].weights[-1] == 0  # the received model does not hold it


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


# ---- the recipe ------------------------------------------------------------------------------------------------


def recipe(**changes: Any) -> FairFLRecipe:
    given = {"model": Net(), "train_script": "client.py", "min_clients": 3, "num_rounds": 2}
    return FairFLRecipe(
        **{name: value for name, value in {**given, **changes}.items() if value is not None}
    )


def exported(folder: Path, **changes: Any) -> tuple[dict[str, Any], Path]:
    """The server's arguments of a job, and its app."""
    made = recipe(**changes)
    made.export(str(folder))
    app = next(path for path in (folder / made.name).iterdir() if path.is_dir())
    (workflow,) = json.loads((app / "config/config_fed_server.json").read_text())["workflows"]
    return workflow["args"], app


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_blocks(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_argument_of_nvflares_recipe_is_understood(jobs: Path) -> None:
    theirs = inspect.signature(FedCERecipe).parameters
    ours = inspect.signature(FairFLRecipe).parameters
    assert set(theirs) <= set(ours)
    same = set(theirs) - {
        "name",
        "model",
        "train_script",
    }  # optional here, for a bundle has neither
    assert {name: ours[name].default for name in same} == {
        name: theirs[name].default for name in same
    }
    arguments, app = exported(
        jobs / "out", fedce_mode="times", key_metric="dice", stop_cond="dice >= 0.9", patience=2, name="discs",
        server_memory_gc_rounds=3, enable_tensor_disk_offload=True, best_model_filename="b.pt", train_args="--log here",
    )  # fmt: skip
    assert arguments["strategy"]["args"] == {
        "variant": "revised"
    }  # and the default mode, which NVFlare leaves out
    assert arguments["scripts"] == {"key_metric": "dice", "key_metric_mode": "max"}
    assert arguments["federation"]["final"] == arguments["federation"]["evaluate"] == []
    assert (arguments["stop_cond"], arguments["patience"], arguments["memory_gc_rounds"]) == (
        "dice >= 0.9",
        2,
        3,
    )
    client = json.loads((app / "config/config_fed_client.json").read_text())
    (executor,) = client["executors"]
    assert executor["executor"]["args"]["task_script_path"] == "client.py"
    assert executor["executor"]["args"]["task_script_args"] == "--log here"
    assert executor["executor"]["args"]["params_transfer_type"] == "DIFF"
    assert [
        component["id"]
        for component in client["components"]
        if "ConvertToFedEvent" in component["path"]
    ]
    assert (app / "custom/client.py").read_text() == (jobs / "client.py").read_text()


def test_a_script_in_a_process_of_its_own_and_other_arguments_at_one_site(jobs: Path) -> None:
    sites = {"elm": {"train_args": "--log a"}, "poplar": {"command": "python3"}, "sycamore": {}}
    made = recipe(
        launch_external_process=True,
        shutdown_timeout=5.0,
        launch_once=False,
        per_site_config=sites,
        name="discs",
    )
    made.export(str(jobs / "out"))
    commands = {}
    for site in sites:
        config = json.loads(
            (jobs / f"out/discs/app_{site}/config/config_fed_client.json").read_text()
        )
        arguments = config["executors"][0]["executor"]["args"]
        assert (arguments["launch_once"], arguments["shutdown_timeout"]) == (False, 5.0)
        commands[site] = " ".join(arguments["command"])
    assert (
        commands["elm"] == "python3 -u custom/client.py --log a"
        and commands["poplar"] == "python3 custom/client.py"
    )
    with pytest.raises(
        ConfigError, match="per_site_config of elm sets 'train_arguments'.*train_args"
    ):
        recipe(per_site_config={"elm": {"train_arguments": ""}})


def test_the_initial_model_is_the_instance_or_is_built_under_the_seed(
    jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    network = Net()
    _, app = exported(jobs / "instance", model=network)
    weights, spec = read_initial(app / "config/initial")
    assert spec.parameters == read_spec(network).parameters and len(spec.aliases) == 2
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in weights.items())

    monkeypatch.syspath_prepend(str(jobs))
    built = {"class_path": "net.Net", "args": {"channels": 2}}
    first, again, other = (
        read_initial(exported(jobs / str(i), model=built, seed=seed)[1] / "config/initial")[0]
        for i, seed in enumerate((1, 1, 2))
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())

    for i, kept in enumerate(
        (network.state_dict(), {"model": network.state_dict(), "train_conf": None})
    ):
        torch.save(kept, jobs / "start.pt")
        _, app = exported(jobs / f"file{i}", model=Net(), initial_ckpt=str(jobs / "start.pt"))
        assert torch.equal(
            read_initial(app / "config/initial")[0]["head.weight"], network.head.weight
        )
    with pytest.raises(
        ConfigError, match="(?s)start.pt cannot be used.*read where the recipe is made"
    ):
        recipe(model=Net(width=4), initial_ckpt=str(jobs / "start.pt"))
    with pytest.raises(ConfigError, match="absent.pt cannot be used"):
        recipe(initial_ckpt="absent.pt")


def test_trainable_names_decide_what_is_a_parameter() -> None:
    _, spec = initial_of(Net(), ["head.weight"])
    assert spec.parameters == ("head.weight",)
    assert {"body.0.weight", "head.bias", "body.1.running_mean"} <= set(spec.buffers)
    frozen = Net()
    frozen.body.requires_grad_(False)
    assert initial_of(frozen)[1].parameters == ("head.bias", "head.weight")
    with pytest.raises(ConfigError, match="'head.wieght'.*such as"):
        initial_of(Net(), ["head.wieght"])
    with pytest.raises(ConfigError, match="trainable_param_names"):
        initial_of(Net(), [])


@pytest.mark.parametrize(
    "name",
    [
        "FedISM",
        "FedLWR",
        "FedCI",
        "LeaveOneOut",
        "QFedAvg",
        "AFL",
        "FedGA",
        "CFFL",
        "Ditto",
        "ShapFed",
    ],
)
def test_a_method_that_no_script_can_serve_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}.*(FairFLRecipe\\(bundle=|output_layer=)"):
        recipe(strategy=name)


def test_what_a_composed_method_trains_differently_is_refused() -> None:
    composed = {
        "_target_": "monai_fairfl.strategies.compose", "strategy": {"_target_": "monai_fairfl.strategies.FedAvg"},
        "training": {"prox_mu": 0.1},
    }  # fmt: skip
    with pytest.raises(
        ConfigError,
        match="FedAvg-prox_mu_0.1 asks its clients for more than training \\(prox_mu\\)",
    ):
        recipe(strategy=composed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"bundle": "prostate_mri_segmentation"},
            "bundle belong to a bundle, model, train_script to a training script",
        ),
        ({"sites_root": "here", "local_epochs": 2}, "sites_root, local_epochs belong to a bundle"),
        ({"custom_code": False}, "custom_code belong to a bundle"),
        ({"train_script": None}, "train_script must be given"),
        ({"model": None}, "model must be given"),
        (
            {"model": None, "train_script": None},
            "model, train_script must be given: a job needs a bundle, or",
        ),
        ({"fedce_mode": "sum"}, "fedce_mode must be 'plus' or 'times'"),
        ({"min_clients": 1}, "FedCE-sum-revised needs min_clients of at least 2, got 1"),
        ({"model": {"class_path": "no.such.Net"}}, "'no.such.Net' cannot be imported here"),
        ({"model": {"class_path": "pathlib.Path"}}, "makes a PosixPath"),
        ({"model": {"args": {}}}, "class_path"),
        ({"federation": {"final": ["score"]}}, "federation sets 'final'"),
        ({"federation": {"buffers": "local"}}, "buffers 'local'"),
        ({"key_metric_mode": "low"}, "key_metric_mode must be"),
        (
            {"key_metric": "loss", "key_metric_mode": "max", "stop_cond": "loss <= 1"},
            "contradicts stop_cond",
        ),
        ({"stop_cond": "dice good"}, "stop_cond 'dice good' must be such as"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_with_the_fix(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", "\\(")):
        recipe(**changes)


def test_a_bundle_refuses_what_belongs_to_a_script() -> None:
    with pytest.raises(
        ConfigError, match="bundle belong to a bundle, key_metric to a training script"
    ):
        FairFLRecipe(bundle="prostate_mri_segmentation", min_clients=3, key_metric="dice")


@pytest.mark.parametrize(
    ("mode", "condition", "expected"),
    [
        (None, None, "max"),
        (None, "loss <= 0.1", "min"),
        (None, "other < 0.1", "max"),
        ("min", "other > 1", "min"),
        (None, "loss > 0.1", "max"),
    ],
)
def test_the_key_metrics_mode_is_nvflares(
    mode: str | None, condition: str | None, expected: str
) -> None:
    assert key_mode("loss", mode, condition) == expected


def test_memory_is_freed_after_every_so_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    controller = FairFLController(FedAvg(), memory_gc_rounds=2)
    records = [
        {"kind": "round", "round": i, "measurements": {}, "aggregation": {}, "contributions": {}}
        for i in range(5)
    ]
    monkeypatch.setattr(flare_controller, "cleanup_memory", lambda: freed.append(controller.seen))
    monkeypatch.setattr(flare_controller, "scalars_of", lambda record: ())
    controller.engine = type("Engine", (), {"new_context": lambda self: _Nothing()})()
    controller._stopping = type("Stopping", (), {"told": lambda self, record: None})()
    for record in [*records, {"kind": "end"}]:
        controller.seen = record.get("round")
        controller._told(record)
    assert freed == [1, 3]


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


# ---- real runs ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pages_other_job_is_written(jobs: Path) -> None:
    run_block(jobs, "other.py", "out")
    (job,) = (jobs / "out").iterdir()
    config = json.loads((job / "app/config/config_fed_server.json").read_text())
    assert config["workflows"][0]["args"]["strategy"]["args"] == {
        "output_layer": "head",
        "personalised": True,
    }


@pytest.mark.slow
@pytest.mark.simulator
def test_the_pages_job_gives_the_same_model_under_both_recipes(jobs: Path) -> None:
    """NVFlare's simulator, twice; the job changes by the one line of the page, the script not at
    all.
    """
    (jobs / "switched.py").write_text(switched((jobs / "job.py").read_text()))
    run_block(jobs, "job.py", "theirs")
    run_block(jobs, "switched.py", "ours")
    theirs, ours = (jobs / name / "discs/server/simulate_job" for name in ("theirs", "ours"))
    for their_file, our_file in (
        ("FL_global_model.pt", "global.pt"),
        ("best_FL_global_model.pt", "best.pt"),
    ):
        expected = torch.load(theirs / "app_server" / their_file, weights_only=False)["model"]
        found = torch.load(ours / "fairfl/models" / our_file, weights_only=True)
        assert set(found) == set(expected)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name].to(value.dtype), atol=1e-5, rtol=0)
    ledger = [json.loads(line) for line in (ours / "fairfl/ledger.jsonl").read_text().splitlines()]
    rounds = [record for record in ledger if record["kind"] == "round"]
    assert len(rounds) == 3 and rounds[2]["measurements"]["elm"]["global_score"] > 0.8  # it learned
    for client in CLIENTS:
        told, known = (
            (jobs / f"{name}-received-{client}.txt").read_text().splitlines()
            for name in ("theirs", "ours")
        )
        weights = [float(line.partition(" ")[0]) for line in told]
        assert weights == pytest.approx(
            [0, *(record["aggregation"][client] for record in rounds[:-1])], abs=1e-5
        )
        assert [float(line.partition(" ")[0]) for line in known] == pytest.approx(weights, abs=1e-5)
        assert [line.partition(" ")[2] for line in known] == [
            f"['{client}']"
        ] * 3  # nobody else's weight
        assert told[-1].partition(" ")[2] == str(CLIENTS)
