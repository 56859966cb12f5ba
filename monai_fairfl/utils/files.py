# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all, files of PyTorch read safely, and names safe in a path."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as dump_tensors

from monai_fairfl.errors import ConfigError, DiskFullError, FederationError
from monai_fairfl.utils.tensors import on_cpu

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system answers where a disk, a quota or a file may not grow any more."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for one run; it is free again when that ends, however it ends.

    Raises:
        FederationError: when another run has locked it.
    """
    import fcntl  # here, not at the top: Windows has none, and reads what a run left without

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FederationError(f"{folder} is in use by another run: name another") from None
        except OSError as error:  # such as a network drive's
            logger.warning("%s cannot be locked (%s): start no second run in it", folder, error)
        try:
            yield
        finally:
            # Closing the file is not enough: a forked process has it open, too.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter, where it is missing.

    One that exists keeps its mode: its owner may share it with a group. Folders above it that are
    missing, too, are as the system makes them.

    Args:
        folder: to make.

    >>> import tempfile
    >>> made = private_folder(Path(tempfile.mkdtemp(), "sites", "elm"))
    >>> f"{made.stat().st_mode & 0o777:o}"
    '700'
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_atomically(path: Path, data: bytes | memoryview, append: bool = False) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    Args:
        path: of the file; its folder is made where there is none.
        data: its content, which is written beside it, flushed to disk and renamed.
        append: whether it is a line to be added to the file, of which a crash may leave a part.

    Raises:
        DiskFullError: when there is no room; the old file is as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path if append else path.with_name(f".{path.name}.writing")
    before = path.stat().st_size if append and path.exists() else 0
    try:
        with open(written, "ab" if append else "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        if error.errno not in FULL:
            raise
        if before:
            os.truncate(written, before)
        else:
            written.unlink(missing_ok=True)
        raise DiskFullError(f"{path} needs {len(data)} bytes: make room, then resume") from error
    if not append:
        os.replace(written, path)


def write_folder(folder: Path, files: Iterable[tuple[str, bytes]], about: dict[str, Any]) -> None:
    """Write a folder of files so that a crash at any moment leaves either all of it or nothing.

    The manifest is written after all files, and the folder gets its name last.

    Args:
        folder: replaced when it is there.
        files: name in the folder and content, one at a time.
        about: goes into the folder's ``manifest.json``, with the SHA-256 of each file.

    Raises:
        DiskFullError: when there is no room; the old folder is as before.
    """
    beside = folder.with_name(f".writing-{folder.name}")
    replaced = folder.with_name(f".writing-{folder.name}.old")
    for leftover in (beside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    sums = {}
    try:
        for name, content in files:
            write_atomically(beside / name, content)
            sums[name] = hashlib.sha256(content).hexdigest()
        manifest = json.dumps({**about, "sha256": sums}, sort_keys=True, indent=1)
        write_atomically(beside / MANIFEST, manifest.encode())
    except DiskFullError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    # To delete the old folder takes time, in which a crash would leave neither.
    if folder.exists():
        os.replace(folder, replaced)
    os.replace(beside, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def read_listed(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """One file of a folder that :func:`write_folder` wrote, checked against its manifest.

    Raises:
        ValueError: when it is not what was written.
    """
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
        raise ValueError(f"{name} was changed or cut short")
    return data


def tensors_as_bytes(weights: Mapping[str, torch.Tensor]) -> bytes:
    """``weights`` as the content of a safetensors file."""
    return dump_tensors({name: on_cpu(tensor).contiguous() for name, tensor in weights.items()})


# ---- files of torch.save, read without running what is in them


def load_saved(path: str | Path) -> Any:
    """The content of a file of ``torch.save``, on the CPU: only tensors and plain values are read.

    PyTorch reads a damaged archive without a word, and its tensors are then others, so its
    checksums are compared first. An older format, which is no archive, has none.

    Raises:
        ConfigError: when the file is missing, damaged or something else; it names the reason.
    """
    try:
        damaged = None
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        if damaged is None:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged byte leads to
        damaged = getattr(error, "strerror", None) or type(error).__name__
    raise ConfigError(f"{path} is no whole torch.save(state_dict) ({damaged}): copy it again")


# ---- names

LONGEST_NAME = 128
"""Characters that a run's name may have."""


OF_NAMES = "letters A to Z, digits or '_', and behind the first one also '-', '.' and spaces"


def safe_name(name: str, what: str = "client name", most: int = 64) -> str:
    """``name``, if it can be a file name everywhere.

    Args:
        name: of a client, or of a run.
        what: it is, for the message.
        most: characters.

    Raises:
        ConfigError: for names with other characters than letters, digits, ``_``, ``-``, ``.`` and
            space, names that do not begin with a letter, a digit or ``_``, or that are longer than
            ``most`` characters.

    >>> safe_name("RUNMC-3T")
    'RUNMC-3T'
    """
    if not re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9_. -]{{0,{most - 1}}}", name):
        raise ConfigError(f"{what} {name!r:.99} cannot be used: give it 1 to {most} {OF_NAMES}")
    return name


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Different names of files: each with as many of its folders as that takes, else a number.

    >>> distinct_names(["a/elm/Case00.nii.gz", "a/oak/Case00.nii.gz"])
    ['elm/Case00.nii.gz', 'oak/Case00.nii.gz']
    >>> distinct_names(["a/Case00.nii.gz", "a/Case01.nii.gz"])
    ['Case00.nii.gz', 'Case01.nii.gz']
    """
    parts = [Path(path).parts for path in paths]
    for depth in range(1, 1 + max(map(len, parts), default=0)):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(number) for number in range(len(paths))]
