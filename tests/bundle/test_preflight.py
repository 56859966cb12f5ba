# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What is found before anything is trained: too few images, too many sites, unfit models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from helpers.driving import SPEC, vector
from helpers.linear_federation import START, bundle_federation, in_place_of_training
from helpers.shipped_bundles import FUNDUS, PROSTATE
from monai.bundle import ConfigParser

from monai_fairfl.bundle import runs as bundle_runs
from monai_fairfl.bundle.configuration import train_config
from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.preflight import (
    check_config,
    check_images,
    check_measurements,
    check_sites,
    check_strategies,
)
from monai_fairfl.data import CLINICS, check_cases, write_clinics
from monai_fairfl.errors import ConfigError, DataWarning
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.strategies import CGSV, FedAvg, FedCE, FedCI, FedGA, FedLWR

# --- the configuration


def test_an_unknown_valuation_is_refused_and_without_a_parser_nothing_is_checked() -> None:
    class Workflow:
        parser = ConfigParser({"valuations": [{"_target_": "monai_fairfl.valuation.Retrainin"}]})

        def initialize(self) -> None:
            check_config(str(PROSTATE.root))

    with pytest.raises(ConfigError, match="unknown valuation 'monai_fairfl.valuation.Retrainin'"):
        Workflow().initialize()
    check_config("a folder that is not read")


@pytest.mark.parametrize("given", ["FedAvg", "$['FedAvg', 'FedCE']"])
def test_a_single_strategy_needs_no_brackets_and_an_expression_is_left_to_monai(given: str) -> None:
    check_strategies_of(given)
    with pytest.raises(ConfigError, match="unknown strategy 'FedAvgg'"):
        check_strategies_of("FedAvgg")


def check_strategies_of(given: object) -> None:
    """Check a configuration with these ``strategies``."""

    class Workflow:
        parser = ConfigParser({"strategies": given})

        def initialize(self) -> None:
            check_config(str(PROSTATE.root))

    Workflow().initialize()


# --- all sites side by side


def test_an_image_that_two_sites_have_is_a_warning(hospitals: Path, tmp_path: Path) -> None:
    for site in ("alder", "elm"):
        shutil.copytree(hospitals / site, tmp_path / site)
    for end in (".nii.gz", "_segmentation.nii.gz"):
        copy = tmp_path / "elm" / f"Case01{end}"
        shutil.copy(tmp_path / "alder" / f"Case00{end}", copy)
        # A copy within a site is named by the check of the site alone.
        shutil.copy(tmp_path / "alder" / f"Case02{end}", tmp_path / "alder" / f"Case03{end}")
    folders = {site: str(tmp_path / site) for site in ("alder", "elm")}
    with pytest.warns(DataWarning) as caught:
        check_sites(folders, check_cases)
    found = [str(warning.message) for warning in caught]
    assert len(found) == len(set(found)) == 2
    assert f"alder: {tmp_path}/alder/Case02.nii.gz, alder: {tmp_path}/alder/Case03" in found[0]
    assert f"alder: {tmp_path}/alder/Case00.nii.gz, elm: {tmp_path}/elm/Case01.nii.gz" in found[1]


# --- too few images


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clinics of three photographs each: one trains, one validates."""
    root = tmp_path_factory.mktemp("clinics")
    write_clinics(root, clinics=CLINICS[:2], size=64, cases=3)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "data", "number", "advises_paper"),
    [
        # Validation also looks at the mirror image.
        ("recommended", "validation", 2, True),
        ("released", "validation", 2, True),
        ("paper", "training", 1, False),
    ],
)
def test_too_few_images_for_cka_are_found_before_any_strategy_is_trained(
    variant: str, data: str, number: int, advises_paper: bool, clinics: Path, tmp_path: Path
) -> None:
    strategies = [FedAvg(), FedLWR(variant=variant)]
    given = BundleFederation(
        str(FUNDUS.root),
        str(clinics),
        strategies,
        rounds=1,
        run_dir=str(tmp_path / "run"),
        overrides={"size": [32, 32], "channels": [4, 8], "working_size": 64},
        report=False,
    )
    with pytest.raises(ConfigError) as refused:
        given.run()
    message = str(refused.value)
    assert message.startswith(strategies[1].name)
    first, second = sorted(site.name for site in clinics.iterdir() if site.is_dir())
    expected = (
        f"at least 4 different {data} images of a site, and {first} has {number}, {second} has "
        f"{number}: add {data} cases"
    )
    assert expected in message
    assert ("variant='paper'" in message) == advises_paper
    assert "similarity='cosine'" in message
    assert not (tmp_path / "run").exists()


def counter(images: Mapping[str, int], counted: list[str]) -> Callable[[str], Mapping[str, int]]:
    """Counts these images of the sites, and notes of which data."""

    def count(data: str) -> Mapping[str, int]:
        counted.append(data)
        return images

    return count


def test_a_site_with_too_few_images_is_a_warning_where_enough_others_can_measure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[str] = []
    strategies = [FedAvg(), FedLWR(), FedLWR(clip=(0.1, 0.9))]
    check_images(strategies, counter({"elm": 2, "fir": 4, "oak": 9}, counted))
    assert counted == ["validation"], "the images are counted once"
    warning = "elm has 2: such a site measures nothing, and counts as the mean of the others"
    assert warning in caplog.text
    assert "fir" not in caplog.text
    assert "oak" not in caplog.text


def test_too_few_sites_with_enough_images_are_refused() -> None:
    message = "FedLWR needs at least 4 different validation images of a site, and elm"
    with pytest.raises(ConfigError, match=message):
        check_images([FedLWR()], counter({"elm": 2, "fir": 3, "oak": 9}, []))


def test_images_are_counted_only_for_a_strategy_that_needs_some() -> None:
    counted: list[str] = []
    strategies = [FedAvg(), FedCE(), FedLWR(similarity="cosine")]
    check_images(strategies, counter({"elm": 1, "oak": 1}, counted))
    assert not counted


# --- sites and models


def test_more_sites_than_a_method_can_take_are_refused() -> None:
    train = train_config(PROSTATE.root, {})
    many = [f"site {number}" for number in range(11)]
    with pytest.raises(ConfigError, match="FedCI can take at most 10 sites in a round, found 11"):
        check_strategies([FedAvg(), FedCI()], many, train)
    with pytest.raises(ConfigError, match="CGSV-contribution_index can take at most 10"):
        check_strategies([CGSV(reward="contribution_index")], many, train)
    with pytest.raises(ConfigError, match="CGSV-exact can take at most 20 sites in a round"):
        check_strategies([CGSV(exact=True)], [*many, *(f"more {n}" for n in range(10))], train)
    check_strategies([FedCI(), CGSV(), CGSV(exact=True)], many, train, per_round=10)
    check_strategies([FedGA(), CGSV()], many, train)
    with pytest.raises(ConfigError, match="FedGA compares the sites of a round.*clients_per_round"):
        check_strategies([FedAvg(), FedGA()], many, train, per_round=1)


def test_a_model_that_a_method_cannot_train_is_refused_before_another_is_trained(
    hospitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_training(monkeypatch)
    spec = ModelSpec(("w",), buffers=("mean",), layers={**SPEC.layers, "mean": "fc"})
    model = {"w": vector(START), "mean": vector([0.0])}
    monkeypatch.setattr(bundle_runs, "initial_model", lambda *_: (model, spec))
    given = bundle_federation(hospitals, tmp_path / "run", [FedAvg(), FedCE()], buffers="samples")
    with pytest.raises(ConfigError, match="FedCE .*use buffers 'aggregation' or 'local'"):
        given.run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["cka", "feature_cosine"])
def test_what_cannot_be_measured_with_a_training_is_no_further_measurement(name: str) -> None:
    check_measurements([name], "FedLWR")
    with pytest.raises(ConfigError, match=f"evaluate requires '{name}', which compares the model"):
        check_measurements([name], "evaluate", in_training=True)
