# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job is what Flower's run configuration says, and nothing of it reaches a site but settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk  # noqa: E402
from flwr.cli.config_utils import load_and_validate  # noqa: E402
from flwr.common.config import (  # noqa: E402
    flatten_dict,
    fuse_dicts,
    get_fused_config_from_fab,
    parse_config_args,
)
from flwr.supercore.run import Run  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS, strategy  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flower import FlowerJob, export_app  # noqa: E402
from monai_fairfl.transports.flower.job.flower_job import site_settings  # noqa: E402

pytestmark = pytest.mark.flower

GIVEN: dict[str, Any] = {
    "bundle": BUNDLE,
    "strategy": strategy("ShapFed"),
    "min_clients": 3,
    "num_rounds": 7,
    "name": 'a name "in quotes"'.replace('"', ""),
    "overrides": SETTINGS,
    "local_epochs": 2,
    "timeout": 12.5,
    "adapt_epochs": 2,
    "guards": ["NonFinite"],
    "groups": {"north": ["alder", "birch"]},
    "check": False,
}


def test_a_job_survives_the_way_through_an_app_as_flower_reads_it(tmp_path: Path) -> None:
    job = FlowerJob.of(**GIVEN)

    app = export_app(tmp_path / "app", **GIVEN)
    config, warnings = load_and_validate(app / "pyproject.toml")
    fab = build_fab_from_disk(app)
    read = get_fused_config_from_fab(fab, Run.create_empty(1))

    assert not [line for line in warnings if "license" not in line]
    assert read == flatten_dict(config["tool"]["flwr"]["app"]["config"])
    assert FlowerJob.from_run_config(read) == job
    assert site_settings(read) == {
        "bundle": BUNDLE,
        "overrides": SETTINGS,
        "local_epochs": 2,
        "groups": GIVEN["groups"],
        "check": False,
    }


def test_the_command_line_of_flower_changes_a_setting() -> None:
    config = FlowerJob.of(**GIVEN).run_config()
    words = ["num-rounds=3 local-epochs=1 overrides='{\"size\": [64, 64]}'"]

    changed = fuse_dicts(config, parse_config_args(words))

    job = FlowerJob.from_run_config(changed)
    assert (job.num_rounds, job.sites["local_epochs"]) == (3, 1)
    assert job.sites["overrides"] == {"size": [64, 64]}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "names no bundle: make the app with 'monai-fairfl export-flower'"),
        ({"bundle": BUNDLE, "overrides": "{size"}, "sets overrides to no JSON"),
        ({"bundle": BUNDLE, "nmu-rounds": 3}, "did you mean"),
        ({"bundle": BUNDLE, "num-rounds": 0}, "rounds"),
        ({"bundle": BUNDLE, "timeout": -1.0}, "timeout is a number of seconds"),
        ({"bundle": "/nowhere"}, "'/nowhere' is neither a folder"),
        ({"bundle": BUNDLE, "overrides": '{"size": "$1"}'}, "must not bring code"),
        ({"bundle": BUNDLE, "dataset-dir": "/data"}, "only a site itself knows its images"),
        ({"bundle": BUNDLE, "alone": "/models"}, "has no argument 'alone'"),
        ({"bundle": BUNDLE, "guards": '["os.system"]'}, "os.system"),
        ({"bundle": BUNDLE, "strategy": "os.system"}, "os.system"),
        ({"bundle": BUNDLE, "name": "../up"}, "name"),
    ],
)
def test_a_mistake_in_an_app_is_named(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FlowerJob.from_run_config(config)


def test_the_command_writes_an_app_and_replaces_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export-flower", "--bundle", BUNDLE, "--out", str(tmp_path / "app"), "--timeout", "60"]
    assert main(words) == 0
    assert f"submit it with: flwr run {tmp_path / 'app'}" in capsys.readouterr().out
    config, _ = load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert FlowerJob.from_run_config(config["tool"]["flwr"]["app"]["config"]).timeout == 60
    written = (tmp_path / "app" / "pyproject.toml").read_bytes()

    assert main(words) == 2
    assert str(tmp_path / "app") in capsys.readouterr().err
    assert (tmp_path / "app" / "pyproject.toml").read_bytes() == written
    no_strategy = ["--strategy", "FedAvgg", "--out", str(tmp_path / "no")]
    assert main(["export-flower", "--bundle", BUNDLE, *no_strategy]) == 2
    assert "did you mean 'FedAvg'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
