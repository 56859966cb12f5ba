# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a site: declared once, for the client, the federation and the resume check."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.site import bundle_client
from monai_fairfl.errors import ConfigError
from monai_fairfl.run_folder.training_config import training_settings
from monai_fairfl.strategies import FedAvg
from monai_fairfl.utils.settings import checked_mapping
from monai_fairfl.valuation import Retraining

BUNDLE = CHECKOUT / "bundles" / "prostate_mri_segmentation"


def test_the_settings_that_train_are_those_that_a_resumed_run_must_have_again() -> None:
    config = vars(SiteSettings(overrides={"size": [32, 32]}, device="cuda:0"))
    checked = training_settings({**config, "bundle": "prostate"})
    found = {**checked["plain"], "overrides": checked["overrides"]}
    # Of the federation, not of a site.
    del found["bundle"]
    assert found == SiteSettings(overrides={"size": [32, 32]}, device="cpu").training()


def test_a_site_adds_overrides_and_replaces_files() -> None:
    everybody = SiteSettings(overrides={"size": [32, 32], "channel": 0}, amp=True)
    site = everybody.for_site({"config": "configs/mine.json", "channel": 1})
    assert site.config == ["configs/mine.json"] and site.amp
    assert site.overrides == {"size": [32, 32], "channel": 1}
    assert everybody.overrides == {"size": [32, 32], "channel": 0}


def test_an_unknown_setting_is_an_error_that_names_the_one_that_was_meant(
    hospitals: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no setting 'local_epoch'; did you mean 'local_epochs'?"):
        bundle_client(BUNDLE, "elm", tmp_path, dataset_dir=tmp_path, local_epoch=2)
    run = BundleFederation(
        str(BUNDLE), str(hospitals), FedAvg(), 1, str(tmp_path / "run"), retrys=3
    )
    with pytest.raises(ConfigError, match="no setting 'retrys'; did you mean 'retries'?"):
        run.run()


@pytest.mark.parametrize("name", ["amp", "any_folder", "report", "resume", "share_cases"])
def test_a_text_in_place_of_a_truth_value_switches_nothing_on(
    name: str, hospitals: Path, tmp_path: Path
) -> None:
    # MONAI reads --share_cases false as a text.
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got 'false'"):
        BundleFederation(
            str(BUNDLE), str(hospitals), FedAvg(), 1, str(tmp_path), **{name: "false"}  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("local_epochs", 0, "local_epochs must be a whole number of at least 1, got 0"),
        ("local_epochs", "3", "local_epochs must be a whole number of at least 1, got '3'"),
        ("overrides", ["size"], r"overrides must be a mapping, got \['size'\]"),
        ("sites", "alder", "sites must be a mapping, got 'alder'"),
        ("sites", {"alder": 3}, "sites: 'alder' must be a mapping, got 3"),
        ("valuations", "exact", "valuations must be a list such as .*, got 'exact'"),
    ],
)
def test_a_setting_of_another_form_is_refused_before_anything_is_trained(
    name: str, value: object, message: str, hospitals: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        BundleFederation(
            str(BUNDLE), str(hospitals), FedAvg(), 1, str(tmp_path), **{name: value}  # type: ignore[arg-type]
        )


def test_an_empty_list_is_an_empty_mapping() -> None:
    assert checked_mapping("groups", []) == checked_mapping("groups", None) == {}


def test_a_single_valuation_needs_no_list(hospitals: Path, tmp_path: Path) -> None:
    valuation = Retraining("leave_one_out")
    run = BundleFederation(
        str(BUNDLE), str(hospitals), FedAvg(), 1, str(tmp_path), valuations=valuation
    )
    assert run.valuations == [valuation]
