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

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system answers where a disk, a quota or a file may not grow any more."""


@contextmanager
def naming_a_full_disk(path: Path, size: int) -> Iterator[None]:
    """Raise a :class:`~monai_fairfl.errors.DiskFullError` where ``path`` cannot grow.

    Args:
        path: that is written.
        size: bytes that it needs.

    Raises:
        DiskFullError: naming the file, the bytes that it needs and those that are free.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(
            f"{path} could not be written ({error.strerror}): it needs {size} bytes, "
            f"{_free_bytes(path)} are free there. What was written before is whole. Make room, "
            "then go on: a run with --resume True; a site by itself, in the next round"
        ) from error


def _free_bytes(path: Path) -> int:
    """Free bytes of the file system on which ``path`` would lie."""
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


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
        with naming_a_full_disk(path, len(data)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
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
        with naming_a_full_disk(path, len(line)):
            with open(path, "ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
    except DiskFullError:
        # Part of the line may have found room.
        if path.exists():
            os.truncate(path, before)
        raise


def write_folder(
    folder: str | Path, files: Iterable[tuple[str, bytes]], about: Mapping[str, Any]
) -> None:
    """Write a folder of files so that a crash at any moment leaves either all of it or nothing.

    All files are flushed to disk before the manifest is written,
    and the folder gets its name last.

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
    sizes = {}
    try:
        for name, content in files:
            path = beside / name
            sizes[path] = len(content)
            sums[name] = _write_hashed(path, content)
        for path, size in sizes.items():
            _flush(path, size)
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


def _write_hashed(path: Path, content: bytes) -> str:
    """Write a file, which may still lie in the system's memory, and return its SHA-256."""
    with naming_a_full_disk(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _flush(path: Path, size: int) -> None:
    """Return when a file that was written is on disk."""
    with naming_a_full_disk(path, size), open(path, "r+b") as file:
        os.fsync(file.fileno())


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
    tensors = {}
    for name, tensor in weights.items():
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    return dump_tensors(tensors)
