# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation of a configuration's top-level keys: each is written once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT
from monai.bundle import ConfigParser

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.first_look import recipe
from monai_fairfl.bundle.jobs import Jobs
from monai_fairfl.bundle.repeated import RepeatedFederation
from monai_fairfl.bundle.shipped import find_bundle
from monai_fairfl.errors import ConfigError
from monai_fairfl.guards import DEFAULT, NonFinite, TooLong
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.transports.workers import Turn

BUNDLES = sorted((CHECKOUT / "bundles").glob("*/configs/federate.json"))
BY_HAND = {"timeout", "unasked"}
"""Settings of a run that are no top-level keys: --federation#NAME sets them."""


def parser_of(file: Path, **changes: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config(str(file))
    parser["bundle_root"] = str(file.parents[1])
    for key, value in changes.items():
        parser[key.replace("__", "#")] = value
    return parser


def federation_of(parser: ConfigParser) -> BundleFederation:
    found: BundleFederation = parser.get_parsed_content("federation")
    return found


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: file.parts[-3])
def test_every_setting_of_a_run_is_a_key_and_reaches_the_federation(file: Path) -> None:
    names = {entry.name for entry in fields(RunSettings)} - BY_HAND
    parser = parser_of(file)
    run = federation_of(parser)
    given = {**run.federation, "rounds": run.rounds, "groups": run.groups}
    assert set(given) == names
    for name in names:
        assert given[name] == parser.get_parsed_content(name)
    for name in ("check", "resume", "initial", "report", "full_run", "share_cases", "valuations"):
        assert getattr(run, name) == parser.get_parsed_content(name)
    for name in ("device", "amp", "local_epochs", "config", "overrides"):
        assert getattr(run.site_settings, name) == parser.get_parsed_content(name)
    assert run.jobs == Jobs("auto", [parser.get_parsed_content("device")])
    assert [strategy.name for strategy in run.strategies] == ["FedAvg"]


def test_what_the_command_line_sets_reaches_the_federation() -> None:
    parser = parser_of(
        BUNDLES[0],
        rounds=3,
        seed=7,
        jobs=3,
        devices=["cuda:0", "cuda:1"],
        overrides={"size": [64, 64]},
        strategy___target_="monai_fairfl.strategies.FedCE",
        federation__final=["score"],
    )
    run = federation_of(parser)
    assert run.rounds == 3 and run.federation["seed"] == 7 and run.federation["final"] == ["score"]
    assert run.site_settings.overrides == {"size": [64, 64]}
    assert run.jobs == Jobs(3, ["cuda:0", "cuda:1"])
    assert [strategy.name for strategy in run.strategies] == ["FedCE"]


def test_several_strategies_count_before_the_one() -> None:
    targets = [{"_target_": f"monai_fairfl.strategies.{name}"} for name in ("FedAvg", "FedGA")]
    run = federation_of(parser_of(BUNDLES[0], strategies=targets))
    assert [strategy.name for strategy in run.strategies] == ["FedAvg", "FedGA"]


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: file.parts[-3])
@pytest.mark.parametrize(
    ("asked", "seeds", "folds"),
    [({"seeds": [2, 0]}, [2, 0], None), ({"folds": 3, "seed": 7}, [7], 3)],
)
def test_seeds_or_folds_make_it_a_comparison_of_the_same_settings(
    asked: dict[str, Any], seeds: list[int], folds: int | None, file: Path, tmp_path: Path
) -> None:
    targets = [{"_target_": f"monai_fairfl.strategies.{name}"} for name in ("FedAvg", "FedGA")]
    changed = {"min_clients": 3, "guards": ["NonFinite"], "jobs": 3, "local_epochs": 2}
    places = {"run_dir": str(tmp_path / "run"), "sites_root": str(tmp_path)}
    overrides = {"size": [64, 64]}
    found: Any = federation_of(
        parser_of(file, strategies=targets, overrides=overrides, **changed, **places, **asked)
    )
    assert isinstance(found, RepeatedFederation)
    assert (found.out, found.jobs, found.resume) == (tmp_path / "run", 3, False)
    plan = found.plan
    assert (plan.seeds, plan.folds) == (seeds, folds)
    measured = recipe(find_bundle(file.parents[1].name)).rounds
    assert plan.training() == {"rounds": measured, "local_epochs": 2}
    assert plan.record()["settings"]["guards"] == ["NonFinite"]

    # One of its cells, which is no comparison again.
    cell = plan.cells()[-1]
    turn = Turn(devices=["cuda:1"])
    run = plan.federation([cell.strategy], cell.seed, cell.fold, tmp_path, False, turn)
    assert isinstance(run, BundleFederation)
    assert [strategy.name for strategy in run.strategies] == ["FedGA"]
    assert run.federation["min_clients"] == 3 and run.federation["seed"] == cell.seed
    assert [type(guard) for guard in run.guards] == [NonFinite]
    assert run.site_settings.overrides == {**overrides, **plan.overrides_of(cell.fold)}
    assert run.jobs == Jobs(1, ["cuda:1"])
    assert run.share_cases and run.resume and not run.report and run.check is None


def test_a_configuration_may_still_hand_over_every_argument_itself(tmp_path: Path) -> None:
    config = {
        "rounds": 4,
        "federation": {
            "_target_": "monai_fairfl.BundleFederation",
            "bundle_root": "bundle",
            "sites_root": "sites",
            "strategies": [{"_target_": "monai_fairfl.strategies.FedAvg"}],
            "rounds": "@rounds",
            "run_dir": str(tmp_path),
            "min_clients": 3,
        },
    }
    run = federation_of(ConfigParser(config))
    assert run.rounds == 4 and run.federation == {"min_clients": 3}


def test_without_a_running_configuration_the_error_names_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"in Python use BundleFederation\(...\)"):
        BundleFederation.from_config()


@pytest.mark.parametrize("file", BUNDLES, ids=lambda file: file.parts[-3])
def test_guards_are_the_default_ones_none_or_those_that_are_named(file: Path) -> None:
    assert federation_of(parser_of(file)).guards is DEFAULT
    assert federation_of(parser_of(file, guards=[])).guards == ()
    target = {"_target_": "monai_fairfl.guards.TooLong", "times": 8.0}
    first, second = federation_of(parser_of(file, guards=[target, "NonFinite"])).guards
    assert isinstance(first, TooLong) and first.times == 8.0
    assert isinstance(second, NonFinite)
