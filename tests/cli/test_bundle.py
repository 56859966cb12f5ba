# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``monai-fairfl bundle``: a copy of a shipped bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.command_line import run_json

from monai_fairfl.cli import main


def test_bundle_is_copied_once_and_never_over_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "prostate_mri_segmentation"
    root = tmp_path / "mine"
    assert run_json(capsys, "bundle", name, root) == {"bundle_root": str(root)}
    original = CHECKOUT / "bundles" / name / "configs" / "train.json"
    copy = root / "configs" / "train.json"
    assert copy.read_bytes() == original.read_bytes()

    copy.write_text("{}")
    error = run_json(capsys, "bundle", name, root, code=2)["error"]
    assert "name a new one" in error
    assert copy.read_text() == "{}"


def test_a_bundle_that_does_not_exist_is_answered_with_those_that_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "prostrate", str(tmp_path / "x")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "prostate_mri_segmentation" in printed.err
    assert not (tmp_path / "x").exists()
