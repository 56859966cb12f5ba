# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command that lets a kit's policy build the classes of this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402

ENTRY = "monai_fairfl."
"""With its dot: no class of ``monai_fairfl_evil`` begins so."""


def kit(folder: Path, **policy: Any) -> str:
    """A kit with its default policy."""
    (folder / "local").mkdir(parents=True)
    default = {"format_version": 2, "other": 1, **policy}
    (folder / "local" / "resources.json.default").write_text(json.dumps(default))
    return str(folder)


@pytest.mark.parametrize("listed", [["nvflare.a.B"], None])
def test_entries_are_added_once_and_the_rest_stays(
    tmp_path: Path, listed: list[str] | None
) -> None:
    given = {} if listed is None else {"class_allow_list": listed}
    words = ["doctor", kit(tmp_path / "server", **given)]
    words += ["--flare-policy", "--also", "my.Strategy"]
    assert main(words) == 2
    add = [*words, "--add"]
    assert main(add) == main(add) == main(words) == 0
    found = json.loads((tmp_path / "server" / "local" / "resources.json").read_text())
    # A list in this file replaces NVFlare's own.
    entries = [*(listed or DEFAULT_CLASS_ALLOW_LIST), ENTRY, "my.Strategy"]
    assert found == {"format_version": 2, "other": 1, "class_allow_list": entries}


def test_a_kit_that_cannot_be_changed_is_named_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", kit(tmp_path / "kit"), "--flare-policy", "--add"]
    file, content = tmp_path / "kit" / "local" / "resources.json", '{"class_allow_list": "x"}'
    file.write_text(content)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "kit") in error and "list" in error
    assert file.read_text() == content
