# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A round as the ledger has it: requests, measurements and inner products, without any tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.messages import (
    Measurement,
    ModelSpec,
    Reply,
    Request,
    Weights,
    measurement_of_json,
)
from monai_fairfl.replies import Aggregation, Geometry, Replies


class NotInLedgerError(ConfigError):
    """A method reads something that this ledger does not hold; the text names both.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.audit import replay
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     _ = open(folder + "/ledger.jsonl", "w")
    ...     replay(folder)
    Traceback (most recent call last):
    ...
    monai_fairfl.audit.ledger_rounds.NotInLedgerError: ... has no record yet: ...
    """


@dataclass(frozen=True)
class LedgerRequest:
    """One request of an exchange.

    Args:
        client: that was asked.
        task: ``"train"`` or ``"measure"``.
        measured: what it measured; ``None`` where the strategy saw no reply.
    """

    client: str
    task: str
    measured: Mapping[str, Measurement] | None


@dataclass(frozen=True)
class Grams:
    """Inner products of the updates of one exchange.

    Args:
        clients: of the rows and columns, sorted.
        whole: of the whole model, shape (N, N).
        classes: output layer -> of its classes, shape (classes, N, N).
    """

    clients: Sequence[str]
    whole: np.ndarray
    classes: Mapping[str, np.ndarray]

    def of(self, clients: Sequence[str]) -> Grams:
        """The part of some clients, in their order."""
        rows = [self.clients.index(client) for client in clients]
        part = np.ix_(rows, rows)
        classes = {layer: grams[:, part[0], part[1]] for layer, grams in self.classes.items()}
        return Grams(tuple(clients), self.whole[part], classes)


@dataclass(frozen=True)
class LedgerRound:
    """One round of a ledger.

    Args:
        number: of the round, from 0.
        clients: that were asked.
        known_clients: of the strategy, which may be more.
        planned: rounds that the run was to have then.
        exchanges: the requests of each exchange, in order.
        grams: of the exchange that trained; ``None`` where none did.
        samples: client -> images of one local epoch, of those that trained.
        labelled: client -> which classes it labels, of those that do not label all.
        evaluated: measurements that the run adds to the first exchange of every round.
        record: the round's record, whole.
    """

    number: int
    clients: Sequence[str]
    known_clients: Sequence[str]
    planned: int
    exchanges: Sequence[Sequence[LedgerRequest]]
    grams: Grams | None
    samples: Mapping[str, int]
    labelled: Mapping[str, Sequence[bool]]
    evaluated: Sequence[str]
    record: Mapping[str, Any]

    def without(self, client: str) -> LedgerRound:
        """This round as if one client had not been asked."""
        exchanges = []
        for requests in self.exchanges:
            exchanges.append([request for request in requests if request.client != client])
        grams = self.grams
        if grams is not None:
            grams = grams.of([other for other in grams.clients if other != client])
        return replace(
            self,
            clients=[other for other in self.clients if other != client],
            known_clients=[other for other in self.known_clients if other != client],
            exchanges=exchanges,
            grams=grams,
            samples={other: count for other, count in self.samples.items() if other != client},
        )

    @property
    def training(self) -> int | None:
        """Number of the exchange that trained; ``None``: none did.

        Raises:
            NotInLedgerError: when several did; the ledger has the updates of one.
        """
        found = []
        for number, requests in enumerate(self.exchanges):
            if any(request.task == "train" for request in requests):
                found.append(number)
        if len(found) > 1:
            raise NotInLedgerError(
                f"round {self.number} trained in {len(found)} exchanges, and the ledger holds the "
                "inner products of the first one only"
            )
        return found[0] if found else None


def ledger_rounds(records: Sequence[Mapping[str, Any]]) -> list[LedgerRound]:
    """The rounds of a ledger.

    Args:
        records: of the ledger, the opening first.

    Raises:
        FederationError: when a record lacks what every round's record has.
    """
    opening = records[0]
    rounds = []
    for line, record in enumerate(records, 1):
        if record["kind"] != "round":
            continue
        try:
            rounds.append(_recorded(record, opening["evaluate"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FederationError(
                f"line {line} of the ledger is not the record of a round ({error!r}): restore the "
                "ledger from a copy"
            ) from error
    return rounds


NEEDED = (
    "aggregation",
    "contributions",
    "details",
    "measurements",
    "missing",
    "verdicts",
    "cases",
    "steps",
)
"""Entries of a round's record that are read later."""


def _recorded(record: Mapping[str, Any], evaluated: Sequence[str]) -> LedgerRound:
    for name in NEEDED:
        if not isinstance(record[name], Mapping):
            raise TypeError(f"{name} is no object")
    exchanges = []
    for entries in record["exchanges"]:
        requests = []
        for entry in entries:
            measured = entry["measured"]
            if measured is not None:
                measured = {name: measurement_of_json(value) for name, value in measured.items()}
            requests.append(LedgerRequest(entry["client"], entry["task"], measured))
        exchanges.append(requests)
    return LedgerRound(
        record["round"],
        record["clients"],
        record["known_clients"],
        record["planned_rounds"],
        exchanges,
        _grams(record["gram"]),
        record["samples"],
        record["labelled"],
        evaluated,
        record,
    )


def _grams(plain: Mapping[str, Any] | None) -> Grams | None:
    if plain is None:
        return None
    classes = {layer: _array(grams) for layer, grams in plain["classes"].items()}
    clients = tuple(plain["clients"])
    return Grams(clients, _array(plain["whole"]), classes)


def _array(plain: Any) -> np.ndarray:
    """Numbers of a record; one that was not finite is ``None`` there, and NaN here."""
    return np.array(plain, dtype=float)


def model_without_numbers(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Tensors of the model's shapes that hold no numbers and take no memory.

    >>> model_without_numbers({"w": [2, 3]})["w"].shape
    torch.Size([2, 3])
    """
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


class NoTensors(Mapping[str, torch.Tensor]):
    """Stands for tensors that are not in the ledger: a method that looks at them is refused."""

    def __init__(self, what: str):
        self.what = what

    def __getitem__(self, name: str) -> torch.Tensor:
        _refuse_tensors(self.what)

    def __iter__(self) -> Iterator[str]:
        _refuse_tensors(self.what)

    def __len__(self) -> int:
        _refuse_tensors(self.what)


class LedgerReplies(Replies):
    """The replies of one exchange as a strategy saw them, less the tensors.

    What a strategy computes of measurements, counts and inner products is the same, to the bit. An
    average holds nothing, and a strategy that looks at an update or a model is refused.

    Args:
        replies: of the record.
        requests: of the strategy, with their ids.
        spec: the model's tensors.
        missing: client -> why it is absent.
        grams: inner products of the updates; ``None`` where nobody trained.
        shortened: as of :class:`Replies`.
        groups: as of :class:`Replies`.
    """

    def __init__(
        self,
        replies: Iterable[Reply],
        requests: Iterable[Request],
        spec: ModelSpec,
        missing: Mapping[str, str],
        grams: Grams | None,
        *,
        shortened: Iterable[str] = (),
        groups: Sequence[Sequence[str]] = (),
    ):
        super().__init__(
            replies,
            requests,
            spec,
            missing=missing,
            shortened=shortened,
            groups=groups,
        )
        self._grams = grams

    @cached_property
    def geometry(self) -> Geometry:
        """The recorded inner products."""
        if self._grams is None or list(self._grams.clients) != [reply.client for reply in self]:
            raise NotInLedgerError(
                "the method compares updates in an exchange whose inner products are not in the "
                "ledger"
            )
        return LedgerGeometry(self._grams, self.spec, self.labelled)

    @property
    def updates(self) -> list[Weights]:
        """Refused: the updates are not in the ledger."""
        _refuse_tensors("the updates themselves")

    def start(self, reply: Reply) -> Weights:
        """What may be passed on, and not looked at."""
        return NoTensors("the models that clients began with")

    def local(self, reply: Reply) -> dict[str, torch.Tensor]:
        """What may be passed on, and not looked at."""
        return NoTensors("the models that clients trained")  # type: ignore[return-value]

    def rebuilt(
        self,
        replies: Iterable[Reply],
        missing: Mapping[str, str],
        requests: Iterable[Request] | None = None,
    ) -> LedgerReplies:
        """As :meth:`Replies.rebuilt`, with the inner products of those replies."""
        some = list(replies)
        grams = self._grams
        if grams is not None:
            grams = grams.of([reply.client for reply in some])
        return LedgerReplies(
            some,
            self.requests.values() if requests is None else requests,
            self.spec,
            missing,
            grams,
            shortened=self.shortened,
            groups=self.groups,
        )

    def average(
        self,
        weights: Aggregation | None = None,
        buffers: str = "aggregation",
        start: Weights | None = None,
        scale: np.ndarray | None = None,
    ) -> dict[str, torch.Tensor]:
        """Nothing: no model is in the ledger."""
        return {}

    def average_buffers(self, weights: Aggregation, policy: str) -> dict[str, torch.Tensor]:
        """Nothing: no model is in the ledger."""
        return {}


class LedgerGeometry(Geometry):
    """What was recorded of inner products, in place of the updates.

    Args:
        grams: of the ledger.
        spec: names the output layer.
        labelled: which update was trained on which class of the output layer.
    """

    def __init__(self, grams: Grams, spec: ModelSpec, labelled: np.ndarray | None):
        self._grams = grams
        self.spec = spec
        self.labelled = labelled

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Refused: they are not in the ledger."""
        _refuse_tensors("the inner products of each layer")

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of an output layer's classes.

        Raises:
            NotInLedgerError: when those of this layer were not recorded.
        """
        layer = output_layer
        if layer is None and self.spec.output is not None:
            layer = self.spec.output[0]
        if layer is None or layer not in self._grams.classes:
            raise NotInLedgerError(
                f"the method compares the classes of output layer {layer!r}, and the ledger holds "
                f"those of {sorted(self._grams.classes)}"
            )
        return self._grams.classes[layer]

    @cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix of the whole model."""
        return self._grams.whole


def _refuse_tensors(what: str) -> NoReturn:
    raise NotInLedgerError(f"the method reads {what}, which the ledger does not hold")
