# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that the recipe makes: what one holds, what it may not set, and how its run goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from helpers.flare_job import (  # noqa: E402
    Answer,
    Job,
    controller_of,
    exported,
    played,
    script_recipe,
)
from helpers.refusals import refused  # noqa: E402
from nvflare.apis.filter import Filter  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.guards import Guard, TooLong  # noqa: E402
from monai_fairfl.strategies import FedAvg, FedCE, Proportional, TrimmedMean  # noqa: E402
from monai_fairfl.transports.flare import FairFLRecipe  # noqa: E402

OWN = {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}
EXPORT = ["export-flare", "--bundle", BUNDLE, "--overrides", str(SETTINGS)]


def bundle_recipe(**given: Any) -> FairFLRecipe:
    """A recipe of the tiny bundle."""
    known = {"bundle": BUNDLE, "min_clients": 2, "overrides": SETTINGS, "name": "job"}
    return FairFLRecipe(**{**known, **given})


def server_of(app: Path) -> dict[str, Any]:
    """The arguments of a job's controller."""
    config = json.loads((app / "config" / "config_fed_server.json").read_text())
    arguments: dict[str, Any] = config["workflows"][0]["args"]
    return arguments


# ---- what a job holds ----


@pytest.mark.parametrize("custom_code", [True, False])
def test_a_job_brings_code_only_where_it_may(custom_code: bool, tmp_path: Path) -> None:
    app = exported(bundle_recipe(strategy=OWN, custom_code=custom_code), tmp_path)
    brought = {file.name for file in app.rglob("*.py")}
    assert ("inverse_loss.py" in brought) == bool(brought) == custom_code
    strategy: Any = controller_of(app, tmp_path / "server").strategy
    assert type(strategy).__name__ == "InverseLoss" and strategy.epsilon == 0.5
    with pytest.MonkeyPatch.context() as patch:
        # As where it is not installed.
        patch.setitem(sys.modules, "inverse_loss", None)
        with refused("inverse_loss.InverseLoss", "importable", by=Exception) as error:
            controller_of(app, tmp_path / "server")
    assert ("--also inverse_loss.InverseLoss" in str(error.value)) != custom_code


def test_parts_and_limits_of_a_strategy_reach_the_server(tmp_path: Path) -> None:
    strategy = FedCE(
        mode="cos",
        weighting=Proportional(2.0),
        training={"prox_mu": 0.01},
        average=TrimmedMean(2),
        cap=1.5,
        clip_reports=3.0,
    )
    app = exported(bundle_recipe(strategy=strategy, timeout=90, num_rounds=7), tmp_path)
    controller = controller_of(app, tmp_path / "server")
    assert (controller.timeout, controller.num_rounds) == (90, 7)
    assert (controller.cap, controller.clip_reports) == (1.5, 3.0)
    assert controller.training == {"prox_mu": 0.01}
    assert vars(controller.weighting)["power"] == 2.0
    assert vars(controller.average)["trim"] == 2
    assert vars(controller.strategy)["mode"] == "cos"


def test_settings_go_to_the_sites_to_the_run_or_to_both(tmp_path: Path) -> None:
    given = {"buffers": "samples", "threads": 2, "groups": {"old": ["elm"]}, "local_epochs": 3}
    app = exported(bundle_recipe(**given), tmp_path)
    of_run = server_of(app)["federation"]
    of_sites = json.loads((app / "config" / "fairfl_site.json").read_text())
    assert {name: of_run.get(name) for name in given} == {**given, "local_epochs": None}
    assert {name: of_sites.get(name) for name in given} == {**given, "buffers": None}
    asked = json.loads((app / "config" / "initial" / "job.json").read_text())
    assert (asked["bundle"], asked["local_epochs"], asked["overrides"]) == (BUNDLE, 3, SETTINGS)
    assert asked["full_run"]["local_epochs"] == 6 and "train.json" in asked["files"]


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    models = []
    for number, seed in enumerate((4, 4, 5)):
        app = exported(bundle_recipe(seed=seed), tmp_path / str(number))
        models.append((app / "config" / "initial" / "model.safetensors").read_bytes())
    assert models[0] == models[1] != models[2]


# ---- what a job may not set ----


class OwnGuard(Guard):
    """A guard that is not of the package."""

    def check(self, replies: Any) -> dict[int, Any]:
        return {}


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ({"bufers": "local"}, "buffers"),
        ({"aggregator": 1}, "aggregator"),
        ({"federation": {"run_dir": 3}}, "run_dir"),
        ({"keep": 0}, "keep"),
        ({"timeout": -5}, "-5"),
        ({"name": "prostate run"}, "prostate run"),
        ({"stop_cond": "good"}, "good"),
        ({"stop_cond": "score > 0.9", "patience": 0}, "patience"),
        ({"patience": 3}, "stop_cond"),
        ({"device": "gpu"}, "gpu"),
        ({"clients_per_round": 1}, "clients_per_round"),
        ({"strategy": "CGSV", "min_clients": 1}, "CGSV"),
        ({"overrides": {"size": "$1"}}, "$1"),
        ({"alone": "/model.pt"}, "alone"),
        ({"per_site_config": {"elm": {"bundel": 1}}}, "bundel"),
        ({"guards": ["ToLong"]}, "TooLong"),
        ({"guards": [OwnGuard()]}, "OwnGuard"),
        ({"key_metric": "dice"}, "key_metric"),
    ],
)
def test_a_job_that_no_run_can_have_is_refused(argument: dict[str, Any], word: str) -> None:
    with refused(word, by=ConfigError):
        bundle_recipe(**argument)


def test_an_argument_that_a_job_would_lose_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forgetful.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Forgetful(InverseLoss):\n"
        "    def __init__(self, percent: float = 1.0):\n"
        "        super().__init__(percent / 100)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with refused("forgetful.Forgetful", "percent", by=ConfigError):
        bundle_recipe(strategy={"_target_": "forgetful.Forgetful", "percent": 5.0})


def test_homomorphic_encryption_is_refused_by_the_strategys_name() -> None:
    # NVFlare's own cannot be imported without tenseal; the recipe goes by the module's name.
    members = {"__module__": "nvflare.app_opt.he.model_encryptor", "process": lambda *given: None}
    encryptor = type("HEModelEncryptor", (Filter,), members)()
    recipe = bundle_recipe(strategy="CGSV")
    for add in (recipe.add_client_output_filter, recipe.add_client_input_filter):
        with refused("CGSV", "HEModelEncryptor", by=ConfigError):
            add(encryptor)


# ---- the command ----


def test_the_command_writes_a_job_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"samples": {"alder": 120}, "guards": ["NonFinite"]}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    folder = tmp_path / "job"
    words = [*EXPORT, "--out", str(folder), "--federation", str(tmp_path / "run.json")]
    assert main([*words, "--strategy", json.dumps(OWN), "--no-custom-code", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"job": str(folder), "allow": "monai_fairfl."}
    assert server_of(folder / "app").get("timeout", 0) == 0  # it waits for every site
    of_run = server_of(folder / "app")["federation"]
    assert of_run["samples"] == {"alder": 120}
    assert of_run["guards"] == [{"_target_": "monai_fairfl.guards.NonFinite"}]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(words) == 2
    assert str(folder) in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # An option counts more than the file.
    words[words.index(str(folder))] = str(tmp_path / "other")
    assert main([*words, "--guards", "[]"]) == 0
    assert server_of(tmp_path / "other" / "app")["federation"]["guards"] == []


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--strategy", "inverse_los.InverseLoss"], "inverse_los"),
        (["--config", "configs/trian.json"], "trian.json"),
        (["--initial", "/dev/null"], "/dev/null"),
        (["--federation", "rounds.json"], "--num-rounds"),
    ],
)
def test_the_command_names_a_mistake_and_writes_nothing(
    given: list[str],
    word: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rounds.json").write_text('{"rounds": 3}')
    assert main([*EXPORT, "--out", "job", *given]) == 2
    assert word in capsys.readouterr().err
    assert not Path("job").exists()


# ---- the run of a job ----

Scores = Sequence[Mapping[str, float]]


class Scored:
    """Script sites that report given scores: one mapping a round, of the sites that answer."""

    def __init__(self, scores: Scores):
        self.scores = scores
        self.stop_after: int | None = None
        self.job: Job | None = None

    def sites(self) -> dict[str, Answer]:
        names = sorted({name for of_round in self.scores for name in of_round})
        return {name: lambda model, name=name: self.answer(name, model) for name in names}

    def answer(self, name: str, model: FLModel) -> FLModel | None:
        number = model.current_round
        if self.job is not None and self.stop_after == number - 1:
            self.job.signal.trigger("stopped")
            return None
        # The last task asks every site for its receipt only.
        if not model.params or name not in self.scores[number]:
            return FLModel(metrics={}, meta={"fairfl": {"error": "away"}})
        params = {key: torch.zeros_like(value) for key, value in model.params.items()}
        return FLModel("DIFF", params, metrics={"dice": self.scores[number][name]}, meta={})


def rounds_of(folder: Path, scores: Scores, **arguments: Any) -> int:
    """How many rounds a job of sites with these scores plays."""
    recipe = script_recipe(
        folder, strategy="FedAvg", num_rounds=len(scores), key_metric="dice", **arguments
    )
    return len(played(exported(recipe, folder), folder / "server", Scored(scores).sites()).rounds)


HONEST = {"elm": 0.4, "oak": 0.5, "yew": 0.3}
RANGE = {"federation": {"ranges": {"dice": [0, 1]}}}


@pytest.mark.parametrize(
    ("scores", "arguments", "expected"),
    [
        pytest.param([HONEST] * 3, {"stop_cond": "dice >= 0.4"}, 1, id="good enough"),
        pytest.param([HONEST] * 4, {"stop_cond": "dice > 0.9", "patience": 2}, 3, id="patience"),
        pytest.param([HONEST] * 4, {"stop_cond": "dice < 0.1", "patience": 2}, 3, id="low"),
        # A script's metric has no range: one site of four must not end the run of all.
        pytest.param([{**HONEST, "ash": 1e5}] * 2, {"stop_cond": "dice > 0.5"}, 2, id="huge"),
        pytest.param([{"a": 0.9, "b": 0.6}] * 2, {"stop_cond": "dice >= 0.7"}, 1, id="two"),
        pytest.param(
            [{**HONEST, "ash": 1.0}] * 2, {"stop_cond": "dice > 0.5", **RANGE}, 1, id="range"
        ),
        # A mean over the others is one over other patients.
        pytest.param(
            [{"a": 0.8, "b": 0.8, "c": 0.1}, {"a": 0.8, "b": 0.8}, {"a": 0.8, "b": 0.8, "c": 0.9}],
            {"stop_cond": "dice >= 0.7", **RANGE},
            3,
            id="away",
        ),
        pytest.param([HONEST] * 2, {"stop_cond": "dic > 0.1"}, 2, id="unknown"),
    ],
)
def test_a_run_ends_when_it_is_good_enough_or_no_longer_gets_better(
    scores: Scores, arguments: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    assert rounds_of(tmp_path, scores, **arguments) == expected


def test_a_job_submitted_again_goes_on_where_its_run_stopped_and_else_begins_anew(
    tmp_path: Path,
) -> None:
    """With the patience of the rounds before; curves are shown once, and ended runs stay."""
    best = {name: 0.8 for name in HONEST}
    scores = [HONEST, best, *[HONEST] * 6]
    given = {"stop_cond": "dice > 0.9", "patience": 4, "num_rounds": 8, "strategy": "FedAvg"}
    app = exported(script_recipe(tmp_path, key_metric="dice", **given), tmp_path)

    def submitted(folder: Path, stop_after: int | None = None) -> Job:
        scored = Scored(scores)
        scored.stop_after = stop_after
        scored.job = Job(app, folder, scored.sites())
        scored.job.run()
        return scored.job

    whole = submitted(tmp_path / "whole")
    parts = [submitted(tmp_path / "parts", stop_after) for stop_after in (1, 3, None)]
    assert [len(job.panics) for job in parts] == [0, 0, 0]
    assert len(whole.rounds) == 6
    for expected, found in zip(whole.rounds, parts[-1].rounds, strict=True):
        assert found["measurements"] == expected["measurements"]
        assert found["model"] == expected["model"]
    assert len(whole.records) == len(parts[-1].records)
    shown = [sum("analytix" in event for event in job.events) for job in (whole, *parts)]
    assert shown[0] == sum(shown[1:]) > 0

    ended = whole.records
    submitted(tmp_path / "whole")
    assert {path.name for path in whole.kept.parent.iterdir()} == {"job", "job-2"}
    assert whole.records == ended


def test_a_run_has_the_guards_the_limits_and_the_name_that_its_job_says(tmp_path: Path) -> None:
    for guards, names in ((["NonFinite", TooLong(8.0)], ["NonFinite", "TooLong"]), ([], [])):
        folder = tmp_path / str(len(names))
        folder.mkdir()
        strategy = FedAvg(cap=1.5)
        given = {"strategy": strategy, "guards": guards, "key_metric": "dice"}
        recipe = script_recipe(folder, num_rounds=2, best_model_filename="b.pt", **given)
        job = played(exported(recipe, folder), folder / "server", Scored([HONEST] * 2).sites())
        start = job.records[0]
        assert [name.partition("-")[0] for name in start["guards"]] == names
        assert start["name"] == strategy.name
        models = job.folder / "job" / "fairfl" / "models"
        assert (models / "b.pt").exists() and not (models / "best.pt").exists()


def test_a_simulation_that_returns_before_its_run_has_ended_is_an_error(
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """NVFlare's simulator returns, too, where its server process was ended."""
    monkeypatch.setattr(FairFLRecipe, "execute", lambda recipe, environment: None)
    words = ["simulate-flare", "--bundle", BUNDLE, "--overrides", str(SETTINGS)]
    words += ["--sites-root", str(hospitals), "--workspace", str(tmp_path)]
    assert main(words) == 2
    assert "log.txt" in capsys.readouterr().err
