# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The published numbers of the prostate bundle are what its committed result files say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from conftest import CHECKOUT


@pytest.fixture(scope="module")
def prostate_cv() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prostate_cv", CHECKOUT / "experiments" / "prostate_cv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readmes_table_is_made_of_the_committed_files(prostate_cv: ModuleType) -> None:
    begin, end = prostate_cv.MARKS
    published = prostate_cv.README.read_text().partition(begin)[2].partition(end)[0].strip()
    assert published == prostate_cv.table(prostate_cv.committed())


def test_every_strategy_tested_every_volume_once_with_another_seed_per_fold(prostate_cv: ModuleType) -> None:
    results = prostate_cv.committed()
    strategies = {result["strategy"] for result in results}
    assert strategies >= {"Standalone", "FedAvg", "FedCE", "FedCE-sum"}
    for strategy in strategies:
        mine = [result for result in results if result["strategy"] == strategy]
        assert sorted(result["fold"] for result in mine) == [0, 1, 2, 3]
        assert len({result["seed"] for result in mine}) == 4
        cases = [f"{site}/{case}" for result in mine for site, dice in result["test_dice"].items() for case in dice]
        assert len(cases) == len(set(cases)) == 34


def test_a_case_tested_in_two_folds_is_refused_and_means_are_over_cases(prostate_cv: ModuleType) -> None:
    one = {"strategy": "FedAvg", "test_dice": {"A": {"c1": 0.5, "c2": 0.7}, "B": {"c1": 0.9}}}
    other = {"strategy": "FedAvg", "test_dice": {"A": {"c3": 0.9}, "B": {"c2": 0.7}}}
    table = prostate_cv.table([one, other])
    assert "| FedAvg | 0.700 | 0.800 | **0.750** |" in table and "0.700 (A)" in table
    with pytest.raises(ValueError, match="FedAvg: A tested .*c1.* in two folds"):
        prostate_cv.table([one, one])


@pytest.mark.slow
def test_one_fold_runs_from_the_command_to_its_json(
    prostate_cv: ModuleType, hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prostate_cv, "RESULTS", tmp_path / "results")
    tiny = {"size": [32, 32], "channels": [4, 8], "split_folds": 4, "split_seed": 0}
    monkeypatch.setattr(prostate_cv, "OVERRIDES", tiny)
    monkeypatch.setattr(prostate_cv, "STRATEGIES", prostate_cv.STRATEGIES[:2])
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    prostate_cv.run(1, str(hospitals), tmp_path / "runs", 1)
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "results").glob("*.json"))]
    assert [(r["fold"], r["strategy"], r["rounds"]) for r in results] == [(1, "FedAvg", 1), (1, "Standalone", 1)]
    assert all(len(cases) == 1 for r in results for cases in r["test_dice"].values())
