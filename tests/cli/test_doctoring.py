# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl doctor``: what is wrong is named with its fix, and the exit code says so."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import PROSTATE, Commands


def checks(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What was looked at -> what was found."""
    return {check["what"]: check for check in found["checks"]}


def test_what_is_needed_is_looked_at_and_versions_that_must_match_are_shown(
    cli: Commands,
) -> None:
    found = checks(cli.json("doctor"))
    for name in ("Python", "torch", "monai", "numpy", "rich", "cores"):
        assert found[name]["status"] == "ok", name
    # What is for extras and developers is not needed.
    assert not {"nvflare", "pydicom", "pytest"} & found.keys()
    assert found["monai-fairfl"]["found"] in cli.run("--version")
    assert importlib.metadata.version("torch") in found["torch"]["found"]


def test_a_version_that_is_not_supported_and_a_full_disk_are_wrong(
    monkeypatch: pytest.MonkeyPatch, cli: Commands
) -> None:
    requires = ["numpy<1", "no-such-library>=2"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    found = checks(cli.json("doctor", code=2))
    assert found["numpy"]["status"] == found["no-such-library"]["status"] == "WRONG"
    assert "'numpy<1'" in found["numpy"]["found"]
    assert "'no-such-library>=2'" in found["no-such-library"]["found"]
    assert cli.run("doctor", code=2).count("WRONG") == 3


def test_the_data_are_checked_in_short(sites: Path, tmp_path: Path, cli: Commands) -> None:
    root = tmp_path / "sites"
    shutil.copytree(sites, root)
    assert checks(cli.json("doctor", root))["data sites"]["status"] == "ok"
    # A hospital gives its own folder.
    own = checks(cli.json("doctor", root / "elm"))["data elm"]
    assert own["status"] == "ok" and PROSTATE in own["found"]

    (root / "elm" / "Case00.nii.gz").write_text("no volume")
    for folder in (root, root / "elm"):
        found = cli.json("doctor", folder, code=2)["checks"][-1]
        assert found["status"] == "WRONG"
        assert "Case00" in found["found"]
        assert cli.run("doctor", folder, code=2).count(found["found"]) == 1
    assert "nowhere" in cli.refusal("doctor", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        ('{"dataset_dir": "IMAGES"}', "ok", "IMAGES"),
        ('{"dataset_dir": "IMAGES",}', "WRONG", "fairfl.json"),
        ('{"dataset_dir": 3}', "WRONG", "dataset_dir"),
        ('{"dataset_dir": "/nosuch"}', "WRONG", "/nosuch"),
        ('{"dataset_dir": "IMAGES", "bundle": "/nosuch"}', "WRONG", "/nosuch"),
        # The site would make another split there, without a word.
        (
            '{"dataset_dir": "IMAGES", "overrides": {"datalist_file": "/nosuch.json"}}',
            "note",
            "/nosuch.json",
        ),
    ],
)
def test_a_hospitals_own_settings_are_read_as_its_site_reads_them(
    content: str, status: str, says: str, tmp_path: Path, cli: Commands
) -> None:
    kit = tmp_path / "alder"
    (kit / "local").mkdir(parents=True)
    (kit / "local" / "fairfl.json").write_text(content.replace("IMAGES", str(tmp_path)))
    code = 2 if status == "WRONG" else 0

    def last() -> dict[str, str]:
        check: dict[str, str] = cli.json("doctor", kit, code=code)["checks"][-1]
        assert check["status"] == status
        assert says.replace("IMAGES", str(tmp_path)) in check["found"]
        return check

    # For Flower it is a folder; for NVIDIA FLARE a startup kit.
    assert last()["what"] == "site alder"
    (kit / "startup").mkdir()
    assert last()["what"] == "site alder"
    # The server's kit has no such file, and no images.
    (kit / "local" / "fairfl.json").unlink()
    assert "dataset_dir" in cli.json("doctor", kit, code=2)["checks"][-1]["found"]
