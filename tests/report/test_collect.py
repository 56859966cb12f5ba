# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Run directories are found and verified, and get unique names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.report.collect import find_runs, load_runs, read_run
from monai_fairfl.report.numbers import Number, numbers_by_class
from monai_fairfl.report.summary import summarise
from monai_fairfl.run_folder.ledger import Ledger

WriteRun = Callable[..., Path]


def test_a_parent_folder_stands_for_the_runs_in_it_and_none_counts_twice(comparison: Path) -> None:
    names = ["FedAvg", "FedCE", "Standalone"]
    assert [run.name for run in find_runs([comparison, comparison / "FedCE"])] == names


def test_standalone_comes_first_and_the_head_is_the_ledgers(comparison: Path) -> None:
    runs = load_runs([comparison / "FedCE", comparison / "Standalone"])
    assert [run.name for run in runs] == ["Standalone", "FedCE"]
    assert runs[1].head == Ledger(comparison / "FedCE" / "ledger.jsonl").head


def test_runs_of_the_same_name_are_marked_by_seed_then_fold_then_folder(
    write_run: WriteRun,
) -> None:
    def run(folder: str, seed: int, fold: int) -> Path:
        return write_run(
            "FedAvg",
            {"elm": 0.5},
            folder=folder,
            seed=seed,
            config={"overrides": {"split_fold": fold}},
        )

    seeds = [run("a/FedAvg", seed=0, fold=0), run("b/FedAvg", seed=1, fold=0)]
    assert [found.name for found in load_runs(seeds)] == ["FedAvg (seed 0)", "FedAvg (seed 1)"]
    folds = [*seeds, run("c/FedAvg", seed=0, fold=1)]
    names = ["FedAvg (seed 0, fold 0)", "FedAvg (seed 1)", "FedAvg (seed 0, fold 1)"]
    assert [found.name for found in load_runs(folds)] == names
    twice = [*seeds, run("d/FedAvg", seed=0, fold=0)]
    names = ["FedAvg (seed 0, a/FedAvg)", "FedAvg (seed 1)", "FedAvg (seed 0, d/FedAvg)"]
    assert [found.name for found in load_runs(twice)] == names


def test_a_strategy_that_is_called_as_another_run_keeps_its_results(write_run: WriteRun) -> None:
    runs = [write_run("FedAvg", {"elm": 0.5}, folder=f"seed{seed}", seed=seed) for seed in (0, 1)]
    odd = write_run("FedAvg", {"elm": 0.9}, folder="odd", name="FedAvg (seed 0)")
    names = [run.name for run in load_runs([*runs, odd])]
    assert names == ["FedAvg (seed 0)", "FedAvg (seed 1)", "FedAvg (seed 0) #2"]


def test_an_edited_ledger_is_refused(write_run: WriteRun) -> None:
    run = write_run("FedAvg", {"elm": 0.5})
    file = run / "ledger.jsonl"
    file.write_text(file.read_text().replace('"seed":0', '"seed":1'))
    with pytest.raises(FederationError, match="line 2"):
        read_run(run)


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "no record"), ('{"kind":"round","previous":""}\n', "opening")],
)
def test_a_ledger_without_an_opening_is_an_error_that_names_it(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "ledger.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=rf"ledger\.jsonl .*{why}"):
        read_run(tmp_path)


START = {"kind": "start", "strategy": "FedAvg", "clients": ["elm"]}
ROUND = {
    "kind": "round",
    "round": 0,
    "clients": [],
    "aggregation": {},
    "contributions": {},
    "measurements": {},
    "of_round": {},
    "verdicts": {},
    "notes": {},
    "details": {},
    "facts": {},
    "samples": {},
    "cases": {},
}


def without(record: dict[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in record.items() if name != key}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([START, without(ROUND, "kind")], "line 2: 'kind' .*None"),
        ([START, {"kind": ["round"]}], "line 2: 'kind'"),
        ([without(START, "strategy")], "line 1: .*'strategy'"),
        ([without(START, "clients")], "line 1: .*'clients'"),
        ([START, ROUND, without(ROUND, "round")], "line 3: .* 'round'"),
        ([START, ROUND, without(ROUND, "verdicts")], "line 3: .*'verdicts'"),
        ([START, {"kind": "end"}], "line 2: .*'scores'"),
        ([START, {"kind": "end", "scores": None}], "line 2: .*'scores'.*None"),
    ],
)
def test_a_record_without_what_a_report_reads_is_an_error_that_names_it(
    tmp_path: Path, records: list[dict[str, object]], message: str
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for record in records:
        ledger.append(record)
    with pytest.raises(ConfigError, match=rf"ledger\.jsonl, {message}"):
        read_run(tmp_path)


def test_a_round_whose_inner_products_were_too_large_is_reported(write_run: WriteRun) -> None:
    scores = {site: {"global_score": 0.7, "local_score": 0.8} for site in ("elm", "oak")}
    gram = {"clients": ["elm", "oak"], "whole": [[math.inf, math.inf], [math.inf, 1.0]]}
    record = {"gram": gram, "aggregation": {"elm": 0.5, "oak": 0.5}, "measurements": scores}
    run = write_run("FedAvg", {"elm": 0.8, "oak": 0.9}, rounds=[record])
    report = summarise(load_runs([run]))
    assert json.dumps(report, allow_nan=False)
    assert report["strategies"]["FedAvg"]["flagged"] == {}


def test_a_folder_without_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        find_runs([tmp_path])
    with pytest.raises(ConfigError, match="ledger.jsonl"):
        find_runs([])


def test_planned_rounds_come_from_the_runs_config_or_from_the_comparisons(
    write_run: WriteRun,
) -> None:
    run = write_run("FedAvg", {"elm": 0.5})
    (run / "config.json").unlink()
    assert read_run(run).planned is None
    (run.parent / "config.json").write_text('{"rounds": 7, "strategies": ["FedCE"]}')
    assert read_run(run).planned is None  # of another comparison
    (run.parent / "config.json").write_text('{"rounds": 7, "strategies": ["FedAvg", "FedCE"]}')
    assert read_run(run).planned == 7
    (run / "config.json").write_text('{"rounds": 5}')
    assert read_run(run).planned == 5
    (run / "config.json").write_text("{cut short")
    assert read_run(run).planned == 7
    for strategies in ("null", "3", '"FedAvg"', "{}"):
        (run.parent / "config.json").write_text(f'{{"rounds": 7, "strategies": {strategies}}}')
        assert read_run(run).planned is None


def test_measurements_are_read_in_all_three_forms() -> None:
    estimate = {"value": 0.4, "stderr": None, "n": 3}
    assert Number.read(0.4) == Number(0.4)
    assert Number.read(estimate) == Number(0.4, None, 3)
    assert Number.read({"gland": 0.5, "mean": estimate}) == Number(0.4, None, 3)
    assert numbers_by_class({"conv": 0.25, "fc": 0.75}) == {
        "mean": Number(0.5),
        "conv": Number(0.25),
        "fc": Number(0.75),
    }


def test_a_single_folder_in_place_of_a_list_is_refused_and_not_read_letter_by_letter() -> None:
    for given in ("runs/fedavg", Path("runs/fedavg")):
        with pytest.raises(ConfigError, match=r"give a list, \['runs/fedavg'\]"):
            find_runs(given)  # type: ignore[arg-type]
