# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files with statistics: read, combined, and refused where they are damaged or do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.disclosure import CaseNumbers, site_statistics
from monai_fairfl.statistics.documents import (
    document,
    is_document,
    merged,
    read_document,
    without_sites,
)

CASE = CaseNumbers((2, 3), None, [{"mean": 1.0}], None, {"1": 0.5}, [[4, 2]])


def of(*names: str, cases: int = 6, **changed: Any) -> dict[str, Any]:
    sites = {name: site_statistics([CASE] * cases) for name in names}
    return {**document(sites, 5, 2, (0.0, 9.0)), **changed}


def written(folder: Path, found: Any) -> Path:
    file = folder / "found.json"
    file.write_text(json.dumps(found))
    return file


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    file = written(tmp_path, of("elm", "oak"))
    assert is_document(file)
    assert read_document(file) == of("elm", "oak")


def test_files_of_each_hospital_are_the_file_of_all() -> None:
    both = merged({"a.json": of("elm"), "b.json": of("oak", cases=9)})
    assert both["all"]["cases"] == 15
    assert without_sites(both, {"oak"}) == of("elm")


def test_totals_that_somebody_changed_are_computed_again(tmp_path: Path) -> None:
    changed = of("elm")
    changed["all"]["cases"] = 100
    assert read_document(written(tmp_path, changed))["all"]["cases"] == 6


def test_files_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a and b differ in 'least' \(5 and 9\)"):
        merged({"a": of("elm"), "b": of("oak", least=9)})
    with pytest.raises(ConfigError, match="site 'elm' is in a and in b"):
        merged({"a": of("elm"), "b": of("elm")})


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {},
        {"kind": "other"},
        of("elm", sites=3),
        of("elm", histogram={}),
        of("elm", histogram={"low": 5.0, "high": 5.0, "bins": 2}),
        of("elm", sites={"a": {}}),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damaged: Any) -> None:
    file = written(tmp_path, damaged)
    with pytest.raises(ConfigError, match=f"{file} is no whole file of monai-fairfl statistics"):
        read_document(file)


def site(**changed: Any) -> dict[str, Any]:
    """What a hospital reports, with something else in its place."""
    return {**of("elm")["sites"]["elm"], **changed}


MOMENTS = {"cases": 6, "mean": 1.0, "stdev": 0.0}


@pytest.mark.parametrize(
    "numbers",
    [
        site(cases=0),
        site(cases=-6),
        site(cases=4),
        site(cases=10**400),
        site(size=[{**MOMENTS, "cases": 0}]),
        site(size=[{**MOMENTS, "mean": "1"}]),
        site(labels={"1": None}),
        site(labels={"1": {**MOMENTS, "stdev": float("1e999")}}),
        site(intensity=[{"mean": {**MOMENTS, "cases": 6.5}}]),
        site(histogram=[{"counts": [0, 0], "outside": 0}]),
        site(histogram=[{"counts": [], "outside": None}]),
    ],
)
def test_numbers_that_no_site_reports_are_a_damaged_file(tmp_path: Path, numbers: Any) -> None:
    file = written(tmp_path, {**of("elm"), "sites": {"elm": numbers}})
    file.write_text(file.read_text().replace("Infinity", "1e999"))
    with pytest.raises(ConfigError, match=f"{file} is no whole file of monai-fairfl statistics"):
        read_document(file)


def test_another_format_asks_for_the_same_version(tmp_path: Path) -> None:
    file = written(tmp_path, of("elm", format=2))
    with pytest.raises(ConfigError, match=f"^{file} has format 2, .*use the same version at all"):
        read_document(file)


def test_a_site_s_data_list_is_no_file_of_statistics(tmp_path: Path) -> None:
    assert not is_document(written(tmp_path, {"training": []}))
    assert not is_document(tmp_path)
    assert not is_document(tmp_path / "missing.json")


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    file.write_text("[" * 100_000)
    assert not is_document(file)
    with pytest.raises(ConfigError, match=f"{file} is no whole file of monai-fairfl statistics"):
        read_document(file)
