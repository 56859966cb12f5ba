# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Remembers what deterministic transforms made of files, for the next run in the same process.

The strategies of a comparison train on the same images, and so do the coalitions of a valuation.
Each run has clients of its own, which load and resample all of these images. A process that
:func:`remember_prepared` was called in does so once.

An item is remembered under all that decides it: the transforms with all their arguments, the
item's own values, and path, size, times and inode of each of its files. What cannot be described
by these is prepared every time, as without a memory: transforms of other packages than MONAI and
this one, and Python's own functions, such as ``open`` and ``eval``, which may read anything;
folders, such as a series of DICOM files; files that were written in the last seconds, whose times
may not show another change.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import pickle
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from monai.data import ImageReader, MetaTensor, get_track_meta
from monai.transforms import (
    Compose,
    DataStats,
    DataStatsd,
    RandomizableTrait,
    SaveImage,
    SaveImaged,
    Transform,
    WriteFileMapping,
    WriteFileMappingd,
)
from monai.utils import TraceKeys

from monai_fairfl.utils.machine import free_memory

LIMIT = 1 << 30
"""Most bytes that a process remembers; what does not fit is prepared every time."""

SHARE_OF_MEMORY = 8
"""A process remembers at most this part (an eighth) of the memory that it could use."""

SECONDS_UNTIL_SETTLED = 2.0
"""Age from which the times of a file show every later change."""

# Packages whose functions and classes do what their names and arguments say.
KNOWN_PACKAGES = ("monai", "monai_fairfl", "torch", "numpy", "nibabel", "PIL")
STANDARD_LIBRARY = ("builtins", "collections", "copyreg", "functools", "pathlib", "_codecs")

# Formats of which one file holds everything.
WHOLE_FILES = (".nii", ".nii.gz", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".npy")

# Attribute of MONAI's readers.
READ_LAST = "filenames"

# These do something besides, every time.
ACTING = (SaveImage, SaveImaged, WriteFileMapping, WriteFileMappingd, DataStats, DataStatsd)


class PreparedItems:
    """Prepared items as bytes, which nobody can change: everyone gets a copy.

    Args:
        limit: bytes that are remembered at most.

    >>> items = PreparedItems(limit=1000)
    >>> items.put("key", {"label": [1, 2]})
    >>> items.get("key"), items.get("another key")
    ({'label': [1, 2]}, None)
    """

    def __init__(self, limit: int = LIMIT):
        self.limit = limit
        self._used = 0
        self._items: dict[str, bytes] = {}
        # Data sets prepare their items in threads.
        self._lock = threading.Lock()

    def get(self, key: str) -> Any:
        """A copy of what is remembered; ``None`` where nothing is."""
        with self._lock:
            data = self._items.get(key)
        return None if data is None else pickle.loads(data)

    def put(self, key: str, item: Any) -> None:
        """Remember an item, where there is room for it and nobody has done so before."""
        data = pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            room = (self._used + free_memory()) // SHARE_OF_MEMORY
            if key in self._items or self._used + len(data) > min(self.limit, room):
                return
            self._items[key] = data
            self._used += len(data)


_memory: PreparedItems | None = None


def remember_prepared() -> None:
    """Let this process remember what :class:`RememberingCompose` prepares, from now on.

    >>> from monai.transforms import Lambdad, ToTensord
    >>> remember_prepared()
    >>> fill = Lambdad("image", lambda image: image.uniform_())  # other values at each call
    >>> prepare = RememberingCompose([ToTensord("image"), fill])
    >>> first, second = [prepare({"image": [0.0, 0.0]})["image"] for run in range(2)]
    >>> bool((first == second).all())  # the second run did not prepare the image again
    True
    """
    global _memory
    if _memory is None:
        _memory = PreparedItems()


class RememberingCompose(Compose):
    """MONAI's ``Compose`` that prepares no item twice in a process that remembers.

    What the transforms before the first random one make of an item is remembered, see this
    module. Values are the same to the bit. A remembered image can be inverted by the same
    transforms of another run: MONAI does not check then whose they were.

    Args:
        transforms: as of ``Compose``; resampling is not lazy.

    >>> import torch
    >>> from monai.transforms import ScaleIntensity
    >>> RememberingCompose([ScaleIntensity()])(torch.tensor([[0.0, 2.0, 4.0]])).tolist()
    [[0.0, 0.5, 1.0]]
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
        """Carry out the transforms from ``start`` up to ``end``.

        Datasets split by these what they cache from what is random.
        """
        if end is None:
            end = len(self.transforms)
        first_random = self.first_random()
        does_prepare = start == 0 and 0 < first_random <= end and not lazy and not self.lazy
        key = None
        if does_prepare and _memory is not None and isinstance(input_, Mapping):
            key = description_of(input_, self.transforms[:first_random])
        if _memory is None or key is None:
            return super().__call__(input_, start, end, threading, lazy)

        prepared = _memory.get(key)
        if prepared is None:
            prepared = super().__call__(input_, 0, first_random, threading, lazy)
            unchanged = description_of(input_, self.transforms[:first_random]) == key
            if unchanged and _is_plain(prepared):
                _memory.put(key, prepared)
        else:
            _let_be_inverted(prepared)
        return super().__call__(prepared, first_random, end, threading, lazy)

    def first_random(self) -> int:
        """Position of the first transform that may be random; a plain callable may."""
        position = self.get_index_of_first(_is_random)
        return len(self.transforms) if position is None else position


class _CannotDescribeError(Exception):
    """Something may decide an item that its description would not show."""


def description_of(item: Mapping[Any, Any], transforms: Sequence[Any]) -> str | None:
    """A digest of all that decides what transforms make of an item.

    Args:
        item: of a data list, with paths of files.
        transforms: the deterministic ones.

    Returns:
        ``None`` where something else may decide it, too.
    """
    if torch.utils.data.get_worker_info() is not None:
        # A process that loads images for this one ends with the epoch, and its memory with it.
        return None
    if any(isinstance(transform, ACTING) for transform in transforms):
        return None
    settings = (
        get_track_meta(),
        str(torch.get_default_dtype()),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
    )
    text = io.BytesIO()
    describer = _Describer(text, protocol=pickle.HIGHEST_PROTOCOL)
    # Equal values give equal bytes, whether or not they are one object.
    describer.fast = True
    try:
        facts = [(key, _with_files(value)) for key, value in item.items()]
        describer.dump((settings, facts, list(transforms)))
    except (_CannotDescribeError, pickle.PicklingError, TypeError, AttributeError, OSError):
        return None
    except (RecursionError, ValueError):
        # What refers to itself has no such description.
        return None
    return hashlib.sha256(text.getbuffer()).hexdigest()


class _Describer(pickle.Pickler):
    """Writes objects with all their attributes, as long as known packages made them."""

    def reducer_override(self, object_: Any) -> Any:
        if isinstance(object_, FunctionType) and object_.__name__ == "<lambda>":
            return str, (_text_of_lambda(object_),)
        if isinstance(object_, ImageReader):
            # A reader notes which files it has read last.
            arguments = {name: value for name, value in vars(object_).items() if name != READ_LAST}
            return list, ((type(object_), arguments),)
        if isinstance(object_, (type, FunctionType, BuiltinFunctionType)):
            package = str(object_.__module__).partition(".")[0]
            if package not in KNOWN_PACKAGES + STANDARD_LIBRARY:
                raise _CannotDescribeError
            # As in a lambda: Python's own functions, such as ``eval`` and ``print``, read, write
            # or run anything. Its types, such as ``float``, do not.
            if package == "builtins" and not isinstance(object_, type):
                raise _CannotDescribeError
        return NotImplemented


def _text_of_lambda(function: FunctionType) -> str:
    """A function without a name by its code, where that uses nothing from outside."""
    code = function.__code__
    variables = inspect.getclosurevars(function)
    # A function of Python's own, such as ``open``, may read anything, too.
    uses_others = variables.nonlocals or variables.globals or variables.builtins
    if uses_others or function.__defaults__ or function.__kwdefaults__:
        raise _CannotDescribeError
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        raise _CannotDescribeError
    return repr((code.co_code, code.co_consts, code.co_names, code.co_varnames))


def _with_files(value: Any) -> Any:
    """A value of an item; a path, with what tells its file from every other."""
    if isinstance(value, (list, tuple)):
        return type(value), [_with_files(each) for each in value]
    if isinstance(value, dict):
        # Such as the pixel values of the structures in a photograph's mask.
        return dict, [(key, _with_files(each)) for key, each in value.items()]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, (str, os.PathLike)):
        raise _CannotDescribeError
    if not os.path.exists(value):
        return value
    path = os.path.abspath(value)
    facts = os.stat(path)
    age = time.time() - max(facts.st_mtime, facts.st_ctime)
    is_whole = stat.S_ISREG(facts.st_mode) and path.lower().endswith(WHOLE_FILES)
    if not is_whole or age < SECONDS_UNTIL_SETTLED:
        raise _CannotDescribeError
    return (
        os.fspath(value),
        path,
        facts.st_dev,
        facts.st_ino,
        facts.st_size,
        facts.st_mtime_ns,
        facts.st_ctime_ns,
    )


def _is_plain(item: Any) -> bool:
    """Whether an item is a dictionary whose images are in the processor's memory."""
    if not isinstance(item, dict):
        return False
    tensors = [value for value in item.values() if isinstance(value, torch.Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors)


def _let_be_inverted(item: Mapping[Any, Any]) -> None:
    """Let the transforms of another run undo what equal ones have done.

    MONAI notes which object acted, and would refuse any other.
    """
    for value in item.values():
        if isinstance(value, MetaTensor):
            for operation in value.applied_operations:
                operation[TraceKeys.ID] = TraceKeys.NONE


def _is_random(transform: Any) -> bool:
    """Whether a transform may be random; a plain callable may."""
    return isinstance(transform, RandomizableTrait) or not isinstance(transform, Transform)
