# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Wrong labels: blobs anywhere."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
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


class CorruptLabeld(MapTransform):
    """Make the labels of a share of a client's cases wrong; all other labels stay as they are.

    CGSV (Xu et al., NeurIPS 2021, Fig. 2) gives clients 20, 40 or 60 % wrong digits. The nearest to
    a wrong digit is a smooth blob of the structure's area anywhere: A is the structure in one
    channel and image plane, and its blob the |A| highest pixels of Gaussian noise smoothed with
    sqrt(|A_max|) / 2 pixels, where A_max is the largest A of the case. All channels and planes of
    a case share one noise, so a cup stays inside its disc and planes fit together. Dice with the
    true label is chance: on average the structure's share of the plane.

    Only the ``cases`` given can be chosen, so with the training cases the transform may stand among
    transforms that validation and test cases pass too: these keep their true labels. An empty label
    stays empty.

    Args:
        keys: keys of the labels, C x H x W or C x H x W x D of zeros and ones; a channel of -1,
            whose structure is not labelled, stays.
        cases: the client's training cases, in a config ``$@datalist['training']``.
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
    >>> corrupt = CorruptLabeld("label", [{"label": "a.png"}], share=1.0)
    >>> wrong = corrupt({"label": label})["label"]
    >>> int(wrong.sum()), bool((wrong == label).all())
    (81, False)
    """

    def __init__(
        self,
        keys: KeysCollection,
        cases: Sequence[CaseFiles],
        share: float = 0.2,
        seed: int = 0,
        channels: Sequence[int] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
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
            wrong = _random_blob(truth, rng)
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
