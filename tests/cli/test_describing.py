# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl statistics``: of folders, of files that hospitals sent, and in a run's report."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.command_line import run_json, write_run
from helpers.page_blocks import blocks_of_page

from monai_fairfl.statistics.disclosure import CaseNumbers, site_statistics
from monai_fairfl.statistics.documents import document

PAGE = "docs/statistics.md"

CASE = CaseNumbers((2, 3), None, [{"mean": 1.0}], [{"mean": 2.0}], {"1": 0.5}, [[4, 2]])


def sent_by(hospital: str, folder: Path, cases: int = 6) -> Path:
    """A file that a hospital made."""
    found = document({hospital: site_statistics([CASE] * cases)}, 5, 2, (0.0, 9.0))
    file = folder / f"{hospital}.json"
    file.write_text(json.dumps(found))
    return file


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_the_page_run_and_hospitals_apart_give_the_numbers_of_all_together(
    hospitals: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("alder", "birch"):
        # Four cases each.
        shutil.copytree(hospitals / name, tmp_path / "DATA" / name)
    (tmp_path / "runs").mkdir()
    run = write_run(tmp_path / "runs" / "fedce")
    for block in blocks_of_page(PAGE):
        for line in block.text.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "monai-fairfl"
            run_json(capsys, *words)

    few = json.loads((tmp_path / "statistics-DATA.json").read_text())
    withheld = {"withheld": "fewer than 5 cases"}
    assert few["sites"] == {"alder": withheld, "birch": withheld}

    # Most intensities of birch are below 20000, and no limit is one of them.
    shown = json.loads((run / "statistics.json").read_text())
    assert shown["all"]["cases"] == 8
    assert shown["histogram"]["low"] == 0.0
    assert shown["histogram"]["high"] in (5000.0, 10000.0, 20000.0)

    words = ["--least", 3, "--range", 0, 500, "--out", "together.json"]
    together = run_json(capsys, "statistics", "DATA", *words)
    both = json.loads((tmp_path / "both.json").read_text())
    for key in ("sites", "all", "least", "histogram"):
        assert both[key] == together[key]


def test_the_report_of_a_run_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    file = sent_by("elm", tmp_path)
    found = run_json(capsys, "statistics", file, "--run", run)
    assert found["report"] == str(run / "report.html")
    assert "The hospitals' images" in (run / "report.html").read_text().replace("&#39;", "'")
    report = json.loads((run / "report.json").read_text())
    assert report["statistics"]["all"]["cases"] == 6
    assert json.loads((run / "statistics.json").read_text()) == report["statistics"]

    again = run_json(capsys, "statistics", file, "--run", run, code=2)
    assert "is there already: delete it" in again["error"]


def test_a_file_that_is_there_is_named_and_not_taken_for_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elm, oak = sent_by("elm", tmp_path), sent_by("oak", tmp_path)
    there = tmp_path / "both.json"
    run_json(capsys, "statistics", elm, oak, "--out", there)
    again = run_json(capsys, "statistics", elm, oak, "--out", there, code=2)
    assert again["error"] == f"{there} is there already: delete it, or give another --out"
    inside = there / "more.json"
    refused = run_json(capsys, "statistics", elm, oak, "--out", inside, code=2)
    assert refused["error"].startswith(f"{inside} cannot be made: {there} is a file")


def test_arguments_that_do_not_go_together_are_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elm, oak = sent_by("elm", tmp_path), sent_by("oak", tmp_path)
    out = ("--out", tmp_path / "out.json")
    wrong = {
        "--least cannot change files that are made already": (elm, oak, "--least", 9, *out),
        "--run writes statistics.json into the run": (elm, "--run", tmp_path, *out),
        "--run names the folder of a run": (elm, "--run", tmp_path / "missing"),
        "give one folder, or several files": (elm, tmp_path, *out),
        "--least is 2, and must be at least 3": (tmp_path, "--least", 2, *out),
        "the first must be below the second": (tmp_path, "--range", 5, 5, *out),
        f"site 'elm' is in {elm}": (elm, elm.rename(tmp_path / "copy.json"), *out),
    }
    sent_by("elm", tmp_path)
    for message, words in wrong.items():
        assert message in run_json(capsys, "statistics", *words, code=2)["error"]
    assert not (tmp_path / "out.json").exists()
