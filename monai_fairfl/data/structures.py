# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Structures in label images: read from pixel values, nested, one inside the other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from monai.config import KeysCollection
from monai.transforms import MapTransform
from PIL import Image

from monai_fairfl.data.layouts.image_files import as_stored
from monai_fairfl.errors import ConfigError, DataError

Values = Mapping[str, Sequence[float]]


class LabelStructuresd(MapTransform):
    """Make one channel per structure, 0 or 1, from the pixel values of a label image.

    A channel is -1 where the site does not label the structure; what that means for training and
    scores: :class:`~monai_fairfl.losses.LabelledLoss`. Structures may overlap (the disc includes
    the cup), which one channel of class numbers cannot express.

    Args:
        keys: keys of the label images, 1 x H x W.
        structures: names of the channels, in their order.
        values: structure -> [lowest, highest] pixel value that belongs to it. They are used where
            the case has no ``"values"`` of its own, which the data list finds
            (:func:`~monai_fairfl.data.site_datalist`). A structure without values is not labelled.

    Raises:
        ConfigError: when ``values`` names a structure that is not one of ``structures``.
        DataError: (of a call) when there are no values, or the label has several channels; the
            error names the file. The data list checks that the masks have the values.

    >>> import torch
    >>> label = torch.tensor([[[0, 128, 255]]])
    >>> case = {"label": label, "values": {"disc": [64, 255], "cup": [192, 255]}}
    >>> LabelStructuresd("label", ["disc", "cup"])(case)["label"].tolist()
    [[[0.0, 1.0, 1.0]], [[0.0, 0.0, 1.0]]]
    """

    def __init__(
        self, keys: KeysCollection, structures: Sequence[str], values: Values | None = None
    ) -> None:
        super().__init__(keys)
        self.structures = tuple(structures)
        self.values = dict(values or {})
        unknown = sorted(set(self.values) - set(self.structures))
        if unknown:
            raise ConfigError(
                f"values name {unknown[0]!r}, which is not one of the structures {self.structures}"
            )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        # The values leave the case: cases that code structures differently must batch together.
        values: Values = d.pop("values", None) or self.values
        for key in self.key_iterator(d):
            d[key] = self._channels(d[key], values)
        return d

    def _channels(self, label: torch.Tensor, values: Values) -> torch.Tensor:
        if not values:
            raise DataError(
                f"{_name(label)}: nothing states which pixel values are {self.structures}; give"
                " values"
            )
        if len(label) != 1:
            raise DataError(
                f"{_name(label)} has {len(label)} channels; a label image has one, of grey levels"
            )
        channels = []
        for name in self.structures:
            if name in values:
                low, high = values[name]
                channel = (label >= low) & (label <= high)
            else:
                channel = torch.full_like(label, -1, dtype=torch.float32)
            channels.append(channel.to(torch.float32))
        return torch.cat(channels)


class NestStructuresd(MapTransform):
    """Cut every structure to the one before it: the cup is where both disc and cup were found.

    Args:
        keys: keys of masks, C x ..., 0 or 1, the outermost structure first.

    >>> import torch
    >>> found = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> NestStructuresd("pred")({"pred": found})["pred"].tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """

    def __init__(self, keys: KeysCollection) -> None:
        super().__init__(keys)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = d[key].cumprod(0)
        return d


def in_colours(image: Image.Image) -> Image.Image:
    """A photograph in three colours, as a ``converter`` of MONAI's ``PILReader``.

    >>> from PIL import Image
    >>> in_colours(Image.new("L", (2, 2))).mode
    'RGB'
    """
    return image.convert("RGB")


def grey_levels(image: Image.Image) -> Image.Image:
    """A label image as one channel of grey levels or palette numbers.

    This is the ``converter`` of MONAI's ``PILReader``.

    Raises:
        DataError: for a picture that the check refuses too, see
            :func:`~monai_fairfl.data.layouts.image_files.as_stored`.

    >>> from PIL import Image
    >>> grey_levels(Image.new("RGB", (2, 2), (128, 128, 128))).getextrema()
    (128, 128)
    """
    stored = as_stored(image)
    if stored.mode in ("LA", "RGB", "RGBA"):
        return stored.convert("L")
    return stored


def _name(label: Any) -> str:
    meta = getattr(label, "meta", None) or {}
    return str(meta.get("filename_or_obj", f"a label of shape {tuple(label.shape)}"))
