# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that the recipe makes: what one holds, what it may not set, and how its run goes on."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from helpers.command_line import bytes_of  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from helpers.flare_job import (  # noqa: E402
    CLIENTS,
    Job,
    Net,
    controller_of,
    exported,
    net_app,
    reply_to,
)
from helpers.refusals import refused  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.run import Ledger  # noqa: E402
from monai_fairfl.transports.flare import FairFLRecipe  # noqa: E402

OWN = {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}
EXPORT = ["export", BUNDLE, "--engine", "flare", "--overrides", str(SETTINGS)]


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
    brought = {file.name for file in app.glob("custom/*")}
    assert ("inverse_loss.py" in brought) == bool(brought) == custom_code
    strategy: Any = controller_of(app, tmp_path / "server").strategy
    assert type(strategy).__name__ == "InverseLoss" and strategy.epsilon == 0.5
    with pytest.MonkeyPatch.context() as patch:
        # As where it is not installed.
        patch.setitem(sys.modules, "inverse_loss", None)
        with refused("--flare-policy", "inverse_loss", by=Exception):
            controller_of(app, tmp_path / "server")


# ---- what a job may not set ----


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ({"bufers": "local"}, "buffers"),
        ({"name": "prostate run"}, "prostate run"),
        ({"overrides": {"size": "$1"}}, "$1"),
        ({"alone": "/model.pt"}, "alone"),
        ({"per_site_config": {"elm": {"local_epochs": 1}}}, "per_site_config"),
    ],
)
def test_a_job_that_no_run_can_have_is_refused(argument: dict[str, Any], word: str) -> None:
    with refused(word, by=ConfigError):
        bundle_recipe(**argument)


# ---- the command ----


def test_the_command_writes_a_job_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"samples": {"alder": 120}, "guards": ["NonFinite"]}
    (tmp_path / "run.json").write_text(json.dumps(settings))
    folder = tmp_path / "job"
    words = [*EXPORT, "--out", str(folder), "--settings", str(tmp_path / "run.json")]
    assert main([*words, "--strategy", json.dumps(OWN), "--no-custom-code", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"job": str(folder), "allow": "monai_fairfl."}
    of_job = server_of(folder / "app")["job"]
    assert of_job["timeout"] == 0  # it waits for every site
    of_run = of_job["run"]
    assert of_run["samples"] == {"alder": 120}
    assert of_run["guards"] == [{"_target_": "monai_fairfl.guards.NonFinite"}]
    before = bytes_of(folder, "**/*")
    assert main(words) == 2
    assert str(folder) in capsys.readouterr().err
    assert bytes_of(folder, "**/*") == before


# ---- the run of a job ----


PARAMETERS = sorted(name for name, _ in Net().named_parameters())


def submitted(app: Path, folder: Path, stop_after: int | None = None) -> Job:
    """A job that ran; it is aborted after a round where one is named."""

    def answer(model: FLModel) -> FLModel | None:
        if stop_after is not None and stop_after == model.current_round - 1:
            job.signal.trigger("stopped")
            return None
        # The last task brings the end of the ledger, and asks for nothing.
        params = {name: model.params[name] + model.current_round for name in model.params or ()}
        return reply_to(model, {name: params[name] for name in PARAMETERS if params})

    job = Job(app, folder, dict.fromkeys(CLIENTS, answer))
    job.run()
    return job


def test_a_job_submitted_again_goes_on_where_its_run_stopped_and_else_begins_anew(
    tmp_path: Path,
) -> None:
    """Ended runs stay."""
    app = net_app(tmp_path, num_rounds=2, strategy="FedAvg", guards=["NonFinite"])
    whole = submitted(app, tmp_path / "whole")
    parts = [submitted(app, tmp_path / "parts", stop_after) for stop_after in (0, None)]
    assert [len(job.panics) for job in parts] == [0, 0]
    assert len(whole.rounds) == 2
    for expected, found in zip(whole.rounds, parts[-1].rounds, strict=True):
        assert found["model"] == expected["model"]

    ended = whole.records
    submitted(app, tmp_path / "whole")
    assert {path.name for path in whole.kept.parent.iterdir()} == {"job", "job-2"}
    assert whole.records == ended


def test_a_job_ends_where_the_simulator_lost_the_process_of_a_client(tmp_path: Path) -> None:
    def lost(model: FLModel) -> None:
        logging.getLogger("of the simulator").error("Subprocess died for client elm")

    job = Job(net_app(tmp_path), tmp_path / "server", dict.fromkeys(CLIENTS, lost))
    job.run()
    assert "lost the process" in job.panics[0]


def test_a_simulation_that_returns_before_its_run_has_ended_is_an_error(
    hospitals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As where NVFlare's simulator lost its server process. An older run is not taken for it."""
    monkeypatch.setattr(FairFLRecipe, "execute", lambda recipe, environment: None)
    older = Ledger(tmp_path / "kept" / "server" / f"{BUNDLE}-FedAvg" / "ledger.jsonl")
    for kind in ("start", "end"):
        older.append({"kind": kind})
    words = ["train", str(hospitals), "--engine", "flare", "--bundle", BUNDLE]
    words += ["--overrides", str(SETTINGS), "--out", str(tmp_path)]
    assert main(words) == 2
    assert "log.txt" in capsys.readouterr().err
