# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a guard decides about an update before a strategy sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monai_fairfl.messages import Reply
from monai_fairfl.replies import Replies
from monai_fairfl.utils.arguments import Checked, Component, argument

ACTIONS = ("quarantine", "clip", "share", "flag")
"""What becomes of a reply:

- ``"quarantine"``: no strategy sees it, and its client earns nothing in this round;
- ``"clip"``: its update is multiplied by a factor below 1;
- ``"share"``: weight and contribution are divided by the number of the group;
- ``"flag"``: it is recorded, and counts like any other.
"""

LEAST_OTHERS = 2
"""Beside a single other client nobody can say which of the two is unusual."""


@dataclass(frozen=True)
class Verdict(Checked):
    """What a guard decides about one reply.

    Args:
        action: one of :data:`ACTIONS`.
        reason: for the ledger: what was found, what is usual, and what is allowed.
        evidence: name -> number that the reason rests on, for the ledger.
        factor: of the update, above 0 and below 1, with ``"clip"``.
        group: the clients that share, sorted, this one included; with ``"share"`` only.
        guard: name of the guard's class; the federation fills it in.

    Raises:
        ConfigError: when the action is unknown, or the factor out of range.

    >>> Verdict("clip", "its length is 10, the median of the others is 1", factor=0.1).factor
    0.1
    """

    action: str = field(metadata={"allowed": ACTIONS})
    reason: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    factor: float = argument(1.0, "(0, 1)")
    group: tuple[str, ...] = ()
    guard: str = ""


class Guard(Component, ABC):
    """A check of the updates of one exchange, with their requests and inner products.

    A guard that looks back takes in what it needs in :meth:`remember`, in rows by
    :func:`~monai_fairfl.utils.arguments.remembered`, which the checkpoint holds.

    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> class FewImages(Guard):
    ...     def check(self, replies):
    ...         few = [reply for reply in replies if reply.num_samples < 5]
    ...         return {reply.id: Verdict("flag", f"{reply.num_samples} images") for reply in few}
    >>> asked = [Request("A", "train", {}, id=0), Request("B", "train", {}, id=1)]
    >>> sent = [Reply("A", {}, 40, id=0), Reply("B", {}, 3, id=1)]
    >>> verdicts = FewImages().check(Replies(sent, asked, ModelSpec(())))
    >>> {number: (found.action, found.reason) for number, found in verdicts.items()}
    {1: ('flag', '3 images')}
    """

    @abstractmethod
    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        """Judge the replies of one exchange. The guard itself stays as it is.

        Args:
            replies: those that trained, and that no earlier guard quarantined.

        Returns:
            Id of a reply -> verdict, for those that need one.
        """

    def remember(self, replies: Replies) -> None:  # noqa: B027 (most guards do not look back)
        """Take in an exchange of a round that is done.

        Args:
            replies: those that trained, as the strategy saw them; ``replies.requests`` also has the
                requests whose replies are missing or were quarantined.
        """


def quarantine(
    replies: Sequence[Reply], found: np.ndarray, reason: str, **evidence: np.ndarray
) -> dict[int, Verdict]:
    """Quarantine some replies of an exchange, each with its own numbers.

    Args:
        replies: in the order of the rows.
        found: which of them, shape (N,).
        reason: with the names of the evidence in braces.
        evidence: name -> number of each reply, shape (N,).

    Returns:
        Id of a reply -> verdict.
    """
    verdicts = {}
    for row in np.flatnonzero(found).tolist():
        numbers = {name: float(values[row]) for name, values in evidence.items()}
        verdicts[replies[row].id] = Verdict("quarantine", reason.format(**numbers), numbers)
    return verdicts


def medians_of_others(values: np.ndarray, upper: bool = False) -> np.ndarray:
    """The median of all others for each of some values; NaN where one of them is, or none is.

    Args:
        values: shape (N,).
        upper: take the larger one of two middle values, and not their mean.

    >>> medians_of_others(np.array([1.0, 9.0, 2.0])).tolist()
    [5.5, 1.5, 5.0]
    >>> medians_of_others(np.array([1.0, 9.0, 2.0]), upper=True).tolist()
    [9.0, 2.0, 9.0]
    """
    count = len(values)
    if count < 2:
        return np.full(count, np.nan)
    is_other = ~np.eye(count, dtype=bool)
    others = np.broadcast_to(values, (count, count))[is_other].reshape(count, count - 1)
    if upper:
        return np.quantile(others, 0.5, axis=1, method="higher")
    return np.median(others, axis=1)
