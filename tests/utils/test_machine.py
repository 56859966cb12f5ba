# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cores and memory that a container may use, by the files in which Linux shows its limits; memory
that is used again.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from monai_fairfl.utils.machine import free_memory, usable_cores

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A machine with 8 GiB of free memory and no limits."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable: {8 * 1024 * 1024} kB\n")
    return tmp_path


def test_a_share_of_the_cores_time_counts_in_whole_cores(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    assert usable_cores(system) == 16
    for share, cores in (("max 100000", 16), ("350000 100000", 3), ("50000 100000", 1)):
        (system / "cpu.max").write_text(f"{share}\n")
        assert usable_cores(system) == cores


def test_a_share_of_control_groups_version_1_counts_alike(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    (system / "cpu").mkdir()
    (system / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, cores in (("-1", 16), ("350000", 3), ("50000", 1)):
        (system / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert usable_cores(system) == cores


def test_a_process_that_is_bound_to_some_cores_has_no_others() -> None:
    here = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(here)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, here)


def test_free_memory_is_that_of_the_machine_or_what_the_container_has_left(system: Path) -> None:
    def free() -> float:
        return free_memory(system, system / "meminfo") / GIB

    assert free() == 8
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text(f"{3 * GIB}\n")
    assert free() == 8
    (system / "memory.max").write_text(f"{4 * GIB}\n")
    assert free() == 1
    # Copies of files are given away where memory is needed.
    (system / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\n")
    assert free() == 3


def test_a_system_without_these_files_has_memory_too(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path / "none") > 0


PAGES = """
import resource
from monai_fairfl.utils.machine import reuse_freed_memory
print(reuse_freed_memory())
block = bytearray(b"x") * (64 << 20)
del block
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block = bytearray(b"x") * (64 << 20)
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("setting", ["", "MALLOC_TRIM_THRESHOLD_"])
def test_memory_that_was_freed_is_used_again_unless_the_environment_has_a_setting(
    setting: str,
) -> None:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environment.pop("GLIBC_TUNABLES", None)
    if setting:
        environment[setting] = "131072"
    # A new interpreter: the setting is one of the process.
    ended = subprocess.run(
        [sys.executable, "-c", PAGES], env=environment, capture_output=True, text=True, check=True
    )
    done, pages = ended.stdout.split()
    # Ten blocks of 64 MiB are 163,840 pages of 4 KiB.
    assert done == str(not setting)
    assert (int(pages) < 1000) == (not setting)
