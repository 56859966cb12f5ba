# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Infers on the slices of a volume with their mirror images, and on photographs in passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.inferers import Inferer, SliceInferer
from scipy import ndimage
from torch.nn.functional import interpolate

from monai_fairfl.data.fundus import square_around

FAR = -20.0
"""Logit outside of the square that a further pass looks at: certainly no structure."""

MOST_OF_IMAGE = 0.8
"""Share of an image's sides above which a square is most of the image already."""


class MirroredSliceInferer(SliceInferer):
    """The mean of the logits of a volume and of its mirror image, mirrored back.

    It takes one forward pass more. For organs that are symmetric and networks trained with the same
    flips.

    Args:
        mirror_axes: spatial axes that are mirrored together; 0 is left and right of a volume in LPS
            order.
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

    def __call__(
        self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        straight: Any = super().__call__(inputs, network, *args, **kwargs)
        mirrored: Any = super().__call__(inputs.flip(self.dims), network, *args, **kwargs)
        mean: torch.Tensor = (straight + mirrored.flip(self.dims)) / 2
        return mean


class CoarseToFineInferer(Inferer):
    """Finds a structure in the whole image, then looks again from near, with the same network.

    The image is resized to what the network was trained with. Around the largest connected part of
    the outer structure that it finds there, a square is cut from the image as it came, resized
    alike, and its logits take the place of the first ones; outside of the square nothing is. A
    further pass does the same around what was then found, for a first look often sees a part only.
    Where nothing is found, or the square is most of the image already (a photograph that was cut
    around the disc), what was found before stands.

    Args:
        size: W x H that the network sees.
        margin: side of the square over that of the structure's box.
        channel: of the outer structure.
        passes: at most; 1: the image is a region of interest already.
        normalise: of each image (C, W, H) that the network sees, whole or cut out; as in the
            training.

    Logits in, logits out: (B, C, W, H) of the image's own size.

    >>> image = torch.zeros(1, 1, 64, 64)
    >>> image[..., 20:30, 40:50] = 1
    >>> logits = CoarseToFineInferer((16, 16))(image, lambda inputs: 10 * inputs - 5)
    >>> logits.shape, bool(((logits > 0) == (image > 0)).float().mean() > 0.99)
    (torch.Size([1, 1, 64, 64]), True)
    """

    def __init__(
        self,
        size: Sequence[int],
        margin: float = 2.0,
        channel: int = 0,
        passes: int = 3,
        normalise: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ):
        super().__init__()
        self.size = tuple(size)
        self.margin = margin
        self.channel = channel
        self.passes = passes
        self.normalise = normalise

    def __call__(
        self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        def look(images: torch.Tensor) -> torch.Tensor:
            """Logits of images (B, C, W, H), of their own size."""
            small = interpolate(images.float(), self.size, mode="bilinear", antialias=True)
            if self.normalise is not None:
                small = torch.stack([self.normalise(image) for image in small])
            logits = network(small, *args, **kwargs).float()
            return interpolate(logits, images.shape[2:], mode="bilinear")

        all_logits = look(inputs)
        for image, logits in zip(inputs, all_logits, strict=True):
            for _ in range(self.passes - 1):
                structure = _largest_part(logits[self.channel] > 0)
                square = square_around(structure, self.margin)
                if square is None or _is_most_of(square, image.shape[1:]):
                    break
                near = look(image[None, :, square[0], square[1]])[0]
                if not bool((near[self.channel] > 0).any()):
                    break
                # A view of ``all_logits``: it is changed in place.
                logits.fill_(FAR)
                logits[:, square[0], square[1]] = near
        return all_logits


def _is_most_of(square: Sequence[slice], size: Sequence[int]) -> bool:
    """Whether each side of ``square`` is most of the image's side."""
    for side, length in zip(square, size, strict=True):
        if side.stop - side.start <= MOST_OF_IMAGE * length:
            return False
    return True


def _largest_part(mask: torch.Tensor) -> torch.Tensor:
    """The largest connected part of a mask."""
    array = mask.cpu().numpy()
    parts, count = ndimage.label(array)
    if count < 2:
        return mask
    sizes = ndimage.sum_labels(array, parts, range(1, count + 1))
    # Parts are numbered from 1.
    largest = int(sizes.argmax()) + 1
    return torch.as_tensor(parts == largest, device=mask.device)
