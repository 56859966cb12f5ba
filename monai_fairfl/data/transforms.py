# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transforms that the bundles need: structures, channels, connected parts, slices, photographs.

Of fundus photographs they take one view of a pair, normalise colours, make smaller, crop to discs.
"""

from __future__ import annotations

import threading as threads
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import get_track_meta, set_track_meta
from monai.networks.layers import gaussian_1d
from monai.transforms import (
    Compose,
    Crop,
    Cropd,
    MapTransform,
    MultiSampleTrait,
    Randomizable,
    RandomizableTrait,
    Resized,
    Transform,
    generate_spatial_bounding_box,
    get_largest_connected_component_mask,
)
from monai.utils import convert_to_tensor, ensure_tuple_rep
from PIL import Image
from scipy import ndimage, sparse
from torch.nn.functional import interpolate

from monai_fairfl.data.image_files import as_stored
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.utils.arguments import check_value

Values = Mapping[str, Sequence[float]]

Data = Mapping[Hashable, Any]
Case = dict[Hashable, Any]
"""What a transform takes and gives, as MONAI's."""

KINDS = ("largest", "surest")
"""The connected parts among which a bundle's key ``part`` chooses."""

# Width / height from which a photograph is taken for a pair of views. Few single views are as wide.
STEREO = 1.8
# Share of the 99th percentile of brightness that is seen in the field of view alone.
LEAST_BRIGHT = 0.15


class EachKeyd(MapTransform):
    """A transform that changes the image of each key in the same way, by its method ``change``."""

    def __call__(self, data: Data) -> Case:
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

    def __call__(self, data: Data) -> Case:
        d = dict(data)
        # The values leave the case: cases that code structures differently must batch together.
        values: Values = d.pop("values", None) or self.values
        for key in self.key_iterator(d):
            label = d[key]
            if not values or len(label) != 1:
                raise DataError(
                    f"{_name(label)} has {len(label)} channels and the values {values}: give one "
                    f"channel, and values of {self.structures}"
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
    return str(getattr(image, "meta", {}).get("filename_or_obj", "an image"))


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
            raise DataError(
                f"{_name(image)} has {len(image)} channels, and none of number {self.channel}; "
                "mend 'channel'"
            )
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

    A voxel of at least 0.5 is found.

    Raises:
        ConfigError: there is no such part.

    >>> import torch
    >>> probabilities = torch.tensor([[[0.6, 0.7, 0.1, 0.9]]])
    >>> (KeepPartd("pred")({"pred": probabilities})["pred"] >= 0.5).int().tolist()
    [[[1, 1, 0, 0]]]
    >>> (KeepPartd("pred", part="surest")({"pred": probabilities})["pred"] >= 0.5).int().tolist()
    [[[0, 0, 0, 1]]]
    """

    def __init__(self, keys: KeysCollection, part: str = "largest") -> None:
        super().__init__(keys)
        if part not in KINDS:
            raise ConfigError(f"part={part!r}: give one of {', '.join(KINDS)}.")
        self.part = part

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        kept = image.clone()
        organ = torch.as_tensor(kept[-1])
        found = organ >= 0.5
        if self.part == "surest":
            part = surest_part(found, organ)
        else:
            part = get_largest_connected_component_mask(found)
        kept[-1] = organ * torch.as_tensor(part)
        return kept


class SampleSlicesd(Randomizable, MapTransform, MultiSampleTrait):
    r"""Draw axial slices of a channel-first volume, the same ones of every key.

    A 2D network learns from slices with gland; a few without teach it where the gland ends. Each
    drawn slice is an empty one with probability r. A slice is drawn again only when all of its kind
    were drawn. A volume without gland gives empty slices only, one with gland throughout gives
    none.

    Args:
        keys: keys of the volumes, C x H x W x D.
        label_key: the one of ``keys`` whose values above 0 are gland.
        num_samples: how many slices of each volume.
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
    >>> sample = SampleSlicesd(["image", "label"], num_samples=3, empty_rate=0.0)
    >>> slices = sample({"image": label * 2, "label": label})
    >>> len(slices), tuple(slices[0]["image"].shape)
    (3, (1, 4, 4))
    """

    def __init__(
        self,
        keys: KeysCollection,
        label_key: str = "label",
        num_samples: int = 2,
        empty_rate: float = 0.1,
        neighbours: int = 0,
    ) -> None:
        MapTransform.__init__(self, keys)
        check_value("num_samples", num_samples, "int", "[1, inf)")
        check_value("empty_rate", empty_rate, "float", "[0, 1)")
        self.label_key = label_key
        self.num_samples = num_samples
        self.empty_rate = empty_rate
        self.neighbours = neighbours

    def _indices(self, label: torch.Tensor) -> np.ndarray:
        """Draw the slices' indices by the label, C x H x W x D."""
        has_gland = (label > 0).cpu().numpy().any(axis=(0, 1, 2))
        gland, empty = np.flatnonzero(has_gland), np.flatnonzero(~has_gland)
        num_empty = self.R.binomial(self.num_samples, self.empty_rate)
        # Of one kind alone, the other gives none.
        if not len(gland):
            num_empty = self.num_samples
        elif not len(empty):
            num_empty = 0
        drawn = [self._draw(gland, self.num_samples - num_empty), self._draw(empty, num_empty)]
        return self.R.permutation(np.concatenate(drawn))

    def _draw(self, indices: np.ndarray, count: int) -> np.ndarray:
        """Draw ``count`` of ``indices``; each is drawn again only after all the others."""
        drawn = np.empty(0, dtype=int)
        while len(drawn) < count:
            drawn = np.concatenate([drawn, self.R.permutation(indices)])
        return drawn[:count]

    def __call__(self, data: Data) -> list[Case]:
        keys = self.key_iterator(data)
        volumes = {key: convert_to_tensor(data[key], track_meta=False) for key in keys}
        shapes = {key: tuple(volume.shape) for key, volume in volumes.items()}
        _, *size = shapes[self.label_key]
        if len(size) != 3 or len({shape[1:] for shape in shapes.values()}) > 1:
            raise DataError(
                f"the volumes have the shapes {shapes}: give all as C x H x W x D of one H, W and "
                "D, such as by EnsureChannelFirstd"
            )
        slices = []
        for index in self._indices(volumes[self.label_key]):
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
        first = 0
        for one in self.transforms:
            # A plain callable may be random, too.
            if isinstance(one, RandomizableTrait) or not isinstance(one, Transform):
                break
            first += 1
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


# Fundus photographs


def is_pair(width: int, height: int) -> bool:
    """Whether a photograph is taken for a pair of views by its shape.

    >>> is_pair(200, 100), is_pair(150, 100)
    (True, False)
    """
    return width >= STEREO * height


class OneViewd(Cropd):
    """Crop a pair of views side by side, as RIM-ONE r3 has them, to the left one.

    A photograph of one view stays as it is. ``Invertd`` undoes this transform like any crop.

    Args:
        keys: keys of images, C x W x H (MONAI reads photographs with the width first).
        stereo: whether the photographs are pairs; ``None``: those are that are at least 1.8 times
            as wide as high. RIM-ONE r3's pairs are 1.5 times as wide as high, like many single
            views, so they need ``True``.

    >>> import torch
    >>> OneViewd("image")({"image": torch.zeros(3, 200, 100)})["image"].shape
    torch.Size([3, 100, 100])
    """

    def __init__(self, keys: KeysCollection, stereo: bool | None = None) -> None:
        super().__init__(keys, Crop())
        self.stereo = stereo

    def __call__(self, data: Data, lazy: bool | None = None) -> Case:
        d = dict(data)
        for key in self.key_iterator(d):
            width, height = d[key].shape[1:]
            stereo = is_pair(width, height) if self.stereo is None else self.stereo
            view = (slice(0, width // 2 if stereo else width), slice(0, height))
            d[key] = self.cropper(d[key], view, lazy)
        return d


class NormaliseFieldd(EachKeyd):
    r"""Normalise each colour of a photograph within the field of view, and make the rest 0.

    .. math:: x'_c = (x_c - \mu_c) / \sigma_c

    with mean and standard deviation of colour c in the field of view. This takes the camera's
    colour cast and exposure away. The field of view is where the brightest colour is above 0.15 of
    its 99th percentile; what surrounds it is black, with a label or a mark. A photograph is
    C x W x H, of any scale from 0, of at most 2**24 pixels.

    >>> import torch
    >>> image = torch.rand(3, 32, 32) + 1
    >>> normalised = NormaliseFieldd("image")({"image": image})["image"]
    >>> bool(normalised.mean().abs() < 1e-5), round(float(normalised.std()), 2)
    (True, 1.0)
    """

    def change(self, image: torch.Tensor) -> torch.Tensor:
        """As :meth:`EachKeyd.change`."""
        return normalise_field(image)


def normalise_field(image: torch.Tensor) -> torch.Tensor:
    """Normalise one photograph, C x W x H, as :class:`NormaliseFieldd` does.

    >>> import torch
    >>> image = torch.zeros(3, 4, 4)
    >>> image[:, 1:3, 1:3] = torch.tensor([[90.0, 110.0], [110.0, 90.0]])
    >>> normalised = normalise_field(image)
    >>> [round(value, 3) for value in normalised[0, 1].tolist()]
    [0.0, -0.866, 0.866, 0.0]
    >>> torch.allclose(normalised, normalise_field(2 * image))  # a longer exposure
    True
    """
    image = image.float()
    brightest = image.amax(0)
    inside = brightest > LEAST_BRIGHT * torch.quantile(brightest, 0.99)
    pixels = image[:, inside] if bool(inside.any()) else image.flatten(1)
    mean, deviation = (of_all[:, None, None] for of_all in (pixels.mean(1), pixels.std(1)))
    normalised = (image - mean) / deviation.clamp(min=1e-6)
    return torch.where(inside, normalised, torch.zeros_like(image))


class RandDiscCropd(Randomizable, MapTransform):
    r"""Crop to a square around the optic disc or take the whole photograph, at the network's size.

    One network then learns both: to find the disc in a whole photograph, and to outline it from
    near (:class:`~monai_fairfl.inferers.CoarseToFineInferer`). The square has the side
    :math:`m \max(w, h)` of the disc's box, m uniform in ``margin``, its centre moved by up to
    ``jitter`` disc sizes. A label without a disc gives the whole photograph.

    Args:
        keys: keys of images and labels, C x W x H, all of one W and H.
        label_key: the one of ``keys`` whose first channel is the disc.
        size: W x H of the result.
        prob: chance of the square; else the whole.
        margin: range of m, from 1.
        jitter: of the centre, in disc sizes.

    Raises:
        ConfigError: the label is none of the keys, or a square would cut the disc.

    >>> import torch
    >>> label = torch.zeros(1, 64, 64)
    >>> label[:, 20:30, 40:50] = 1
    >>> found = RandDiscCropd(["label"], "label", (32, 32), prob=1.0)({"label": label})["label"]
    >>> found.shape, bool(found.mean() > 0.1)
    (torch.Size([1, 32, 32]), True)
    """

    def __init__(
        self,
        keys: KeysCollection,
        label_key: str,
        size: Sequence[int],
        prob: float = 0.6,
        margin: Sequence[float] = (1.3, 2.6),
        jitter: float = 0.2,
    ) -> None:
        MapTransform.__init__(self, keys)
        if label_key not in self.keys:  # the label would keep its place
            raise ConfigError(f"label_key={label_key!r} must be one of keys={self.keys}")
        if not 1 <= margin[0] <= margin[1]:
            raise ConfigError(f"margin must be a range (low, high) from 1, got {tuple(margin)}")
        self.label_key = label_key
        self.size = tuple(size)
        self.prob = prob
        self.margin = (margin[0], margin[1])
        self.jitter = jitter

    def __call__(self, data: Data) -> Case:
        d = dict(data)
        # All three are drawn for every photograph, so that draws do not depend on labels.
        takes_square = self.R.random() < self.prob
        margin = self.R.uniform(*self.margin)
        shift = self.R.uniform(-self.jitter, self.jitter, 2)
        square = square_around(d[self.label_key][0] > 0.5, margin, shift.tolist())
        columns, rows = square if square and takes_square else (slice(None), slice(None))
        for key in self.key_iterator(d):
            batch = d[key][None, :, columns, rows].float()
            if key == self.label_key:
                d[key] = interpolate(batch, self.size, mode="nearest-exact")[0]
            else:
                d[key] = interpolate(batch, self.size, mode="bilinear", antialias=True)[0]
        return d


def square_around(
    mask: torch.Tensor, margin: float, shift: Sequence[float] = (0.0, 0.0), least_side: int = 1
) -> tuple[slice, slice] | None:
    """The square around what is True in ``mask``, moved and cut so that it lies within the image.

    Args:
        mask: W x H, boolean.
        margin: side of the square over the longer side of the box around the mask.
        shift: of the centre, in longer sides of the box.
        least_side: of the square, in pixels, where the image is as large.

    Returns:
        Columns and rows of the square; ``None`` where nothing is True.

    >>> mask = torch.zeros(10, 10, dtype=torch.bool)
    >>> mask[4:6, 7:9] = True
    >>> square_around(mask, 2.0)
    (slice(3, 7, None), slice(6, 10, None))
    """
    if not mask.any():
        return None
    box = list(zip(*generate_spatial_bounding_box(mask[None])))
    longer_side = max(end - begin for begin, end in box)
    square = []
    for (begin, end), size, axis_shift in zip(box, mask.shape, shift):
        length = min(max(round(margin * longer_side), least_side), size)
        centre = (begin + end) / 2 + axis_shift * longer_side
        start = min(max(round(centre - length / 2), 0), size - length)
        square.append(slice(start, start + length))
    return square[0], square[1]


class SmoothResized(Resized):
    r"""MONAI's ``Resized`` for images of two dimensions, with a faster ``anti_aliasing``.

    Anti-aliasing smooths with a Gaussian of :math:`\sigma = (f - 1) / 2` pixels along an axis that
    becomes f times smaller, then interpolates bilinearly. Both are linear and go axis by axis, so
    that the result is :math:`A X B^T` with a sparse matrix for each axis. Only the pixels of the
    result are smoothed, where MONAI smooths every pixel. Values are MONAI's but for rounding;
    affine, inverse and everything else are MONAI's own.

    Args:
        keys: of images, C x W x H.
        spatial_size: see ``Resized``.
        size_mode: see ``Resized``.
        mode: for each key.
        anti_aliasing: for each key; of no effect where its mode is not ``"bilinear"``.

    >>> import torch
    >>> resize = SmoothResized("image", 32, size_mode="longest")
    >>> resize({"image": torch.ones(3, 640, 480)})["image"].shape
    torch.Size([3, 32, 24])
    """

    def __init__(
        self,
        keys: KeysCollection,
        spatial_size: Sequence[int] | int,
        size_mode: str = "all",
        mode: Sequence[str] | str = "bilinear",
        anti_aliasing: Sequence[bool] | bool = True,
    ) -> None:
        super().__init__(keys, spatial_size, size_mode, mode)
        wanted = ensure_tuple_rep(anti_aliasing, len(self.keys))
        self.smooth = [one and mode == "bilinear" for one, mode in zip(wanted, self.mode)]

    # A lazy ``Compose`` must carry out what is pending: smoothing needs the pixels.
    requires_current_data = True

    def __call__(self, data: Data, lazy: bool | None = None) -> Case:
        d = super().__call__(data, False)
        for key, smooth in self.key_iterator(d, self.smooth):
            size = d[key].shape[1:]
            if smooth and any(new < old for new, old in zip(size, data[key].shape[1:])):
                image = torch.as_tensor(data[key]).numpy().astype(np.float32)
                columns, rows = (_matrix(old, new) for old, new in zip(image.shape[1:], size))
                resized = np.stack([(rows @ (columns @ channel).T).T for channel in image])
                d[key].copy_(torch.from_numpy(resized))
        return d


# Photographs of one camera are of one size.
@lru_cache(maxsize=128)
def _matrix(length: int, size: int) -> sparse.csr_matrix:
    """Smoothing and interpolation of ``length`` pixels to ``size``: (size, length)."""
    # What becomes of each pixel by itself: it lies between two new ones, which share it.
    pixels = torch.eye(length, dtype=torch.float64)[None]
    matrix = interpolate(pixels, size=size, mode="linear")[0].T.numpy()
    if size < length:
        # Smoothing comes first.
        sigma = (length / size - 1) / 2
        kernel = gaussian_1d(torch.tensor(sigma)).double().numpy()
        matrix = ndimage.correlate1d(matrix, kernel, mode="constant")
    return sparse.csr_matrix(matrix, dtype=np.float32)
