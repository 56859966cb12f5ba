# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Slices of volumes for 2D networks, with a chosen share of slices without gland."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.transforms import MapTransform, MultiSampleTrait, Randomizable
from monai.utils import convert_to_tensor

from monai_fairfl.errors import ConfigError, DataError


class SampleSlicesd(Randomizable, MapTransform, MultiSampleTrait):
    r"""Draw axial slices of a channel-first volume, the same ones of every key.

    A 2D network learns from slices with gland; a few without teach it where the gland ends. With
    ``num_samples="all"`` each of the g slices with gland is drawn once, and of the k empty slices

    .. math:: e \sim \mathrm{Binomial}\left(k, \min\left(1, \frac{g r}{(1 - r) k}\right)\right)

    so that e / (g + e) is about the empty rate r. With a number, each drawn slice is an empty one
    with probability r. A slice is drawn again only when all of its kind were drawn. A volume
    without gland gives empty slices only, one with gland throughout gives none.

    Args:
        keys: keys of the volumes, C x H x W x D.
        label_key: the one of ``keys`` whose values above 0 are gland.
        num_samples: ``"all"``, or how many slices of each volume. Of a volume without gland
            ``"all"`` gives one slice.
        empty_rate: expected share r of slices without gland, 0 <= r < 1.
        neighbours: slices on each side of a drawn one that come with it as channels, of every key
            but ``label_key`` (:func:`slice_with_neighbours`). At inference
            :class:`~monai_fairfl.inferers.NeighbourSliceInferer` shows the network the same.
        allow_missing_keys: whether keys other than ``label_key`` may be absent.

    Returns (of a call):
        A list of dictionaries with C x H x W plain tensors (the affine of a volume means nothing
        for a slice) and all other entries of the data unchanged.

    Raises:
        ConfigError: an argument is out of range.
        DataError: the label is not C x H x W x D, or another key has other H, W, D.

    >>> import torch
    >>> label = torch.zeros(1, 4, 4, 6)
    >>> label[..., 2:5] = 1
    >>> sample = SampleSlicesd(["image", "label"], empty_rate=0.0)
    >>> slices = sample({"image": label * 2, "label": label})
    >>> len(slices), tuple(slices[0]["image"].shape)
    (3, (1, 4, 4))
    """

    def __init__(
        self,
        keys: KeysCollection,
        label_key: str = "label",
        num_samples: str | int = "all",
        empty_rate: float = 0.1,
        allow_missing_keys: bool = False,
        neighbours: int = 0,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        if label_key not in self.keys:
            raise ConfigError(
                f"label_key={label_key!r} is not one of keys={self.keys}. Add it to keys."
            )
        if num_samples != "all" and (isinstance(num_samples, (str, bool)) or num_samples < 1):
            raise ConfigError(f'num_samples={num_samples!r}: give "all" or a number from 1.')
        if not 0 <= empty_rate < 1 or neighbours < 0:
            raise ConfigError(
                f"empty_rate={empty_rate}, neighbours={neighbours}: give a share from 0 to below 1,"
                " and a number of slices from 0."
            )
        self.label_key = label_key
        self.num_samples = num_samples
        self.empty_rate = empty_rate
        self.neighbours = neighbours
        self.indices = np.empty(0, dtype=int)

    def randomize(self, data: torch.Tensor) -> None:
        """Draw the slices' indices.

        Args:
            data: the label, C x H x W x D.
        """
        has_gland = _has_gland(data.cpu().numpy())
        gland = np.flatnonzero(has_gland)
        empty = np.flatnonzero(~has_gland)
        if self.num_samples == "all":
            # So many empty ones of all of them, beside all slices with gland.
            num_gland = len(gland)
            expected = num_gland * self.empty_rate / (1 - self.empty_rate)
            chance = min(1.0, expected / max(1, len(empty)))
            num_empty = int(self.R.binomial(len(empty), chance))
            if not num_gland:
                num_empty = 1
        else:
            count = int(self.num_samples)
            num_empty = int(self.R.binomial(count, self.empty_rate))
            if not len(empty):
                num_empty = 0
            elif not len(gland):
                num_empty = count
            num_gland = count - num_empty
        drawn_gland = self._draw(gland, num_gland)
        drawn_empty = self._draw(empty, num_empty)
        self.indices = self.R.permutation(np.concatenate([drawn_gland, drawn_empty]))

    def _draw(self, indices: np.ndarray, count: int) -> np.ndarray:
        """Draw ``count`` of ``indices``; each is drawn again only after all the others."""
        rounds = math.ceil(count / max(1, len(indices)))
        drawn = np.empty(0, dtype=int)
        for _ in range(rounds):
            drawn = np.concatenate([drawn, self.R.permutation(indices)])
        return drawn[:count]

    def __call__(self, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
        volumes = {}
        for key in self.key_iterator(data):
            volumes[key] = convert_to_tensor(data[key], track_meta=False)
        self._require_same_axes(volumes)
        self.randomize(volumes[self.label_key])
        others = {key: value for key, value in data.items() if key not in volumes}
        slices = []
        for index in self.indices:
            one_slice = dict(others)
            for key, volume in volumes.items():
                neighbours = 0 if key == self.label_key else self.neighbours
                one_slice[key] = slice_with_neighbours(volume, int(index), neighbours)
            slices.append(one_slice)
        return slices

    def _require_same_axes(self, volumes: Mapping[Hashable, torch.Tensor]) -> None:
        if self.label_key not in volumes:
            raise DataError(
                f"The data has no {self.label_key!r}, which decides what a slice with gland is."
                " Load it first."
            )
        label_shape = tuple(volumes[self.label_key].shape)
        for key, volume in volumes.items():
            shape = tuple(volume.shape)
            if len(shape) != 4 or shape[1:] != label_shape[1:]:
                raise DataError(
                    f"{key!r} has shape {shape} and {self.label_key!r} {label_shape}: all need"
                    " C x H x W x D with the same H, W and D. Put EnsureChannelFirstd before this"
                    " transform."
                )


def slice_with_neighbours(volume: torch.Tensor, index: int, neighbours: int) -> torch.Tensor:
    """Copy an axial slice and those on both sides of it, one after the other as channels.

    Beyond the first and the last slice these are repeated.

    Args:
        volume: C x H x W x D.
        index: of the slice, from 0.
        neighbours: n slices on each side.

    Returns:
        (2n + 1) C x H x W: all channels of the lowest slice first.

    >>> volume = torch.arange(4.0).reshape(1, 1, 1, 4)
    >>> slice_with_neighbours(volume, index=1, neighbours=1).flatten().tolist()
    [0.0, 1.0, 2.0]
    >>> slice_with_neighbours(volume, index=3, neighbours=1).flatten().tolist()
    [2.0, 3.0, 3.0]
    """
    last = volume.shape[-1] - 1
    slices = []
    for offset in range(-neighbours, neighbours + 1):
        beside = min(max(index + offset, 0), last)
        slices.append(volume[..., beside])
    return torch.cat(slices)


def _has_gland(label: np.ndarray) -> np.ndarray:
    """Which slices of a label have gland, boolean (D,).

    NumPy takes a tenth of torch's time where whole rows W x D are compared at once.

    Args:
        label: C x H x W x D.
    """
    *_, width, depth = label.shape
    rows = (label > 0).reshape(-1, width * depth)
    columns = np.logical_or.reduce(rows, axis=0).reshape(width, depth)
    has_gland: np.ndarray = np.logical_or.reduce(columns, axis=0)
    return has_gland
