# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The comparison with NVFlare's FedCE and with FedBN: the same training, fairly measured."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.checkout import CHECKOUT

from monai_fairfl.protocol.model_spec import read_spec
from monai_fairfl.run_folder.ledger import number_in, read_ledger
from monai_fairfl.utils.names import safe_name
from monai_fairfl.utils.saved_files import read_state_dict

SITES = ["alder", "birch", "cedar"]
SMALL = {"size": [32, 32], "split_folds": 2, "split_fold": 0, "split_validation": 0.5}


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))


def load(name: str) -> Any:
    return importlib.import_module(f"head_to_head.{name}")


@pytest.fixture
def three(hospitals: Path, tmp_path: Path) -> Path:
    """A folder with three of the generated hospitals."""
    folder = tmp_path / "three"
    folder.mkdir()
    for site in SITES:
        (folder / site).symlink_to(hospitals / site, target_is_directory=True)
    return folder


def task(sites_root: Path, rounds: int = 2, **changes: Any) -> Any:
    """A small training of the strong network, or of another one."""
    overrides = {**SMALL, "split_seed": 0, "channels": [4, 8, 8]}
    settings = {"rounds": rounds, "local_epochs": 2, "seed": 5, "overrides": overrides, **changes}
    return load("task").Task(sites_root=str(sites_root), **settings)


def run(system: str, which: Any, folder: Path, report: float | None = None) -> Any:
    """Train a system in this process; returns its course."""
    systems = load("systems")
    false = systems.HONEST
    if report is not None:
        false = systems.FalseReport("cedar", report)
    folder.mkdir()
    which.write(folder / "task.json")
    systems.train(system, which, folder, false)
    return load("cells").course_of(system, which, folder)


def most_different(one: Path, other: Path) -> float:
    """The largest difference of two models' values."""
    first = read_state_dict(one)
    second = read_state_dict(other)
    assert set(first) == set(second)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


@pytest.mark.slow
def test_every_name_of_a_normalisation_layer_is_local_also_the_second_of_a_shared_one(
    tmp_path: Path,
) -> None:
    network = task(tmp_path).parser("alder", tmp_path).get_parsed_content("network_def")
    names = load("fedbn").names_of_norms(network)
    spec = read_spec(network)
    local = {name: torch.zeros(1) for name in spec.norms}
    assert names == set(spec.with_aliases(local))
    assert any(name.startswith("skip_layers") for name in names)


@pytest.mark.long
@pytest.mark.slow
def test_fedbn_in_a_loop_of_its_own_ends_with_the_models_of_local_norm(
    three: Path, tmp_path: Path
) -> None:
    which = task(three)
    ours = run("FedAvg, local_norm", which, tmp_path / "ours")
    reference = run("FedBN, its own loop", which, tmp_path / "reference")
    assert list(ours.models) == list(reference.models) == SITES
    for site in SITES:
        assert most_different(ours.models[site], reference.models[site]) < 1e-5
    # The sites' models are different ones, and all of them moved.
    assert most_different(reference.models["alder"], reference.models["birch"]) > 1e-3
    first = tmp_path / "first.pt"
    torch.save(load("systems").first_model(which), first)
    assert most_different(reference.models["alder"], first) > 1e-2


@pytest.mark.long
@pytest.mark.slow
def test_models_are_tested_as_our_engine_tests_them(three: Path, tmp_path: Path) -> None:
    cells, trainings = load("cells"), importlib.import_module("trainings")
    from monai_fairfl.guards import DEFAULT
    from monai_fairfl.strategies import FedAvg

    which = task(three, rounds=6, local_epochs=4)
    training = trainings.Training(
        "prostate_mri_segmentation", three.name, 6, 4, which.overrides, config=which.config
    )
    final = {"final": ("test_score",), "seed": which.seed}
    training.run(FedAvg(), DEFAULT, three.parent, tmp_path / "run", **final)
    own = read_ledger(tmp_path / "run" / "ledger.jsonl")[-1]["scores"]
    model = tmp_path / "run" / "models" / "global.pt"
    found = cells.tested(which, dict.fromkeys(SITES, model), tmp_path / "test")
    for site, scores in found["dice"].items():
        assert len(scores) == len(found["cases"][site]) == 2
        expected = number_in(own[site]["own"]["test_score"])
        assert sum(scores) / 2 == pytest.approx(expected, abs=1e-4)

    untrained = tmp_path / "untrained.pt"
    torch.save(load("systems").first_model(which), untrained)
    other = cells.tested(which, {"alder": untrained}, tmp_path / "test")
    assert other["dice"]["alder"] != found["dice"]["alder"]


@pytest.mark.long
@pytest.mark.slow
def test_of_false_reports_our_engine_takes_only_one_that_is_possible(
    three: Path, tmp_path: Path
) -> None:
    which = task(three, rounds=3, local_epochs=1)
    courses = {}
    for report in (None, 1.0, 1e9, math.nan, -1.0):
        courses[str(report)] = run("FedCE", which, tmp_path / str(report), report)
    weights = {report: course.weights["cedar"] for report, course in courses.items()}
    assert weights["1000000000.0"] == weights["nan"] == weights["-1.0"]
    assert weights["1.0"][-1] > weights["None"][-1]
    refused = {report: course.refused["cedar"] for report, course in courses.items()}
    # In round 0 nobody measures an error.
    assert refused == {"None": 0, "1.0": 0, "1000000000.0": 2, "nan": 2, "-1.0": 2}
    assert all(len(course.models) == 3 and not course.ended for course in courses.values())


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.nvflare
@pytest.mark.simulator
@pytest.mark.slow
def test_nvflares_recipe_weighs_as_our_engine_with_its_formula_and_a_nan_ends_it(
    three: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nvflare")
    cells, systems = load("cells"), load("systems")
    which = task(three)
    ours = run("FedCE, NVFlare's formula", which, tmp_path / "ours")
    peer = cells.Cell(systems.NVFLARE, 0)
    cells.run_cell(peer, which, "cedar", tmp_path / "peer", tmp_path / "peer.json")
    result = json.loads((tmp_path / "peer.json").read_text())
    assert len(result["seconds_of_rounds"]) == 2 and not result["ended"]
    for site in SITES:
        assert result["weights"][site] == pytest.approx(ours.weights[site], abs=1e-5)
    model = tmp_path / "peer" / "job" / "server" / "simulate_job" / "app_server"
    first = read_state_dict(model / "FL_global_model.pt")
    second = read_state_dict(ours.models["alder"])
    for name, value in second.items():
        if value.is_floating_point():
            assert torch.allclose(first[name], value, atol=1e-4), name

    lying = cells.Cell(systems.NVFLARE, 0, report="NaN")
    cells.run_cell(lying, which, "cedar", tmp_path / "nan", tmp_path / "nan.json")
    ended = json.loads((tmp_path / "nan.json").read_text())
    assert "FedCE contribution values must be finite, got [1.0, 1.0, nan]" in ended["ended"]
    assert "test" not in ended and ended["seconds_of_rounds"] == []


def test_cells_have_names_of_their_own_that_can_be_file_names() -> None:
    names = [cell.name for cell in importlib.import_module("papers.head_to_head").cells()]
    assert len(set(names)) == len(names) == 40
    assert doctest.testmod(load("cells")) == (0, 1)
    assert all(safe_name(name, most=128) for name in names)


BUSY = "import time\nend = time.process_time() + 1.2\nwhile time.process_time() < end: pass"


@pytest.mark.long
@pytest.mark.slow
def test_processor_time_is_that_of_all_processes_and_none_stays(tmp_path: Path) -> None:
    pytest.importorskip(
        "psutil", reason="psutil is not installed: pip install 'monai_fairfl[nvflare]'"
    )
    processes = load("processes")
    child = [sys.executable, "-c", BUSY]
    script = f"import subprocess; subprocess.run({child!r}); subprocess.run({child!r})"
    command = [sys.executable, "-c", script]
    took = processes.run_on_one_core(command, tmp_path / "out.txt", os.environ, timeout=60)
    assert took.code == 0 and took.processor_seconds > 1.2 and took.seconds >= 2.4

    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    took = processes.run_on_one_core(sleeping, tmp_path / "out.txt", os.environ, timeout=1)
    assert took.code is None and took.seconds < 30


def result(cell: Any, dice: float) -> dict[str, Any]:
    """What a cell's JSON has, for a site of two cases each."""
    sites = ("BIDMC", "HK", "RUNMC", "UCL")
    cases = {site: [f"{site}{cell.fold}a", f"{site}{cell.fold}b"] for site in sites}
    weights = {site: [0.25] * cell_rounds(cell) for site in sites}
    scores = {"BIDMC": dice - 0.03, "HK": dice - 0.03, "RUNMC": dice, "UCL": dice}
    test = {"cases": cases, "dice": {site: [score, score] for site, score in scores.items()}}
    return {
        "strategy": cell.system,
        "fold": cell.fold,
        "liar": "UCL" if cell.report else "",
        "rounds": cell_rounds(cell),
        "minutes": 6.0,
        "seconds": 700.0,
        "seconds_of_rounds": [10.0] * cell_rounds(cell),
        "ended": "",
        "weights": weights,
        "touched": dict.fromkeys(sites, 1),
        "refused": {"UCL": 9},
        "test": test,
        "test_best": test,
    }


def cell_rounds(cell: Any) -> int:
    return 10 if cell.short else 40


def written(module: Any, folder: Path, folds: Sequence[int], finished: int = 0) -> str:
    """Write results of these folds, and return the table.

    NaN ended NVFlare's run after some finished rounds.
    """
    for cell in module.cells():
        if cell.fold not in folds:
            continue
        found = result(cell, 0.8)
        if cell.system == "FedCE":
            found = result(cell, 0.85)
        if cell.system == module.NVFLARE and cell.report == "NaN":
            found["ended"] = "ValueError: not finite"
            found["seconds_of_rounds"] = [10.0] * finished
            del found["test"]
        (folder / f"{cell.name}.json").write_text(json.dumps(found))
    return str(module.table())


def test_the_table_has_the_folds_all_of_whose_trainings_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("papers.head_to_head")
    reading = importlib.import_module("reading")
    monkeypatch.setattr(module, "result_file", lambda cell: tmp_path / f"{cell.name}.json")
    with pytest.raises(reading.NotFinished, match="all trainings of a fold"):
        module.table()
    text = written(module, tmp_path, [0])
    assert "fold 0 of four" in text
    assert '| `FedCE("sum")`: the paper | 0.835 | 0.017 | 0.820 (BIDMC) | 0 of 8 | 6.0 |' in text
    assert "its own error | 0 |" in text and text.count("its own error") == 2
    assert "| +0.050 (+0.050 to +0.050) | +0.050 |" in text
    assert "| 4 of 160 |" in text
    assert "| ends, without a model: ValueError: not finite |" in text
    ends = "ends in round 4 of 10, with the model of the round before: ValueError: not finite"
    assert f"| {ends} |" in written(module, tmp_path, [0], finished=3)
    assert "| 1e9 | 0 | 0.250 | 0.830 | 0.820 (BIDMC) | 9 of 9 | to its end |" in text
    # A second fold with a training missing is left out.
    written(module, tmp_path, [1])
    (tmp_path / "fedavg-fold1.json").unlink()
    assert "fold 0 of four" in module.table()
    written(module, tmp_path, [1])
    text = module.table()
    assert "folds 0, 1 of four" in text
    assert "| 1e9 | 0, 1 | 0.250 |" in text and "| -1 | 0 | 0.250 |" in text
    # What the reports of fold 0 alone are compared with.
    assert "its own error | 0, 1 |" in text and text.count("its own error | 0 |") == 2


def test_a_training_that_fails_is_named_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("papers.head_to_head")
    monkeypatch.setattr(module, "result_file", lambda cell: tmp_path / f"{cell.name}.json")
    trained = []

    def fails_once(cell: Any, which: Any, liar: str, folder: Path, file: Path) -> None:
        trained.append(cell.name)
        if cell.name == "fedavg-fold0":
            raise RuntimeError("no memory")
        folder.mkdir(parents=True)
        file.write_text("{}")

    monkeypatch.setattr(module, "run_cell", fails_once)
    with pytest.raises(SystemExit, match="no real images in .*prostate; name their folder"):
        module.measure_cells(tmp_path / "data", tmp_path / "runs")
    (tmp_path / "data" / "prostate").mkdir(parents=True)
    with pytest.raises(SystemExit, match="1 of 40 trainings are not done.*fedavg-fold0: no memory"):
        module.measure_cells(tmp_path / "data", tmp_path / "runs")
    assert len(trained) == 40
    assert not list((tmp_path / "runs" / "head_to_head").iterdir())
    # The same command goes on with what is missing.
    results = importlib.import_module("results")
    assert results.missing(module) == "1 of 40 of its own runs"
    with pytest.raises(SystemExit, match="1 of 1 trainings"):
        results.train(module, [], tmp_path / "data", tmp_path / "runs")
    assert trained[40:] == ["fedavg-fold0"]
