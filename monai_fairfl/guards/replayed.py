# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are what the client received, or sent, in an earlier round."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from monai_fairfl.guards.base import Guard, Verdict, medians_of_others, quarantine
from monai_fairfl.guards.updates import is_judged
from monai_fairfl.messages import Weights
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.arguments import argument, remembered

LEAST_REST = 0.1
"""Of a step's length: where less is not the client's own doing, the step was its own."""

REST_COSINE = 0.7
"""From here on, what is left of an update repeats what is left of the step.

In real trainings of CGSV, ShapFed's personal models and Ditto it reached 0.42 (docs/guards.md).
"""

ENTRIES = 4096
"""Entries of a sketch; the cosine of two sketches is that of the vectors to about 0.03."""


class Replayed(Guard):
    """Quarantines an update that repeats one of the previous round.

    Every client can compute the last global step from the two models that it received last. One
    that sends this step, or what another sent, seems to agree with all others and has trained
    nothing. A hospital's honest update resembles its own previous one, so that only an exact
    repetition of that counts.

    The guard remembers a sketch of each update and of each model that was sent: its values at 4,096
    random places, which are the same in every run. It remembers the model also where the client's
    reply was quarantined or late, as the client has received it. A method that gives each client a
    model of its own sends such a client the same one again; it then knows the step before that.

    Args:
        cosine: least cosine with the last step, or with another client's previous update, of a
            repetition. In real trainings honest updates reached 0.85, where others were near it.
        own_cosine: least cosine with the client's own previous update. In real trainings honest
            updates reached 0.98; those of a site that trains on few images without chance may come
            nearer to 1.
        nearer: a repetition is nearer than this share of the others' median distance, where
            distance is 1 - cosine. So a federation in which everybody goes on in one direction has
            none. It has none either where that median is a repetition.

    Raises:
        ConfigError: a threshold is not a number in its range.

    >>> import torch
    >>> from monai_fairfl import ModelSpec, Replies, Reply, Request
    >>> start, directions = {"w": torch.ones(1200)}, torch.eye(5).repeat(1, 240)
    >>> asked = [Request(site, "train", start, id=number) for number, site in enumerate("ABC")]
    >>> def replies_of(updates):
    ...     sent = [Reply(to.client, {"w": updates[to.id]}, 10, id=to.id) for to in asked]
    ...     return Replies(sent, asked, ModelSpec(("w",)))
    >>> guard = Replayed()  # in the second round C sends what A sent in the first
    >>> guard.remember(replies_of(directions[[0, 1, 2]]))
    >>> guard.check(replies_of(directions[[3, 4, 0]]))[2].reason  # doctest: +ELLIPSIS
    "its update repeats another client's previous update (cosine 1.000); ...
    """

    cosine: float = argument(0.9, "(0, 1]")
    own_cosine: float = argument(0.99999, "(0, 1]")
    nearer: float = argument(0.25, "(0, 1]")
    # client -> sketch, as text, of the model that it was sent and of its update, both of the latest
    # round in which it took part.
    sent: dict[str, str] = remembered(dict)
    updates: dict[str, str] = remembered(dict)
    # client whose last reply did not count -> sketch of the last step that it knows.
    steps: dict[str, str] = remembered(dict)

    def check(self, replies: Replies) -> dict[int, Verdict]:
        if not self.updates or not is_judged(replies):
            return {}
        previous = {client: _read(text) for client, text in self.updates.items()}
        names = replies.spec.parameters
        updates = np.stack([_sketch(reply.update, names) for reply in replies])
        cosines = _units(updates) @ _units(np.stack(list(previous.values()))).T
        is_own = np.array([[reply.client == other for other in previous] for reply in replies])
        own = np.where(is_own, cosines, 0.0).sum(axis=1)
        another = np.where(is_own, 0.0, cosines).max(axis=1, initial=0.0)
        last_step = np.zeros(len(replies))
        for row, reply in enumerate(replies):
            step = self._known_step(reply.client, _sketch(replies.start(reply), names))
            last_step[row] = _likeness_to_step(updates[row], step, previous.get(reply.client))

        verdicts: dict[int, Verdict] = {}
        for what, found, least in (
            ("its own previous update", own, self.own_cosine),
            ("another client's previous update", another, self.cosine),
            ("the last global step", last_step, self.cosine),
        ):
            medians = medians_of_others(found)
            repeats = (found >= least) & (medians < least)
            repeats &= 1 - found < self.nearer * (1 - medians)
            reason = f"its update repeats {what} " + (
                "(cosine {cosine:.3f}); the median of the others is {median_of_others:.3f}"
            )
            numbers = {"cosine": found, "median_of_others": medians}
            verdicts.update(quarantine(replies, repeats, reason, **numbers))
        return verdicts

    def _known_step(self, client: str, now: np.ndarray) -> np.ndarray:
        """The sketch of the last step that a client knows; zeros where it knows none.

        Args:
            client: that was sent a model.
            now: the sketch of that model.
        """
        step = np.zeros_like(now)
        if client in self.sent:
            step = now - _read(self.sent[client])
        if client in self.steps and not step.any():
            step = _read(self.steps[client])
        return step

    def remember(self, replies: Replies) -> None:
        if not is_judged(replies):
            return
        names = replies.spec.parameters
        for request in replies.requests.values():
            if request.task != "train":
                continue
            client, now = request.client, _sketch(request.weights, names)
            step = self._known_step(client, now)
            self.steps.pop(client, None)
            if client not in replies.clients and step.any():
                self.steps[client] = _written(step)
            self.sent[client] = _written(now)
        for reply in replies:
            self.updates[reply.client] = _written(_sketch(reply.update, names))


def _sketch(tensors: Weights | None, parameters: Sequence[str]) -> np.ndarray:
    """The values of an update or of a model at random places, the same in every run."""
    assert tensors is not None
    flat = [tensors[name].reshape(-1) for name in parameters]
    places = _places(tuple(map(len, flat)))
    # Of each tensor by itself: all of them in one would be a copy of the model.
    found = [values[there] for values, there in zip(flat, places, strict=True)]
    return torch.cat(found).float().numpy()


@cache
def _places(lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """The random places in tensors of these lengths, counted back from the end of each."""
    ends = np.cumsum(lengths)
    chosen = np.sort(np.random.default_rng(0).integers(0, ends[-1], size=ENTRIES))
    of_tensors = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    return [torch.from_numpy(there - end) for there, end in zip(of_tensors, ends, strict=True)]


def _written(sketch: np.ndarray) -> str:
    """A sketch of float32 as text, to the bit, which a checkpoint can hold."""
    return b64encode(sketch.astype("<f4").tobytes()).decode()


def _read(text: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), "<f4")


def _likeness_to_step(sketch: np.ndarray, step: np.ndarray, own: np.ndarray | None) -> float:
    """The cosine of an update with the last step, less what the client's own part explains.

    A client that goes on in its own direction resembles the step as far as the step was its own:
    all of it where each site trains its own model, much where a site has most of the weight. The
    others' part of the step tells: an honest update hardly resembles it, and a repetition has it,
    even with noise, which weighs more on this part than on the whole.

    Args:
        sketch: of the update.
        step: sketch of the last step that the client knows.
        own: sketch of its previous update; ``None``: it had none.

    Returns:
        The cosine, where both without the direction of ``own`` have a cosine of at least
        :data:`REST_COSINE`; else the smaller of the two cosines.
    """
    cosine = float(_units(sketch) @ _units(step))
    if own is None or not own.any():
        return cosine
    of_step = _without(step, own)
    if np.linalg.norm(of_step) < LEAST_REST * np.linalg.norm(step):
        return 0.0
    rest = float(_units(_without(sketch, own)) @ _units(of_step))
    return cosine if rest >= REST_COSINE else min(cosine, rest)


def _without(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The part of a sketch at a right angle to another."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a - b * (a @ b) / (b @ b)


def _units(sketches: np.ndarray) -> np.ndarray:
    """Sketches divided by their lengths, in float64; 0 where one has no length.

    >>> _units(np.array([3.0, 4.0])).tolist()
    [0.6, 0.8]
    """
    lengths = np.linalg.norm(sketches.astype(np.float64), axis=-1, keepdims=True)
    return sketches / np.where(lengths > ZERO_NORM, lengths, np.inf)
