# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Inference on the slices of a volume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.inferers import SliceInferer

__all__ = ["MirroredSliceInferer"]


class MirroredSliceInferer(SliceInferer):
    """The mean of the logits of a volume and of its mirror image, mirrored back: one forward pass more.

    For organs that are symmetric and networks trained with the same flips.

    Args:
        mirror_axes: spatial axes that are mirrored together; 0 is left and right of a volume in LPS order.
        arguments: of MONAI's ``SliceInferer``.

    >>> inferer = MirroredSliceInferer(roi_size=(4, 4), spatial_dim=2)
    >>> volume = torch.arange(16.0).view(1, 1, 4, 4, 1)
    >>> both_ways = (volume.cumsum(2) + volume.flip(2).cumsum(2).flip(2)) / 2
    >>> torch.equal(inferer(volume, lambda slices: slices.cumsum(2)), both_ways)
    True
    """

    def __init__(self, *arguments: Any, mirror_axes: Sequence[int] = (0,), **named: Any):
        super().__init__(*arguments, **named)
        self.dims = [axis + 2 for axis in mirror_axes]

    def __call__(self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        straight: Any = super().__call__(inputs, network, *args, **kwargs)
        mirrored: Any = super().__call__(inputs.flip(self.dims), network, *args, **kwargs)
        mean: torch.Tensor = (straight + mirrored.flip(self.dims)) / 2
        return mean
