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
    """One channel per structure, 0 or 1, from the pixel values of a label image; -1 where the site
    does not label it.

    Structures may overlap (the disc includes the cup), which one channel of class numbers cannot
    say. What -1 means for training and scores: :class:`~monai_fairfl.losses.LabelledLoss`.

    Args:
        keys: keys of the label images, 1 x H x W.
        structures: names of the channels, in their order.
        values: structure -> [lowest, highest] pixel value that belongs to it; used where the case
            has no ``"values"`` of its own, which the data list finds
            (:func:`~monai_fairfl.data.site_datalist`). A structure that is absent from it is not
            labelled.

    Raises:
        ConfigError: when ``values`` names a structure that is not one of ``structures``.
        DataError: (of a call) when there are no values, or the label has several channels; the file
            is named. Whether the masks have the values is asked where these are found or kept.

    >>> label = torch.tensor([[[0, 128, 255]]])
    >>> case = {"label": label, "values": {"disc": [64, 255], "cup": [192, 255]}}
    >>> LabelStructuresd("label", ["disc", "cup"])(case)["label"].tolist()
    [[[0.0, 1.0, 1.0]], [[0.0, 0.0, 1.0]]]
    """

    def __init__(
        self, keys: KeysCollection, structures: Sequence[str], values: Values | None = None
    ) -> None:
        super().__init__(keys)
        self.structures, self.values = tuple(structures), dict(values or {})
        unknown = sorted(set(self.values) - set(self.structures))
        if unknown:
            raise ConfigError(
                f"values name {unknown[0]!r}, which is not one of the structures {self.structures}"
            )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        found = dict(data)
        values: Values = (
            found.pop("values", None) or self.values
        )  # cases that code differently must batch together
        for key in self.key_iterator(found):
            label = found[key]
            if not values:
                raise DataError(
                    f"{_name(label)}: nothing says which pixel values are {self.structures}; give values"
                )
            if len(label) != 1:
                raise DataError(
                    f"{_name(label)} has {len(label)} channels; a label image has one, of grey levels"
                )
            channels = [
                (
                    (label >= values[name][0]) & (label <= values[name][1])
                    if name in values
                    else -torch.ones_like(label)
                )
                for name in self.structures
            ]
            found[key] = torch.cat([channel.to(torch.float32) for channel in channels])
        return found


class NestStructuresd(MapTransform):
    """Keep every structure inside the one before it: the cup is where both disc and cup were found.

    Args:
        keys: keys of masks, C x ..., 0 or 1, the outermost structure first.

    >>> NestStructuresd("pred")({"pred": torch.tensor([[1.0, 0.0], [1.0, 1.0]])})["pred"].tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """

    def __init__(self, keys: KeysCollection) -> None:
        super().__init__(keys)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        found = dict(data)
        for key in self.key_iterator(found):
            found[key] = found[key].cumprod(0)
        return found


def grey_levels(image: Image.Image) -> Image.Image:
    """A label image as one channel of grey levels or palette numbers: the ``converter`` of MONAI's
    ``PILReader``.

    Raises:
        DataError: of a picture that the check refuses too, see
            :func:`~monai_fairfl.data.layouts.image_files.as_stored`.

    >>> grey_levels(Image.new("RGB", (2, 2), (128, 128, 128))).getextrema()
    (128, 128)
    """
    stored = as_stored(image)
    return stored.convert("L") if stored.mode in ("LA", "RGB", "RGBA") else stored


def _name(label: Any) -> str:
    meta = getattr(label, "meta", None) or {}
    return str(meta.get("filename_or_obj", f"a label of shape {tuple(label.shape)}"))
