# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client says of its own data: fixed when it first says it, or declared by the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from monai_fairfl.messages import Estimate, Measurement, Reply, add_note
from monai_fairfl.replies import Replies

COUNTS = {"num_samples": "samples", "num_cases": "cases"}
"""Field of a reply -> name of the fact, as the ledger has it. A count of 0 says nothing."""

DRAWN_DIFFERENCE = 0.2
"""Of the images that count: epochs may differ by less where a sampler draws how many they have."""

COUNTED_BY_MODEL = frozenset({"test_hd95"})
"""Measurements whose number of cases is no fact: MONAI's distance of an empty mask is none, so that
it depends on the model."""

ByClient = dict[str, dict[str, int]]
"""client -> fact -> number."""


class Facts:
    """The sizes of the clients' data sets, which do not change in a run.

    Weights follow from images, pooled scores from cases. Nobody but the site can count them. So
    each number counts as the site first reported it, or as the run's settings declare it; a later
    one that differs changes nothing, and is noted. Images of an epoch that was reported first are
    noted only from a difference of :data:`DRAWN_DIFFERENCE` on: a sampler may draw their number.

    A fact is ``"samples"``, ``"cases"``, or ``"n of MEASUREMENT"`` and ``"n of MEASUREMENT: PART"``
    for the observations behind an :class:`~monai_fairfl.messages.Estimate`, but for the
    measurements of :data:`COUNTED_BY_MODEL`.

    Args:
        declared: client -> images of one local epoch, from the run's settings.
        records: of the run's ledger, where it goes on.

    >>> facts = Facts({"A": 50}, [{"kind": "round", "facts": {"B": {"samples": 30}}}])
    >>> facts.known
    {'A': {'samples': 50}, 'B': {'samples': 30}}
    """

    def __init__(
        self, declared: Mapping[str, int] | None = None, records: Iterable[Mapping[str, Any]] = ()
    ):
        self.declared = dict(declared or {})
        self.known: ByClient = {}
        for client, samples in self.declared.items():
            self.known[client] = {"samples": samples}
        for record in records:
            for client, found in (record.get("facts") or {}).items():
                self.known.setdefault(client, {}).update(found)

    def copy(self) -> ByClient:
        """What is known now, for :meth:`restore` and :meth:`since`."""
        return {client: dict(found) for client, found in self.known.items()}

    def restore(self, earlier: ByClient) -> None:
        """Forget what became known since ``earlier``: that part of the run was undone."""
        self.known = {client: dict(found) for client, found in earlier.items()}

    def since(self, earlier: ByClient) -> ByClient:
        """What became known since ``earlier``, for the ledger."""
        new: ByClient = {}
        for client, found in sorted(self.known.items()):
            before = earlier.get(client, {})
            added = {name: number for name, number in found.items() if name not in before}
            if added:
                new[client] = added
        return new

    def learn(self, client: str, name: str, value: Measurement) -> None:
        """Remember the counts behind a measurement that was taken earlier, where none is known."""
        self._fixed_measurement(client, name, value, {})

    def fix(self, replies: Replies) -> dict[str, str]:
        """Put the known numbers in the place of those that differ, and remember new ones.

        Args:
            replies: of one exchange, changed in place. They are sorted, so that of several answers
                of one client the same one counts first, whichever arrived first.

        Returns:
            client -> note that names each number which was replaced and differs by more than an
            epoch's draw.
        """
        notes: dict[str, str] = {}
        for position, reply in enumerate(replies):
            changes: dict[str, str] = {}
            replies[position] = self._fixed(reply, changes)
            for text in changes.values():
                add_note(notes, reply.client, text)
        return notes

    def _fixed(self, reply: Reply, changes: dict[str, str]) -> Reply:
        """``reply`` with the known numbers; ``changes`` gets a text for each that is noted."""
        counts: dict[str, int] = {}
        if reply.update is not None:
            for field, fact in COUNTS.items():
                reported = getattr(reply, field)
                if reported:
                    counts[field] = self._counted(reply.client, fact, reported, changes)
        measurements = {}
        for name, value in reply.measurements.items():
            measurements[name] = self._fixed_measurement(reply.client, name, value, changes)
        return replace(reply, measurements=measurements, **counts)  # type: ignore[arg-type]

    def _fixed_measurement(
        self, client: str, name: str, value: Measurement, changes: dict[str, str]
    ) -> Measurement:
        if name in COUNTED_BY_MODEL:
            return value
        if not isinstance(value, Mapping):
            return self._fixed_estimate(client, f"n of {name}", value, changes)
        parts: dict[str, float | Estimate] = {}
        for part, number in value.items():
            parts[part] = self._fixed_estimate(client, f"n of {name}: {part}", number, changes)
        return parts

    def _fixed_estimate(
        self, client: str, fact: str, value: float | Estimate, changes: dict[str, str]
    ) -> float | Estimate:
        if not isinstance(value, Estimate):
            return value
        return replace(value, n=self._counted(client, fact, value.n, changes))

    def _counted(self, client: str, fact: str, reported: int, changes: dict[str, str]) -> int:
        """The number that counts, which is the reported one where none is known."""
        known = self.known.setdefault(client, {}).setdefault(fact, reported)
        if known == reported:
            return known
        source, advice = "it was reported first", "Where the site's data changed, begin a new run"
        if fact == "samples" and client in self.declared:
            source = "the settings declare it"
        elif fact == "samples":
            if abs(reported - known) < DRAWN_DIFFERENCE * known:
                return known
            advice = f"A sampler may draw another number in each epoch. {advice}"
        changes[fact] = f"{fact} {reported} reported, {known} counts: {source}. {advice}"
        return known
