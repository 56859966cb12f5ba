# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The trainings that the pages show have the rounds and sizes of the measured ones."""

from __future__ import annotations

import json

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl import find_bundle

BUNDLES = {
    "prostate_mri_segmentation": "shipped_prostate",
    "fundus_disc_cup_segmentation": "shipped_fundus",
}
"""Bundle -> the study of its own recipe."""


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_bundle_trains_as_it_was_measured_where_nothing_is_given(bundle: str) -> None:
    file = CHECKOUT / "experiments" / "studies" / f"{BUNDLES[bundle]}.json"
    study = json.loads(file.read_text())
    configs = find_bundle(bundle) / "configs"
    federate = json.loads((configs / "federate.json").read_text())
    full_run = federate["full_run"]
    for given in (federate, full_run):
        assert (given["rounds"], given["local_epochs"]) == (study["rounds"], study["local_epochs"])
    # The study trains what the bundle does.
    assert not federate["overrides"] and "overrides" not in study
    assert "config" not in study["arguments"]
    train = json.loads((configs / "train.json").read_text())
    assert full_run["overrides"]
    assert {key: train[key] for key in full_run["overrides"]} == full_run["overrides"]

    look = json.loads((configs / "quick.json").read_text())
    assert look["rounds"] * look["local_epochs"] < study["rounds"] * study["local_epochs"]
