# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: plain values, their defaults and checks, and what a change means."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import MOST_SAMPLES, RANGES, Expected, Range
from monai_fairfl.replies import BUFFER_POLICIES
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.settings import (
    Settings,
    checked_mapping,
    marked,
    setting,
)

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
        evaluate: measurements added to every round: of the received model in its first exchange, of
            what a client trains in the first one in which it trains.
        final: measurements that close the run, of the model each client would use and of the global
            one.
        score_global: whether the clients that continue from a reward measure the global model, too,
            when the run closes. They are sent it for that. Where a method withholds parts of it
            from who contributes less, as CGSV does, ``False`` leaves it out.
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
        ranges: measurement -> (least, most), in place of its range in
            :data:`monai_fairfl.messages.RANGES`: for a loss that is negative or above 100.
        samples: client -> images of one local epoch. These count from the first round on, whatever
            the client reports. Of all other clients the first number that they report counts.
        most_samples: images of one site in one local epoch that are believed; a reply with more is
            refused.
        adapt_epochs: the last mile: at the end each site trains the model that it would use for at
            most so many epochs on its own images, and takes the result if its validation cases
            gain more than their standard error; 0: no last mile. See
            :mod:`~monai_fairfl.client.last_mile`.
        adapt_rate: learning rate of the last mile, constant.
        adapt_fuse: whether the model that a site would take, fused with the one that it trained
            alone, is another candidate, see :mod:`~monai_fairfl.model_files.fused`.
        unasked: take measurements that no request asked for, too: for clients that are scripts and
            choose their own names.

    Raises:
        ConfigError: when a value is out of range; it names setting, value and range.

    >>> RunSettings(rounds=10, seed=3).opening()["seed"]
    3
    >>> RunSettings(rounds=0)
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: rounds must be a whole number in [1, inf), got 0
    """

    rounds: int = setting(MISSING, allowed="[1, inf)")
    min_clients: int = setting(2, allowed="[1, inf)")
    retries: int = setting(1, allowed="[0, inf)")
    timeout: float | None = setting(None, allowed="(0, inf)")
    evaluate: Sequence[str] = setting(("global_score",), RECORDED)
    final: Sequence[str] = setting(("score",))
    score_global: bool = setting(True, RECORDED)
    buffers: str = setting("aggregation", RECORDED, COMPARED, allowed=BUFFER_POLICIES)
    keep: int = setting(3, allowed="[2, inf)")
    # PyTorch's generator takes no larger seed.
    seed: int = setting(0, RECORDED, COMPARED, allowed=f"({-(2**63)}, {2**63})")
    threads: int = setting(1, RECORDED, COMPARED, allowed="[1, inf)")
    clients_per_round: int | None = setting(None, RECORDED, COMPARED)
    local_norm: bool = setting(False, RECORDED, COMPARED)
    record_updates: bool = setting(False)
    groups: Mapping[str, Sequence[str]] = setting({}, RECORDED, COMPARED)
    ranges: Mapping[str, Sequence[float]] = setting({}, RECORDED, COMPARED)
    samples: Mapping[str, int] = setting({}, RECORDED, COMPARED)
    most_samples: int = setting(MOST_SAMPLES, allowed="[1, inf)")
    adapt_epochs: int = setting(0, allowed="[0, inf)")
    adapt_rate: float = setting(3e-4, allowed="(0, 1)")
    adapt_fuse: bool = setting(False)
    unasked: bool = setting(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients_per_round is not None:
            allowed = f"[{self.min_clients}, inf)"
            check_value("clients_per_round", self.clients_per_round, "int", allowed)
        if self.adapt_fuse and not self.adapt_epochs:
            raise ConfigError("adapt_fuse is a candidate of the last mile: give adapt_epochs, too")

        groups = checked_mapping("groups", self.groups)
        lists = {"evaluate": self.evaluate, "final": self.final}
        lists |= {f"groups: {name!r}": clients for name, clients in groups.items()}
        for place, given in lists.items():
            # One text would be a name for each of its letters.
            is_list = isinstance(given, Collection) and not isinstance(given, str)
            is_list = is_list and all(isinstance(name, str) for name in given)
            _require(is_list, place, "a list of names", given)
        samples = checked_mapping("samples", self.samples)
        for client, count in samples.items():
            check_value(f"samples of {client!r}", count, "int", f"[1, {self.most_samples}]")
        ranges = checked_mapping("ranges", self.ranges)
        for name, given in ranges.items():
            try:
                ranges[name] = list(map(float, given))
                Range(name, *ranges[name])
            except (TypeError, ValueError):
                _require(False, f"ranges: {name!r}", "two finite numbers, such as [-1, 1]", given)
        plain: dict[str, Any] = {"samples": samples, "ranges": ranges}
        plain["groups"] = {name: list(clients) for name, clients in groups.items()}
        plain |= {"evaluate": tuple(self.evaluate), "final": tuple(self.final)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def expected(self, of_strategy: Mapping[str, Range]) -> Expected:
        """The measurements that a server takes.

        Args:
            of_strategy: measurement -> range, where the strategy declares one. The run's own
                setting counts before it, the package's table after it.
        """
        ranges = {**RANGES, **of_strategy}
        for name, (least, most) in self.ranges.items():
            ranges[name] = Range(ranges[name].unit if name in ranges else name, least, most)
        return Expected(ranges, self.unasked)

    @property
    def last_mile(self) -> dict[str, float]:
        """Its settings as a request's context has them; empty where there is none."""
        if not self.adapt_epochs:
            return {}
        context = {"adapt_epochs": float(self.adapt_epochs), "adapt_rate": float(self.adapt_rate)}
        if self.adapt_fuse:
            context["adapt_fuse"] = 1.0
        return context

    def keywords(self) -> dict[str, Any]:
        """Every setting by its name, as ``Federation`` takes them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def opening(self) -> dict[str, Any]:
        """The settings in the ledger's opening record, as JSON has them."""
        return {**marked(self, RECORDED), "evaluate": list(self.evaluate)}

    def compared(self) -> dict[str, Any]:
        """The settings that all runs of a comparison share."""
        return marked(self, COMPARED)


def _require(holds: bool, name: str, what: str, given: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {what}, got {given!r}")
