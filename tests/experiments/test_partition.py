# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cases that the studies deal to clients: to whom, how many, and always alike."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import powerlaw

from experiments.simulated.partition import (
    partition,
)

KINDS = ["uniform", "power_law", "class_imbalance"]


def pool_of(n: int) -> list[dict[str, str]]:
    return [{"image": f"SITE/Case{i:03d}.png", "label": f"{(i * 37) % 101}"} for i in range(n)]


def by_number(case: Any) -> float:
    return float(case["label"])


def images_of(lists: Iterable[list[dict[str, Any]]]) -> list[str]:
    """The images of all cases of several lists."""
    images = []
    for cases in lists:
        images.extend(case["image"] for case in cases)
    return images


def names_of(n: int) -> list[str]:
    return [f"client{i}" for i in range(1, n + 1)]


# partitions


@given(
    st.sampled_from(KINDS), st.integers(1, 80), st.integers(1, 12), st.integers(0, 99), st.randoms()
)
def test_every_case_goes_to_one_client_and_every_client_gets_one(
    kind: str, n: int, clients: int, seed: int, shuffled: Random
) -> None:
    assume(n >= clients)
    pool, names = pool_of(n), names_of(clients)
    dealt = partition(pool, names, kind, seed, content=by_number)
    assert list(dealt) == names and all(dealt.values())
    assert sorted(images_of(dealt.values())) == images_of([pool])
    shuffled.shuffle(pool)
    assert partition(pool, names, kind, seed, content=by_number) == dealt


def test_power_law_sizes_are_those_of_the_authors_code() -> None:
    for clients in (2, 5, 20):
        ends = powerlaw.ppf([0.01, 0.99], 1.65911332899)
        shares = np.linspace(*ends, clients)
        shares /= shares.sum()
        dealt = partition(pool_of(6000), names_of(clients), "power_law")
        sizes = [len(part) for part in dealt.values()]
        np.testing.assert_allclose(sizes, 6000 * shares, atol=1)
        assert sizes == sorted(sizes)


# data lists


# chosen clients
