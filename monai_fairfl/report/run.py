# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One finished or unfinished run, as its folder records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monai_fairfl.report.numbers import Number
from monai_fairfl.run.checkpoint import Schedule

Split = Mapping[str, Sequence[str]]
"""Part of a site's data list, such as ``"training"`` -> its images, sorted.

An image of several files, one per channel, has a line for each.
"""


@dataclass(frozen=True)
class Run:
    """One run directory.

    Args:
        path: its folder.
        name: of its strategy with the arguments that are not the defaults; made unique by
            :func:`~monai_fairfl.report.collect.load_runs`.
        strategy: class of the strategy.
        head: SHA-256 of the ledger's last line; the chain before it was verified.
        start: the ledger's opening record.
        rounds: its round records, as far as the run went.
        end: its closing record; ``None`` for an unfinished run.
        config: what its user asked for, where ``settings.json`` records it.
        valuations: made of it afterwards, as their files hold them.
        split: site -> its recorded data list; empty where none is beside ``settings.json``.
        digests: site -> digests of its cases, as the run recorded them beside the data lists.
        schedule: for how many rounds it was planned, and how long they took.
    """

    path: Path
    name: str
    strategy: str
    head: str
    start: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    end: Mapping[str, Any] | None
    config: Mapping[str, Any]
    valuations: Sequence[Mapping[str, Any]] = ()
    split: Mapping[str, Split] = field(default_factory=dict)
    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def is_standalone(self) -> bool:
        """Whether each site trained alone: the yardstick of the federated runs."""
        return self.strategy == "Standalone"

    @property
    def finished(self) -> bool:
        """Whether the ledger has a closing record."""
        return self.end is not None

    @property
    def method(self) -> str:
        """The strategy's name with its arguments: the same for its runs of every seed."""
        return str(self.start.get("name", self.strategy))

    @property
    def seed(self) -> Any:
        """The run's seed; ``None`` where the ledger does not record it."""
        return self.start.get("seed")

    @property
    def fold(self) -> Any:
        """The fold of a cross-validation, ``split_fold`` of the overrides; ``None`` without one."""
        overrides = self.config.get("overrides")
        if not isinstance(overrides, Mapping):
            return None
        return overrides.get("split_fold")

    @property
    def last_round(self) -> int:
        """Number of the ledger's last round; -1 where there is none."""
        return len(self.rounds) - 1

    @property
    def draws_sites(self) -> bool:
        """Whether each round asked some of the sites only."""
        per_round = self.start.get("clients_per_round")
        return per_round is not None and per_round < len(self.sites)

    @property
    def planned(self) -> int | None:
        """Rounds that the run was meant to have."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def groups(self) -> dict[str, Any]:
        """Group of sites -> its members, where the run was begun with groups."""
        return dict(self.start.get("groups") or {})

    @property
    def sites(self) -> list[str]:
        """Every site that appears anywhere in the run, sorted."""
        sites = set(self.start["clients"])
        for record in self.rounds:
            sites.update(record["clients"])
        return sorted(sites)

    @property
    def personal(self) -> bool:
        """Whether each site trains a model of its own beside the global one (Ditto)."""
        for record in self.rounds:
            for measured in record["measurements"].values():
                if "personal_score" in measured:
                    return True
        return False

    @property
    def closing_scores(self) -> Mapping[str, Any]:
        """site -> model (``"own"``, ``"global"``) -> closing measurements, as the ledger has them.

        Empty for an unfinished run.
        """
        if self.end is None:
            return {}
        return self.end["scores"]

    def closing(self, site: str, measurement: str, model: str = "own") -> Number | None:
        """A closing measurement of ``site``; ``None`` where the ledger has none.

        Args:
            site: name of the site.
            measurement: such as ``"test_score"``.
            model: the one that the site would use (``"own"``) or the ``"global"`` one.
        """
        models = self.closing_scores.get(site) or {}
        found = models.get(model, {}).get(measurement)
        return None if found is None else Number.read(found)

    def measured(self, site: str, measurement: str) -> dict[int, Number]:
        """Rounds of training -> what ``site`` measured of the model after that many rounds.

        A ledger names the round that a measurement's model results from: that of a received model
        is in the record of the next round.
        """
        found = {}
        for record in self.rounds:
            value = record["measurements"].get(site, {}).get(measurement)
            if value is not None:
                of_round = record["of_round"][measurement]
                found[of_round + 1] = Number.read(value)
        return found

    def dice(self, site: str) -> dict[int, Number]:
        """Rounds of training -> validation Dice of the model that ``site`` would use after them.

        That is the global model, or the site's personal one where it trains one.
        """
        received = self.measured(site, "global_score")
        if not self.personal:
            return received

        # Before the first round everybody has the initial model.
        dice = self.measured(site, "personal_score")
        if 0 in received:
            dice[0] = received[0]
        return dice

    def dice_before_last_round(self, site: str) -> dict[int, Number]:
        """As :meth:`dice`, without the one after the last round.

        Only runs with personal models measure that one before their end; without it, unfinished
        runs of both kinds can be compared.
        """
        dice = self.dice(site)
        return {number: found for number, found in dice.items() if number < len(self.rounds)}

    def last_reported(self, key: str) -> dict[str, int]:
        """site -> the newest number that it reported of its training data.

        Args:
            key: ``"cases"``, or ``"samples"`` for the images of an epoch.
        """
        found: dict[str, int] = {}
        for record in self.rounds:
            for site, number in record[key].items():
                if number:
                    found[site] = number
        return found
