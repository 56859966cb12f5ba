# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of ``torch.save``, read without running what is in them; errors name the reason."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.errors import ConfigError, in_words

NOT_WHOLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,  # UnicodeDecodeError is one: a name in the archive is damaged
    RuntimeError,  # NotImplementedError is one: the name of a method of compression is damaged
    EOFError,
    OSError,
)
"""Exceptions that reading a damaged zip archive raises."""


def require_whole(path: str | Path) -> None:
    """Refuse an archive of PyTorch whose content is not what was written.

    PyTorch reads such a file without a word, and its tensors are then others. An older format,
    which is no archive, has no checksums.

    Raises:
        ConfigError: naming the file and what is damaged in it.
    """
    damaged = None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
    except NOT_WHOLE as error:
        damaged = in_words(error)
    if damaged is not None:
        raise ConfigError(
            f"{path} is damaged: its checksums do not fit its content ({damaged}). Copy it again "
            "from where it was written"
        )


def load_saved(path: str | Path) -> Any:
    """The content of a file of ``torch.save``, on the CPU: only tensors and plain values are read.

    Raises:
        ConfigError: when the file is missing, damaged or something else; it names the reason.
    """
    require_whole(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises whatever a damaged byte leads to
        # A damaged file may name a place in it that no file has, which is EINVAL.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}): give a file that exists and is readable"
            ) from None
        raise ConfigError(
            f"{path} is no state_dict of torch.save ({type(error).__name__}): it is damaged, or "
            "holds more than tensors and plain values, such as a whole network: save its state_dict"
        ) from error


def read_state_dict(path: str | Path) -> Mapping[str, torch.Tensor]:
    """The ``state_dict`` in a file of ``torch.save``: the whole content, or its entry ``"model"``.

    MONAI's ``CheckpointLoader`` reads the same.

    Raises:
        ConfigError: when the file is missing, damaged or something else; it names the reason.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "a.pt")
    >>> torch.save({"model": {"w": torch.ones(1)}, "epoch": 3}, file)
    >>> read_state_dict(file)
    {'w': tensor([1.])}
    >>> torch.save([torch.ones(1)], file)
    >>> read_state_dict(file)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: ...a.pt is no state_dict of torch.save but a list
    """
    found = load_saved(path)
    if isinstance(found, Mapping) and isinstance(found.get("model"), Mapping):
        found = found["model"]
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path} is no state_dict of torch.save but a {type(found).__name__}")
    return found
