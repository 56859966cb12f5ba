# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the server asks of a client, and what the client answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.values import Measurement, Weights

CONTEXT_KEYS: dict[str, str] = {
    "previous_weight": "The weight with which this client's last update entered the model that it "
    "now receives; 0 to 1.",
    "sam_rho": "The radius of sharpness-aware training, and of the measurement sharpness.",
    "gsam_alpha": "GSAM's share of the orthogonal gradient; only with sam_rho.",
    "ditto_lambda": "The pull of Ditto's personal model towards the global one.",
    "prox_mu": "The weight of FedProx's proximal term.",
    "reset_optimizer": "At 1 the client forgets the optimizer's moments before training; the "
    "learning-rate schedule goes on.",
    "local_epochs": "The epochs of this request's training.",
    "local_norm": "At 1 the weights lack the parameters of normalisation layers, which stay at the "
    "site (FedBN).",
    "closing": "At 1 the request ends a run: the site stores each case's score, and the model that "
    "it uses if only it has all of it.",
    "adapt_epochs": "The most epochs of the last mile: the site trains its own model on, and takes "
    "the result if its validation cases gain.",
    "adapt_rate": "The learning rate of the last mile.",
    "adapt_fuse": "At 1 the model that the site would take in the last mile, fused with the one "
    "that it trained alone, is another candidate.",
    "ended": "At 1 the run has ended and the request asks for nothing: it brings the head of the "
    "whole ledger, which the site stores.",
    "cka_training": "At 1 features are of training images, not of validation images.",
    "cka_unbiased": "At 1 CKA is computed by the unbiased mini-batch estimator.",
}
"""Name -> meaning of everything that a request's context may hold. Any other name is an error,
wherever a request is made: also at a client whose version does not know it.
"""


@dataclass(frozen=True)
class Request:
    """What the server asks of a client: to train a model, or only to measure it.

    A strategy fills the first five fields, best by :func:`Train` and :func:`Measure`. The
    federation fills the others.

    Args:
        client: name of the client.
        task: ``"train"`` or ``"measure"``.
        weights: name of a tensor -> tensor, of the model that the client receives.
        measure: names of the measurements to send.
        context: key of :data:`CONTEXT_KEYS` -> number, for the training or a measurement.
        id: number of the request in its round.
        run: the run's name.
        round: number of the round, from 0. A closing request has the number of rounds.
        seed: of the random numbers of the client's work.
        ledger_head: SHA-256 of the last line of the server's ledger.
        run_id: a text that is drawn when the run begins, and stays when it is resumed, so that two
            runs of the same name differ. Empty: there is no run.

    Raises:
        ValueError: if the task or a context key is unknown.

    >>> Request("A", "train", {}, ("train_loss",)).measure
    ('train_loss',)
    """

    client: str
    task: str
    weights: Weights
    measure: tuple[str, ...] = ()
    context: Mapping[str, float] = field(default_factory=dict)
    id: int = 0
    run: str = ""
    round: int = -1
    seed: int = 0
    ledger_head: str = ""
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.task not in ("train", "measure"):
            raise ValueError(
                f"request to {self.client!r}: task must be 'train' or 'measure', got {self.task!r}"
            )
        unknown = sorted(set(self.context) - set(CONTEXT_KEYS))
        if unknown:
            raise ValueError(
                f"request to {self.client!r}: unknown context key {unknown[0]!r}; known are "
                f"{sorted(CONTEXT_KEYS)}: update monai_fairfl, or use another strategy"
            )

    def reply(self, update: Weights | None = None, num_samples: int = 0, **fields: Any) -> Reply:
        """Make the reply to this request, with its client, id, run and round.

        Args:
            update: as for :class:`Reply`; ``None``: the client only measured.
            num_samples: as for :class:`Reply`.
            fields: further fields of :class:`Reply`.

        >>> asked = Request("A", "measure", {}, ("score",), id=3)
        >>> reply = asked.reply(measurements={"score": 0.8})
        >>> reply.client, reply.id
        ('A', 3)
        """
        return Reply(
            self.client,
            update,
            num_samples,
            id=self.id,
            run=self.run,
            round=self.round,
            **fields,
        )


def _names(measure: Iterable[str]) -> tuple[str, ...]:
    """Names of measurements; one text by itself would be a name for each of its letters."""
    if isinstance(measure, str):
        raise ConfigError(f"measure must be a list of measurements, got {measure!r}")
    return tuple(measure)


def Train(
    client: str, weights: Weights, measure: Iterable[str] = (), context: Mapping[str, float] = {}
) -> Request:
    """Make a request to train a model, and to measure it on the way.

    Args:
        client: name of the client.
        weights: name of a tensor -> tensor, of the model to train.
        measure: names of the measurements to send, as a list.
        context: key of :data:`CONTEXT_KEYS` -> number.

    Raises:
        ConfigError: if ``measure`` is a single text.
        ValueError: if a context key is unknown.

    >>> Train("A", {}, ("train_loss",)).task
    'train'
    """
    return Request(client, "train", weights, _names(measure), dict(context))


def Measure(
    client: str, weights: Weights, measure: Iterable[str] = (), context: Mapping[str, float] = {}
) -> Request:
    """Make a request to measure a model on the client's private data, without training it.

    Args:
        client: name of the client.
        weights: name of a tensor -> tensor, of the model to measure.
        measure: names of the measurements to send, as a list.
        context: key of :data:`CONTEXT_KEYS` -> number.

    Raises:
        ConfigError: if ``measure`` is a single text.
        ValueError: if a context key is unknown.

    >>> Measure("A", {}, ("score",)).measure
    ('score',)
    """
    return Request(client, "measure", weights, _names(measure), dict(context))


@dataclass(frozen=True)
class Reply:
    """What a client answers. :meth:`Request.reply` makes it.

    Args:
        client: name of the client.
        update: name of a parameter -> the trained minus the received tensor, of the same shape;
            ``None``: the client only measured.
        num_samples: number of training images in one local epoch, at least 1 if the client trained.
        measurements: name -> number, :class:`Estimate`, or a mapping of these with a ``"mean"``.
        buffers: name of a buffer -> the tensor itself, not a difference, after the training.
        num_cases: number of different volumes or photographs in the training set.
        num_steps: number of optimizer steps.
        labelled: for each class of the output layer, whether the site labels it in any training
            case. A class that it does not label was not trained here. Empty: all are labelled.
        id: that of the request.
        run: that of the request.
        round: that of the request.
        error: why the client could not answer. The server then ignores all other fields.
        digest: SHA-256 of update and buffers as the client sent them, 64 hexadecimal digits, for
            the ledger. Empty: the client states none.
        state_round: the earlier round whose state (optimizer, own tensors) the training went on
            from; -1: there was no state; ``None``: the client does not state it. The ledger notes
            a client that lost its state.
        precision: ``"bfloat16"`` or ``"float32"``, in which the network was trained, where the
            client's hardware chose it; empty: it did not.

    >>> asked = Request("A", "measure", {}, ("score",), id=3, run="first", round=0)
    >>> Reply("A", None, 0, {"score": 0.8}, id=asked.id, run=asked.run, round=asked.round).id
    3
    """

    client: str
    update: Weights | None
    num_samples: int
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    buffers: Weights | None = None
    num_cases: int = 0
    num_steps: int = 0
    labelled: tuple[bool, ...] = ()
    id: int = 0
    run: str = ""
    round: int = -1
    error: str | None = None
    digest: str = ""
    state_round: int | None = None
    precision: str = ""


def failed(request: Request, error: str) -> Reply:
    """The reply to ``request`` of a client that could not answer it.

    >>> reply = failed(Request("elm", "train", {}, id=3), "no cases")
    >>> reply.client, reply.id, reply.error
    ('elm', 3, 'no cases')
    """
    return request.reply(error=error)
