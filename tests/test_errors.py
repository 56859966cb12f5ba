# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Errors of other libraries, as a user of this one reads them."""

from __future__ import annotations

from monai.transforms import Flip

from monai_fairfl.errors import in_words


def test_the_same_error_of_two_objects_is_the_same_text() -> None:
    one, two = (in_words(RuntimeError(f"applying transform {Flip(0)}")) for _ in range(2))
    assert one == two == "RuntimeError: applying transform monai.transforms.spatial.array.Flip"


def test_of_a_long_chain_of_causes_the_last_ones_are_said() -> None:
    error = RuntimeError("cause 0")
    for number in range(1, 9):
        later = RuntimeError(f"cause {number}")
        later.__cause__ = error
        error = later
    words = in_words(error)
    assert "cause 8" in words and "cause 4" in words and "cause 3" not in words


def test_an_error_that_is_its_own_cause_is_said_once() -> None:
    error = RuntimeError("no disk")
    error.__cause__ = error
    assert in_words(error) == "RuntimeError: no disk"
