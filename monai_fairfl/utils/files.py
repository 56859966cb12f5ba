# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save as dump_tensors

from monai_fairfl.errors import DiskFullError, FederationError
from monai_fairfl.messages import Weights
from monai_fairfl.utils.tensors import on_cpu

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system answers where a disk, a quota or a file may not grow any more."""


def _write_flushed(file: Path, data: bytes | memoryview, mode: str, called: Path) -> None:
    """Write to a file, whose folder is made where there is none, and return when it is on disk.

    Raises:
        DiskFullError: as ``called``, with the bytes that it needs and those that are free.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, mode) as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = shutil.disk_usage(next(folder for folder in file.parents if folder.exists())).free
        raise DiskFullError(
            f"{called} could not be written ({error.strerror}): it needs {len(data)} bytes, {free} "
            "are free there. What was written before is whole. Make room, then go on: a run with "
            "--resume True; a site by itself, in the next round"
        ) from error


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
            raise FederationError(
                f"{folder} is in use by another run: wait until that has ended, or choose another "
                "run_dir or name"
            ) from None
        except OSError as error:
            logger.warning(
                "%s cannot be locked for one run (%s): start no second one in it", folder, error
            )
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


def write_atomically(path: str | Path, data: bytes | memoryview) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    Args:
        path: of the file.
        data: its content, which is written beside it, flushed to disk and renamed.

    Raises:
        DiskFullError: when there is no room; the old file is as before.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.writing")
    try:
        _write_flushed(beside, data, "wb", called=path)
    except DiskFullError:
        # Half a file would take the room that a user makes.
        beside.unlink(missing_ok=True)
        raise
    os.replace(beside, path)


def append_line(path: str | Path, line: bytes) -> None:
    """Append one line to a file, flushed to disk.

    Args:
        path: of the file.
        line: with its line break.

    Raises:
        DiskFullError: when there is no room; the file is as before.
    """
    path = Path(path)
    before = path.stat().st_size if path.exists() else 0
    try:
        _write_flushed(path, line, "ab", called=path)
    except DiskFullError:
        # Part of the line may have found room.
        if path.exists():
            os.truncate(path, before)
        raise


def write_folder(
    folder: str | Path, files: Iterable[tuple[str, bytes]], about: Mapping[str, Any]
) -> None:
    """Write a folder of files so that a crash at any moment leaves either all of it or nothing.

    The manifest is written after all files, and the folder gets its name last.

    Args:
        folder: replaced when it is there.
        files: name in the folder and content, one at a time.
        about: goes into the folder's ``manifest.json``, with the SHA-256 of each file.

    Raises:
        DiskFullError: when there is no room; the old folder is as before.
    """
    folder = Path(folder)
    beside = folder.with_name(f".writing-{folder.name}")
    replaced = folder.with_name(f".writing-{folder.name}.old")
    for leftover in (beside, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    sums = {}
    try:
        for name, content in files:
            _write_flushed(beside / name, content, "wb", called=folder / name)
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


def sha256_of(file: str | Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def read_listed(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """One file of a folder that :func:`write_folder` wrote, checked against its manifest.

    Raises:
        ValueError: when it is not what was written.
    """
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
        raise ValueError(f"{name} was changed or cut short")
    return data


def tensors_as_bytes(weights: Weights) -> bytes:
    """``weights`` as the content of a safetensors file."""
    return dump_tensors({name: on_cpu(tensor).contiguous() for name, tensor in weights.items()})
