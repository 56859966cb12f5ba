# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.intervals import bootstrap_site_mean


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bootstrap_site_mean({"siteA": [0.1, 0.2]}, level=95), "level"),
        (lambda: bootstrap_site_mean({}), "empty"),
        (lambda: bootstrap_site_mean({"siteA": []}), "siteA"),
        (lambda: bootstrap_site_mean({"siteA": [0.5, float("inf")]}), "siteA.*'1' has inf"),
    ],
)
def test_input_that_has_no_interval_is_refused_with_the_client_named(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_bootstrap_of_one_value_has_no_ends_and_of_equal_values_no_width() -> None:
    single = bootstrap_site_mean({"a": [0.7], "b": [0.5]})
    assert single.estimate == pytest.approx(0.6) and math.isnan(single.low)
    assert bootstrap_site_mean({"a": [0.5, 0.5], "b": [0.25]}) == (0.375, 0.375, 0.375)


def test_site_mean_bootstrap_resamples_within_sites_so_differences_between_sites_add_no_width() -> (
    None
):
    rng = np.random.default_rng(0)
    cases = {"good": rng.normal(0.9, 0.02, 60), "bad": rng.normal(0.3, 0.05, 25)}
    found = bootstrap_site_mean({name: x.tolist() for name, x in cases.items()})
    stderr = math.hypot(*(x.std() / math.sqrt(len(x)) for x in cases.values())) / 2
    assert found.estimate == pytest.approx(np.mean([x.mean() for x in cases.values()]))
    assert (found.high - found.low) / (2 * stats.norm.ppf(0.975)) == pytest.approx(stderr, rel=0.1)


def test_site_mean_bootstrap_does_not_depend_on_the_order_of_sites() -> None:
    rng = np.random.default_rng(2)
    cases = {"a": rng.random(20).tolist(), "b": rng.random(30).tolist()}
    assert bootstrap_site_mean(cases) == bootstrap_site_mean(dict(reversed(cases.items())))
    assert bootstrap_site_mean(cases) != bootstrap_site_mean(cases, seed=1)
