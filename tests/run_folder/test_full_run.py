# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a run records of its schedule and its bundle's full run."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from helpers.driving import SPEC, vector
from helpers.linear_federation import START, LinearClient
from monai.bundle import ConfigParser

from monai_fairfl.bundle import runs as bundle_runs
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.runs import BundleRuns
from monai_fairfl.bundle.shipped import bundle_names, find_bundle
from monai_fairfl.errors import ConfigError
from monai_fairfl.run_folder.full_run import FullRun
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg
from monai_fairfl.transports.in_process import InProcess

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"
SITES = {"alder": "A", "cedar": "B", "rowan": "C"}


def clients() -> InProcess:
    """Clients whose updates are known take the place of training."""
    return InProcess({name: partial(LinearClient, letter, []) for name, letter in SITES.items()})


def trained(folder: Path, rounds: int, resume: bool = False, **settings: Any) -> Schedule:
    """The schedule after a run, or its resumption."""
    start = {"w": vector(START)}
    Federation(FedAvg(), clients(), rounds, lambda: (start, SPEC), run_dir=folder, **settings).run(
        resume
    )
    return Schedule.read(folder)


def test_a_run_records_its_planned_rounds_and_the_seconds_of_each(tmp_path: Path) -> None:
    schedule = trained(tmp_path / "run", rounds=3)
    assert schedule.planned == [3] and list(schedule.seconds) == [0, 1, 2]
    assert all(seconds >= 0 for seconds in schedule.seconds.values())


def test_more_rounds_after_the_end_are_another_schedule_and_the_same_rounds_are_not(
    tmp_path: Path,
) -> None:
    trained(tmp_path / "run", rounds=2)
    assert trained(tmp_path / "run", rounds=2, resume=True).planned == [2]
    assert trained(tmp_path / "run", rounds=1, resume=True).planned == [2]  # nothing is trained
    longer = trained(tmp_path / "run", rounds=4, resume=True)
    assert longer.planned == [2, 4] and list(longer.seconds) == [0, 1, 2, 3]
    assert trained(tmp_path / "run", rounds=4, resume=True).planned == [2, 4]


def test_a_run_that_goes_on_without_its_schedule_does_not_know_its_beginning(
    tmp_path: Path,
) -> None:
    trained(tmp_path / "run", rounds=2)
    (tmp_path / "run" / "schedule.json").unlink()
    assert trained(tmp_path / "run", rounds=4, resume=True).planned == [None, 4]


@pytest.mark.parametrize("damage", ["", "3", '{"planned": 3, "seconds": {}}', '{"planned": [2]}'])
def test_a_damaged_schedule_is_an_unknown_one(damage: str, tmp_path: Path) -> None:
    (tmp_path / "schedule.json").write_text(damage)
    assert Schedule.read(tmp_path) == Schedule()


def test_a_federation_records_its_bundles_full_run_and_whether_cases_are_shared(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site in SITES:
        shutil.copytree(hospitals / site, tmp_path / "sites" / site)
    monkeypatch.setattr(BundleRuns, "transport", lambda *_: clients())
    monkeypatch.setattr(bundle_runs, "initial_model", lambda *_: ({"w": vector(START)}, SPEC))
    full_run = {"rounds": 60, "local_epochs": 4, "mean_dice": 0.5}
    make = partial(
        BundleFederation, str(BUNDLE), str(tmp_path / "sites"), FedAvg(), 1, report=False
    )
    make(run_dir=str(tmp_path / "run"), full_run=full_run, share_cases=True).run()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["full_run"], config["share_cases"], config["command"]) == (full_run, True, None)
    with pytest.raises(
        ConfigError, match="full_run: rounds must be a whole number of at least 1, got 'sixty'"
    ):
        make(run_dir=str(tmp_path / "other"), full_run={**full_run, "rounds": "sixty"}).run()
    assert not (tmp_path / "other").exists()


def test_a_full_run_of_none_is_not_that_of_the_bundle(tmp_path: Path) -> None:
    config = json.loads((BUNDLE / "configs" / "federate.json").read_text())
    parser = ConfigParser({**config, "bundle_root": str(BUNDLE), "full_run": None})
    assert parser.get_parsed_content("federation").full_run is None
    sites = str(tmp_path / "sites")
    make = partial(BundleFederation, str(BUNDLE), sites, FedAvg(), 1, str(tmp_path / "run"))
    assert make(full_run=None).full_run is None
    assert make().full_run == config["full_run"]


@pytest.mark.parametrize("name", bundle_names())
def test_every_shipped_bundle_names_its_full_run_and_passes_it_on(name: str) -> None:
    config = json.loads((find_bundle(name) / "configs" / "federate.json").read_text())
    full = FullRun.read(config["full_run"])
    assert full is not None and full.mean_dice >= 0.5
    assert (
        full.epochs == {"prostate_mri_segmentation": 600, "fundus_disc_cup_segmentation": 240}[name]
    )
    assert config["share_cases"] is False
    parser = ConfigParser({**config, "bundle_root": str(find_bundle(name))})
    passed = parser.get_parsed_content("federation")
    assert (passed.full_run, passed.share_cases) == (config["full_run"], False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_dice": 50},
        {"mean_dice": "high"},
        {"local_epochs": 0},
        {"rounds": True},
        {"round": 60},
    ],
)
def test_a_full_run_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"full_run.*{next(iter(wrong))}"):
        FullRun.read({"rounds": 60, "local_epochs": 4, "mean_dice": 0.5, **wrong})
