# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Updates that are what the client received, or sent, in an earlier round."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np
import torch

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.guards.directions import is_judged, others_of
from monai_fairfl.protocol.geometry import ZERO_NORM
from monai_fairfl.protocol.messages import Reply
from monai_fairfl.protocol.replies import Replies

ENTRIES = 4096
"""Entries of a sketch; the cosine of two sketches is that of the vectors to about 0.03."""


class Replayed(Guard):
    """Quarantines an update that repeats one of the previous round.

    Every client can compute the last global step from the two models that it received last. One
    that sends this step, or what another sent, seems to agree with all others and has trained
    nothing. A hospital's honest update resembles its own previous one, so that only an exact
    repetition of that counts.

    The guard remembers a sketch of each update and of each model that was sent: its values at
    ``entries`` places that the seed chooses.

    Args:
        cosine: least cosine with the last step, or with another client's previous update, of a
            repetition. In real trainings honest updates reached 0.71.
        own_cosine: least cosine with the client's own previous update. In real trainings honest
            updates reached 0.98.
        nearer: a repetition is nearer than this share of the others' median distance, where
            distance is 1 - cosine. So a federation in which everybody goes on in one direction has
            none.
        entries: of a sketch.
        seed: of the places.
    """

    state = ("sent", "updates")

    def __init__(
        self,
        cosine: float = 0.9,
        own_cosine: float = 0.999,
        nearer: float = 0.25,
        entries: int = ENTRIES,
        seed: int = 0,
    ):
        self.cosine = cosine
        self.own_cosine = own_cosine
        self.nearer = nearer
        self.entries = entries
        self.seed = seed
        # client -> sketch, as text, of the model that it was sent and of its update, both of the
        # latest round in which it took part.
        self.sent: dict[str, str] = {}
        self.updates: dict[str, str] = {}

    def check(self, replies: Replies) -> Mapping[int, Verdict]:
        if not is_judged(replies) or len(replies) < 2:
            return {}
        places = self._places(replies)
        sketches = _sketches_of_updates(replies, places)

        last_step = np.zeros(len(replies))
        own = np.zeros(len(replies))
        another = np.zeros(len(replies))
        for row, reply in enumerate(replies):
            sketch = sketches[row]
            if reply.client in self.sent:
                step = _sketch_of_sent(replies, reply, places) - _as_array(self.sent[reply.client])
                last_step[row] = _cosine(sketch, step)
            for client, text in self.updates.items():
                cosine = _cosine(sketch, _as_array(text))
                if client == reply.client:
                    own[row] = cosine
                else:
                    another[row] = max(another[row], cosine)

        verdicts: dict[int, Verdict] = {}
        for what, found, least in (
            ("the last global step", last_step, self.cosine),
            ("another client's previous update", another, self.cosine),
            ("its own previous update", own, self.own_cosine),
        ):
            for row in self._standing_out(found, least):
                reason = (
                    f"its update repeats {what} (cosine {found[row]:.3f}); the median of the "
                    f"others is {np.median(found[others_of(row, len(found))]):.3f}"
                )
                evidence = {"cosine": float(found[row])}
                verdicts.setdefault(replies[row].id, Verdict("quarantine", reason, evidence))
        return verdicts

    def _standing_out(self, found: np.ndarray, least: float) -> list[int]:
        """The rows whose cosine is at least ``least`` and far above the others'."""
        rows = []
        for row, cosine in enumerate(found):
            usual_distance = 1 - float(np.median(found[others_of(row, len(found))]))
            if cosine >= least and 1 - cosine < self.nearer * usual_distance:
                rows.append(row)
        return rows

    def remember(self, replies: Replies) -> None:
        trained = all(reply.update is not None for reply in replies)
        if not trained or not is_judged(replies):
            return
        places = self._places(replies)
        sketches = _sketches_of_updates(replies, places)
        for row, reply in enumerate(replies):
            self.sent[reply.client] = _as_text(_sketch_of_sent(replies, reply, places))
            self.updates[reply.client] = _as_text(sketches[row])

    def _places(self, replies: Replies) -> torch.Tensor:
        """The columns of the update matrix that a sketch has; sorted."""
        generator = np.random.default_rng(self.seed)
        columns = replies.matrix.rows.shape[1]
        return torch.from_numpy(np.sort(generator.integers(0, columns, size=self.entries)))


def _sketches_of_updates(replies: Replies, places: torch.Tensor) -> np.ndarray:
    """The sketch of each update, shape (N, entries), float32."""
    return replies.matrix.rows[:, places].float().numpy()


def _sketch_of_sent(replies: Replies, reply: Reply, places: torch.Tensor) -> np.ndarray:
    """The sketch of the parameters that a client was sent, shape (entries,), float32."""
    sent = replies.start(reply)
    parts = []
    for name, columns in replies.matrix.columns.items():
        inside = places[(places >= columns.start) & (places < columns.stop)] - columns.start
        parts.append(sent[name].flatten()[inside].float())
    return torch.cat(parts).numpy()


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of two sketches; 0 when either has no length."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths > ZERO_NORM else 0.0


def _as_text(sketch: np.ndarray) -> str:
    """A float32 sketch as text for JSON, to the bit."""
    return base64.b64encode(sketch.astype("<f4").tobytes()).decode()


def _as_array(text: str) -> np.ndarray:
    """The inverse of :func:`_as_text`."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4")
