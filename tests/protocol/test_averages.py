# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN, replies_of
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.protocol.averages import normalise, sample_shares, weighted_mean


def test_sample_shares_are_the_worked_numbers() -> None:
    common = GOLDEN["common"]
    updates = {str(i): u for i, u in enumerate(common["updates"])}
    replies = replies_of(updates, {str(i): int(n) for i, n in enumerate(common["n"])})
    np.testing.assert_allclose(list(sample_shares(replies).values()), common["p"])


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1e6), min_size=1, max_size=8))
def test_normalised_scores_are_shares(values: dict[str, float]) -> None:
    shares = normalise(values)
    assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_normalise_names_the_client_of_a_bad_score(bad: float) -> None:
    with pytest.raises(ValueError, match="'B'"):
        normalise({"A": 1.0, "B": bad})


def test_scores_whose_sum_is_too_large_for_a_float_are_shares_all_the_same() -> None:
    assert normalise({"A": 1.5e308, "B": 1.5e308, "C": 0.0}) == {"A": 0.5, "B": 0.5, "C": 0.0}


def test_normalise_floors_and_falls_back_to_uniform() -> None:
    assert normalise({"A": -5.0, "B": 3.0}, floor=1.0) == {"A": 0.25, "B": 0.75}
    assert normalise({"A": 0.0, "B": 0.0}) == {"A": 0.5, "B": 0.5}


def test_weighted_mean_keeps_the_type_of_half_precision_and_scalars() -> None:
    halves = [torch.tensor(1.0, dtype=torch.float16), torch.tensor(2.0, dtype=torch.float16)]
    mean = weighted_mean(halves, torch.tensor([1.0, 3.0]))
    assert mean.dtype == torch.float16 and mean.item() == 1.75 and mean.ndim == 0
