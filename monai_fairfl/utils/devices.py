# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What this process may use of its machine: devices, cores and memory.

The number of torch's threads changes the last bits of sums.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of a container (control groups)."""

SETTINGS = (-3, -1)
"""``M_MMAP_THRESHOLD`` and ``M_TRIM_THRESHOLD`` of glibc's ``mallopt``, by <malloc.h>."""

LARGEST_REUSED = 1 << 30
"""Bytes of the largest block of memory that is used again, and of a process's reserve."""


def require_device(name: str) -> None:
    """Refuse a device that torch cannot use on this machine.

    Args:
        name: such as ``"cpu"`` or ``"cuda:0"``.

    Raises:
        ConfigError: naming the device and the fix.

    >>> require_device("cpu")
    >>> require_device("cuda:99")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: device cuda:99: PyTorch cannot use it here; ...
    """
    try:
        device = torch.device(name)
        if device.type == "cuda":
            # Counting starts nothing on a GPU, so a worker process can still be forked.
            is_usable = (device.index or 0) < torch.cuda.device_count()
        else:
            is_usable = bool(torch.ones(1, device=device))
    except Exception:  # devices have neither a common error nor a way to ask
        is_usable = False
    if not is_usable:
        raise ConfigError(f"device {name}: PyTorch cannot use it here; name another, or none")


def best_device() -> str:
    """A GPU where torch finds one, else the CPU."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether a device computes in bfloat16 by hardware; emulated, it is slower than float32."""
    kind = torch.device(device)
    if kind.type == "cuda" and torch.cuda.is_available():
        with torch.cuda.device(kind):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind.type != "cpu":
        return False
    # PyTorch 2.8 has no such account.
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Inside, torch computes with so many threads; afterwards with as many as before.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Number of cores that this process may use, at least 1.

    It may be bound to some of the machine's cores, and a container may have a share of their time.

    >>> 1 <= usable_cores() <= os.cpu_count()
    True
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # Microseconds of work in every period of so many microseconds; "max" without a limit.
    if share := _numbers(CGROUP / "cpu.max", r"^(\d+) (\d+)"):
        cores = min(cores, share[0] // share[1])
    return max(1, cores)


def free_memory() -> int:
    """Bytes of memory that this process can still get without swapping.

    Memory that holds copies of files counts as free, since the system gives it away.

    >>> free_memory() > 0
    True
    """
    # macOS has no such account: half of what is built in.
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for kilobytes in _numbers(Path("/proc/meminfo"), r"^MemAvailable: *(\d+) kB"):
        free = kilobytes * 1024
    for limit in _numbers(CGROUP / "memory.max", r"^(\d+)"):
        [used] = _numbers(CGROUP / "memory.current", r"^(\d+)")
        [reclaimable] = _numbers(CGROUP / "memory.stat", r"^inactive_file (\d+)")
        free = min(free, limit - used + reclaimable)
    return max(0, free)


def reuse_freed_memory() -> bool:
    """Let this process use memory that it has freed again, without asking the system for new.

    A training frees at each step what it takes again at the next. GNU's C library hands large
    blocks back to the system, which clears every page of the new ones: a tenth of a round at
    128 x 128. From now on up to 1 GiB of freed memory stays with the process.

    Nothing changes on other systems, nor where the environment has ``MALLOC_TRIM_THRESHOLD_``.

    Returns:
        Whether it was set.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(setting, LARGEST_REUSED) for setting in SETTINGS])


def _numbers(path: Path, pattern: str) -> list[int]:
    """The numbers of a pattern in a file of the system; none where it has none."""
    text = path.read_text() if path.exists() else ""
    found = re.search(pattern, text, re.MULTILINE)
    return [int(number) for number in found.groups()] if found else []
