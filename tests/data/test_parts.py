# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One connected part of a prediction: the largest as MONAI keeps it, or the surest."""

from __future__ import annotations

import pytest
import torch
from monai.transforms import AsDiscrete, KeepLargestConnectedComponent

from monai_fairfl.data import KeepPartd
from monai_fairfl.errors import ConfigError

MASK = AsDiscrete(threshold=0.5)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_part_is_that_of_monai_behind_the_threshold(seed: int) -> None:
    coarse = 0.54 * torch.rand(1, 1, 6, 6, 4, generator=torch.Generator().manual_seed(seed))
    probabilities = torch.nn.functional.interpolate(coarse, (24, 24, 8))[0]
    kept = MASK(KeepPartd("pred")({"pred": probabilities})["pred"])
    expected = KeepLargestConnectedComponent()(MASK(probabilities))
    assert torch.equal(kept, expected) and 0 < kept.sum() < MASK(probabilities).sum()


def test_a_larger_wrong_part_does_not_hide_the_organ() -> None:
    probabilities = torch.zeros(1, 16, 16, 6)
    wrong, organ = probabilities[0, 1:9, 1:9], probabilities[0, 11:14, 11:14]
    wrong[:] = 0.98
    organ[:] = 0.7
    organ[1, 1, 3] = 0.99
    kept = MASK(KeepPartd("pred", part="surest")({"pred": probabilities})["pred"])
    assert torch.equal(kept[0] > 0, (probabilities[0] > 0) & (probabilities[0] != 0.98))
    kept = MASK(KeepPartd("pred")({"pred": probabilities})["pred"])
    assert torch.equal(kept[0] > 0, probabilities[0] == 0.98)


@pytest.mark.parametrize("part", ["largest", "surest"])
def test_of_two_channels_the_organ_is_the_last_and_the_background_stays(part: str) -> None:
    organ = torch.tensor([[0.6, 0.8, 0.1, 0.55]])
    both = torch.stack([1 - organ, organ])
    kept = KeepPartd("pred", part=part)({"pred": both})["pred"]
    assert torch.equal(kept[0], both[0])
    assert kept.argmax(0).tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("part", ["largest", "surest"])
def test_where_nothing_is_found_nothing_is_kept(part: str) -> None:
    nothing = torch.full((1, 4, 4, 2), 0.2)
    assert not MASK(KeepPartd("pred", part=part)({"pred": nothing})["pred"]).any()


def test_a_misspelt_part_is_refused() -> None:
    with pytest.raises(ConfigError, match="part='surst': give one of largest, surest"):
        KeepPartd("pred", part="surst")
