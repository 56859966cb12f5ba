# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl doctor``: what is wrong is named with its fix, and the exit code says so."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import run_json

from monai_fairfl.cli import doctoring, main
from monai_fairfl.cli.build import build_of


def statuses(found: dict[str, Any]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for check in found["checks"]:
        by_name.setdefault(check["what"], []).append(check["status"])
    return by_name


def test_the_environment_of_the_tests_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    found = statuses(run_json(capsys, "doctor"))
    for name in ("Python", "torch", "monai", "cores", "free disk", "free memory"):
        assert found[name] == ["ok"]
    assert found["training precision"] == ["ok"]
    assert {f"extra {extra}" for extra in doctoring.FOR_USERS} <= set(found)


def test_every_library_that_is_needed_is_looked_at_and_every_extra_for_users() -> None:
    needed = {name for name, _ in doctoring._requirements(None)}
    assert {"monai", "torch", "numpy", "rich"} <= needed
    assert not {"nvflare", "pytest"} & needed
    assert {name for name, _ in doctoring._requirements("nvflare")} == {"nvflare"}
    assert set(doctoring.NEEDS) == set(doctoring.FOR_USERS)


def test_a_version_that_is_not_supported_is_wrong_and_named_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requires = ["numpy<1", "no-such-library>=2", 'pydicom>=99; extra == "dicom"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    assert main(["doctor"]) == 2
    printed = capsys.readouterr().out
    version = importlib.metadata.version("numpy")
    assert f"WRONG  numpy: {version}, supported is <1; pip install 'numpy<1'" in printed
    assert "WRONG  no-such-library: not installed; pip install 'no-such-library>=2'" in printed
    # What is optional is no fault.
    assert "note   extra dicom: pydicom" in printed
    assert "2 of " in printed.splitlines()[-1]


def test_too_little_disk_or_memory_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    monkeypatch.setattr("monai_fairfl.utils.machine.free_memory", lambda: 2**29)
    found = run_json(capsys, "doctor", code=2)
    assert statuses(found)["free disk"] == ["WRONG"]
    [memory] = [check for check in found["checks"] if check["what"] == "free memory"]
    assert memory["found"] == "0.5 GiB, a training needs 1.0 GiB" and "--jobs 1" in memory["fix"]


@pytest.mark.slow
def test_the_data_are_checked_in_short(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sites"
    shutil.copytree(hospitals / "alder", root / "alder")
    found = run_json(capsys, "doctor", root, code=2)
    assert statuses(found)["data sites"] == ["WRONG"]
    assert "a federation needs two" in found["checks"][-1]["fix"]

    shutil.copytree(hospitals / "elm", root / "elm")
    assert statuses(run_json(capsys, "doctor", root))["data sites"] == ["ok"]

    (root / "elm" / "Case00.nii.gz").write_text("no volume")
    found = run_json(capsys, "doctor", root, code=2)
    assert statuses(found)["data sites"] == ["WRONG"]
    assert "Case00" in found["checks"][-1]["found"] and "--check" in found["checks"][-1]["fix"]

    found = run_json(capsys, "doctor", tmp_path / "nowhere", code=2)
    assert "nowhere does not exist" in found["checks"][-1]["found"]


@pytest.mark.slow
def test_a_hospital_gives_its_own_folder(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, "doctor", hospitals / "alder")
    assert statuses(found)["data alder"] == ["ok"]
    assert found["checks"][-1]["found"] == "one hospital, for the bundle prostate_mri_segmentation"

    alder = tmp_path / "alder"
    shutil.copytree(hospitals / "alder", alder)
    (alder / "Case00.nii.gz").write_text("no volume")
    found = run_json(capsys, "doctor", alder, code=2)
    assert statuses(found)["data alder"] == ["WRONG"]
    assert "Case00" in found["checks"][-1]["found"]


def test_versions_of_the_package_and_of_nvflare_are_shown_since_they_must_match() -> None:
    [package, *_] = doctoring.environment()
    assert package.line == f"ok     monai-fairfl: {build_of()}"
    lines = {finding.what: finding for finding in doctoring.extras()}
    version = importlib.metadata.version("nvflare")
    assert lines["extra nvflare"].found == f"nvflare {version}, for NVIDIA FLARE"


@pytest.mark.parametrize(
    ("content", "is_right", "says"),
    [
        ('{"dataset_dir": "IMAGES"}', True, "fairfl.json can be read"),
        ('{"dataset_dir": "IMAGES", "bundle": "prostate_mri_segmentation"}', True, "images in"),
        ('{"dataset_dir": "IMAGES",}', False, "cannot be read as settings"),
        (
            '{"dataset_dir": "IMAGES", "datasetdir": ""}',
            False,
            "sets 'datasetdir', which no site knows",
        ),
        ('{"dataset_dir": 3}', False, "dataset_dir"),
        ('{"dataset_dir": "/nosuch"}', False, "the images /nosuch do not exist"),
        ('{"dataset_dir": "IMAGES", "bundle": "/nosuch"}', False, "'/nosuch'"),
        ("{}", False, "where are its images"),
    ],
)
def test_the_settings_of_a_hospitals_kit_are_read_as_its_site_reads_them(
    tmp_path: Path, content: str, is_right: bool, says: str
) -> None:
    kit = tmp_path / "alder"
    for folder in ("startup", "local"):
        (kit / folder).mkdir(parents=True)
    (kit / "local" / "fairfl.json").write_text(content.replace("IMAGES", str(tmp_path)))
    assert "no startup/fed_client.json" in doctoring.own_settings(kit).found

    (kit / "startup" / "fed_client.json").write_text("{}")
    finding = doctoring.own_settings(kit)
    assert finding.what == "kit alder" and says in finding.found
    assert finding.status == (doctoring.OK if is_right else doctoring.WRONG)


def test_a_kit_is_not_taken_for_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("startup", "local"):
        (tmp_path / "alder" / folder).mkdir(parents=True)
    (tmp_path / "alder" / "startup" / "fed_client.json").write_text("{}")
    found = run_json(capsys, "doctor", tmp_path / "alder", code=2)
    assert found["checks"][-1]["what"] == "kit alder"
    assert "where are its images" in found["checks"][-1]["found"]


def test_a_site_of_flower_has_the_same_settings_without_a_kit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site" / "local").mkdir(parents=True)
    settings = tmp_path / "site" / "local" / "fairfl.json"
    settings.write_text(f'{{"dataset_dir": "{tmp_path}"}}')
    found = run_json(capsys, "doctor", tmp_path / "site")["checks"][-1]
    assert (found["what"], found["status"]) == ("site site", "ok")
    assert found["found"] == f"local/fairfl.json can be read; images in {tmp_path}"

    # A misspelt data list is no error: the site would make another split there, without a word.
    lists = {"datalist_file": str(tmp_path / "list.json")}
    settings.write_text(json.dumps({"dataset_dir": str(tmp_path), "overrides": lists}))
    found = run_json(capsys, "doctor", tmp_path / "site")["checks"][-1]
    assert found["status"] == "note" and found["found"].endswith(
        f"; no data list {tmp_path}/list.json"
    )
    (tmp_path / "list.json").touch()
    assert run_json(capsys, "doctor", tmp_path / "site")["checks"][-1]["status"] == "ok"

    settings.write_text('{"dataset_dir": "/nosuch"}')
    found = run_json(capsys, "doctor", tmp_path / "site", code=2)["checks"][-1]
    assert found["found"] == "the images /nosuch do not exist"
    assert found["fix"] == f"mend dataset_dir in {settings}"
