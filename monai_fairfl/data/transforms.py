# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transforms that the bundles need: structures, channels, connected parts, slices, augmentation."""

from __future__ import annotations

import threading as threads
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import get_track_meta, set_track_meta
from monai.transforms import (
    Compose,
    MapTransform,
    MultiSampleTrait,
    Randomizable,
    RandomizableTrait,
    Transform,
    get_largest_connected_component_mask,
)
from monai.utils import convert_to_tensor
from PIL import Image
from scipy import ndimage

from monai_fairfl.data.image_files import as_stored
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.utils.arguments import check_value

Values = Mapping[str, Sequence[float]]

KINDS = ("largest", "surest")
"""The connected parts among which a bundle's key ``part`` chooses."""


class EachKeyd(MapTransform):
    """A transform that changes the image of each key in the same way, by its method ``change``."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        return {**data, **{key: self.change(data[key]) for key in self.key_iterator(data)}}

    @abstractmethod
    def change(self, image: Any) -> Any:
        """The image of one key, channel first, as the transform leaves it."""


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

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        # The values leave the case: cases that code structures differently must batch together.
        values: Values = d.pop("values", None) or self.values
        for key in self.key_iterator(d):
            label = d[key]
            if not values or len(label) != 1:
                raise DataError(
                    f"{_name(label)} has {len(label)} channels and the values {values}: one channel"
                    f" is needed, and values that state which grey levels are {self.structures}"
                )
            channels = [torch.full_like(label, -1, dtype=torch.float32) for _ in self.structures]
            for number, name in enumerate(self.structures):
                if name in values:
                    low, high = values[name]
                    channels[number] = ((label >= low) & (label <= high)).to(torch.float32)
            d[key] = torch.cat(channels)
        return d


class NestStructuresd(EachKeyd):
    """Cut every structure to the one before it: the cup is where both disc and cup were found.

    Masks have the shape C x ..., and the values 0 and 1; the outermost structure comes first.

    >>> import torch
    >>> found = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> NestStructuresd("pred")({"pred": found})["pred"].tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        return image.cumprod(0)


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
            :func:`~monai_fairfl.data.image_files.as_stored`.

    >>> from PIL import Image
    >>> grey_levels(Image.new("RGB", (2, 2), (128, 128, 128))).getextrema()
    (128, 128)
    """
    stored = as_stored(image)
    return stored.convert("L") if stored.mode in ("LA", "RGB", "RGBA") else stored


def _name(image: Any) -> str:
    meta = getattr(image, "meta", None) or {}
    return str(meta.get("filename_or_obj", f"an image of shape {tuple(image.shape)}"))


class OneChanneld(EachKeyd):
    """Take one channel of images that have several.

    An image of one channel stays as it is. ``Invertd`` passes over this transform.

    Args:
        keys: keys of images, channel first.
        channel: its number, from 0.

    Raises:
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
        self.channel = channel

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        if len(image) == 1:
            return image
        if not 0 <= self.channel < len(image):
            fault = f"has {len(image)} channels, and none of number {self.channel}"
            raise DataError(f"{_name(image)} {fault}; mend 'channel'")
        return image[self.channel : self.channel + 1]


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


class KeepPartd(EachKeyd):
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

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        kept = image.clone()
        organ = torch.as_tensor(kept[-1])
        found = organ >= self.threshold
        if self.part == "surest":
            part = surest_part(found, organ)
        else:
            part = torch.as_tensor(get_largest_connected_component_mask(found))
        kept[-1] = organ * part
        return kept


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
            but ``label_key``, the lowest first; beyond the first and the last slice these are
            repeated. At inference :class:`~monai_fairfl.inferers.NeighbourSliceInferer` shows the
            network the same.

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
        neighbours: int = 0,
    ) -> None:
        MapTransform.__init__(self, keys)
        if num_samples != "all":
            check_value("num_samples (or 'all')", num_samples, "int", "[1, inf)")
        check_value("empty_rate", empty_rate, "float", "[0, 1)")
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
        has_gland = (data > 0).cpu().numpy().any(axis=(0, 1, 2))
        gland, empty = np.flatnonzero(has_gland), np.flatnonzero(~has_gland)
        if self.num_samples == "all":
            # So many empty ones of all of them, beside all slices with gland.
            expected = len(gland) * self.empty_rate / (1 - self.empty_rate)
            chance = min(1.0, expected / max(1, len(empty)))
            num_gland, num_empty = len(gland), self.R.binomial(len(empty), chance)
        else:
            num_empty = self.R.binomial(int(self.num_samples), self.empty_rate)
            num_gland = int(self.num_samples) - num_empty
        # Of one kind alone, the other gives none.
        if not len(gland):
            num_gland, num_empty = 0, max(1, num_gland + num_empty)
        elif not len(empty):
            num_gland, num_empty = num_gland + num_empty, 0
        drawn = [self._draw(gland, num_gland), self._draw(empty, num_empty)]
        self.indices = self.R.permutation(np.concatenate(drawn))

    def _draw(self, indices: np.ndarray, count: int) -> np.ndarray:
        """Draw ``count`` of ``indices``; each is drawn again only after all the others."""
        drawn = np.empty(0, dtype=int)
        while len(drawn) < count:
            drawn = np.concatenate([drawn, self.R.permutation(indices)])
        return drawn[:count]

    def __call__(self, data: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
        keys = self.key_iterator(data)
        volumes = {key: convert_to_tensor(data[key], track_meta=False) for key in keys}
        shapes = {key: tuple(volume.shape) for key, volume in volumes.items()}
        _, *size = shapes[self.label_key]
        if len(size) != 3 or any([*shape[1:]] != size for shape in shapes.values()):
            raise DataError(
                f"the volumes have the shapes {shapes}: give all as C x H x W x D with the same H, "
                "W and D, such as by EnsureChannelFirstd"
            )
        self.randomize(volumes[self.label_key])
        slices = []
        for index in self.indices:
            one_slice = dict(data)
            for key, volume in volumes.items():
                beside = 0 if key == self.label_key else self.neighbours
                around = np.arange(index - beside, index + beside + 1).clip(0, size[2] - 1)
                one_slice[key] = torch.cat([volume[..., place] for place in around])
            slices.append(one_slice)
        return slices


class UntrackedCompose(Compose):
    """MONAI's ``Compose`` that makes plain tensors from its first random transform on.

    MONAI's transforms store every image's affine and history in a ``MetaTensor``. A network that is
    trained needs neither, and at 64 x 64 storing them takes longer than the augmentation itself.
    Values and random draws are the same to the bit. The transforms before the first random one,
    whose results a cache holds, are tracked as ever. Do not use it for images whose transforms are
    to be inverted.

    MONAI's switch (``set_track_meta``) is one for the whole process, so it is used in the main
    thread alone: where clients or loaders share a process in threads, everything stays tracked,
    slower and otherwise the same. Its arguments are those of ``Compose``.

    >>> from monai.transforms import Compose
    >>> import torch
    >>> from monai.data import MetaTensor
    >>> from monai.transforms import RandFlip, ScaleIntensity
    >>> transforms = [ScaleIntensity(), RandFlip(prob=1.0)]
    >>> image = torch.rand(1, 8, 8)
    >>> isinstance(Compose(transforms)(image), MetaTensor)
    True
    >>> isinstance(UntrackedCompose(transforms)(image), MetaTensor)
    False
    """

    def __call__(
        self,
        input_: Any,
        start: int = 0,
        end: int | None = None,
        threading: bool = False,
        lazy: bool | None = None,
    ) -> Any:
        """Carry out the transforms from ``start`` up to ``end``.

        Datasets split by these what they cache from what is random.
        """
        end = len(self.transforms) if end is None else end
        is_fixed = []
        for one in self.transforms:
            # A plain callable may be random, too.
            is_fixed.append(isinstance(one, Transform) and not isinstance(one, RandomizableTrait))
        first = [*is_fixed, False].index(False)
        if start < first:
            input_ = super().__call__(input_, start, min(first, end), threading, lazy)
        was_tracked = get_track_meta()
        if end > first:
            if threads.current_thread() is threads.main_thread():
                set_track_meta(False)
            try:
                input_ = super().__call__(input_, max(start, first), end, threading, lazy)
            finally:
                set_track_meta(was_tracked)
        return input_
