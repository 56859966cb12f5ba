# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job for Flower is an app that Flower itself can read, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk  # noqa: E402
from flwr.common.config import (  # noqa: E402
    fuse_dicts,
    get_fused_config_from_fab,
    parse_config_args,
)
from flwr.supercore.run import Run  # noqa: E402
from helpers.federations import BUNDLE, SETTINGS  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flower import export_app, job_of_config  # noqa: E402


def test_a_job_survives_the_way_through_an_app_and_flowers_command_line(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "bundle": BUNDLE,
        "strategy": {"_target_": "monai_fairfl.strategies.ShapFed", "personalised": True},
        "min_clients": 3,
        "num_rounds": 7,
        "name": "a name",
        "overrides": SETTINGS,
        "local_epochs": 2,
        "timeout": 12.5,
        "adapt_epochs": 2,
        "guards": ["NonFinite"],
        "groups": {"north": ["alder", "birch"]},
        "check": False,
    }
    app = export_app(tmp_path / "app", **given)
    read = get_fused_config_from_fab(build_fab_from_disk(app), Run.create_empty(1))
    assert job_of_config(read) == job_of_config(given)

    words = ["num-rounds=3 local-epochs=1 overrides='{\"size\": [64, 64]}'"]
    changed = job_of_config(fuse_dicts(read, parse_config_args(words)))
    assert (changed.num_rounds, changed.timeout) == (3, 12.5)
    assert (changed.sites["local_epochs"], changed.sites["overrides"]) == (1, {"size": [64, 64]})


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"overrides": "{size"}, "JSON"),
        ({"nmu-rounds": 3}, "num_rounds"),
        ({"num-rounds": 0}, "rounds"),
        ({"guards": '["os.system"]'}, "os.system"),
    ],
)
def test_a_mistake_in_an_app_is_named(config: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        job_of_config({"bundle": BUNDLE, **config})


def test_the_command_writes_an_app_and_replaces_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", BUNDLE, "--engine", "flower", "--out", str(tmp_path / "app")]
    assert main([*words, "--timeout", "60"]) == 0
    assert "flwr run" in capsys.readouterr().out
    written = (tmp_path / "app" / "pyproject.toml").read_text()
    assert "\ntimeout = 60" in written
    assert main(words) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert (tmp_path / "app" / "pyproject.toml").read_text() == written
