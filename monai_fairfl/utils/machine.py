# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What this process may use of its machine: cores and memory."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux shows the limits of a container (control groups, version 2)."""

MEMORY_INFO = Path("/proc/meminfo")


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
    if len(share) == 2 and share[0] != "max":
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
    available = _number_after("MemAvailable:", _read(memory_info))
    if available is not None:
        free = available * 1024
    else:
        # macOS has no such account: half of what is built in.
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit = _read(cgroup / "memory.max").strip()
    used = _read(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        copies = _number_after("inactive_file", _read(cgroup / "memory.stat")) or 0
        free = min(free, int(limit) - int(used) + copies)
    return max(0, free)


def _read(path: Path) -> str:
    """The text of a file of the system; empty where it has none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _number_after(name: str, text: str) -> int | None:
    """The number that follows ``name`` at the beginning of a line."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None
