# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The connected part of a prediction that is kept: the largest, or the surest."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from monai.config import KeysCollection
from monai.transforms import MapTransform, get_largest_connected_component_mask
from scipy import ndimage

from monai_fairfl.errors import ConfigError

KINDS = ("largest", "surest")
"""The connected parts among which a bundle's key ``part`` chooses."""


def surest_part(found: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The connected part that holds the highest value.

    The largest part is not always the organ: a wrong part may be larger. Voxels are connected
    where they share a side.

    Args:
        found: mask, without a channel: (W, H) or (W, H, D).
        values: probabilities or logits, of the same shape.

    Returns:
        The mask of the part; where nothing is found, nothing.

    >>> import torch
    >>> probabilities = torch.tensor([[0.6, 0.7, 0.1, 0.9]])
    >>> surest_part(probabilities >= 0.5, probabilities).int().tolist()
    [[0, 0, 0, 1]]
    """
    parts, count = ndimage.label(found.cpu().numpy())
    if count < 2:
        return found
    surest = int(parts.flat[int(values.argmax())])
    return torch.as_tensor(parts == surest, device=values.device)


class KeepPartd(MapTransform):
    """Set the probabilities to 0 outside one connected part of an organ.

    It comes before the threshold. Of several channels, the last one is the organ's, and the others
    stay.

    Args:
        keys: keys of probabilities, channel first.
        part: ``"largest"``, as MONAI's ``KeepLargestConnectedComponentd`` behind the threshold, or
            ``"surest"``, the one that holds the highest probability.
        threshold: a voxel of at least this probability is found, in [0, 1].

    Raises:
        ConfigError: there is no such part.

    >>> import torch
    >>> probabilities = torch.tensor([[[0.6, 0.7, 0.1, 0.9]]])
    >>> (KeepPartd("pred")({"pred": probabilities})["pred"] >= 0.5).int().tolist()
    [[[1, 1, 0, 0]]]
    >>> (KeepPartd("pred", part="surest")({"pred": probabilities})["pred"] >= 0.5).int().tolist()
    [[[0, 0, 0, 1]]]
    """

    def __init__(self, keys: KeysCollection, part: str = "largest", threshold: float = 0.5) -> None:
        super().__init__(keys)
        if part not in KINDS:
            raise ConfigError(f"part={part!r}: give one of {', '.join(KINDS)}.")
        self.part = part
        self.threshold = threshold

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            kept = d[key].clone()
            organ = torch.as_tensor(kept[-1])
            kept[-1] = organ * self._part_of(organ)
            d[key] = kept
        return d

    def _part_of(self, organ: torch.Tensor) -> torch.Tensor:
        """The mask of the part that is kept."""
        found = organ >= self.threshold
        if self.part == "surest":
            return surest_part(found, organ)
        return torch.as_tensor(get_largest_connected_component_mask(found))
