# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Replies as a ledger has them: measurements, counts and inner products, without any tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import Weights
from monai_fairfl.replies import Geometry, Replies


class NotInLedgerError(ConfigError):
    """A method reads something that this ledger does not hold; the text names both.

    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.audit import replay
    >>> with TemporaryDirectory() as folder:
    ...     _ = open(folder + "/ledger.jsonl", "w")
    ...     replay(folder)
    Traceback (most recent call last):
    ...
    monai_fairfl.audit.ledger_replies.NotInLedgerError: ... has no record yet: ...
    """


class NoTensors(Mapping[str, torch.Tensor]):
    """Stands for tensors that are not in the ledger: a method that looks at them is refused."""

    def __init__(self, what: str):
        self.what = what

    def __getitem__(self, name: str) -> torch.Tensor:
        _refuse(self.what)

    def __iter__(self) -> Iterator[str]:
        _refuse(self.what)

    def __len__(self) -> int:
        _refuse(self.what)


class LedgerReplies(Replies):
    """The replies of one exchange as a strategy saw them, less the tensors.

    What a strategy computes of measurements, counts and inner products is the same, to the bit. An
    average holds nothing, and a strategy that looks at an update or a model is refused.

    Args:
        replies: of the record; their updates are :class:`NoTensors`.
        gram: the record's inner products of the updates; ``None`` where nobody trained.
    """

    def __init__(self, replies: Replies, gram: Mapping[str, Any] | None):
        list.__init__(self, replies)
        vars(self).update(vars(replies))
        self._gram = gram

    def rebuilt(self, *given: Any, **named: Any) -> LedgerReplies:
        """As :meth:`Replies.rebuilt`."""
        return LedgerReplies(super().rebuilt(*given, **named), self._gram)

    @cached_property
    def geometry(self) -> Geometry:
        """The recorded inner products."""
        if self._gram is None or any(reply.update is None for reply in self):
            raise NotInLedgerError(
                "the method compares updates in an exchange whose inner products are not in the "
                "ledger"
            )
        return LedgerGeometry(self, self._gram)

    def start(self, *given: Any) -> Weights:
        """What may be passed on, and not looked at."""
        return NoTensors("the models that clients began with")

    def local(self, *given: Any) -> dict[str, torch.Tensor]:
        """What may be passed on, and not looked at."""
        return NoTensors("the models that clients trained")  # type: ignore[return-value]

    def average(self, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
        """Nothing: no model is in the ledger."""
        return {}


class LedgerGeometry(Geometry):
    """What was recorded of inner products, in place of the updates.

    Args:
        replies: whose updates these are of.
        gram: of the record: the inner products of these updates, and perhaps of others.
    """

    def __init__(self, replies: Replies, gram: Mapping[str, Any]):
        self.spec = replies.spec
        self.labelled = replies.labelled
        self.known_classes = {}
        rows = [gram["clients"].index(reply.client) for reply in replies]
        # A number that was not finite is None there, and NaN here.
        self._whole = np.array(gram["whole"], dtype=float)[np.ix_(rows, rows)]
        for layer, grams in gram["classes"].items():
            self.known_classes[layer] = np.array(grams, dtype=float)[:, rows][:, :, rows]

    @cached_property
    def gram(self) -> np.ndarray:
        """Gram matrix of the whole model."""
        return self._whole

    @cached_property
    def layers(self) -> Mapping[str, np.ndarray]:
        """Refused: they are not in the ledger."""
        _refuse("the inner products of each layer")

    def classes(self, output_layer: str | None = None) -> np.ndarray:
        """Gram matrices of an output layer's classes.

        Raises:
            NotInLedgerError: when those of this layer were not recorded.
        """
        layer, _ = self.spec.output_layer(output_layer) or (output_layer, 0)
        if layer not in self.known_classes:
            raise NotInLedgerError(
                f"the method compares the classes of output layer {layer!r}, and the ledger holds "
                f"those of {sorted(self.known_classes)}"
            )
        return self.known_classes[layer]


def _refuse(what: str) -> NoReturn:
    raise NotInLedgerError(f"the method reads {what}, which the ledger does not hold")
