# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The documented bundle of another organ knows nothing of this package, and every kind of method
federates it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import warm_python
from helpers.checkout import CHECKOUT
from helpers.own_bundle import OWN_BUNDLE, write_noisy_balls

from monai_fairfl import read_ledger

PAGE = (CHECKOUT / "docs" / "own_bundle.md").read_text()
METHODS = ["FedLWR", "FedISM", "Ditto"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three hospitals with three volumes each: a noisy ball."""
    root = tmp_path / "data"
    write_noisy_balls(root, ("A", "B", "C"), side=24, centres=(9, 15), squared_radius=36)
    return root


def command(tmp_path: Path) -> list[str]:
    """The page's two commands, with copies of its folders: the first is done, the second is
    returned. Worker processes take longer to start than to train these.
    """
    copied, federate = re.search(r"(cp .*?)\n(python .*?)\n```", PAGE, re.DOTALL).groups()  # type: ignore[union-attr]
    bundle = tmp_path / "own_bundle"
    shutil.copytree(OWN_BUNDLE, bundle)
    source, target = (
        word.replace("docs/examples/own_bundle", str(bundle)) for word in shlex.split(copied)[1:]
    )
    shutil.copy(CHECKOUT / source, target)
    places = {
        "docs/examples/own_bundle": str(bundle),
        "DATA": str(tmp_path / "data"),
        "runs/": f"{tmp_path}/runs/",
    }
    words = shlex.split(federate.replace("\\\n", " "))
    for old, new in places.items():
        words = [word.replace(old, new) for word in words]
    return ["-W", "ignore", *words[1:], "--jobs", "1"]


def test_the_bundle_federates_as_the_page_says(data: Path, tmp_path: Path) -> None:
    done = warm_python.run(command(tmp_path), CHECKOUT)
    assert done.returncode == 0, done.stderr[-2000:]

    records = read_ledger(tmp_path / "runs" / "spleen" / "ledger.jsonl")
    scores = [
        float(np.mean([m["global_score"]["mean"]["value"] for m in r["measurements"].values()]))
        for r in records[1:4]
    ]
    assert scores[0] < scores[-1]  # it learns


def test_every_kind_of_method_federates_it(data: Path, tmp_path: Path) -> None:
    words = command(tmp_path)
    chosen = [{"_target_": f"monai_fairfl.strategies.{name}"} for name in METHODS]
    at = words.index("--strategy#_target_")
    words[at : at + 2] = ["--strategies", str(chosen)]
    words[words.index("--rounds") + 1] = "2"

    done = warm_python.run(words, CHECKOUT)
    assert done.returncode == 0, done.stderr[-2000:]

    report = json.loads((tmp_path / "runs" / "spleen" / "report.json").read_text())
    assert [found["strategy"] for found in report["strategies"].values()] == METHODS
    for name, found in report["strategies"].items():
        assert found["finished"], name
        assert all(0 < site["score"]["value"] <= 1 for site in found["sites"].values()), name
