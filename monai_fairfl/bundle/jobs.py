# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How many processes work at a time, and on which devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from monai_fairfl.data.sites import find
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.utils.arguments import is_whole
from monai_fairfl.utils.devices import require_device
from monai_fairfl.utils.machine import free_memory, usable_cores

MEMORY_OF_A_WORKER = 1 << 30
"""Bytes that a worker process is expected to need: libraries, a network, some sites' images."""


@dataclass(frozen=True)
class Jobs:
    """How many processes work at a time, and on which devices.

    Args:
        number: runs or sites that work at a time, each in a worker process; 1: one after the other
            in this process; ``None`` or ``"auto"``: on CPUs as many as cores and memory allow, on
            GPUs one for each.
        devices: worker 0 takes the first, worker 1 the second, and so on, in turn.

    Raises:
        ConfigError: when there is no such number or device.

    >>> jobs = Jobs(3, ["cuda:0", "cuda:1"])
    >>> jobs.devices_of(3)
    ['cuda:0', 'cuda:1', 'cuda:0']
    """

    number: int | str | None
    devices: Sequence[str]

    def __post_init__(self) -> None:
        is_count = is_whole(self.number) and self.number >= 1
        if self.number not in (None, "auto") and not is_count:
            raise ConfigError(
                "jobs must be a whole number of at least 1, or 'auto' for as many as cores and "
                f"memory allow, got {self.number!r}"
            )
        if isinstance(self.devices, str) or not self.devices:
            raise ConfigError(
                f"devices must be a list such as ['cuda:0', 'cuda:1'], got {self.devices!r}"
            )
        for device in self.devices:
            try:
                torch.device(device)
            except (RuntimeError, TypeError) as error:
                raise ConfigError(
                    f"devices: {device!r} is not a device: write 'cpu', 'cuda:0' or another that "
                    "torch knows"
                ) from error

    def workers(self, most: int, threads: int) -> int:
        """How many worker processes there are; with 1 there is none beside this process.

        Args:
            most: such as the sites of all runs; more workers would have nothing to do.
            threads: torch threads of each worker.

        >>> Jobs(4, ["cpu"]).workers(most=3, threads=1)
        3
        """
        if isinstance(self.number, int):
            return min(most, self.number)
        if any(torch.device(device).type != "cpu" for device in self.devices):
            # Nobody knows before the training how much of a GPU's memory a site needs.
            return min(most, len(set(self.devices)))
        by_cores = usable_cores() // threads
        by_memory = free_memory() // MEMORY_OF_A_WORKER
        return max(1, min(most, by_cores, by_memory))

    def require_devices(self) -> None:
        """Refuse devices that this machine does not have.

        Raises:
            ConfigError: naming the device and the fix.
        """
        for device in dict.fromkeys(self.devices):
            require_device(device)

    def devices_of(self, workers: int) -> list[str]:
        """The devices of so many workers, in their order."""
        return [self.devices[number % len(self.devices)] for number in range(workers)]


def number_of_cases(folder: str) -> int:
    """Number of cases of a site that it trains or validates with, at least 1.

    Where no layout recognises the folder, it is the number of files.

    Args:
        folder: of the site, or its data list.
    """
    try:
        found = find(folder)
    except (DataError, OSError):
        return max(1, sum(len(files) for _, _, files in os.walk(folder)))
    tested = (found.parts or {}).get("testing", [])
    return max(1, len(found.cases) - len(tested))
