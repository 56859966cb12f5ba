# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Infers on slices of volumes, with neighbours and mirror images, and on photographs in passes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from monai.inferers import Inferer, SimpleInferer, SliceInferer
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import interpolate

from monai_fairfl.data.transforms import KINDS, square_around, surest_part
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.devices import has_bfloat16

Network = Callable[..., Any]
Square = tuple[slice, slice]

FAR = -20.0
"""Logit outside of the square that a further pass looks at: certainly no structure."""

MOST_OF_IMAGE = 0.8
"""Share of an image's sides above which a square is most of the image already."""


class HardwarePrecisionInferer(SimpleInferer):
    """A forward pass in bfloat16 where the device has it in hardware, else in float32.

    The output is float32. It is for training on a processor, which MONAI's ``amp`` leaves in
    float32. Weights, gradients, optimizer and loss stay float32. Measurements that run the trainer,
    such as sharpness, are in bfloat16 too, and a perturbation of the weights that is far below
    0.4 % of them is lost in its rounding: train methods that perturb weights (FedISM) without it.

    >>> network = torch.nn.Conv2d(1, 1, 3)
    >>> images = torch.rand(2, 1, 8, 8)
    >>> outputs = HardwarePrecisionInferer()(images, network)
    >>> outputs.dtype, bool((outputs - network(images)).abs().max() < 0.02)
    (torch.float32, True)
    """

    precision = ""
    """Of the last pass, ``"bfloat16"`` or ``"float32"``, which the ledger records."""

    def __call__(self, inputs: Tensor, network: Network, *args: Any, **kwargs: Any) -> Any:
        is_short = has_bfloat16(inputs.device)
        self.precision = "bfloat16" if is_short else "float32"
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=is_short):
            outputs: Any = super().__call__(inputs, network, *args, **kwargs)
        return outputs.float()


class FirstOutputInferer(Inferer):
    """The first output of a network that gives several also when it is scored.

    With deep supervision it is the one of full size.

    Args:
        inferer: of the bundle, which may give several outputs.

    >>> def network(images):
    ...     return [images + 1, images[..., ::2, ::2]]
    >>> FirstOutputInferer(SimpleInferer())(torch.zeros(1, 1, 4, 4), network).shape
    torch.Size([1, 1, 4, 4])
    """

    def __init__(self, inferer: Inferer | None = None):
        super().__init__()
        self.inferer = inferer or SimpleInferer()

    def __call__(self, inputs: Tensor, network: Network, *args: Any, **kwargs: Any) -> Any:
        outputs = self.inferer(inputs, network, *args, **kwargs)
        return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


class NeighbourSliceInferer(SliceInferer):
    r"""Infers slice by slice, where the slices beside each one help.

    The network may see them, as further channels; and the logits of a slice may be averaged with
    those of its neighbours, since an organ ends in no single slice:

    .. math:: \bar z_k = \frac{z_k + s\,(z_{k-1} + z_{k+1})}{1 + 2 s}

    Beyond the first and the last slice these are repeated.

    Args:
        neighbours: slices on each side that the network sees, as in its training
            (:class:`~monai_fairfl.data.SampleSlicesd`).
        smoothing: weight s of the logits of each neighbour, from 0.
        arguments: of MONAI's ``SliceInferer``.

    >>> inferer = NeighbourSliceInferer(neighbours=1, roi_size=(1, 1), spatial_dim=2)
    >>> volume = torch.tensor([0.0, 0.0, 6.0, 6.0]).view(1, 1, 1, 1, 4)
    >>> inferer(volume, lambda slices: slices.mean(1, keepdim=True)).flatten().tolist()
    [0.0, 2.0, 4.0, 6.0]
    >>> inferer = NeighbourSliceInferer(smoothing=1.0, roi_size=(1, 1), spatial_dim=2)
    >>> inferer(volume, lambda slices: slices).flatten().tolist()
    [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(self, *arguments: Any, neighbours: int = 0, smoothing: float = 0.0, **named: Any):
        super().__init__(*arguments, **named)
        if neighbours < 0 or smoothing < 0:
            raise ConfigError(f"{neighbours=}, {smoothing=}: give numbers from 0.")
        self.neighbours = neighbours
        self.smoothing = smoothing

    def __call__(self, inputs: Tensor, network: Network, *args: Any, **kwargs: Any) -> Any:
        axis = self.spatial_dim + 2
        if self.neighbours:
            offsets = range(-self.neighbours, self.neighbours + 1)
            inputs = torch.cat([_shifted(inputs, offset, axis) for offset in offsets], dim=1)
        logits: Any = super().__call__(inputs, network, *args, **kwargs)
        if self.smoothing:
            beside = _shifted(logits, -1, axis) + _shifted(logits, 1, axis)
            logits = (logits + self.smoothing * beside) / (1 + 2 * self.smoothing)
        return logits


def _shifted(volume: Tensor, offset: int, axis: int) -> Tensor:
    """At each place the slice that lies ``offset`` further; the outermost ones are repeated."""
    number = volume.shape[axis]
    places = torch.arange(offset, number + offset, device=volume.device).clamp(0, number - 1)
    return volume.index_select(axis, places)


class MirroredInferer(Inferer):
    """The mean of the logits of an image and of its mirror image, mirrored back.

    It takes one forward pass more. For organs that are symmetric and networks trained with the same
    flips.

    Args:
        inferer: that gives the logits of each.
        mirror_axes: spatial axes that are mirrored together; 0 is left and right of a volume in LPS
            order. Where there are none, nothing is mirrored.

    >>> inferer = MirroredInferer(SimpleInferer())
    >>> image = torch.arange(16.0).view(1, 1, 4, 4)
    >>> both_ways = (image.cumsum(2) + image.flip(2).cumsum(2).flip(2)) / 2
    >>> torch.equal(inferer(image, lambda images: images.cumsum(2)), both_ways)
    True
    """

    def __init__(self, inferer: Inferer, mirror_axes: Sequence[int] = (0,)):
        super().__init__()
        self.inferer = inferer
        self.dims = [axis + 2 for axis in mirror_axes]

    def __call__(self, inputs: Tensor, network: Network, *args: Any, **kwargs: Any) -> Any:
        straight = self.inferer(inputs, network, *args, **kwargs)
        if not self.dims:
            return straight
        mirrored = self.inferer(inputs.flip(self.dims), network, *args, **kwargs)
        return (straight + mirrored.flip(self.dims)) / 2


@dataclass(eq=False)
class CoarseToFineInferer(Inferer):
    r"""Finds a structure in the whole image, then looks again from near, with the same network.

    The image is resized to what the network was trained with. Around one connected part of the
    outer structure that it finds there, a square is cut from the image as it came, resized
    alike, and its logits take the place of the first ones; outside of the square nothing is. A
    further pass does the same around what was then found, for a first look often sees a part only.
    Where nothing is found, or the square is most of the image already (a photograph that was cut
    around the disc), what was found before stands.

    A first look may find several parts. The largest is not always the structure: a bright lesion
    may be larger than the disc, and bright places may run together into one part. The network is
    surest where the logit is highest. A first look may also find a spot of the structure: around
    it ``least_side`` leaves room for the whole.

    From afar a structure may be smaller than in any training image of another site, and then a
    first look may be surest of a lesion. With ``scales`` squares that overlap by half are first
    looks, too. Each first look is followed by its further ones, and the end is kept of which the
    network is surest by the expected Dice of what it found there, the part m of the probabilities
    p:

    .. math:: E = \frac{2 \sum_{i \in m} p_i}{|m| + \sum_i p_i}

    A lesion may have higher logits than a disc; but its border is less certain, and lowers E.

    Args:
        size: W x H that the network sees.
        margin: side of the square over that of the structure's box.
        passes: at most; 1: the image is a region of interest already.
        normalise: of each image (C, W, H) that the network sees, whole or cut out; as in the
            training.
        part: where a further pass looks: ``"largest"``, the largest connected part, or
            ``"surest"``, the one with the highest logit.
        mirror_axes: spatial axes that are mirrored together, as in
            :class:`MirroredInferer`: every look is the mean of the logits of both, at twice
            the time. By default nothing is mirrored.
        least_side: of the square, as a share of the image's longer side, in [0, 1].
        scales: sides of the squares that are first looks beside the whole image, as shares of its
            longer side, in (0, 1). 0.5 takes several times as long.

    Logits in, logits out: (B, C, W, H) of the image's own size. The first channel is the outer
    structure.

    Raises:
        ConfigError: ``part`` is another.

    >>> image = torch.zeros(1, 1, 64, 64)
    >>> image[..., 20:30, 40:50] = 1
    >>> logits = CoarseToFineInferer((16, 16))(image, lambda inputs: 10 * inputs - 5)
    >>> logits.shape, bool(((logits > 0) == (image > 0)).float().mean() > 0.99)
    (torch.Size([1, 1, 64, 64]), True)
    """

    size: Sequence[int]
    margin: float = 2.0
    passes: int = 3
    normalise: Callable[[Tensor], Tensor] | None = None
    part: str = "largest"
    mirror_axes: Sequence[int] = ()
    least_side: float = 0.0
    scales: Sequence[float] = ()

    def __post_init__(self) -> None:
        if self.part not in KINDS:
            raise ConfigError(f"part={self.part!r}: give one of {', '.join(KINDS)}.")
        self.mirrored = MirroredInferer(SimpleInferer(), self.mirror_axes)

    def __call__(self, inputs: Tensor, network: Network, *args: Any, **kwargs: Any) -> Any:
        def logits_of(small: Tensor) -> Any:
            return network(small, *args, **kwargs).float()

        def look(images: Tensor) -> Tensor:
            """Logits of images (B, C, W, H), of their own size."""
            small = interpolate(images.float(), self.size, mode="bilinear", antialias=True)
            if self.normalise is not None:
                small = torch.stack([self.normalise(image) for image in small])
            logits = self.mirrored(small, logits_of)
            return interpolate(logits, images.shape[2:], mode="bilinear")

        def look_near(image: Tensor, square: Square) -> Tensor:
            """Logits of a square of an image (C, W, H), in the whole: outside of it nothing is."""
            near = look(image[None, :, square[0], square[1]])[0]
            logits = near.new_full((len(near), *image.shape[1:]), FAR)
            logits[:, square[0], square[1]] = near
            return logits

        def followed(image: Tensor, first: Tensor, whole: Tensor | None = None) -> Tensor:
            """Logits after the further looks around what the first one found in an image.

            Where a first look at a square leads back to most of the image, they are those of the
            first look at the ``whole``.
            """
            logits = first
            for _ in range(self.passes - 1):
                if self.part == "surest":
                    structure = self._surest_part(logits)
                else:
                    parts, _ = ndimage.label((logits[0] > 0).cpu().numpy())
                    # Parts are numbered from 1.
                    largest = np.bincount(parts.flat, minlength=2)[1:].argmax() + 1
                    structure = torch.as_tensor(parts == largest, device=logits.device)
                square = square_around(structure, self.margin, least_side=least_side)
                if square is None:
                    break
                sides = zip(square, image.shape[1:], strict=True)
                if all(side.stop - side.start > MOST_OF_IMAGE * length for side, length in sides):
                    return logits if whole is None else whole
                near = look_near(image, square)
                if not bool((near[0] > 0).any()):
                    break
                logits = near
            return logits

        least_side = max(round(self.least_side * max(inputs.shape[2:])), 1)
        all_logits = look(inputs)
        for image, logits in zip(inputs, all_logits, strict=True):
            surest = followed(image, logits)
            known = self._surest_part(surest)
            for square in _overlapping_squares(self.scales, image.shape[1:]):
                first = look_near(image, square)
                place = int(first[0].argmax())
                # What is known already would only be found again.
                if not bool(first[0].max() > 0) or bool(known.flatten()[place]):
                    continue
                end = followed(image, first, logits)
                known = known | self._surest_part(end)
                if self._expected_dice(end) > self._expected_dice(surest):
                    surest = end
            # A view of ``all_logits``: it is changed in place.
            logits.copy_(surest)
        return all_logits

    def _expected_dice(self, logits: Tensor) -> float:
        """How sure the network is of what it found."""
        part = self._surest_part(logits)
        probabilities = torch.sigmoid(logits[0])
        return float(2 * probabilities[part].sum() / (part.sum() + probabilities.sum()))

    def _surest_part(self, logits: Tensor) -> Tensor:
        """The part of the outer structure that holds the highest logit."""
        outer = logits[0]
        return surest_part(outer > 0, outer)


def _overlapping_squares(scales: Sequence[float], size: Sequence[int]) -> list[Square]:
    """The squares, of sides that are shares of the longer side, which overlap by half.

    >>> len(_overlapping_squares([0.5], (512, 512))), len(_overlapping_squares([0.5], (512, 256)))
    (9, 3)
    """
    squares: list[Square] = []
    for scale in scales:
        side = round(scale * max(size))
        along = []
        for length in size:
            last = max(length - side, 0)
            steps = math.ceil(2 * last / side)
            starts = [round(last * step / max(steps, 1)) for step in range(steps + 1)]
            along.append([slice(start, min(start + side, length)) for start in starts])
        squares += itertools.product(*along)
    return squares
