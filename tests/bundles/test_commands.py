# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Copies of both bundles by ``python -m monai.bundle``, and as the zoo runs them.

What the model zoo's own program checks is checked in ``test_files.py``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.shipped_bundles import Bundle

from monai_fairfl import read_ledger

UNIT_TESTS = CHECKOUT / "tests" / "bundles" / "unit_tests"


def run(folder: Path, **values: Any) -> subprocess.CompletedProcess[str]:
    """``python -m monai.bundle run`` in a folder, with values as options."""
    words = ["-W", "ignore", "-m", "monai.bundle", "run"]
    for name, value in values.items():
        words += [f"--{name}", str(value)]
    return warm_python.run(words, folder)


def copied(bundle: Bundle, folder: Path) -> Path:
    ignored = shutil.ignore_patterns("*.pt", "*.ts", "datalist.json", "eval", "__pycache__")
    return Path(shutil.copytree(bundle.root, folder, ignore=ignored))


def test_a_command_names_in_one_line_what_is_missing(bundle: Bundle, tmp_path: Path) -> None:
    files = "['configs/train.json','configs/evaluate.json']"
    folders = {"dataset_dir": tmp_path / "nowhere", "ckpt_dir": tmp_path}
    done = run(bundle.root, config_file=files, **folders, device="cpu")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("DataError: ", "ConfigError: "))
    assert str(tmp_path) in last


def test_a_copy_of_the_bundle_federates_and_an_overlay_reaches_its_group(
    bundle: Bundle, sites: Path, tmp_path: Path
) -> None:
    root = copied(bundle, tmp_path / "bundle")
    for name in ("quality_shift", "corrupted_images"):
        shutil.copy(CHECKOUT / "experiments" / "overlays" / f"{name}.json", root / "configs")
    done = run(
        root,
        config_file="['configs/federate.json','configs/quality_shift.json']",
        sites_root=sites,
        rounds=1,
        local_epochs=1,
        run_dir=tmp_path / "run",
        overrides=dict(bundle.small),
        strategy="ShapFed",
        jobs=1,
        report=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # One of the two sites has corrupted images, by the overlay.
    opening, *rounds, _ = read_ledger(tmp_path / "run" / "ledger.jsonl")
    sizes = {group: len(members) for group, members in opening["groups"].items()}
    assert sizes == {"corrupted": 1, "clean": 1}
    for record in rounds:
        assert record["details"]["class_value"].keys() == record["measurements"].keys()
    scored = {}
    for name, measured in rounds[0]["measurements"].items():
        scored[name] = set(measured["global_score"])
    if bundle.partial is None:
        assert not rounds[0]["labelled"]
        assert all("mean" in names for names in scored.values())
    else:
        # It labels the disc only: its cup is neither trained nor scored nor compared.
        assert rounds[0]["labelled"] == {bundle.partial: [True, False]}
        assert scored[bundle.partial] == {"mean", "disc"}
        assert {"mean", "disc", "cup"} in scored.values()
        for record in rounds:
            assert record["details"]["class_value"][bundle.partial]["1"] is None


# --- as the model zoo runs them


def test_the_unit_test_that_goes_to_the_zoo_passes_there(bundle: Bundle, tmp_path: Path) -> None:
    name = f"test_{bundle.name}.py"
    copied(bundle, tmp_path / "models" / bundle.name)
    (tmp_path / "ci" / "unit_tests").mkdir(parents=True)
    shutil.copy(UNIT_TESTS / name, tmp_path / "ci" / "unit_tests")
    words = ["-W", "ignore", "-m", "unittest", f"ci/unit_tests/{name}"]
    done = warm_python.run(words, tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "Ran 1 test" in done.stderr
