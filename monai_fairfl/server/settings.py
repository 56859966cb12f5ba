# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: plain values, their defaults and checks, and what a change means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.averages import BUFFER_POLICIES
from monai_fairfl.utils.settings import Settings, marked, setting

RECORDED = "recorded"
"""The ledger's opening record holds the setting, and a resumed run must have the same value."""

COMPARED = "compared"
"""All runs of a comparison have the same value: it decides what a strategy trains."""


@dataclass(frozen=True)
class RunSettings(Settings):
    """How a :class:`~monai_fairfl.server.federation.Federation` runs, whose keywords these are.

    Settings marked :data:`RECORDED` belong to the experiment and cannot change when a run is
    resumed. All others may, such as the number of rounds.

    Args:
        rounds: rounds in all, those of an earlier part of a resumed run included.
        min_clients: fewest clients that must answer every exchange; with fewer the round, or the
            end, is undone.
        retries: how often what was undone is tried again before the run stops, resumably.
        timeout: seconds an exchange may take; ``None``: no limit.
        evaluate: measurements added to the first exchange of every round (of the model received
            then).
        final: measurements that close the run, of the model each client would use and of the global
            one.
        buffers: ``"aggregation"``, ``"samples"`` or ``"local"``: how BatchNorm statistics are
            averaged.
        keep: number of checkpoints on disk, at least 2.
        seed: of the initial model, client sampling and every client's training.
        threads: torch threads; more than one changes bits.
        clients_per_round: clients drawn for each round, at least ``min_clients``; ``None``: all.
        local_norm: normalisation layers never leave the clients (FedBN); with any strategy.
        record_updates: keep every round's updates in ``run_dir/updates`` for valuations: N + 1
            models a round on disk.
        groups: name -> clients that the report shows the mean of, such as those whose images were
            corrupted.

    Raises:
        ConfigError: when a value is out of range; it names setting, value and range.

    >>> RunSettings(rounds=10, seed=3).opening()["seed"]
    3
    >>> RunSettings(rounds=0)
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: rounds must be a whole number of at least 1, got 0
    """

    rounds: int
    min_clients: int = setting(2)
    retries: int = setting(1)
    timeout: float | None = setting(None)
    evaluate: Sequence[str] = setting(("global_score",), RECORDED)
    final: Sequence[str] = setting(("score",))
    buffers: str = setting("aggregation", RECORDED, COMPARED)
    keep: int = setting(3)
    seed: int = setting(0, RECORDED, COMPARED)
    threads: int = setting(1, RECORDED, COMPARED)
    clients_per_round: int | None = setting(None, RECORDED, COMPARED)
    local_norm: bool = setting(False, RECORDED, COMPARED)
    record_updates: bool = setting(False)
    groups: Mapping[str, Sequence[str]] = setting({}, RECORDED, COMPARED)

    def __post_init__(self) -> None:
        least = {"rounds": 1, "min_clients": 1, "retries": 0, "threads": 1, "keep": 2}
        if self.clients_per_round is not None:
            least["clients_per_round"] = self.min_clients
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ConfigError(
                    f"{name} must be a whole number of at least {minimum}, got {value!r}"
                )
        if self.timeout is not None and not self.timeout > 0:
            raise ConfigError(
                f"timeout must be a number of seconds above 0, or None for no limit, got "
                f"{self.timeout!r}"
            )
        if self.buffers not in BUFFER_POLICIES:
            raise ConfigError(f"buffers must be one of {BUFFER_POLICIES}, got {self.buffers!r}")
        for name in ("evaluate", "final"):
            measurements = getattr(self, name)
            if isinstance(measurements, str):
                raise ConfigError(f"{name} must be a list of measurements, got {measurements!r}")
            object.__setattr__(self, name, tuple(measurements))
        groups = {name: list(clients) for name, clients in (self.groups or {}).items()}
        object.__setattr__(self, "groups", groups)

    def keywords(self) -> dict[str, Any]:
        """Every setting by its name, as ``Federation`` takes them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def opening(self) -> dict[str, Any]:
        """The settings in the ledger's opening record, as JSON has them."""
        found = {}
        for name, value in marked(self, RECORDED).items():
            found[name] = list(value) if isinstance(value, tuple) else value
        return found

    def compared(self) -> dict[str, Any]:
        """The settings that all runs of a comparison share."""
        return marked(self, COMPARED)
