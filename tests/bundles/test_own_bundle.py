# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documented bundle of another organ knows nothing of this package, and federates."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.foreign_bundles import write_nested_balls

from monai_fairfl import read_ledger

BUNDLE = "docs/examples/own_bundle"


def test_the_bundle_federates_as_the_page_says(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / BUNDLE, tmp_path / BUNDLE)
    (tmp_path / "bundles").symlink_to(CHECKOUT / "bundles")
    folders = "imagesTr", "labelsTr"
    write_nested_balls(tmp_path / "DATA", ["A", "B", "C"], side=24, cases=3, folders=folders)
    page = (CHECKOUT / "docs" / "own_bundle.md").read_text()
    [(copied, federate)] = re.findall(r"cp (.*?)\npython (.*?)\n```", page, re.DOTALL)
    source, target = copied.split()
    shutil.copy(tmp_path / source, tmp_path / target)
    # Worker processes take longer to start than to train these.
    words = ["-W", "ignore", *shlex.split(federate.replace("\\\n", " ")), "--jobs", "1"]
    done = warm_python.run(words, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]

    records = read_ledger(tmp_path / "runs" / "spleen" / "ledger.jsonl")
    scores = []
    for record in records[1:4]:
        of_sites = record["measurements"].values()
        scores.append(np.mean([found["global_score"]["mean"]["value"] for found in of_sites]))
    assert scores[0] < scores[-1]  # it learns
