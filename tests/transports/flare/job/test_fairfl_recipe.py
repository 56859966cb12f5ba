# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that the recipe makes of a bundle: their files, and what is refused before."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from helpers.federations import BUNDLE, SETTINGS  # noqa: E402
from nvflare.apis.workspace import Workspace  # noqa: E402
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator  # noqa: E402

from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.guards import Guard, TooLong, Verdict  # noqa: E402
from monai_fairfl.protocol.replies import Replies  # noqa: E402
from monai_fairfl.strategies import (  # noqa: E402
    FedAvg,
    FedCE,
    Proportional,
    ShapFed,
    TrimmedMean,
    compose,
)
from monai_fairfl.transports.flare import FairFLRecipe
from monai_fairfl.transports.flare.policy import ENTRY  # noqa: E402

pytestmark = pytest.mark.nvflare

OWN = {"_target_": "inverse_loss.InverseLoss", "epsilon": 0.5}


def exported(folder: Path, **given: Any) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """The configurations of server and clients of a job, and its folder."""
    known: dict[str, Any] = {
        "bundle": BUNDLE,
        "min_clients": 2,
        "overrides": SETTINGS,
        "name": "job",
    }
    FairFLRecipe(**{**known, **given}).export(str(folder))
    job = folder / "job"
    server = json.loads((job / "app/config/config_fed_server.json").read_text())
    client = json.loads((job / "app/config/config_fed_client.json").read_text())
    return server, client, job


def as_the_server_reads_it(job: Path, folder: Path) -> ServerJsonConfigurator:
    """The job's classes, built by NVFlare as its server does, apart from who may."""
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    given = Namespace(job_id="job", workspace=str(folder), set=[])
    config = job / "app" / "config" / "config_fed_server.json"
    read = ServerJsonConfigurator(Workspace(str(folder)), str(config), given, str(job / "app"))
    read.configure()
    return read


def test_a_job_without_custom_code_brings_no_code(tmp_path: Path) -> None:
    server, client, job = exported(tmp_path, custom_code=False)

    assert not list(job.rglob("custom")) and not list(job.rglob("*.py"))
    paths = [server["workflows"][0]["path"], client["executors"][0]["executor"]["path"]]
    assert all(path.startswith(ENTRY) for path in paths)
    assert sorted(file.name for file in (job / "app" / "config" / "initial").iterdir()) == [
        "job.json",
        "model.safetensors",
        "recipe.json",
        "spec.json",
    ]


@pytest.mark.parametrize("custom_code", [True, False])
def test_a_strategy_of_ones_own_travels_with_a_job_that_may_bring_code(
    custom_code: bool, tmp_path: Path
) -> None:
    _, _, job = exported(tmp_path, strategy=OWN, custom_code=custom_code)

    brought = {file.name for file in job.rglob("*.py")}
    assert ("inverse_loss.py" in brought) == custom_code
    assert custom_code or not list(job.rglob("custom"))
    strategy = as_the_server_reads_it(job, tmp_path / "server").workflows[0].controller.strategy
    assert type(strategy).__name__ == "InverseLoss" and strategy.epsilon == 0.5


@pytest.mark.parametrize("custom_code", [True, False])
def test_a_server_that_cannot_import_the_strategy_says_what_it_needs(
    custom_code: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, job = exported(tmp_path, strategy=OWN, custom_code=custom_code)
    # As where it is not installed.
    monkeypatch.setitem(sys.modules, "inverse_loss", None)

    needed = "(?s)inverse_loss.InverseLoss .* must be importable at the server"
    with pytest.raises(Exception, match=needed) as refused:
        as_the_server_reads_it(job, tmp_path / "server")

    message = str(refused.value)
    assert "Can't load class inverse_loss.InverseLoss" in message
    names_the_policy = "flare-policy --kit KIT --also inverse_loss.InverseLoss" in message
    assert names_the_policy != custom_code


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
    lost = "forgetful.Forgetful does not store its argument 'percent': write self.perce"
    with pytest.raises(ConfigError, match=lost):
        exported(tmp_path, strategy={"_target_": "forgetful.Forgetful", "percent": 5.0})


def test_arguments_reach_the_job_and_the_policys_refusal_says_what_to_add(tmp_path: Path) -> None:
    strategy = compose(ShapFed(mu=0.5), Proportional(2.0), training={"prox_mu": 0.01})
    server, _, _ = exported(
        tmp_path, strategy=strategy, num_rounds=7, timeout=90, patience=3, stop_cond="score > 0.9"
    )

    arguments = server["workflows"][0]["args"]
    assert (arguments["num_rounds"], arguments["timeout"], arguments["patience"]) == (7, 90, 3)
    assert arguments["strategy"]["path"].endswith("ShapFed")
    assert arguments["strategy"]["args"]["mu"] == 0.5
    assert arguments["weighting"]["args"] == {"power": 2.0}
    assert arguments["training"] == {"prox_mu": 0.01}
    assert "flare-policy --kit" in arguments["needs"]
    assert "average" not in arguments


def test_a_robust_average_reaches_the_servers_strategy(tmp_path: Path) -> None:
    strategy = compose(FedAvg(), average=TrimmedMean(2))
    server, _, job = exported(tmp_path, strategy=strategy)
    assert server["workflows"][0]["args"]["average"]["args"] == {"trim": 2}
    built = as_the_server_reads_it(job, tmp_path / "server").workflows[0].controller
    assert isinstance(built.average, TrimmedMean) and built.average.trim == 2


def test_limits_reach_the_servers_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, job = exported(tmp_path, strategy=compose(FedCE(), cap=1.5, clip_reports=3.0))
    built = as_the_server_reads_it(job, tmp_path / "server").workflows[0].controller
    assert built.strategy.parts.cap is None
    monkeypatch.setattr(built, "get_app_dir", lambda: str(job / "app"))
    monkeypatch.setattr(built, "engine", SimpleNamespace(get_clients=lambda: []))
    found = built._federation(tmp_path / "run").strategy
    assert (found.parts.cap, found.parts.clip_reports) == (1.5, 3.0)
    assert found.name == "FedCE-cap_1.5-clip_reports_3"


def test_settings_of_sites_and_run_are_arguments_of_the_recipe(tmp_path: Path) -> None:
    server, _, job = exported(
        tmp_path, buffers="samples", threads=2, groups={"old": ["elm"]}, local_epochs=3
    )

    of_run = server["workflows"][0]["args"]["federation"]
    assert (of_run["buffers"], of_run["threads"]) == ("samples", 2)
    of_sites = json.loads((job / "app" / "config" / "fairfl_site.json").read_text())
    assert (of_sites["local_epochs"], of_sites["threads"]) == (3, 2)
    assert of_run["groups"] == of_sites["groups"] == {"old": ["elm"]}
    assert "buffers" not in of_sites and "local_epochs" not in of_run


def test_a_job_carries_what_its_report_must_know_of_the_bundle(tmp_path: Path) -> None:
    _, _, job = exported(tmp_path, local_epochs=3)

    asked = json.loads((job / "app" / "config" / "initial" / "job.json").read_text())
    assert (asked["bundle"], asked["local_epochs"], asked["overrides"]) == (BUNDLE, 3, SETTINGS)
    assert asked["full_run"]["local_epochs"] == 6 and "train.json" in asked["files"]


def test_the_same_seed_gives_the_same_job(tmp_path: Path) -> None:
    def model_of(name: str, seed: int) -> bytes:
        _, _, job = exported(tmp_path / name, seed=seed)
        return (job / "app/config/initial/model.safetensors").read_bytes()

    first = model_of("first", 4)
    assert model_of("again", 4) == first
    assert model_of("other", 5) != first


@pytest.mark.parametrize("name", ["buffer", "min_clients", "run_dir"])
def test_what_is_no_setting_of_a_federation_is_refused_where_the_job_is_made(name: str) -> None:
    with pytest.raises(ConfigError, match=f"federation sets '{name}'; what may stand there is"):
        FairFLRecipe(
            bundle=BUNDLE,
            strategy="FedAvg",
            min_clients=2,
            overrides=SETTINGS,
            federation={name: 3},
        )


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"bufers": "local"}, "no argument 'bufers'; did you mean 'buffers'"),
        ({"aggregator": 1}, "no argument 'aggregator'"),
        ({"rounds": 3}, "no argument 'rounds'"),
        ({"keep": 0}, "keep must be a whole number"),
        ({"stop_cond": "good"}, "stop_cond 'good' must be such as 'global_score >= 0.8'"),
        ({"stop_cond": "score > 0.9", "patience": 0}, "patience must be .* from 1.* got 0"),
        ({"stop_cond": "score > 0.9", "patience": "3"}, "patience must be .* got '3'"),
        ({"clients_per_round": 1}, "clients_per_round must be a whole number of at least 2"),
    ],
)
def test_an_argument_that_is_none_or_out_of_range_is_refused_where_the_job_is_made(
    argument: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        FairFLRecipe(bundle=BUNDLE, strategy="FedAvg", min_clients=2, **argument)


def test_homomorphic_encryption_is_refused_by_the_strategys_name() -> None:
    from nvflare.apis.filter import Filter

    # NVFlare's own cannot be imported without tenseal; the recipe goes by the module's name
    members = {
        "__module__": "nvflare.app_opt.he.model_encryptor",
        "process": lambda self, shareable, context: shareable,
    }
    encryptor = type("HEModelEncryptor", (Filter,), members)()
    recipe = FairFLRecipe(bundle=BUNDLE, strategy="CGSV", min_clients=2, overrides=SETTINGS)

    for add in (recipe.add_client_output_filter, recipe.add_client_input_filter):
        with pytest.raises(ConfigError, match="CGSV cannot work under HEModelEncryptor"):
            add(encryptor)


def test_too_few_clients_are_refused_before_anything_is_written() -> None:
    with pytest.raises(ConfigError, match="CGSV needs at least"):
        FairFLRecipe(bundle=BUNDLE, strategy="CGSV", min_clients=1, overrides=SETTINGS)


def test_composed_strategies_keep_their_name(tmp_path: Path) -> None:
    composed = compose(FedAvg(), training={"prox_mu": 0.01})
    recipe = FairFLRecipe(bundle=BUNDLE, strategy=composed, min_clients=2, overrides=SETTINGS)
    assert composed.name in recipe.name


def test_guards_travel_as_plain_configuration(tmp_path: Path) -> None:
    server, _, _ = exported(tmp_path / "some", guards=["NonFinite", TooLong(8.0)])
    assert server["workflows"][0]["args"]["federation"]["guards"] == [
        {"_target_": "monai_fairfl.guards.NonFinite"},
        {"_target_": "monai_fairfl.guards.TooLong", "times": 8.0},
    ]
    server, _, _ = exported(tmp_path / "none", guards=[])
    assert server["workflows"][0]["args"]["federation"]["guards"] == []
    server, _, _ = exported(tmp_path / "default", guards=None)
    assert "guards" not in server["workflows"][0]["args"]["federation"]
    with pytest.raises(ConfigError, match="unknown guard 'ToLong': did you mean 'TooLong'"):
        exported(tmp_path / "unknown", guards=["ToLong"])
    with pytest.raises(ConfigError, match="not of this package"):
        exported(tmp_path / "own", guards=[OwnGuard()])


class OwnGuard(Guard):
    """A guard that is not of the package."""

    def check(self, replies: Replies) -> dict[int, Verdict]:
        return {}
