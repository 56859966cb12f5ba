# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Utilities: what a model is worth, measured by the clients on their own data; only numbers leave a
site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.games.game import Coalition
from monai_fairfl.protocol.messages import Measure
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Estimate, Measurement, Weights, to_json, value_of
from monai_fairfl.server.exchange import Inbox, Transport
from monai_fairfl.utils.files import write_atomically

UTILITIES = ("mean", "pooled", "worst", "negative_loss")
"""What any bundle's models can be scored by; the names of its classes come on top."""


@dataclass(frozen=True)
class Utility:
    """Makes one number of what every client measured of a model; a choice of what the federation is
    for.

    Args:
        name: ``"mean"``: mean Dice, every site counting alike, as in FedCE's leave-one-out study;
            ``"pooled"``: every case counting alike; ``"worst"``: the mean Dice of the worst site;
            the name of a class: its Dice, sites that label it counting alike; ``"negative_loss"``:
            minus the bundle's training loss on the sites' training data.
        data: ``"validation"`` or ``"test"``, the images that are scored. What is decided with the
            answer (who gets which share) is an analysis of the test images where these are used: no
            score of them is then unseen.

    Raises:
        ConfigError: when ``data`` is neither, or there is nothing to combine it with.

    >>> Utility("worst")({"A": {"mean": 0.8}, "B": {"mean": 0.6}})
    0.6
    >>> Utility("pooled")({"A": {"mean": Estimate(0.9, None, 3)}, "B": {"mean": Estimate(0.5, None, 1)}})
    0.8
    """

    name: str = "mean"
    data: str = "validation"

    def __post_init__(self) -> None:
        if self.data not in ("validation", "test"):
            raise ConfigError(
                f"data of a utility must be 'validation' or 'test', got {self.data!r}"
            )
        if (self.name, self.data) == ("negative_loss", "test"):
            raise ConfigError(
                "the utility 'negative_loss' is of the training data; leave data as it is"
            )

    @property
    def measurement(self) -> str:
        """The measurement it is made of."""
        if self.name == "negative_loss":
            return "global_loss"
        return "score" if self.data == "validation" else "test_score"

    def __call__(self, measured: Mapping[str, Measurement]) -> float:
        """The utility.

        Args:
            measured: client -> its :attr:`measurement` of the model.

        Raises:
            ConfigError: naming the classes there are when no client scores this one.
        """
        if self.name == "pooled":
            means = [m["mean"] if isinstance(m, Mapping) else m for m in measured.values()]
            cases = [mean.n if isinstance(mean, Estimate) else 1 for mean in means]
            return sum(float(mean) * n for mean, n in zip(means, cases)) / sum(cases)
        if self.name in ("mean", "worst", "negative_loss"):
            values = [value_of(measurement) for measurement in measured.values()]
            mean = sum(values) / len(values)
            return {"mean": mean, "worst": min(values), "negative_loss": -mean}[self.name]
        classes = [
            measurement for measurement in measured.values() if isinstance(measurement, Mapping)
        ]
        values = [float(scores[self.name]) for scores in classes if self.name in scores]
        if not values:
            known = sorted({name for scores in classes for name in scores} - {"mean"})
            raise ConfigError(
                f"utility {self.name!r} is neither one of {UTILITIES} nor a class that clients score, which are {known}"
            )
        return sum(values) / len(values)


class Panel:
    """All clients, asked to measure one model after the other.

    Args:
        transport: reaches them.
        clients: who must answer; the same for every model, also those outside of the coalition that
            made it.
        timeout: seconds a model may take; ``None``: no limit.
    """

    def __init__(self, transport: Transport, clients: Sequence[str], timeout: float | None = None):
        self.transport, self.clients, self.timeout = transport, sorted(clients), timeout
        self._next_id = 0

    def measure(self, weights: Weights, measurement: str) -> dict[str, Measurement]:
        """client -> its ``measurement`` of ``weights``.

        Raises:
            FederationError: naming a client that did not answer, or whose answer is not finite.
        """
        ids = range(self._next_id, self._next_id + len(self.clients))
        self._next_id = ids.stop
        asked = [Measure(client, weights, (measurement,)) for client in self.clients]
        requests = [
            replace(each, id=id, run="valuation", round=0)
            for id, each in zip(ids, asked, strict=True)
        ]
        inbox = Inbox(requests, ModelSpec(()), {})
        self.transport.exchange(requests, inbox.arrived, self.timeout)
        replies = inbox.replies()
        found = {
            reply.client: reply.measurements[measurement]
            for reply in replies
            if measurement in reply.measurements
        }
        for client in self.clients:
            if client not in found:
                reason = replies.missing.get(
                    client, "it sent no finite value: check its data and its evaluator"
                )
                raise FederationError(
                    f"client {client!r} did not measure {measurement!r}: {reason}. Every coalition must be scored by "
                    "the same clients; what was measured so far is kept: mend it, and run again with --resume True"
                )
        return found

    def close(self) -> None:
        """Let the clients go; they come back when next asked."""
        self.transport.close()


class Key(NamedTuple):
    """Which model was measured, a coalition's in one game (a round, or the whole run), what of it,
    and by whom.
    """

    game: str
    coalition: Coalition
    measurement: str
    clients: frozenset[str]


class MeasuredModels:
    """What the clients measured of coalitions' models, in a file of JSON lines: nothing is measured
    twice.

    A change of utility (mean, worst, a class) or of the method needs no new measurement. The last
    line, when cut short by a crash, is dropped.

    Args:
        path: of the file; made when absent.
        run: identifies the finished run; what is there of another run (fewer rounds, say) is
            discarded.
    """

    def __init__(self, path: str | Path, run: str):
        self.path = Path(path)
        self._known: dict[Key, dict[str, Measurement]] = {}
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        lines = [line for line in lines if line.endswith(b"\n")]
        header = (json.dumps({"run": run}) + "\n").encode()
        if lines[:1] != [header]:
            lines = [header]
        write_atomically(self.path, b"".join(lines))
        for number, line in enumerate(lines[1:], start=2):
            try:
                row = json.loads(line)
                measured = {client: _from_json(value) for client, value in row["measured"].items()}
                key = Key(
                    row["game"],
                    frozenset(row["coalition"]),
                    row["measurement"],
                    frozenset(measured),
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{self.path}, line {number} is damaged: delete it, to be measured again"
                ) from error
            self._known[key] = measured

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def __getitem__(self, key: Key) -> dict[str, Measurement]:
        return self._known[key]

    def add(self, key: Key, measured: Mapping[str, Measurement]) -> None:
        """Keep what ``key.clients`` measured, in the file too."""
        self._known[key] = dict(measured)
        row = {
            "game": key.game,
            "coalition": sorted(key.coalition),
            "measurement": key.measurement,
            "measured": to_json(measured),
        }
        with open(self.path, "ab") as file:
            file.write((json.dumps(row, allow_nan=False) + "\n").encode())


def _from_json(value: Any) -> Any:
    """The inverse of :func:`to_json`."""
    if isinstance(value, Mapping):
        return (
            Estimate(**value)
            if "stderr" in value
            else {name: _from_json(item) for name, item in value.items()}
        )
    return value
