# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fault 51: texts that are small on disk and endless in memory, or nested without an end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.data import site_datalist, site_folders
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import recipe_of_json
from monai_fairfl.run_folder.resuming import recorded_config
from monai_fairfl.utils import plain_values
from monai_fairfl.utils.plain_values import MOST_DEPTH, object_of_json

DEEP = "[" * 200_000
MODERATE = '{"training": ' + "[" * 100 + "]" * 100 + "}"
NUMBER = '{"training": ' + "9" * 100_000 + "}"
BOMBS = {"deep": DEEP, "deep object": '{"a":' * 200_000, "moderate": MODERATE, "number": NUMBER}


def reason_of(text: str) -> str:
    """Why a text is refused, as a regular expression."""
    return "" if text is NUMBER else f"nested deeper than {MOST_DEPTH} levels"


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_data_list_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "elm").mkdir()
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(DataError, match=f"list.json is no data list.*{reason_of(text)}"):
        site_datalist(tmp_path / "elm", tmp_path / "list.json")


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_folder_of_others_lists_is_looked_at_without_harm(text: str, tmp_path: Path) -> None:
    (tmp_path / "datalist_2D").mkdir()
    (tmp_path / "datalist_2D" / "client_A.json").write_text(text)
    (tmp_path / "elm").mkdir()
    (tmp_path / "elm" / "dataset.json").write_text(text)
    with pytest.raises(DataError):
        site_datalist(tmp_path / "elm", tmp_path / "new.json")
    assert list(site_folders(tmp_path)) == ["client_A", "elm"]


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_recipe_and_a_runs_settings_are_refused_by_their_names(text: str, tmp_path: Path) -> None:
    reason = reason_of(text)
    unreadable = f"model.pt holds a recipe that cannot be read.*{reason}"
    if not reason:
        # A Python that reads so long a number finds that no recipe has such a key.
        unreadable += "|unknown"
    with pytest.raises(ConfigError, match=unreadable):
        recipe_of_json(text, "model.pt")
    (tmp_path / "config.json").write_text(text)
    if reason:
        with pytest.raises(ConfigError, match=f"config.json is damaged.*{reason}"):
            recorded_config(tmp_path)


def test_a_file_that_is_too_large_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_values, "MOST_BYTES", 1000)
    assert object_of_json(json.dumps({"a": "x" * 900}))
    with pytest.raises(ValueError, match="it has 1[0-9]{3} bytes, at most 1000 are read"):
        object_of_json(json.dumps({"a": "x" * 1100}))


@pytest.mark.slow
def test_values_that_are_many_are_counted_before_they_are_walked_through() -> None:
    # Shared parts, as an alias of YAML makes them: ten levels of ten are 10^10 values.
    bomb: Any = 0
    for _ in range(10):
        bomb = [bomb] * 10
    with pytest.raises(ValueError, match="more than 10000000 values"):
        plain_values.check_extent(bomb)
    deepest: Any = 0
    for _ in range(MOST_DEPTH):
        deepest = [deepest]
    plain_values.check_extent(deepest)
    with pytest.raises(ValueError, match=f"deeper than {MOST_DEPTH} levels"):
        plain_values.check_extent([deepest])


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.nvflare
@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ({"size": nested(100_000)}, "more than 10000 values|deeper than 20 levels"),
        ({"size": nested(30)}, "it is nested deeper than 20 levels"),
        ({"size": [0] * 20_000}, "it holds more than 10000 values"),
        ({str(key): 1 for key in range(20_000)}, "it holds more than 10000 values"),
    ],
    ids=["endless", "deep", "many items", "many keys"],
)
def test_a_jobs_settings_have_limits(overrides: dict[str, Any], limit: str) -> None:
    from monai_fairfl.transports.engines.site_settings import JobSiteSettings

    with pytest.raises(ConfigError, match=f"the job's settings are refused: .*({limit})"):
        JobSiteSettings.merged({"overrides": overrides}, {})
