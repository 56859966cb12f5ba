# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The program behind ``make matrix``; what it installs takes minutes, and only it runs that."""

from __future__ import annotations

import zipfile
from pathlib import Path

import matrix
import pytest

REQUIRES = """Metadata-Version: 2.4
Name: monai-fairfl
Requires-Dist: torch>=2.8
Requires-Dist: numpy<3,>=1.24
Requires-Dist: jinja2>=3.1; extra == "report"
Requires-Dist: nvflare>=2.9; extra == "nvflare"
Requires-Dist: fire
"""


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "monai_fairfl-0.1.0-py3-none-any.whl", "w") as content:
        content.writestr("monai_fairfl-0.1.0.dist-info/METADATA", REQUIRES)
    (tmp_path / "monai_fairfl-0.1.0.tar.gz").touch()
    return tmp_path


def test_the_oldest_libraries_are_the_lower_bounds(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert list(matrix.lower_bounds(wheel)) == ["torch==2.8", "numpy==1.24", "jinja2==3.1"]


def test_a_python_that_is_not_here_is_named_and_nothing_counts_as_run(
    dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(dist), "--pythons", "3.99", "--libraries", "newest", "--out", str(tmp_path / "m")]
    assert matrix.main(words) == 1
    said = "Python 3.99, newest libraries: not run: python3.99 is not on this machine"
    assert said in capsys.readouterr().out


def test_the_oldest_libraries_are_not_run_with_a_python_that_has_no_wheel_of_them(
    dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "bin" / "python3.13"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent))
    words = [str(dist), "--pythons", "3.13", "--libraries", "oldest", "--out", str(tmp_path / "m")]
    assert matrix.main(words) == 1
    said = "Python 3.13, oldest libraries: not run: the oldest NumPy has no wheel"
    assert said in capsys.readouterr().out


def test_a_row_that_fails_names_its_command_and_its_log(dist: Path, tmp_path: Path) -> None:
    # A Python that can do nothing: its first command fails.
    broken = tmp_path / "bin" / "python3.99"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no venv here; exit 3\n")
    broken.chmod(0o755)
    row = matrix.Row(str(broken), matrix.NEWEST, "torch", tmp_path / "row")
    (wheel,) = dist.glob("*.whl")
    result = row.run(wheel, None)
    assert result.startswith(f"FAILED with 3: {broken} -m venv") and str(row.log) in result
    assert "no venv here" in row.log.read_text()
