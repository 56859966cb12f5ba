# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client says of itself: its counts are fixed when it first states them, and its state is
that of its last round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from monai_fairfl.messages import Estimate, Measurement, Reply, add_note
from monai_fairfl.replies import Replies
from monai_fairfl.utils.settings import is_whole

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
    """The sizes of the clients' data sets, which do not change in a run, and their last rounds.

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

    >>> first = {"round": 0, "facts": {"B": {"samples": 30}}, "digests": {"B": "31e5"}}
    >>> facts = Facts({"A": 50}, [first])
    >>> facts.known, facts.last_trained
    ({'A': {'samples': 50}, 'B': {'samples': 30}}, {'B': 0})
    """

    def __init__(
        self, declared: Mapping[str, int] | None = None, records: Iterable[Mapping[str, Any]] = ()
    ):
        self.declared = dict(declared or {})
        self.known: ByClient = {client: {"samples": n} for client, n in self.declared.items()}
        self.last_trained: dict[str, int] = {}
        for record in records:
            for client, found in (record.get("facts") or {}).items():
                self.known.setdefault(client, {}).update(found)
            for client in record.get("digests") or ():
                self.last_trained[client] = record["round"]
        # What became known since the last call of `settled`.
        self._new: ByClient = {}

    def settled(self) -> ByClient:
        """What became known since the last call, for the ledger; it stays known."""
        new, self._new = self._new, {}
        return new

    def undo(self) -> None:
        """Forget what became known since the last :meth:`settled`: that try was undone."""
        for client, found in self.settled().items():
            for fact in found:
                del self.known[client][fact]

    def learn(self, client: str, name: str, value: Measurement) -> None:
        """Remember the counts behind a measurement that was taken earlier, where none is known."""
        self._fixed(client, name, value, [])

    def fix(self, replies: Replies) -> dict[str, str]:
        """Put the known numbers in the place of those that differ, and remember new ones.

        Args:
            replies: of one exchange, changed in place. They are sorted, so that of several answers
                of one client the same one counts first, whichever arrived first.

        Returns:
            client -> note that names each number which was replaced and differs by more than an
            epoch's draw; and a training without the state of the client's last round, which makes
            its update a beginner's (one that does not state its round is not noted).
        """
        notes: dict[str, str] = {}
        for position, reply in enumerate(replies):
            client = reply.client
            texts: list[str] = []
            changed: dict[str, Any] = {"measurements": {}}
            for name, value in reply.measurements.items():
                changed["measurements"][name] = self._fixed(client, name, value, texts)
            if reply.update is not None:
                for field, fact in COUNTS.items():
                    reported = getattr(reply, field)
                    if reported:
                        changed[field] = self._counted(client, fact, reported, texts)
                self._look_at_state(reply, texts)
            replies[position] = replace(reply, **changed)
            for text in texts:
                add_note(notes, client, text)
        return notes

    def _look_at_state(self, reply: Reply, texts: list[str]) -> None:
        """Add a text where a client trained without the state of its last round."""
        last = self.last_trained.get(reply.client, -1)
        state = reply.state_round
        if is_whole(state) and state < last:
            texts.append(
                f"it trained last in round {last} and went on from its state of round {state} "
                "(-1: it had none): its optimizer, and what it does not send, are not those of "
                "its last round"
            )

    def _fixed(self, client: str, name: str, value: Measurement, texts: list[str]) -> Measurement:
        """A measurement with the known numbers of observations."""
        if name in COUNTED_BY_MODEL:
            return value
        if isinstance(value, Mapping):
            return {
                part: self._fixed(client, f"{name}: {part}", number, texts)  # type: ignore[misc]
                for part, number in value.items()
            }
        if isinstance(value, Estimate):
            return replace(value, n=self._counted(client, f"n of {name}", value.n, texts))
        return value

    def _counted(self, client: str, fact: str, reported: int, texts: list[str]) -> int:
        """The number that counts, which is the reported one where none is known."""
        facts = self.known.setdefault(client, {})
        if fact not in facts:
            facts[fact] = reported
            self._new.setdefault(client, {})[fact] = reported
        known = facts[fact]
        source, drawn = "it was reported first", 0.0
        if fact == "samples" and client in self.declared:
            source = "the settings declare it"
        elif fact == "samples":
            drawn = DRAWN_DIFFERENCE * known
        if known != reported and abs(reported - known) >= drawn:
            texts.append(
                f"{fact} {reported} reported, {known} counts: {source}; where the site's data "
                "changed, begin a new run"
            )
        return known
