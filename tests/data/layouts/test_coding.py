# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The levels of one mask are found; noise and photographs have none."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import public_layouts as made

from monai_fairfl.data.layouts.coding import Coding, coding_of


@pytest.mark.parametrize("quality", [50, 75, 95])
def test_a_level_that_jpeg_has_moved_hides_nothing(quality: int) -> None:
    for coding in ((0, 240), (0, 100, 200), (20, 250)):
        drawn = made.mask(2, coding, size=128, radius=40, cup=20)
        assert coding_of(made.jpeg(drawn, quality)).hidden == ()


def test_noise_is_no_coding() -> None:
    noise = np.random.default_rng(0).normal(100, 20, (64, 64)).clip(0, 255).astype(np.uint8)
    # A grey photograph: a dim scene in a black surround.
    view = made.mask(0, (0, 1), size=96, radius=40)
    view[view > 0] = np.random.default_rng(0).normal(110, 14, (view > 0).sum())
    assert coding_of(view).levels == ()
    assert coding_of(noise).levels == () and coding_of(np.full((4, 4), 0.5)).levels == ()


def test_a_coding_knows_its_foreground() -> None:
    assert Coding("a", (0, 1, 255), 255).foreground == {0, 1}
