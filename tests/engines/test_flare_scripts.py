# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scripts of NVFlare's FedCE recipe in a job of this package; NVFlare's own run is the oracle."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare")

from helpers.flare_job import (  # noqa: E402
    CLIENTS,
    Answer,
    Job,
    Net,
    exported,
    played,
    reply_to,
    script_recipe,
)
from helpers.refusals import refused  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType  # noqa: E402
from nvflare.app_opt.pt.fedce import FedCEModelAggregator, PTFedCEHelper  # noqa: E402
from nvflare.app_opt.pt.recipes import FedCERecipe  # noqa: E402

from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.model_files import state_of_file  # noqa: E402
from monai_fairfl.transports.flare import FairFLRecipe  # noqa: E402

STATISTICS = ["body.1.num_batches_tracked", "body.1.running_mean", "body.1.running_var"]
PARAMETERS = sorted(name for name, _ in Net().named_parameters())


class Script:
    """What client.py of the page does, with a step of its own in place of training."""

    def __init__(self, name: str):
        self.name = name
        self.trained: dict[str, torch.Tensor] | None = None
        self.errors = [1.0]
        self.weights: list[float] = []
        self.coefficients: list[Mapping[str, float]] = []

    def __call__(self, model: FLModel) -> FLModel:
        if not model.params:
            # The last task brings the end of the ledger.
            return FLModel(metrics={}, meta={})
        network = Net()
        network.load_state_dict(model.params)
        self.weights.append(PTFedCEHelper.get_contribution_weight(model, self.name))
        self.coefficients.append(model.meta.get("fedce_coef", {}))
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
        number = model.current_round
        result = FLModel("DIFF", params, metrics=metrics, current_round=number, meta={})
        return PTFedCEHelper.set_minus_model_score(result, sum(self.errors) / len(self.errors))


def script_job(
    folder: Path,
    changed: Mapping[str, Callable[[FLModel], FLModel | None]] = {},
    **arguments: Any,
) -> Job:
    """A job of three such scripts.

    Args:
        folder: of the job.
        changed: name of a site -> what it makes of its script's result.
        arguments: of the recipe.
    """
    folder.mkdir(exist_ok=True)
    sites: dict[str, Answer] = {}
    for name in CLIENTS:
        change = changed.get(name, lambda model: model)
        script = Script(name)
        sites[name] = lambda model, script=script, change=change: change(script(model))
    recipe = script_recipe(folder, **{"num_rounds": 4, **arguments})
    return played(exported(recipe, folder), folder / "server", sites)


def test_four_rounds_equal_nvflares_fedce(tmp_path: Path) -> None:
    """Weights, parameters, BatchNorm's statistics, and the weight that every client receives."""
    ours = {name: Script(name) for name in CLIENTS}
    app = exported(script_recipe(tmp_path, num_rounds=4), tmp_path)
    job = played(app, tmp_path / "server", ours)

    peers = {name: Script(name) for name in CLIENTS}
    aggregator = FedCEModelAggregator("plus", PARAMETERS)
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in Net().state_dict().items()}
    meta: dict[str, Any] = {}
    for number in range(4):
        aggregator.reset_stats()
        for name in CLIENTS:
            sent = FLModel("FULL", dict(weights), current_round=number, meta=dict(meta))
            result = peers[name](sent)
            result.meta["client_name"] = name
            aggregator.accept_model(result)
        aggregated = aggregator.aggregate_model()
        weights = {name: value + aggregated.params[name] for name, value in weights.items()}
        meta = aggregated.meta
        own = job.rounds[number]["aggregation"]
        assert own == pytest.approx(meta["fedce_coef"], abs=1e-5)
    found = state_of_file(job.kept / "models" / "global.pt")
    for name in [*PARAMETERS, *STATISTICS[1:]]:
        np.testing.assert_allclose(found[name], weights[name], atol=1e-5)
    for name in CLIENTS:
        assert ours[name].weights == pytest.approx(peers[name].weights, abs=1e-5)
        # Nobody else's weight.
        assert all(set(each) <= {name} for each in ours[name].coefficients)
        # What NVFlare counts is the very mean that a script sends.
        errors = [1 - record["measurements"][name]["leave_one_out_error"] for record in job.rounds]
        assert errors == pytest.approx([1 - error for error in ours[name].errors], abs=1e-6)


@pytest.mark.parametrize("kind", ["whole", "arrays", "without a counter"])
def test_however_parameters_come_the_model_is_the_same(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    start = Net().state_dict()

    def change(model: FLModel) -> FLModel:
        if not model.params:
            return model
        if kind == "whole":
            model.params_type = ParamsType.FULL
            model.params = {name: start[name] + value for name, value in model.params.items()}
        if kind == "arrays":
            model.params = {name: value.numpy() for name, value in model.params.items()}
            # Averaging made it a float.
            model.params[STATISTICS[0]] = np.float32(1)
        if kind == "without a counter":
            del model.params[STATISTICS[0]]
        return model

    models = []
    for name, changed in (("plain", {}), ("changed", dict.fromkeys(CLIENTS[:2], change))):
        job = script_job(tmp_path / name, changed, num_rounds=1, strategy="FedAvg")
        assert job.rounds[0]["missing"] == {}
        models.append(state_of_file(job.kept / "models" / "global.pt"))
    for name in start:
        torch.testing.assert_close(models[0][name], models[1][name])
    assert models[1][STATISTICS[0]] == 1


def changed_meta(**values: Any) -> Callable[[FLModel], FLModel]:
    """A script that sends something else among its ``meta``."""

    def change(model: FLModel) -> FLModel:
        model.meta.update(values)
        return model

    return change


def changed_tensor(**values: Any) -> Callable[[FLModel], FLModel]:
    """A script that sends other tensors of the head; ``None``: that lacks one."""

    def change(model: FLModel) -> FLModel:
        for name, value in values.items():
            model.params[f"head.{name}"] = value
            if value is None:
                del model.params[f"head.{name}"]
        return model

    return change


def no_parameters(model: FLModel) -> FLModel:
    return FLModel(metrics={"accuracy": 1.0}, meta={})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (changed_tensor(bias=None), "head.bias"),
        (changed_tensor(tail=torch.zeros(1)), "head.tail"),
        (changed_tensor(bias=torch.zeros(2)), "head.bias"),
        (changed_tensor(bias="text"), "head.bias"),
        (no_parameters, "update"),
        (changed_meta(fedce_minus_val="much"), "read"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_by_its_name(
    change: Callable[[FLModel], FLModel], word: str, tmp_path: Path
) -> None:
    """The others go on, and a site whose update is not in the model is told so."""

    def in_round_1(model: FLModel) -> FLModel:
        if model.params and model.current_round == 1:
            return change(model)
        return model

    job = script_job(tmp_path, {"elm": in_round_1}, num_rounds=3)
    assert [list(record["missing"]) for record in job.rounds] == [[], ["elm"], []]
    assert word in job.rounds[1]["missing"]["elm"]


def weights_where_elm_sends(
    folder: Path, change: Callable[[FLModel], FLModel], **arguments: Any
) -> dict[str, float]:
    """The weights of the second round."""
    job = script_job(folder, {"elm": change}, num_rounds=2, **arguments)
    weights: dict[str, float] = job.rounds[1]["aggregation"]
    return weights


def test_an_impossible_error_does_not_count_in_whatever_way_it_comes(tmp_path: Path) -> None:
    """Without its error, elm has the mean of the others; 9e5 gave it nearly all of the weight."""

    def without(model: FLModel) -> FLModel:
        model.meta.pop("fedce_minus_val", None)
        return model

    def among_metrics(model: FLModel) -> FLModel:
        model.metrics["leave_one_out_error"] = 9e5
        return without(model)

    ways = [without, among_metrics, changed_meta(fedce_minus_val=9e5)]
    ways.append(changed_meta(fedce_minus_val=-0.5))
    found = []
    for number, change in enumerate(ways):
        found.append(weights_where_elm_sends(tmp_path / str(number), change))
    for weights in found[1:]:
        assert weights == pytest.approx(found[0])


def test_the_means_of_a_script_that_was_started_again_come_together(tmp_path: Path) -> None:
    """It has forgotten its rounds: what one round cannot make up counts as the nearest error."""
    sent = [1.0, 0.4, 0.4, 1.0, 0.7, 0.6, 0.55]
    rounds = iter(sent)

    def means(model: FLModel) -> FLModel:
        if model.params:
            model.meta["fedce_minus_val"] = next(rounds)
        return model

    job = script_job(tmp_path, {"elm": means}, num_rounds=len(sent))
    errors = [record["measurements"]["elm"]["leave_one_out_error"] for record in job.rounds]
    assert max(errors) <= 1 and min(errors) >= 0
    assert np.mean(errors) == pytest.approx(sent[-1], abs=0.05)


def test_steps_metrics_and_the_key_metric_as_the_ledger_has_them(tmp_path: Path) -> None:
    """A low loss is a good score; names of the package count only as the page says."""
    metrics = {
        "loss": torch.tensor(0.5),
        "n": np.float32(3),
        "bad": float("nan"),
        "text": "good",
        "table": [1, 2],
        "global_score": 9e5,
    }

    def change(model: FLModel) -> FLModel:
        model.metrics = dict(metrics)
        model.meta["NUM_STEPS_CURRENT_ROUND"] = "many" if model.current_round else 7.0
        return model

    arguments = {"key_metric": "loss", "key_metric_mode": "min", "strategy": "FedAvg"}
    job = script_job(tmp_path, {"elm": change}, **arguments)
    first = job.rounds[0]
    measured = dict(first["measurements"]["elm"])
    del measured["leave_one_out_error"]
    assert measured == {"loss": 0.5, "n": 3.0, "global_score": -0.5}
    # Steps stand for samples; a script that sends none has one.
    assert first["aggregation"] == pytest.approx({"elm": 7 / 9, "poplar": 1 / 9, "sycamore": 1 / 9})


@pytest.mark.parametrize(("score", "counts"), [(0.8, True), (9e5, False)])
def test_a_client_of_the_package_among_scripts_sends_a_dice(
    score: float, counts: bool, tmp_path: Path
) -> None:
    def own(model: FLModel) -> FLModel:
        params = {name: torch.zeros_like(model.params[name]) for name in PARAMETERS}
        return reply_to(model, params, measurements={"global_score": score})

    recipe = script_recipe(tmp_path, num_rounds=1, strategy="FedAvg", guards=[])
    sites: dict[str, Answer] = {name: Script(name) for name in CLIENTS[1:]}
    sites["elm"] = lambda model: own(model) if model.params else None
    job = played(exported(recipe, tmp_path), tmp_path / "server", sites, timeout=1)
    assert ("global_score" in job.rounds[0]["measurements"]["elm"]) == counts


# ---- jobs ----


@pytest.mark.parametrize("name", ["FedISM", "FedLWR", "QFedAvg", "CFFL", "ShapFed"])
def test_a_method_that_no_script_can_serve_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with refused(name, by=ConfigError):
        script_recipe(tmp_path, strategy=name)


def test_every_argument_of_nvflares_recipe_is_understood(tmp_path: Path) -> None:
    theirs = inspect.signature(FedCERecipe).parameters
    ours = inspect.signature(FairFLRecipe).parameters
    assert set(theirs) <= set(ours)
    # These three are optional here, for a bundle has neither model nor script.
    for name in set(theirs) - {"name", "model", "train_script"}:
        assert ours[name].default == theirs[name].default, name
    sites = {"elm": {"train_args": "--log a"}, "poplar": {"command": "python3"}}
    recipe = script_recipe(
        tmp_path,
        launch_external_process=True,
        shutdown_timeout=5.0,
        per_site_config=sites,
    )
    recipe.export(str(tmp_path / "out"))
    found = {}
    for site in sites:
        file = tmp_path / "out" / "job" / f"app_{site}" / "config" / "config_fed_client.json"
        arguments = json.loads(file.read_text())["executors"][0]["executor"]["args"]
        assert arguments["shutdown_timeout"] == 5.0
        assert arguments["params_transfer_type"] == "DIFF"
        found[site] = " ".join(arguments["command"])
    assert found["elm"] == "python3 -u custom/client.py --log a"
    assert found["poplar"] == "python3 custom/client.py"


def test_the_initial_model_is_the_instance_the_file_or_is_built_under_the_seed(
    tmp_path: Path,
) -> None:
    torch.manual_seed(5)
    network = Net()
    start = tmp_path / "start.pt"
    # As NVFlare writes.
    torch.save({"model": network.state_dict(), "train_conf": None}, start)
    built = {"class_path": "helpers.flare_job.Net"}
    models = {}
    for name, arguments in {
        "instance": {"model": network},
        "file": {"initial_ckpt": str(start)},
        "seed 1": {"model": built, "seed": 1},
        "seed 1 again": {"model": built, "seed": 1},
        "seed 2": {"model": built, "seed": 2},
    }.items():
        app = exported(script_recipe(tmp_path, **arguments), tmp_path / name)
        models[name] = (app / "config" / "initial" / "model.safetensors").read_bytes()
    assert models["instance"] == models["file"]
    assert models["seed 1"] == models["seed 1 again"] != models["seed 2"]
    with refused("start.pt", by=ConfigError):
        script_recipe(tmp_path, model=Net(width=4), initial_ckpt=str(start))


def test_trainable_names_decide_what_is_a_parameter(tmp_path: Path) -> None:
    frozen = Net()
    frozen.body.requires_grad_(False)
    for arguments, expected in (
        ({"trainable_param_names": ["head.weight"]}, ["head.weight"]),
        ({"model": frozen}, ["head.bias", "head.weight"]),
    ):
        app = exported(script_recipe(tmp_path, **arguments), tmp_path / str(len(expected)))
        spec = json.loads((app / "config" / "initial" / "spec.json").read_text())
        assert spec["parameters"] == expected
    with refused("head.wieght", by=ConfigError):
        script_recipe(tmp_path, trainable_param_names=["head.wieght"])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"bundle": "prostate_mri_segmentation"}, "bundle"),
        ({"local_epochs": 2}, "local_epochs"),
        ({"train_script": None}, "train_script"),
        ({"fedce_mode": "sum"}, "fedce_mode"),
        ({"min_clients": 1}, "min_clients"),
        ({"model": {"class_path": "no.such.Net"}}, "no.such.Net"),
        ({"model": {"class_path": "pathlib.Path"}}, "Path"),
        ({"federation": {"final": ["score"]}}, "final"),
        ({"federation": {"buffers": "local"}}, "buffers"),
        ({"key_metric_mode": "low"}, "key_metric_mode"),
        ({"key_metric": "loss", "key_metric_mode": "max", "stop_cond": "loss <= 1"}, "stop_cond"),
        ({"per_site_config": {"elm": {"train_arguments": ""}}}, "train_arguments"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    with refused(word, by=ConfigError):
        script_recipe(tmp_path, **changes)
