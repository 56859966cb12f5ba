# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What this process may use of its machine, cores and memory, and how it uses memory again."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of a container (control groups)."""

MEMORY_INFO = Path("/proc/meminfo")


MMAP_THRESHOLD = -3
TRIM_THRESHOLD = -1
"""Names of glibc's ``mallopt`` for these settings, by <malloc.h>."""

LARGEST_REUSED = 1 << 30
"""Bytes of the largest block of memory that is used again, and of a process's reserve."""


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Number of cores that this process may use, at least 1.

    It may be bound to some of the machine's cores, and a container may have a share of their time.

    Args:
        cgroup: folder of the container's limits.

    >>> 1 <= usable_cores() <= os.cpu_count()
    True
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    share = _read(cgroup / "cpu.max").split()
    if not share:
        # Version 1 has these two in files of their own.
        files = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
        share = [_read(cgroup / file).strip() for file in files]
    # Without a limit the first is "max", or -1 in version 1.
    if len(share) == 2 and all(word.isdecimal() for word in share):
        # Microseconds of work in every period of so many microseconds.
        microseconds, period = share
        cores = min(cores, int(microseconds) // int(period))
    return max(1, cores)


def free_memory(cgroup: Path = CGROUP, memory_info: Path = MEMORY_INFO) -> int:
    """Bytes of memory that this process can still get without swapping.

    Memory that holds copies of files counts as free, since the system gives it away.

    Args:
        cgroup: folder of the container's limits.
        memory_info: the system's own account.

    >>> free_memory() > 0
    True
    """
    # macOS has no such account: half of what is built in.
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if found := re.search(r"^MemAvailable: *(\d+) kB", _read(memory_info), re.MULTILINE):
        free = int(found[1]) * 1024
    limit = _read(cgroup / "memory.max").strip()
    used = _read(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        free_here = int(limit) - int(used)
        if found := re.search(r"^inactive_file (\d+)", _read(cgroup / "memory.stat"), re.MULTILINE):
            free_here += int(found[1])
        free = min(free, free_here)
    return max(0, free)


def reuse_freed_memory() -> bool:
    """Let this process use memory that it has freed again, without asking the system for new.

    A training frees at each step what it takes again at the next. GNU's C library hands large
    blocks back to the system, which clears every page of the new ones: a tenth of a round at
    128 x 128. From now on up to 1 GiB of freed memory stays with the process.

    Nothing changes on other systems, nor where the environment has settings of its own
    (``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``, ``GLIBC_TUNABLES``).

    Returns:
        Whether it was set.
    """
    chosen = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    if any(name in os.environ for name in chosen) or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all([mallopt(name, LARGEST_REUSED) for name in (MMAP_THRESHOLD, TRIM_THRESHOLD)])


def _read(path: Path) -> str:
    """The text of a file of the system; empty where it has none."""
    try:
        return path.read_text()
    except OSError:
        return ""
