# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the user's own model and script, as NVFlare's FedCE recipe takes them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.script_model import CLIENTS, Net

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.protocol.values import Weights

pytest.importorskip(
    "nvflare", reason="nvflare is not installed: pip install 'monai_fairfl[nvflare]'"
)
from helpers.flare_pages import run_block, switched, write_blocks  # noqa: E402
from nvflare.app_opt.pt.recipes import FedCERecipe  # noqa: E402

from monai_fairfl.transports.engines.initial_files import read_initial  # noqa: E402
from monai_fairfl.transports.flare import FairFLRecipe  # noqa: E402
from monai_fairfl.transports.flare.job.script_sites import key_mode  # noqa: E402
from monai_fairfl.transports.flare.job.user_model import initial_of  # noqa: E402

pytestmark = pytest.mark.nvflare


def recipe(**changes: Any) -> FairFLRecipe:
    given = {"model": Net(), "train_script": "client.py", "min_clients": 3, "num_rounds": 2}
    arguments = {**given, **changes}
    return FairFLRecipe(**{name: value for name, value in arguments.items() if value is not None})


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
    # These three are optional here, for a bundle has neither model nor script.
    for name in set(theirs) - {"name", "model", "train_script"}:
        assert ours[name].default == theirs[name].default, name
    arguments, app = exported(
        jobs / "out",
        fedce_mode="times",
        key_metric="dice",
        stop_cond="dice >= 0.9",
        patience=2,
        name="discs",
        server_memory_gc_rounds=3,
        enable_tensor_disk_offload=True,
        best_model_filename="b.pt",
        train_args="--log here",
    )
    # And the default mode, which NVFlare leaves out.
    assert arguments["strategy"]["args"] == {"variant": "revised"}
    assert arguments["scripts"] == {"key_metric": "dice", "key_metric_mode": "max"}
    assert arguments["federation"]["final"] == arguments["federation"]["evaluate"] == []
    assert arguments["stop_cond"] == "dice >= 0.9"
    assert (arguments["patience"], arguments["memory_gc_rounds"]) == (2, 3)
    client = json.loads((app / "config/config_fed_client.json").read_text())
    (executor,) = client["executors"]
    of_executor = executor["executor"]["args"]
    assert of_executor["task_script_path"] == "client.py"
    assert of_executor["task_script_args"] == "--log here"
    assert of_executor["params_transfer_type"] == "DIFF"
    assert any("ConvertToFedEvent" in component["path"] for component in client["components"])
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
        file = jobs / f"out/discs/app_{site}/config/config_fed_client.json"
        config = json.loads(file.read_text())
        arguments = config["executors"][0]["executor"]["args"]
        assert (arguments["launch_once"], arguments["shutdown_timeout"]) == (False, 5.0)
        commands[site] = " ".join(arguments["command"])
    assert commands["elm"] == "python3 -u custom/client.py --log a"
    assert commands["poplar"] == "python3 custom/client.py"
    unknown = "per_site_config of elm sets 'train_arguments'.*train_args"
    with pytest.raises(ConfigError, match=unknown):
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

    def built_under(seed: int, name: str) -> Weights:
        _, app = exported(jobs / name, model=built, seed=seed)
        return read_initial(app / "config/initial")[0]

    first = built_under(1, "first")
    again = built_under(1, "again")
    other = built_under(2, "other")
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())

    start = jobs / "start.pt"
    as_nvflare_writes = {"model": network.state_dict(), "train_conf": None}
    for number, content in enumerate((network.state_dict(), as_nvflare_writes)):
        torch.save(content, start)
        _, app = exported(jobs / f"file{number}", model=Net(), initial_ckpt=str(start))
        weights, _ = read_initial(app / "config/initial")
        assert torch.equal(weights["head.weight"], network.head.weight)
    unfit = "(?s)start.pt cannot be used.*read where the recipe is made"
    with pytest.raises(ConfigError, match=unfit):
        recipe(model=Net(width=4), initial_ckpt=str(start))
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
        "_target_": "monai_fairfl.strategies.compose",
        "strategy": {"_target_": "monai_fairfl.strategies.FedAvg"},
        "training": {"prox_mu": 0.1},
    }
    more = r"FedAvg-prox_mu_0.1 asks its clients for more than training \(prox_mu\)"
    with pytest.raises(ConfigError, match=more):
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
    both = "bundle belong to a bundle, key_metric to a training script"
    with pytest.raises(ConfigError, match=both):
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


@pytest.mark.long
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
@pytest.mark.extended
def test_the_pages_job_gives_the_same_model_under_both_recipes(jobs: Path) -> None:
    """NVFlare's simulator runs it twice; one line of the job changes, the script stays."""
    (jobs / "switched.py").write_text(switched((jobs / "job.py").read_text()))
    run_block(jobs, "job.py", "theirs")
    run_block(jobs, "switched.py", "ours")
    theirs = jobs / "theirs/discs/server/simulate_job"
    ours = jobs / "ours/discs/server/simulate_job"
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
    assert len(rounds) == 3
    # It learned.
    assert rounds[2]["measurements"]["elm"]["global_score"] > 0.8
    for client in CLIENTS:
        own_weights = [0] + [record["aggregation"][client] for record in rounds[:-1]]
        their_weights, their_names = received(jobs / f"theirs-received-{client}.txt")
        our_weights, our_names = received(jobs / f"ours-received-{client}.txt")
        assert their_weights == pytest.approx(own_weights, abs=1e-5)
        assert our_weights == pytest.approx(their_weights, abs=1e-5)
        # Nobody else's weight.
        assert our_names == [f"['{client}']"] * 3
        assert their_names[-1] == str(CLIENTS)


def received(file: Path) -> tuple[list[float], list[str]]:
    """What a script wrote of each round: its weight, and the clients whose weights it received."""
    weights, names = [], []
    for line in file.read_text().splitlines():
        weight, _, clients = line.partition(" ")
        weights.append(float(weight))
        names.append(clients)
    return weights, names
