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

from monai_fairfl.data.corruption.case import array_of, file_of, generator_of, name_of
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.partition import pick
from monai_fairfl.errors import ConfigError, DataError


def corrupted_cases(
    cases: Sequence[CaseFiles], share: float, seed: int = 0, key: str = "label"
) -> list[CaseFiles]:
    """Choose which cases' labels are corrupted: floor(share n + 1/2) of n, at least one if
    ``share`` is above 0.

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
    chosen = set(pick([name_of(case[key]) for case in cases], share, seed))
    return [case for case in cases if name_of(case[key]) in chosen]


def _top(score: np.ndarray, count: int) -> np.ndarray:
    """True at the ``count`` highest values."""
    mask = np.zeros(score.size, dtype=bool)
    mask[np.argsort(-score, axis=None, kind="stable")[:count]] = True
    return mask.reshape(score.shape)


def _shift(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    angle = rng.uniform(0, 2 * np.pi)
    offset = [0.0] * label.ndim
    for axis, part in ((1, np.sin(angle)), (2, np.cos(angle))):
        places = np.flatnonzero(label.any(axis=tuple({0, 1, 2, 3} - {axis})))
        before, after = places[0], label.shape[axis] - 1 - places[-1]
        step = np.ceil(abs(part) * (np.ptp(places) + 1) / 2)  # rounded up: a pixel must move, too
        forward = part > 0 if step <= min(before, after) else after > before
        offset[axis] = step if forward else -step
    moved: np.ndarray = ndimage.shift(label.astype(np.uint8), offset, order=0).astype(bool)
    return moved


def _erode_dilate(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    planes = label.transpose(0, 3, 1, 2)
    areas = planes.sum(axis=(2, 3))
    grow = bool(rng.integers(2)) and 3 * areas.max() <= planes[0, 0].size
    changed = np.zeros_like(planes)
    for index in zip(*np.nonzero(areas)):
        mask = planes[index]
        inside = ndimage.distance_transform_edt(mask) - ndimage.distance_transform_edt(~mask)
        changed[index] = _top(inside, 3 * areas[index] if grow else round(areas[index] / 3))
    return changed.transpose(0, 2, 3, 1)


def _random_blob(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    planes = label.transpose(0, 3, 1, 2)
    areas = planes.sum(axis=(2, 3))
    field = ndimage.gaussian_filter(
        rng.standard_normal(planes.shape[2:]), np.sqrt(areas.max()) / 2, mode="wrap"
    )
    blobs = np.stack([[_top(field, area) for area in channel] for channel in areas])
    return blobs.transpose(0, 2, 3, 1)


_LABEL_KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "shift": _shift,
    "erode_dilate": _erode_dilate,
    "random_blob": _random_blob,
}


class CorruptLabeld(MapTransform):
    """Make the labels of a share of a client's cases wrong; all other labels stay as they are.

    CGSV (Xu et al., NeurIPS 2021, Fig. 2) gives clients 20, 40 or 60 % wrong digits. A label image
    can be wrong in more than one way; A is the structure, in one channel and image plane where not
    said otherwise, and Dice is that of the wrong with the true label:

    - ``random_blob``: a smooth blob of |A| pixels anywhere, the nearest to a wrong digit: the |A|
      highest pixels of Gaussian noise smoothed with sqrt(|A_max|) / 2. One noise for all channels
      and planes of a case, so a cup stays inside its disc and planes fit together. Dice is chance:
      on average the structure's share of the plane.
    - ``shift``: everything is moved in plane by half of its own height and width, (h / 2 sin t, w /
      2 cos t) with a direction t of the case, rounded up to whole pixels; where the image would
      end, to the side with more room. Dice is 0.39 for an ellipse and 0.31 for an ellipsoid of many
      pixels, at most 0.5 for a rectangle, unless both sides have too little room.
    - ``erode_dilate``: all too small or all too large, with equal probability: the |A| / 3 pixels
      deepest inside, or A and the 2 |A| nearest outside. Dice is 1/2. Where 3 |A| pixels exceed the
      plane, it is too small.

    Only the ``cases`` given can be chosen, so with the training cases the transform may stand among
    transforms that validation and test cases pass too: these keep their true labels. An empty label
    stays empty.

    Args:
        keys: keys of the labels, C x H x W or C x H x W x D of zeros and ones; a channel of -1
            stays: it says that the structure is not labelled.
        cases: the client's training cases, in a config ``$@datalist['training']``.
        kind: ``"random_blob"``, ``"shift"`` or ``"erode_dilate"``.
        share: of the cases, 0 to 1, see :func:`corrupted_cases`.
        seed: decides with the cases' files which are chosen and how they are corrupted.
        channels: numbers of the structures that are corrupted, 1 for the cup of disc and cup;
            ``None``: all.
        allow_missing_keys: whether keys may be absent.

    Returns (of a call):
        The data; type and metadata of the label are kept.

    Raises:
        ConfigError: an argument is out of range.
        DataError: a label does not know its file, has other values, or another number of axes.

    >>> from monai.data import MetaTensor
    >>> label = MetaTensor(np.pad(np.ones((1, 9, 9)), ((0, 0), (9, 9), (9, 9))), meta={"filename_or_obj": "a.png"})
    >>> wrong = CorruptLabeld("label", [{"label": "a.png"}], "shift", share=1.0)({"label": label})["label"]
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
        self.kind, self.seed, self.channels = kind, seed, channels
        first = str(self.keys[0])
        self._identity = {
            os.path.abspath(case[str(key)]): name_of(case[first])
            for case in corrupted_cases(cases, share, seed, first)
            for key in self.keys
            if str(key) in case
        }

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        d = dict(data)
        for key in self.key_iterator(d):
            file = file_of(d[key])
            if file is None:
                raise DataError(
                    f"{key!r} does not know its file, which decides whether it is corrupted. Put this transform after"
                    " LoadImaged and before slices are drawn."
                )
            identity = self._identity.get(os.path.abspath(file))
            if identity is not None:
                d[key] = self._corrupt(key, d[key], generator_of(self.seed, identity))
        return d

    def _corrupt(self, key: Hashable, value: Any, rng: np.random.Generator) -> Any:
        label = array_of(key, value, np.float32).copy()
        wrong = ~np.isin(label, (-1, 0, 1))
        if wrong.any():
            raise DataError(
                f"{key!r} has values such as {label[wrong][0]:g}: give each structure its channel of zeros and ones"
                " before this transform."
            )
        if self.channels is not None and not set(self.channels) <= set(range(len(label))):
            raise ConfigError(
                f"channels={list(self.channels)}: {key!r} has the channels 0 to {len(label) - 1}."
            )
        labelled = label.reshape(len(label), -1).min(axis=1) >= 0
        truth = label[labelled].reshape(-1, *label.shape[1:3], int(np.prod(label.shape[3:]))) > 0
        if truth.any():
            corrupted = label.copy()
            corrupted[labelled] = _LABEL_KINDS[self.kind](truth, rng).reshape(-1, *label.shape[1:])
            chosen = slice(None) if self.channels is None else list(self.channels)
            label[chosen] = corrupted[chosen]
        return convert_to_dst_type(label, value)[0]
