# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation without the bookkeeping of where voxels lie.

Training does not need it, and for small images it takes longer than the augmentation itself.
"""

from __future__ import annotations

import threading as threads
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose, RandomizableTrait, Transform


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
        if end is None:
            end = len(self.transforms)
        first_random = self.get_index_of_first(_is_random)
        if first_random is None:
            first_random = len(self.transforms)
        if start < first_random:
            input_ = super().__call__(input_, start, min(first_random, end), threading, lazy)
        if end > first_random:
            start = max(start, first_random)
            with _untracked():
                input_ = super().__call__(input_, start, end, threading, lazy)
        return input_


def _is_random(transform: Any) -> bool:
    """Whether a transform may be random; a plain callable may."""
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)


@contextmanager
def _untracked() -> Iterator[None]:
    """Switch MONAI's tracking off, in the main thread alone."""
    if threads.current_thread() is not threads.main_thread():
        yield
        return
    was_tracked = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(was_tracked)
