# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The recipe of a training: values that no file could hold, and a damaged metadata file."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.workflow import ModelValues, save_model, training_recipe


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (math.nan, "window = nan"),
        (-math.inf, "window = -inf"),
        ((0.0, math.inf), "window#1 = inf"),
        ({"low": [0, {"at": math.nan}]}, "window#low#1#at = nan"),
    ],
)
def test_a_number_that_is_no_json_is_refused_by_its_place(
    value: Any, place: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"^{place} cannot be .*: give a finite number, or null"):
        training_recipe(tmp_path, {"size": [32, 32], "window": value})


def test_a_value_that_contains_itself_is_refused_by_its_key(tmp_path: Path) -> None:
    window: list[Any] = [0.0]
    window.append(window)
    with pytest.raises(ConfigError, match="^window = .* cannot be written .*: Circular reference"):
        training_recipe(tmp_path, {"window": window})


def test_a_value_without_a_number_is_taken(tmp_path: Path) -> None:
    assert training_recipe(tmp_path, {"window": (None, 1e300)}).values == {"window": [None, 1e300]}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"name": "Prostate",\n "version" 1}', "line 2 column 12"),
        ("", "line 1 column 1"),
        ("[1]", "no JSON object but a list"),
    ],
)
def test_damaged_metadata_is_refused_by_the_files_name_and_the_place(
    content: str, place: str, tmp_path: Path
) -> None:
    file = tmp_path / "configs" / "metadata.json"
    file.parent.mkdir()
    file.write_text(content)
    message = f"^{re.escape(str(file))} is damaged .*{place}.*: restore it from a copy$"
    with pytest.raises(ConfigError, match=message):
        training_recipe(tmp_path, {})


def test_values_that_differ_are_refused_with_their_keys_as_own_values(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    trained = {"size": [32, 32], "channel": 0, "flip": True}
    save_model(file, nn.Linear(1, 1), ModelRecipe("Prostate", "0.1.0", trained))
    values = ModelValues(file, tmp_path)
    with pytest.raises(ConfigError) as error:
        values.require({**trained, "channel": 1})
    assert str(error.value).endswith("name the key too: --own_values \"['channel']\"")
    with pytest.raises(ConfigError) as error:
        values.require({"size": [48, 48], "channel": 1, "flip": True})
    assert str(error.value).endswith("name the key too: --own_values \"['size', 'channel']\"")
