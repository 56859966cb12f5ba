# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Augmentation without the bookkeeping of where voxels lie: training needs none, and small images
pay dearly for it.
"""

from __future__ import annotations

import threading as threads
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose, RandomizableTrait, Transform


class UntrackedCompose(Compose):
    """A :class:`monai.transforms.Compose` that makes plain tensors from its first random transform
    on.

    MONAI's transforms keep every image's affine and history in a ``MetaTensor``. A network that is
    trained needs neither, and at 64 x 64 keeping them takes longer than the augmentation itself.
    Values and random draws are the same to the bit; what comes before the first random transform,
    and a cache keeps, is tracked as ever. Not for images whose transforms are to be inverted.

    MONAI's switch (``set_track_meta``) holds for the whole process, so it is used in the main
    thread alone: where clients or loaders share a process in threads, everything stays tracked,
    slower and otherwise the same.

    Args:
        transforms: as of ``Compose``; resampling is not lazy.

    >>> import torch
    >>> from monai.data import MetaTensor
    >>> from monai.transforms import RandFlip, ScaleIntensity
    >>> transforms = [ScaleIntensity(), RandFlip(prob=1.0)]
    >>> [isinstance(kind(transforms)(torch.rand(1, 8, 8)), MetaTensor) for kind in (Compose, UntrackedCompose)]
    [True, False]
    """

    def __init__(
        self, transforms: Sequence[Callable[..., Any]] | Callable[..., Any] | None = None
    ) -> None:
        super().__init__(transforms)

    def __call__(
        self,
        input_: Any,
        start: int = 0,
        end: int | None = None,
        threading: bool = False,
        lazy: bool | None = None,
    ) -> Any:
        """Transforms ``start`` up to ``end``, by which datasets split what they cache from what is
        random.
        """
        first = self.get_index_of_first(
            lambda t: isinstance(t, RandomizableTrait) or not isinstance(t, Transform)
        )
        everything = len(self.transforms)
        split, last = everything if first is None else first, everything if end is None else end
        if start < split:
            input_ = super().__call__(input_, start, min(split, last), threading, lazy)
        if last > split:
            with _untracked():
                input_ = super().__call__(input_, max(start, split), last, threading, lazy)
        return input_


@contextmanager
def _untracked() -> Iterator[None]:
    if threads.current_thread() is not threads.main_thread():
        yield
        return
    before = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(before)
