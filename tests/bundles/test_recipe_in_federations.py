# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The models of a federation carry the recipe of their own site's training."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.shipped_bundles import PROSTATE, Bundle

from monai_fairfl.bundle.federation import BundleFederation
from monai_fairfl.bundle.initial import bundle_recipe, warn_of_other_training
from monai_fairfl.model_files.recipe import ModelRecipe, read_recipe
from monai_fairfl.strategies import CGSV, Ditto, Strategy


def test_a_federation_that_begins_from_a_model_of_other_values_reports_them(
    trained: Path, bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_other_training(trained, bundle_recipe(bundle.root, bundle.small))
    assert not caplog.text

    other = bundle_recipe(bundle.root, {**bundle.small, "size": [48, 48]})
    warn_of_other_training(trained, other)
    message = "model.pt was trained with size [32, 32], and this federation trains with [48, 48]"
    assert message in caplog.text


def recipe_of(model: Path) -> ModelRecipe:
    recipe = read_recipe(model)
    assert recipe is not None
    assert list(recipe.files) == ["configs/train.json"]
    return recipe


# The second site has a value of its own.
FIRST = "alder"
SECOND = "birch"
OWN = {"field_of_view": 0.9}

FULL_RUN = {"rounds": 60, "local_epochs": 4}


def federate(strategy: Strategy, hospitals: Path, run_dir: Path) -> None:
    BundleFederation(
        str(PROSTATE.root),
        str(hospitals),
        strategy,
        rounds=1,
        run_dir=str(run_dir),
        overrides=PROSTATE.small,
        site_names=[FIRST, SECOND],
        sites={SECOND: OWN},
        full_run={**FULL_RUN, "mean_dice": 0.5},
        report=False,
    ).run()


def check_models_of_the_run(run_dir: Path, names: set[str], strategy: str) -> None:
    models = {model.stem: model for model in (run_dir / "models").glob("*.pt")}
    assert set(models) == names
    for name, model in models.items():
        recipe = recipe_of(model)
        assert recipe.values["size"] == [32, 32]
        assert recipe.values["field_of_view"] == (0.9 if name == SECOND else 0.7)
        assert recipe.training == {
            "strategy": strategy,
            "seed": 0,
            "rounds": 1,
            "local_epochs": 1,
            "full_run": FULL_RUN,
        }
        # A site's model is of that site alone.
        of_one_site = name in (FIRST, SECOND)
        assert recipe.sites == ({} if of_one_site else {SECOND: OWN})


@pytest.mark.slow
def test_rewards_of_a_federation_carry_their_sites_recipe(hospitals: Path, tmp_path: Path) -> None:
    federate(CGSV(), hospitals, tmp_path / "run")
    names = {"best", "global", FIRST, SECOND}
    check_models_of_the_run(tmp_path / "run", names, "CGSV")
    assert not list((tmp_path / "run" / "sites").rglob("*-own.pt"))


@pytest.mark.slow
def test_personal_models_of_a_federation_carry_their_sites_recipe(
    hospitals: Path, tmp_path: Path
) -> None:
    federate(Ditto(), hospitals, tmp_path / "run")
    check_models_of_the_run(tmp_path / "run", {"best", "global"}, "Ditto")

    own_models = list((tmp_path / "run" / "sites").rglob("*-own.pt"))
    assert len(own_models) == 2
    for own in own_models:
        recipe = recipe_of(own)
        assert recipe.values["field_of_view"] == (0.9 if SECOND in own.parts else 0.7)
