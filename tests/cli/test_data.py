# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files before any training: ``doctor --write-lists``, ``demo --data-only``, ``bundle copy``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from helpers.checkout import CHECKOUT
from helpers.command_line import FUNDUS, PROSTATE, Commands, bytes_of

PARTS = ("training", "validation", "testing")


def counts(site: dict[str, Any]) -> list[int]:
    """Cases of a site in each part."""
    return [site[part] for part in PARTS]


def test_the_lists_of_a_root_are_written_and_those_that_are_there_are_kept(
    sites: Path, tmp_path: Path, cli: Commands
) -> None:
    cases = []
    for number in range(4):
        name = f"Case0{number}"
        cases.append({"image": f"{name}.nii.gz", "label": f"{name}_segmentation.nii.gz"})
    own = {"training": cases[:1], "validation": cases[1:2], "testing": cases[2:]}
    (tmp_path / "elm.json").write_text(json.dumps(own))
    before = bytes_of(tmp_path, "elm.json")
    found = cli.json("doctor", sites, "--write-lists", tmp_path)["sites"]
    assert {site: counts(entry) for site, entry in found.items()} == {
        "alder": [2, 1, 1],
        "elm": [1, 1, 2],
    }
    written = json.loads((tmp_path / "alder.json").read_text())
    assert [len(written[part]) for part in PARTS] == [2, 1, 1]
    # The text says which one is new.
    shown = cli.run("doctor", sites, "--write-lists", tmp_path)
    assert f"{tmp_path / 'elm.json'}" in shown and "written" not in shown
    assert bytes_of(tmp_path, "elm.json") == before


def test_options_that_say_nothing_are_refused_and_nothing_is_written(
    tmp_path: Path, cli: Commands
) -> None:
    out = tmp_path / "out"
    for words, named in (
        (["demo", "--data-only", "--seed", "-1", "--out"], "-1"),
        (["demo", "--kind", "fundus", "--out"], "--data-only"),
        (["demo", "--data-only", "--size", "48", "0", "8", "--out"], "--size"),
        (["demo", "--data-only", "--size", "48", "48", "-8", "--out"], "-8"),
        # Less shows no structure.
        (["demo", "--data-only", "--size", "48", "4", "8", "--out"], "[48, 4, 8]"),
        (["demo", "--data-only", "--kind", "fundus", "--size", "1", "--out"], "[1]"),
    ):
        assert named in cli.refusal(*words, out)
        assert not out.exists()


def test_a_fault_hides_no_other(sites: Path, tmp_path: Path, cli: Commands) -> None:
    root = Path(shutil.copytree(sites, tmp_path / "sites"))
    (root / "alder" / "Case00_segmentation.nii.gz").unlink()
    (root / "alder" / "Case01.nii.gz").write_text("no volume")
    flat = nib.Nifti1Image(np.ones((48, 48, 3), np.uint8), np.eye(4))
    nib.save(flat, root / "alder" / "Case02_segmentation.nii.gz")
    (root / "elm" / "Case03.nii.gz").write_text("no volume")
    words = ["doctor", root, "--write-lists", tmp_path / "lists"]
    said = " ".join(cli.json(*words, code=2)["problems"])
    for name in ("alder", "elm", "Case00", "Case01", "Case02_segmentation", "Case03"):
        assert name in said
    assert not (tmp_path / "lists").exists()


def test_demo_data_are_six_hospitals_or_the_four_of_the_demo_with_their_splits(
    tmp_path: Path, cli: Commands
) -> None:
    size = ["--size", 16, 16, 4]
    words = ["demo", "--data-only", *size, "--out"]
    found = cli.json(*words, tmp_path / "six", "--kind", "prostate")
    assert len(found["sites"]) == 6
    last = tmp_path / "six" / found["sites"][-1]
    assert nib.load(last / "Case00.nii.gz").shape == (16, 16, 4)
    demo = tmp_path / "demo"
    found = cli.json(*words, demo)
    assert found["sites"] == ["ash", "beech", "maple", "willow"]
    assert counts(cli.json("doctor", demo)["sites"]["willow"]) == [2, 2, 8]


def test_a_bundle_is_copied_once_and_never_over_something(tmp_path: Path, cli: Commands) -> None:
    root = tmp_path / "mine"
    assert cli.json("bundle", "copy", PROSTATE, "--out", root) == {"bundle_root": str(root)}
    copy = root / "configs" / "train.json"
    original = CHECKOUT / "bundles" / PROSTATE / "configs" / "train.json"
    assert copy.read_bytes() == original.read_bytes()
    copy.write_text("{}")
    assert str(root) in cli.refusal("bundle", "copy", PROSTATE, "--out", root)
    assert copy.read_text() == "{}"
    said = cli.refusal("bundle", "copy", "prostrate", "--out", tmp_path / "x")
    assert PROSTATE in said and FUNDUS in said
    assert not (tmp_path / "x").exists()
