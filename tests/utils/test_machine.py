# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Cores and memory that a container may use, by the files in which Linux shows its limits."""

from __future__ import annotations

import os
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
