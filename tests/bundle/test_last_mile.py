# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The last mile of whole federations: what the ledger and the report have, and what sites use."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.bundle_runs import federation
from helpers.checkout import TINY
from helpers.client_requests import PROSTATE, same

from monai_fairfl.bundle.adaptation import adapt_model
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files import fused_weights, state_of_file
from monai_fairfl.protocol.last_mile import chosen, gain_name
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.strategies import CGSV, Ditto, FedAvg, Standalone, Strategy

SITES = ["alder", "cedar", "rowan"]
# Two of four cases validate, so that their difference has a standard error.
OVERRIDES = {
    **{key: value for key, value in TINY.items() if key != "decay_epochs"},
    "split_fractions": [0.25, 0.5, 0.25],
}
SETTINGS: dict[str, Any] = {
    "site_names": SITES,
    "overrides": OVERRIDES,
    "final": ("score", "test_score"),
}


def run_of(hospitals: Path, folder: Path, strategy: Strategy, **settings: Any) -> Path:
    """The folder of a run that has ended."""
    run_dir = folder / "run"
    federation(hospitals, run_dir, strategy, **{**SETTINGS, **settings}).run()
    return run_dir


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("make", [FedAvg, CGSV, Ditto])
def test_every_site_adapts_the_model_that_it_would_use_and_the_rounds_stay_as_they_are(
    make: type[Strategy], hospitals: Path, tmp_path: Path
) -> None:
    run_dir = run_of(
        hospitals, tmp_path / "adapted", make(), adapt_epochs=20, adapt_rate=0.02, report=True
    )
    plain = run_of(hospitals, tmp_path / "plain", make())

    *rounds, end = read_ledger(run_dir / "ledger.jsonl")
    *plain_rounds, plain_end = read_ledger(plain / "ledger.jsonl")
    assert rounds == plain_rounds and end["model"] == plain_end["model"]
    taken = {}
    for site in SITES:
        scores = end["scores"][site]
        assert scores["own"] == plain_end["scores"][site]["own"]
        candidate = scores["adapted"]
        assert set(candidate) == {"score", "test_score", "adapted_gain", "adapted_epochs"}
        gain = Estimate(**candidate["adapted_gain"])
        before, after = scores["own"]["score"]["mean"], candidate["score"]["mean"]
        assert after["value"] - before["value"] == pytest.approx(gain.value, abs=1e-9)
        assert "alone" not in scores
        taken[site] = chosen({"adapted": gain})
    if make is FedAvg:
        assert any(taken.values())

    own_models = {path.parent.parent.name: path for path in run_dir.rglob("*own.pt")}
    for site, path in own_models.items():
        if taken.get(site):
            assert state_of_file(path).keys() == state_of_file(run_dir / "models/global.pt").keys()
    assert {site for site in SITES if taken[site]} <= set(own_models)

    report = json.loads((run_dir / "report.json").read_text())
    [name] = report["strategies"]
    for site, result in report["strategies"][name]["sites"].items():
        mile = result["last_mile"]
        assert mile["taken"] == taken[site]
        used = result["score"]
        if taken[site] is not None:
            used = mile["candidates"][taken[site]]["score"]
        assert mile["used"] == used
    page = (run_dir / "report.html").read_text()
    assert "<h2>The last mile</h2>" in page and "on 2 validation cases" in page


@pytest.mark.long
@pytest.mark.slow
def test_every_site_may_fuse_its_model_with_the_one_that_it_trained_alone(
    hospitals: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "adapt_epochs": 1, "adapt_rate": 1e-9}
    settings["adapt_fuse"] = True
    lonely = federation(hospitals, tmp_path / "lonely", FedAvg(), **settings)
    with pytest.raises(ConfigError, match="add Standalone to the strategies, or name the folder"):
        lonely.run()

    run_dir = tmp_path / "run"
    federation(hospitals, run_dir, [Standalone(), FedAvg()], report=True, **settings).run()
    end = read_ledger(run_dir / "FedAvg/ledger.jsonl")[-1]
    taken = {}
    for site in SITES:
        found = end["scores"][site]
        gains = {}
        for name in ("adapted", "alone", "fused"):
            gains[name] = Estimate(**found[name][gain_name(name)])
        taken[site] = chosen(gains)
        assert set(found["fused"]) == {"score", "test_score", "fused_gain"}
    assert "fused" in taken.values()

    report = json.loads((run_dir / "report.json").read_text())
    for site, name in taken.items():
        assert report["strategies"]["FedAvg"]["sites"][site]["last_mile"]["taken"] == name
        if name != "fused":
            continue
        own = state_of_file(run_dir / f"FedAvg/sites/{site}/state/FedAvg-own.pt")
        alone = state_of_file(run_dir / f"Standalone/models/{site}.pt")
        assert same({name: own[f"members.1.{name}"] for name in alone}, alone)
        assert own.keys() == fused_weights([alone, alone]).keys()
    assert "fused with the one trained alone" in (run_dir / "report.html").read_text()

    fused = run_dir / f"FedAvg/sites/{site_with(taken, 'fused')}/state/FedAvg-own.pt"
    with pytest.raises(ConfigError, match="is a fused model, of 2 models.*adapt one of these"):
        adapt_model(fused, PROSTATE, hospitals / "alder", tmp_path / "adapted")


@pytest.mark.parametrize(
    ("setting", "value"), [("epochs", 1.5), ("epochs", 0), ("rate", math.nan), ("rate", "3e-4")]
)
def test_a_further_training_out_of_range_is_refused(
    setting: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{setting} must be a .*, got {value!r}"):
        adapt_model("m.pt", PROSTATE, tmp_path, tmp_path, **{setting: value})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_bundle_whose_inference_could_not_run_a_fused_model_trains_none(
    hospitals: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    ignored = shutil.ignore_patterns("*.pt", "*.ts", "eval", "__pycache__")
    shutil.copytree(PROSTATE, bundle, ignore=ignored)
    file = bundle / "configs" / "inference.json"
    content = json.loads(file.read_text())
    content["network"] = "$@network_def.to(@device)"
    file.write_text(json.dumps(content))
    asked = BundleFederation(
        str(bundle),
        str(hospitals),
        [Standalone(), FedAvg()],
        2,
        str(tmp_path / "run"),
        adapt_epochs=1,
        adapt_fuse=True,
        **SETTINGS,
    )
    with pytest.raises(ConfigError, match="inference.json could not run a fused model.*network_of"):
        asked.run()


def site_with(taken: dict[str, str | None], name: str) -> str:
    return next(site for site, model in taken.items() if model == name)


def test_models_trained_alone_are_of_no_use_without_a_last_mile(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runs/alone.*which adapt_epochs switches on"):
        federation(tmp_path, tmp_path / "run", FedAvg(), trained_alone="runs/alone")


@pytest.mark.slow
def test_models_trained_alone_on_cases_that_test_here_are_refused(
    hospitals: Path, tmp_path: Path
) -> None:
    fractions = {"fractions": OVERRIDES["split_fractions"]}
    lists = {}
    for seed in range(4):
        file = tmp_path / f"seed-{seed}" / "datalists" / "alder.json"
        lists[seed] = site_datalist(hospitals / "alder", file, seed=seed, **fractions)
    tested = lists[0]["testing"]
    seed = next(seed for seed, parts in lists.items() if parts["training"] == tested)
    settings = {**SETTINGS, "adapt_epochs": 1, "rounds": 1}

    other = federation(
        hospitals,
        tmp_path / "run",
        FedAvg(),
        **settings,
        trained_alone=str(tmp_path / f"seed-{seed}" / "models"),
    )
    message = r"validate or test in this run \(alder: 1 of 1 test cases\).*its split_seed"
    with pytest.raises(ConfigError, match=message):
        other.run()
    assert not (tmp_path / "run" / "datalists").exists()

    # The runs of several strategies have their data lists in the folder above.
    several = str(tmp_path / f"seed-{seed}" / "Standalone" / "models")
    other = federation(hospitals, tmp_path / "run", FedAvg(), **settings, trained_alone=several)
    with pytest.raises(ConfigError, match=message):
        other.run()

    same = str(tmp_path / "seed-0" / "models")
    run_dir = run_of(hospitals, tmp_path, FedAvg(), **settings, trained_alone=same)
    assert read_ledger(run_dir / "ledger.jsonl")[-1]["kind"] == "end"


@pytest.mark.long
@pytest.mark.slow
def test_sites_adapt_to_the_same_bits_in_worker_processes(hospitals: Path, tmp_path: Path) -> None:
    settings = {"adapt_epochs": 4, "adapt_rate": 0.02}
    runs = [
        run_of(hospitals, tmp_path / f"jobs-{jobs}", FedAvg(), jobs=jobs, **settings)
        for jobs in (1, 2)
    ]
    ledgers = [(run_dir / "ledger.jsonl").read_bytes() for run_dir in runs]
    assert ledgers[0] == ledgers[1] and b"adapted_gain" in ledgers[0]


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_model_trained_alone_in_the_same_comparison_is_a_candidate_with_any_number_of_processes(
    hospitals: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "adapt_epochs": 2, "adapt_rate": 0.02}
    ends = []
    for jobs in (1, 2):
        run_dir = tmp_path / f"jobs-{jobs}"
        # It comes last, and trains first.
        federation(hospitals, run_dir, [FedAvg(), Standalone()], jobs=jobs, **settings).run()
        ends.append((run_dir / "FedAvg/ledger.jsonl").read_bytes())
        alone = read_ledger(run_dir / "Standalone/ledger.jsonl")[-1]["scores"]
        federated = read_ledger(run_dir / "FedAvg/ledger.jsonl")[-1]["scores"]
        for site in SITES:
            assert federated[site]["alone"]["score"] == alone[site]["own"]["score"]
            assert federated[site]["alone"]["test_score"] == alone[site]["own"]["test_score"]
            assert "alone" not in alone[site]
    assert ends[0] == ends[1]
