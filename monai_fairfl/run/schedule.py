# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run's schedule: how many rounds were planned, how long each took, and on which processor.

The ledger holds none of it: equal runs have equal ledgers, however fast and in however many parts
they ran.
"""

from __future__ import annotations

import json
import logging
import platform
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.plain_values import object_of_json

FILE = "schedule.json"

logger = logging.getLogger(__name__)


@dataclass
class Schedule:
    """What ``schedule.json`` of a run holds.

    Args:
        planned: rounds in all, as the run was begun with, then as each resumption with another
            number had it; ``None`` where the beginning was not recorded.
        seconds: round -> wall-clock seconds that it took; of a repeated round the last time.
        processor: on which the run was begun, with the version of PyTorch; empty where it was not
            recorded.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> schedule = Schedule.begun(folder, rounds=10, resumed=False)
    >>> schedule.took(folder, number=0, seconds=1.5)
    >>> Schedule.begun(folder, rounds=60, resumed=True).planned, Schedule.read(folder).seconds
    ([10, 60], {0: 1.5})
    """

    planned: list[int | None] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    processor: str = ""

    @classmethod
    def read(cls, run_dir: Path) -> Schedule:
        """The schedule of a run; empty where the file is missing or damaged."""
        try:
            found = object_of_json((run_dir / FILE).read_bytes())
            seconds = {int(number): float(value) for number, value in found["seconds"].items()}
            planned = [None if rounds is None else int(rounds) for rounds in found["planned"]]
            return cls(planned, seconds, str(found["processor"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls()

    @classmethod
    def begun(cls, run_dir: Path, rounds: int, resumed: bool) -> Schedule:
        """Record that a run begins, or goes on, with ``rounds`` rounds in all.

        A warning says where it goes on with another processor than it was begun on.
        """
        schedule = cls.read(run_dir) if resumed else cls()
        if resumed and not schedule.planned:
            schedule.planned.append(None)
        if not schedule.planned or schedule.planned[-1] != rounds:
            schedule.planned.append(rounds)
        here = this_processor()
        schedule.processor = schedule.processor or here
        if schedule.processor != here:
            text = (
                "%s was begun with %s and goes on with %s: the last bits of its numbers may differ"
            )
            logger.warning(text, run_dir, schedule.processor, here)
        schedule._write(run_dir)
        return schedule

    def took(self, run_dir: Path, number: int, seconds: float) -> None:
        """Record how long round ``number`` took."""
        self.seconds[number] = round(seconds, 3)
        self._write(run_dir)

    def _write(self, run_dir: Path) -> None:
        write_atomically(run_dir / FILE, (json.dumps(asdict(self)) + "\n").encode())


def this_processor() -> str:
    """The processor and the version of PyTorch, which decide the last bits of a sum."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search("model name\\s*: (.*)", cpuinfo.read_text() if cpuinfo.is_file() else "")
    name = found[1] if found else platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, PyTorch {torch.__version__}"
