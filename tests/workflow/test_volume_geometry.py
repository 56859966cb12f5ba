# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of slices: even ones pass, and each fault is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monai_fairfl.workflow.volume_geometry import spacing_problem

NAMES = [f"IM{number}" for number in range(40)]
DIRECTION = np.array([2.0, -3.0, 6.0]) / 7


def problem(places: list[float], step: float = 3.0) -> str:
    return spacing_problem(np.outer(places, DIRECTION) * step + [5.0, -70.0, 30.0], NAMES) or ""


@given(slices=st.integers(3, 30), step=st.floats(0.3, 12), seed=st.integers(0, 99))
def test_even_stacks_pass_with_headers_rounded_to_a_hundredth_of_a_step(
    slices: int, step: float, seed: int
) -> None:
    noise = np.random.default_rng(seed).uniform(-0.01, 0.01, slices)
    assert not problem(list(np.arange(slices) + noise), step)


@given(
    slices=st.integers(5, 30),
    step=st.floats(0.3, 12),
    missing=st.sets(st.integers(2, 27), min_size=1, max_size=2),
)
def test_missing_slices_are_counted(slices: int, step: float, missing: set[int]) -> None:
    inside = {place for place in missing if place < slices - 1}
    places: list[float] = [place for place in range(slices) if place not in inside]
    expected = {0: "", 1: "1 slice is missing", 2: "2 slices are missing"}[len(inside)]
    assert problem(places, step).startswith(expected) and bool(problem(places, step)) == bool(
        inside
    )


def test_the_gap_is_shown_with_the_files_beside_it() -> None:
    assert "from IM2 to IM3 are 9 mm, else 3 mm" in problem([0, 1, 2, 5, 6])


@pytest.mark.parametrize("places", [[0, 1, 2, 2.5, 3.5], [0, 1, 2.3, 3.6], [0, 1, 2.2, 3.2]])
def test_uneven_steps_are_refused(places: list[float]) -> None:
    assert "steps between slices from" in problem(places)


@pytest.mark.parametrize("places", [[0, 1, 1, 2], [0, 0, 1, 1, 2, 2], [0, 0, 0]])
def test_images_at_one_position_are_refused(places: list[float]) -> None:
    assert "at the same position" in problem(places)


def test_two_stacks_side_by_side_are_refused() -> None:
    positions = np.outer(range(6), [0, 0, 3.0])
    positions[3:, 0] += 80
    assert "not along one line" in str(spacing_problem(positions, NAMES))
