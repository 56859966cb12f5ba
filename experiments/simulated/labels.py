# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Wrong labels: blobs anywhere, structures moved, too small or too large."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.config import KeysCollection
from monai.transforms import MapTransform
from monai.utils import convert_to_dst_type
from scipy import ndimage

from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError, DataError

from .case import array_of, file_of, generator_of, name_of
from .partition import pick


def corrupted_cases(
    cases: Sequence[CaseFiles], share: float, seed: int = 0, key: str = "label"
) -> list[CaseFiles]:
    """Choose which cases' labels are corrupted.

    Chosen are floor(share n + 1/2) of n cases, at least one if ``share`` is above 0.
    A larger share has the same cases and more; their order does not matter.

    Args:
        cases: a client's cases.
        share: of them, from 0 to 1.
        seed: of the choice.
        key: whose file, ``FOLDER/NAME``, is the case's identity; what has the same one counts as
            one case.

    Returns:
        The chosen cases, in the order of ``cases``.

    Raises:
        ConfigError: a case has no ``key``, or ``share`` is out of range.

    >>> cases = [{"label": f"SITE/Case{n:02d}_segmentation.nii.gz"} for n in range(5)]
    >>> len(corrupted_cases(cases, 0.2)), len(corrupted_cases(cases, 0.6))
    (1, 3)
    """
    if any(key not in case for case in cases):
        raise ConfigError(
            f"a case has no {key!r}: give the training cases, as $@datalist['training']."
        )
    names = [name_of(case[key]) for case in cases]
    chosen = set(pick(names, share, seed))
    return [case for case, name in zip(cases, names) if name in chosen]


def _shift(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move a label, C x H x W x D, in plane by half of its own size."""
    angle = rng.uniform(0, 2 * np.pi)
    offset = [0.0] * label.ndim
    for axis, component in ((1, np.sin(angle)), (2, np.cos(angle))):
        other_axes = tuple({0, 1, 2, 3} - {axis})
        occupied = np.flatnonzero(label.any(axis=other_axes))
        first = occupied[0]
        last = occupied[-1]
        extent = last - first + 1
        # Rounded up, because a label of one pixel must move, too.
        step = np.ceil(abs(component) * extent / 2)
        # Where the image would end, the label moves to the side with more room.
        room_before = first
        room_after = label.shape[axis] - 1 - last
        if step <= min(room_before, room_after):
            is_forward = component > 0
        else:
            is_forward = room_after > room_before
        offset[axis] = step if is_forward else -step
    shifted: np.ndarray = ndimage.shift(label.astype(np.uint8), offset, order=0).astype(bool)
    return shifted


def _erode_dilate(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Make a label, C x H x W x D, three times smaller or larger in each plane."""
    planes = label.transpose(0, 3, 1, 2)
    areas = planes.sum(axis=(2, 3))
    pixels_in_plane = planes[0, 0].size
    is_grown = bool(rng.integers(2)) and 3 * areas.max() <= pixels_in_plane
    changed = np.zeros_like(planes)
    for channel, plane in np.argwhere(areas):
        mask = planes[channel, plane]
        area = areas[channel, plane]
        # Positive inside, negative outside.
        distance_to_outside = ndimage.distance_transform_edt(mask)
        distance_to_inside = ndimage.distance_transform_edt(~mask)
        depth = distance_to_outside - distance_to_inside
        count = 3 * area if is_grown else round(area / 3)
        changed[channel, plane] = _highest(depth, count)
    return changed.transpose(0, 2, 3, 1)


def _random_blob(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace a label, C x H x W x D, by blobs of the same area in each plane."""
    planes = label.transpose(0, 3, 1, 2)
    areas = planes.sum(axis=(2, 3))
    # One noise for all channels and planes, so that a cup stays inside its disc.
    noise = rng.standard_normal(planes.shape[2:])
    field = ndimage.gaussian_filter(noise, np.sqrt(areas.max()) / 2, mode="wrap")
    blobs = np.zeros_like(planes)
    for channel, plane in np.ndindex(*areas.shape):
        blobs[channel, plane] = _highest(field, areas[channel, plane])
    return blobs.transpose(0, 2, 3, 1)


def _highest(score: np.ndarray, count: int) -> np.ndarray:
    """True at the ``count`` highest values."""
    mask = np.zeros(score.size, dtype=bool)
    mask[np.argsort(-score, axis=None, kind="stable")[:count]] = True
    return mask.reshape(score.shape)


_LABEL_KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "shift": _shift,
    "erode_dilate": _erode_dilate,
    "random_blob": _random_blob,
}


class CorruptLabeld(MapTransform):
    """Make the labels of a share of a client's cases wrong; all other labels stay as they are.

    CGSV (Xu et al., NeurIPS 2021, Fig. 2) gives clients 20, 40 or 60 % wrong digits. A label image
    can be wrong in more than one way. A is the structure in one channel and image plane, and Dice
    is that of the wrong with the true label:

    - ``random_blob``: a smooth blob of |A| pixels anywhere, the nearest to a wrong digit: the |A|
      highest pixels of Gaussian noise smoothed with sqrt(|A_max|) / 2 pixels, where A_max is the
      largest A of the case. All channels and planes of a case share one noise, so a cup stays
      inside its disc and planes fit together. Dice is chance: on average the structure's share of
      the plane.
    - ``shift``: all structures are moved in plane by half of their common height and width,
      (h / 2 sin t, w / 2 cos t) with a direction t of the case, rounded up to whole pixels; where
      the image would end, to the side with more room. Dice is 0.39 for an ellipse and 0.31 for an
      ellipsoid of many pixels, at most 0.5 for a rectangle, unless both sides have too little room.
    - ``erode_dilate``: all too small or all too large, with equal probability: the |A| / 3 pixels
      deepest inside, or A and the 2 |A| nearest outside. Dice is 1/2. Where 3 |A| pixels exceed the
      plane, it is too small.

    Only the ``cases`` given can be chosen, so with the training cases the transform may stand among
    transforms that validation and test cases pass too: these keep their true labels. An empty label
    stays empty.

    Args:
        keys: keys of the labels, C x H x W or C x H x W x D of zeros and ones; a channel of -1,
            whose structure is not labelled, stays.
        cases: the client's training cases, in a config ``$@datalist['training']``.
        kind: ``"random_blob"``, ``"shift"`` or ``"erode_dilate"``.
        share: of the cases, 0 to 1, see :func:`corrupted_cases`.
        seed: decides with the cases' files which are chosen and how they are corrupted.
        channels: numbers of the structures that are corrupted, 1 for the cup of disc and cup;
            ``None``: all.
        allow_missing_keys: whether keys may be absent.

    Returns (of a call):
        The data; the label has its type and metadata.

    Raises:
        ConfigError: an argument is out of range.
        DataError: a label does not know its file, or has other values or another number of axes.

    >>> import numpy as np
    >>> from monai.data import MetaTensor
    >>> square = np.pad(np.ones((1, 9, 9)), ((0, 0), (9, 9), (9, 9)))
    >>> label = MetaTensor(square, meta={"filename_or_obj": "a.png"})
    >>> corrupt = CorruptLabeld("label", [{"label": "a.png"}], "shift", share=1.0)
    >>> wrong = corrupt({"label": label})["label"]
    >>> int(wrong.sum()), bool((wrong == label).all())
    (81, False)
    """

    def __init__(
        self,
        keys: KeysCollection,
        cases: Sequence[CaseFiles],
        kind: str = "random_blob",
        share: float = 0.2,
        seed: int = 0,
        channels: Sequence[int] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        if kind not in _LABEL_KINDS:
            raise ConfigError(f"kind={kind!r}: give one of {', '.join(_LABEL_KINDS)}.")
        self.kind = kind
        self.seed = seed
        self.channels = channels
        # File of a label that is corrupted -> what seeds its damage, the same for all keys.
        self._identity: dict[str, str] = {}
        first_key = str(self.keys[0])
        for case in corrupted_cases(cases, share, seed, first_key):
            for key in self.keys:
                if str(key) in case:
                    file = os.path.abspath(case[str(key)])
                    self._identity[file] = name_of(case[first_key])

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            file = file_of(d[key])
            if file is None:
                raise DataError(
                    f"{key!r} does not know its file, which decides whether it is corrupted. Put"
                    " this transform after LoadImaged and before slices are drawn."
                )
            identity = self._identity.get(os.path.abspath(file))
            if identity is not None:
                d[key] = self._corrupted(key, d[key], generator_of(self.seed, identity))
        return d

    def _corrupted(self, key: Hashable, value: Any, rng: np.random.Generator) -> Any:
        label = array_of(key, value, np.float32).copy()
        self._check(key, label)
        # Labelled channels as C x H x W x D, where a picture has one slice.
        is_labelled = label.reshape(len(label), -1).min(axis=1) >= 0
        height, width = label.shape[1:3]
        num_slices = int(np.prod(label.shape[3:]))
        truth = label[is_labelled].reshape(-1, height, width, num_slices) > 0
        if truth.any():
            corrupted = label.copy()
            wrong = _LABEL_KINDS[self.kind](truth, rng)
            corrupted[is_labelled] = wrong.reshape(-1, *label.shape[1:])
            if self.channels is None:
                label = corrupted
            else:
                chosen = list(self.channels)
                label[chosen] = corrupted[chosen]
        return convert_to_dst_type(label, value)[0]

    def _check(self, key: Hashable, label: np.ndarray) -> None:
        is_wrong = ~np.isin(label, (-1, 0, 1))
        if is_wrong.any():
            raise DataError(
                f"{key!r} has values such as {label[is_wrong][0]:g}: give each structure its"
                " channel of zeros and ones before this transform."
            )
        if self.channels is not None and not set(self.channels) <= set(range(len(label))):
            raise ConfigError(
                f"channels={list(self.channels)}: {key!r} has the channels 0 to {len(label) - 1}."
            )
