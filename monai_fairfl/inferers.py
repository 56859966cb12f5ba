# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Inference on the slices of a volume, and on photographs in two passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.inferers import Inferer, SliceInferer
from scipy import ndimage
from torch.nn.functional import interpolate

from monai_fairfl.data.fundus import square_around

FAR = -20.0  # logit outside of the second pass: certainly not


class MirroredSliceInferer(SliceInferer):
    """The mean of the logits of a volume and of its mirror image, mirrored back: one forward pass
    more.

    For organs that are symmetric and networks trained with the same flips.

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
    """Finds a structure in the whole image, then looks again from near: several passes of one
    network.

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
        self.size, self.margin, self.channel, self.passes = tuple(size), margin, channel, passes
        self.normalise = normalise

    def __call__(
        self, inputs: torch.Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        def look(images: torch.Tensor) -> torch.Tensor:
            small = interpolate(images.float(), self.size, mode="bilinear", antialias=True)
            if self.normalise is not None:
                small = torch.stack([self.normalise(image) for image in small])
            return interpolate(
                network(small, *args, **kwargs).float(), images.shape[2:], mode="bilinear"
            )

        logits = look(inputs)
        for image, found in zip(inputs, logits, strict=True):
            for _ in range(self.passes - 1):
                square = square_around(_largest(found[self.channel] > 0), self.margin)
                if square is None or all(
                    s.stop - s.start > 0.8 * n for s, n in zip(square, image.shape[1:])
                ):
                    break
                near = look(image[None, :, square[0], square[1]])[0]
                if not bool((near[self.channel] > 0).any()):
                    break
                found.fill_(FAR)
                found[:, square[0], square[1]] = near
        return logits


def _largest(mask: torch.Tensor) -> torch.Tensor:
    """The largest connected part of a mask."""
    parts, count = ndimage.label(mask.cpu().numpy())
    if count < 2:
        return mask
    sizes = ndimage.sum_labels(mask.cpu().numpy(), parts, range(1, count + 1))
    return torch.as_tensor(parts == int(sizes.argmax()) + 1, device=mask.device)
