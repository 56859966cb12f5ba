# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site reports is numpy's over its cases, and shows nothing of too few of them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.statistics.disclosure import (
    CaseNumbers,
    over_sites,
    shown_counts,
    site_statistics,
)

LEAST = 3

COUNTS = arrays(
    np.int64, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=st.integers(0, 3)
)
"""Cases x bins, with many zeros."""


def case(number: float, **changed: Any) -> CaseNumbers:
    """A case of one channel, 2 x 3 voxels, whose numbers follow from one number."""
    numbers: dict[str, Any] = {
        "size": (2, 3),
        "spacing": (0.5 * number, 2.0),
        "intensity": [{"mean": number, "stdev": 1.0}],
        "labelled": [{"mean": 2 * number, "stdev": 1.0}],
        "shares": {"1": 0.1 * number},
        "counts": [[4, 2]],
        **changed,
    }
    return CaseNumbers(**numbers)


def some_cases(count: int, seed: int = 0) -> list[CaseNumbers]:
    return [case(number) for number in np.random.default_rng(seed).uniform(1, 5, count)]


@given(COUNTS)
def test_what_is_withheld_of_a_histogram_is_of_enough_cases_together(voxels: np.ndarray) -> None:
    shown = shown_counts(voxels, LEAST)
    withheld = [place for place, total in enumerate(shown) if total is None]
    for place, total in enumerate(shown):
        if total is not None:
            assert total == voxels[:, place].sum()
            assert np.count_nonzero(voxels[:, place]) >= LEAST
    # All voxels less those that are shown.
    behind = np.count_nonzero(voxels[:, withheld].sum(axis=1))
    assert behind == 0 or behind >= LEAST or len(withheld) == voxels.shape[1]


@given(COUNTS)
def test_an_empty_bin_and_one_of_few_cases_look_alike(voxels: np.ndarray) -> None:
    for place, total in enumerate(shown_counts(voxels, LEAST)):
        if np.count_nonzero(voxels[:, place]) < LEAST:
            assert total is None


def test_means_and_deviations_are_numpys() -> None:
    cases = some_cases(6)
    found = site_statistics(cases, LEAST)
    spacings = np.array([one.spacing for one in cases])
    for axis, moments in enumerate(found["spacing"]):
        assert moments["cases"] == 6
        assert moments["mean"] == pytest.approx(spacings[:, axis].mean())
        assert moments["stdev"] == pytest.approx(spacings[:, axis].std())
    extents = spacings * np.array([2, 3])
    assert found["extent"][1]["mean"] == pytest.approx(extents[:, 1].mean())
    means = [one.intensity[0]["mean"] for one in cases]
    assert found["intensity"][0]["mean"]["mean"] == pytest.approx(np.mean(means))
    assert found["histogram"] == [{"counts": [24, 12], "outside": None}]


def test_voxels_outside_of_all_bins_are_counted_apart() -> None:
    cases = [case(1.0, counts=[[3, 1]]) for _ in range(4)]
    assert site_statistics(cases, LEAST)["histogram"] == [{"counts": [12, 4], "outside": 8}]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_site_with_too_few_cases_reports_nothing(count: int) -> None:
    assert site_statistics(some_cases(count), 5) == {"withheld": "fewer than 5 cases"}


def test_a_label_of_too_few_cases_is_not_named() -> None:
    cases = [case(1.0, shares={"1": 0.1, "7": 0.2}) for _ in range(2)] + some_cases(4)
    assert list(site_statistics(cases, LEAST)["labels"]) == ["1"]


def test_how_many_have_a_label_is_left_out_where_too_few_lack_it() -> None:
    lacking = case(1.0, shares={}, labelled=None)
    nearly_all = site_statistics([*some_cases(6), lacking], LEAST)
    assert nearly_all["labels"]["1"]["cases"] is None
    assert nearly_all["labelled"][0]["mean"]["cases"] is None
    half = site_statistics([*some_cases(6), *[lacking] * 3], LEAST)
    assert half["labels"]["1"]["cases"] == 6
    assert half["labelled"][0]["mean"]["cases"] == 6


def test_no_number_that_is_reported_is_one_of_a_single_case() -> None:
    cases = some_cases(7)
    single = set()
    for one in cases:
        single |= {one.spacing[0], one.intensity[0]["mean"], one.shares["1"]}
    assert not single & set(numbers_in(site_statistics(cases, LEAST)))


def numbers_in(found: Any) -> list[float]:
    """All numbers, at any depth."""
    if isinstance(found, dict):
        return [number for value in found.values() for number in numbers_in(value)]
    if isinstance(found, list):
        return [number for value in found for number in numbers_in(value)]
    return [found] if isinstance(found, (int, float)) else []


def test_over_sites_is_numpys_over_all_their_cases() -> None:
    sites = {"elm": some_cases(4, 1), "oak": some_cases(9, 2)}
    found = over_sites({name: site_statistics(cases, LEAST) for name, cases in sites.items()})
    together = site_statistics([*sites["elm"], *sites["oak"]], LEAST)
    assert found["cases"] == 13
    for name in ("spacing", "extent"):
        for one, other in zip(found[name], together[name]):
            assert one == pytest.approx(other)
    assert found["intensity"][0]["mean"] == pytest.approx(together["intensity"][0]["mean"])
    assert found["labels"]["1"] == pytest.approx(together["labels"]["1"])
    assert found["histogram"] == together["histogram"]


def test_the_total_less_the_sites_is_nothing_that_a_site_withheld() -> None:
    few = [case(1.0, counts=[[6, 0]]) for _ in range(3)] + [case(1.0, counts=[[5, 1]])]
    sites = {
        "elm": site_statistics(few, LEAST),
        "oak": site_statistics(some_cases(5), LEAST),
        "yew": site_statistics(some_cases(2), LEAST),
    }
    total = over_sites(sites)
    assert total["cases"] == 9
    for place, count in enumerate(total["histogram"][0]["counts"]):
        shown = [sites[name]["histogram"][0]["counts"][place] for name in ("elm", "oak")]
        assert count == sum(number for number in shown if number is not None)


def test_sites_of_different_images_have_no_common_mean() -> None:
    picture = case(1.0, spacing=None)
    volume = case(1.0, size=(2, 3, 4), spacing=(1.0, 1.0, 1.0))
    colours = case(1.0, intensity=[{"mean": 1.0}] * 3, labelled=None, counts=[[4, 2]] * 3)
    sites = {
        name: site_statistics([one] * 3, LEAST)
        for name, one in (("elm", picture), ("oak", volume), ("yew", colours))
    }
    found = over_sites(sites)
    assert found["cases"] == 9
    assert found["size"] is found["spacing"] is found["intensity"] is found["histogram"] is None


def test_wrong_input_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="--least is 2, and must be at least 3"):
        site_statistics(some_cases(9), 2)
    with pytest.raises(DataError, match=r"differ: 2 axes .*, 3 axes"):
        site_statistics([*some_cases(4), case(1.0, size=(2, 3, 4))], LEAST)
    with pytest.raises(DataError, match="not finite"):
        site_statistics([*some_cases(4), case(float("nan"), shares={})], LEAST)


def test_every_pair_of_bins_that_is_withheld_alone_takes_a_third_with_it() -> None:
    # One case in each of two bins, all five in the others.
    for pair in combinations(range(4), 2):
        voxels = np.full((5, 4), 9)
        voxels[:, list(pair)] = 0
        voxels[0, list(pair)] = 1
        assert shown_counts(voxels, LEAST).count(None) == 3
