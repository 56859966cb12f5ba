# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are what the client received, or sent, in an earlier round."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.guards.arguments import check_threshold
from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.guards.directions import is_judged, medians_of_others
from monai_fairfl.messages import Weights
from monai_fairfl.replies import ZERO_NORM, Replies
from monai_fairfl.utils.settings import is_whole

LEAST_REST = 0.1
"""Of a step's length: where less is not the client's own doing, the step was its own."""

REST_COSINE = 0.7
"""From here on, what is left of an update repeats what is left of the step.

In real trainings of CGSV, ShapFed's personal models and Ditto it reached 0.42 (docs/guards.md).
"""

ENTRIES = 4096
"""Entries of a sketch; the cosine of two sketches is that of the vectors to about 0.03."""

Places = Mapping[str, torch.Tensor]
"""Parameter -> the places of its flat values that a sketch has, sorted."""


class Replayed(Guard):
    """Quarantines an update that repeats one of the previous round.

    Every client can compute the last global step from the two models that it received last. One
    that sends this step, or what another sent, seems to agree with all others and has trained
    nothing. A hospital's honest update resembles its own previous one, so that only an exact
    repetition of that counts.

    The guard remembers a sketch of each update and of each model that was sent: its values at
    ``entries`` places that the seed chooses. It remembers the model also where the client's reply
    was quarantined or late, as the client has received it. A method that gives each client a model
    of its own sends such a client the same one again; it then knows the step before that.

    Args:
        cosine: least cosine with the last step, or with another client's previous update, of a
            repetition. In real trainings honest updates reached 0.85, where others were near it.
        own_cosine: least cosine with the client's own previous update. In real trainings honest
            updates reached 0.98; those of a site that trains on few images without chance may come
            nearer to 1.
        nearer: a repetition is nearer than this share of the others' median distance, where
            distance is 1 - cosine. So a federation in which everybody goes on in one direction has
            none. It has none either where that median is a repetition.
        entries: of a sketch.
        seed: of the places.

    Raises:
        ConfigError: a threshold is not a number in its range, or ``entries`` or ``seed`` is no
            whole number.

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

    state = ("sent", "updates", "steps")

    def __init__(
        self,
        cosine: float = 0.9,
        own_cosine: float = 0.99999,
        nearer: float = 0.25,
        entries: int = ENTRIES,
        seed: int = 0,
    ):
        check_threshold(self, "cosine", cosine, above=0, most=1)
        check_threshold(self, "own_cosine", own_cosine, above=0, most=1)
        check_threshold(self, "nearer", nearer, above=0, most=1)
        check_threshold(self, "entries", entries, above=0)
        for name, value in (("entries", entries), ("seed", seed)):
            if not is_whole(value) or value < 0:
                raise ConfigError(f"Replayed: {name} must be a whole number, got {value!r}")
        self.cosine = cosine
        self.own_cosine = own_cosine
        self.nearer = nearer
        self.entries = entries
        self.seed = seed
        # client -> sketch of the model that it was sent and of its update, both of the latest round
        # in which it took part. The checkpoint has them as text.
        self.sent: dict[str, np.ndarray] = {}
        self.updates: dict[str, np.ndarray] = {}
        # client whose last reply did not count -> sketch of the last step that it knows.
        self.steps: dict[str, np.ndarray] = {}
        # The places of a sketch follow from the columns of the parameters: drawn once for a model.
        self._columns: Mapping[str, slice] = {}
        self._places: Places = {}
        self._gathered = _Gathered()

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        self._gathered.clear()
        if not self.updates or not is_judged(replies) or len(replies) < 2:
            return {}
        places = self._places_in(replies)
        sketches = _sketches_of_updates(replies, places, self._gathered)
        sent = _sketches_of_sent(replies, places, self._gathered)
        previous = self.updates
        cosines = _cosines(sketches, list(previous.values()))

        last_step = np.zeros(len(replies))
        own = np.zeros(len(replies))
        another = np.zeros(len(replies))
        for row, reply in enumerate(replies):
            step = self._known_step(reply.client, sent[reply.id])
            last_step[row] = _likeness_to_step(sketches[row], step, previous.get(reply.client))
            for column, client in enumerate(previous):
                if client == reply.client:
                    own[row] = cosines[row, column]
                else:
                    another[row] = max(another[row], cosines[row, column])

        verdicts: dict[int, Verdict] = {}
        for what, found, least in (
            ("the last global step", last_step, self.cosine),
            ("another client's previous update", another, self.cosine),
            ("its own previous update", own, self.own_cosine),
        ):
            medians = medians_of_others(found)
            for row in np.flatnonzero(self._standing_out(found, medians, least)).tolist():
                reason = (
                    f"its update repeats {what} (cosine {found[row]:.3f}); the median of the "
                    f"others is {medians[row]:.3f}"
                )
                evidence = {"cosine": float(found[row]), "median_of_others": float(medians[row])}
                verdicts.setdefault(replies[row].id, Verdict("quarantine", reason, evidence))
        return verdicts

    def _known_step(self, client: str, now: np.ndarray) -> np.ndarray:
        """The sketch of the last step that a client knows; zeros where it knows none.

        Args:
            client: that was sent a model.
            now: the sketch of that model.
        """
        nothing = np.zeros_like(now)
        if client not in self.sent:
            return nothing
        before = self.sent[client]
        if now.shape != before.shape:
            return nothing
        step = now - before
        if not step.any() and client in self.steps:
            return self.steps[client]
        return step

    def _standing_out(self, found: np.ndarray, medians: np.ndarray, least: float) -> np.ndarray:
        """Whether each cosine is at least ``least``, and far above the median of the others."""
        is_nearer = 1 - found < self.nearer * (1 - medians)
        return (found >= least) & (medians < least) & is_nearer

    def remember(self, replies: Replies) -> None:
        if not is_judged(replies):
            return
        places = self._places_in(replies)
        counted = set(replies.clients)
        for number, sketch in _sketches_of_sent(replies, places, self._gathered).items():
            client = replies.requests[number].client
            step = self._known_step(client, sketch)
            self.steps.pop(client, None)
            if client not in counted and step.any():
                self.steps[client] = step
            self.sent[client] = sketch
        sketches = _sketches_of_updates(replies, places, self._gathered)
        for row, reply in enumerate(replies):
            self.updates[reply.client] = sketches[row]
        self._gathered.clear()

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`Guard.state_dict`, the sketches as text."""
        # Most methods send one model to all, whose sketch is one array.
        texts: dict[int, str] = {}
        found: dict[str, Any] = {}
        for name in self.state:
            found[name] = {}
            for client, sketch in getattr(self, name).items():
                if id(sketch) not in texts:
                    texts[id(sketch)] = _as_text(sketch)
                found[name][client] = texts[id(sketch)]
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name in self.state:
            sketches = {client: _as_array(text) for client, text in state[name].items()}
            setattr(self, name, sketches)

    def _places_in(self, replies: Replies) -> Places:
        """The places of each parameter that a sketch has."""
        matrix = replies.matrix
        if matrix.columns == self._columns:
            return self._places
        generator = np.random.default_rng(self.seed)
        chosen = np.sort(generator.integers(0, matrix.width, size=self.entries))
        places = {}
        for name, columns in matrix.columns.items():
            begin, end = np.searchsorted(chosen, (columns.start, columns.stop))
            if begin < end:
                places[name] = torch.from_numpy(chosen[begin:end] - columns.start)
        self._columns = dict(matrix.columns)
        self._places = places
        return places


class _Gathered:
    """The sketches of one exchange, which is both checked and remembered: each is made once.

    The places lie apart in memory, so that each of them costs a cache line.
    """

    def __init__(self) -> None:
        # Id of tensors -> these, so that no others get the id, and their sketch.
        self._sketches: dict[int, tuple[Weights, np.ndarray]] = {}

    def of(self, tensors: Weights, places: Places) -> np.ndarray:
        """The sketch of an update or a model, shape (entries,), float32."""
        if id(tensors) not in self._sketches:
            parts = [torch.take(tensors[name], inside) for name, inside in places.items()]
            self._sketches[id(tensors)] = (tensors, torch.cat(parts).float().numpy())
        _, sketch = self._sketches[id(tensors)]
        return sketch

    def clear(self) -> None:
        """Forget all sketches, and let go of the tensors."""
        self._sketches = {}


def _sketches_of_updates(replies: Replies, places: Places, gathered: _Gathered) -> np.ndarray:
    """The sketch of each update, shape (N, entries), float32."""
    sketches = []
    for reply in replies:
        assert reply.update is not None
        sketches.append(gathered.of(reply.update, places))
    return np.stack(sketches)


def _sketches_of_sent(
    replies: Replies, places: Places, gathered: _Gathered
) -> dict[int, np.ndarray]:
    """Id of a request to train -> the sketch of the model that it sent."""
    found = {}
    for number, request in replies.requests.items():
        if request.task == "train":
            # Most methods send one model to all, of which one sketch is enough.
            found[number] = gathered.of(request.weights, places)
    return found


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
    cosine = _cosine(sketch, step)
    if own is None or own.shape != step.shape or not own.any():
        return cosine
    rest_of_step = _without(step, own)
    if np.linalg.norm(rest_of_step) < LEAST_REST * np.linalg.norm(step):
        return 0.0
    rest = _cosine(_without(sketch, own), rest_of_step)
    if rest >= REST_COSINE:
        return cosine
    return min(cosine, rest)


def _without(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The part of a sketch at a right angle to another."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a - b * (a @ b) / (b @ b)


def _cosines(sketches: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """The cosine of each sketch with each other one, shape (N, others); see :func:`_cosine`."""
    found = np.zeros((len(sketches), len(others)))
    comparable = [column for column, other in enumerate(others) if other.shape == sketches[0].shape]
    if not comparable:
        return found
    compared = np.stack([others[column] for column in comparable])
    found[:, comparable] = _units(sketches) @ _units(compared).T
    return found


def _units(sketches: np.ndarray) -> np.ndarray:
    """The directions of some sketches in float64; zeros for those without length."""
    sketches = sketches.astype(np.float64)
    lengths = np.linalg.norm(sketches, axis=1, keepdims=True)
    has_length = lengths > ZERO_NORM
    return np.where(has_length, sketches / np.where(has_length, lengths, 1.0), 0.0)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of two sketches; 0 when either has no length, or of models of other sizes."""
    if a.shape != b.shape:
        return 0.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    length_a, length_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if length_a <= ZERO_NORM or length_b <= ZERO_NORM:
        return 0.0
    return float(a @ b) / (length_a * length_b)


def _as_text(sketch: np.ndarray) -> str:
    """A float32 sketch as text for JSON, to the bit."""
    return base64.b64encode(sketch.astype("<f4").tobytes()).decode()


def _as_array(text: str) -> np.ndarray:
    """The inverse of :func:`_as_text`."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4")
