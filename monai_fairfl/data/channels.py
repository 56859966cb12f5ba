# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One channel of images that have several, as the T2 and ADC of one file."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform
from monai.utils import ImageMetaKey

from monai_fairfl.errors import ConfigError, DataError


class OneChanneld(MapTransform):
    """Take one channel of images that have several.

    An image of one channel stays as it is. ``Invertd`` passes over this transform.

    Args:
        keys: keys of images, channel first.
        channel: its number, from 0.

    Raises:
        ConfigError: the number is negative.
        DataError: an image has several channels, but not this one.

    >>> import torch
    >>> image = torch.arange(2.0).reshape(2, 1, 1)
    >>> take_second = OneChanneld("image", channel=1)
    >>> take_second({"image": image})["image"].tolist()
    [[[1.0]]]
    >>> take_second({"image": image[:1]})["image"].tolist()
    [[[0.0]]]
    """

    def __init__(self, keys: KeysCollection, channel: int = 0) -> None:
        super().__init__(keys)
        if channel < 0:
            raise ConfigError(f"OneChanneld: channel must be at least 0, got {channel}")
        self.channel = channel

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self._taken(key, d[key])
        return d

    def _taken(self, key: Hashable, image: Any) -> Any:
        if len(image) == 1:
            return image
        if self.channel >= len(image):
            name = key
            if isinstance(image, MetaTensor):
                name = image.meta.get(ImageMetaKey.FILENAME_OR_OBJ, key)
            raise DataError(
                f"{name} has {len(image)} channels, and none of number {self.channel}; mend"
                " 'channel'"
            )
        return image[self.channel : self.channel + 1]
