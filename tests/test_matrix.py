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


def test_the_oldest_libraries_are_the_lower_bounds_and_a_row_that_fails_names_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "monai_fairfl-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("monai_fairfl-0.1.0.dist-info/METADATA", REQUIRES)
    (tmp_path / "monai_fairfl-0.1.0.tar.gz").touch()
    assert list(matrix.lower_bounds(wheel)) == ["torch==2.8", "numpy==1.24", "jinja2==3.1"]

    # A Python that can do nothing: its first command fails. The other one is not here.
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\necho no venv here; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = [str(tmp_path), "--pythons", "3.99", "3.98", "--out", str(tmp_path / "rows")]
    assert matrix.main(words) == 1
    said = capsys.readouterr().out
    assert f"FAILED with 3: {broken} -m venv" in said
    assert "Python 3.98, newest libraries: not run: python3.98 is not on this machine" in said
    assert "no venv here" in (tmp_path / "rows" / "python3.99-newest" / "log.txt").read_text()
