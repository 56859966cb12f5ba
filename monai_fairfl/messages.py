# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire between a federation and its clients, and the checks it must pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

__all__ = [
    "CONTEXT_KEYS",
    "Estimate",
    "Measure",
    "Measurement",
    "ModelSpec",
    "Reply",
    "Request",
    "Train",
    "Weights",
    "failed",
    "refusal",
    "to_json",
    "usable_measurements",
    "value_of",
]

Weights = Mapping[str, torch.Tensor]
"""A ``state_dict``: tensor name -> tensor."""

CONTEXT_KEYS = frozenset(
    {
        "previous_weight",  # the weight with which this client's last update entered the model it now receives; [0, 1]
        "sam_rho",  # radius of sharpness-aware training, and of the measurement "sharpness"
        "gsam_alpha",  # GSAM's share of the orthogonal gradient; only with sam_rho
        "ditto_lambda",  # pull of Ditto's personal model towards the global one
        "prox_mu",  # FedProx's proximal term
        "reset_optimizer",  # 1: forget the optimizer's moments before training; the learning-rate schedule goes on
        "local_epochs",  # epochs of this request's training
        "local_norm",  # 1: the weights lack the parameters of normalisation layers, which stay at the site (FedBN)
        "closing",  # 1: ends a run; the site keeps each case's score, and the model it uses if only it has all of it
        "cka_training",  # 1: features of training images, not of validation images
        "cka_unbiased",  # 1: CKA by the unbiased mini-batch estimator
    }
)
"""Names a request's context may use: all else is an error at the client, never ignored."""


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty: mean ``value``, its standard error (``None``: unknown), from
    ``n`` observations.

    >>> Estimate(0.81, 0.02, 5).value
    0.81
    """

    value: float
    stderr: float | None = None
    n: int = 1

    def __float__(self) -> float:
        return float(self.value)


Measurement = float | Estimate | Mapping[str, float | Estimate]
"""One measurement: a number, an estimate, or a mapping of these (``"mean"`` and one entry per
class, or per layer).
"""


def value_of(measurement: Measurement) -> float:
    """The one number of a measurement: its value, or the ``"mean"`` of a mapping.

    >>> value_of({"mean": Estimate(0.8), "gland": 0.8})
    0.8
    """
    return float(measurement["mean"] if isinstance(measurement, Mapping) else measurement)


@dataclass(frozen=True)
class ModelSpec:
    """What each tensor of a model is; names only, so it is plain JSON. Made by
    :func:`monai_fairfl.spec.read_spec`.

    Args:
        parameters: trainable tensors without aliases, sorted: they alone count in inner products
            and contributions.
        aliases: state_dict name -> the tensor whose storage it shares (shared modules, DynUNet's
            heads).
        buffers: every other tensor: BatchNorm statistics, counters, frozen parameters.
        layers: tensor -> the module that owns it.
        output: module that produces the logits, and the class axis of its weight.
        norms: parameters and buffers of normalisation layers, from the two above.
        local: tensors that never leave the clients, in none of the above.

    >>> ModelSpec(("w",), {}, (), {"w": ""}).to_json()["parameters"]
    ['w']
    """

    parameters: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str, int] | None = None
    norms: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    def with_local_norms(self) -> ModelSpec:
        """The same model, but its normalisation layers never leave the clients (FedBN, Li et al.,
        ICLR 2021).
        """
        return replace(
            self,
            parameters=tuple(name for name in self.parameters if name not in self.norms),
            buffers=tuple(name for name in self.buffers if name not in self.norms),
            local=self.norms,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON of the specification."""
        return {
            "parameters": list(self.parameters),
            "aliases": dict(self.aliases),
            "buffers": list(self.buffers),
            "layers": dict(self.layers),
            "output": list(self.output) if self.output else None,
            "norms": list(self.norms),
            "local": list(self.local),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of :meth:`to_json`."""
        output = data["output"]
        return cls(
            parameters=tuple(data["parameters"]),
            aliases=dict(data["aliases"]),
            buffers=tuple(data["buffers"]),
            layers=dict(data["layers"]),
            output=(output[0], int(output[1])) if output else None,
            norms=tuple(data["norms"]),
            local=tuple(data["local"]),
        )

    def classes(self, weights: Weights) -> int:
        """Number of classes of the output layer in ``weights``; 0 where it is unknown."""
        module, axis = self.output or ("", 0)
        weight = weights.get(f"{module}.weight".lstrip(".")) if self.output else None
        return 0 if weight is None else int(weight.shape[axis])

    def split(self, state: Weights) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Parameters and buffers of a full ``state_dict``, aliases left out."""
        return {k: state[k] for k in self.parameters}, {
            k: state[k] for k in self.buffers if k in state
        }

    def with_aliases(self, weights: Weights) -> dict[str, torch.Tensor]:
        """``weights`` as the full ``state_dict`` that ``load_state_dict(strict=True)`` and bundles
        expect.
        """
        return {
            **weights,
            **{alias: weights[name] for alias, name in self.aliases.items() if name in weights},
        }


@dataclass(frozen=True)
class Request:
    """What a client is asked to do. A strategy fills the first five fields; the federation stamps
    the rest.
    """

    client: str
    task: str  # "train" | "measure"
    weights: Weights
    measure: tuple[str, ...] = ()
    context: Mapping[str, float] = field(default_factory=dict)
    id: int = 0
    run: str = ""
    round: int = -1
    seed: int = 0
    ledger_head: str = ""

    def __post_init__(self) -> None:
        if self.task not in ("train", "measure"):
            raise ValueError(
                f"request to {self.client!r}: task must be 'train' or 'measure', got {self.task!r}"
            )
        unknown = sorted(set(self.context) - CONTEXT_KEYS)
        if unknown:
            raise ValueError(
                f"request to {self.client!r}: unknown context key {unknown[0]!r}; known are {sorted(CONTEXT_KEYS)}"
            )


def Train(
    client: str, weights: Weights, measure: Iterable[str] = (), context: Mapping[str, float] = {}
) -> Request:
    """Ask ``client`` to train from ``weights``, and to measure on the way.

    >>> Train("A", {}, ("train_loss",)).task
    'train'
    """
    return Request(client, "train", weights, tuple(measure), dict(context))


def Measure(
    client: str, weights: Weights, measure: Iterable[str] = (), context: Mapping[str, float] = {}
) -> Request:
    """Ask ``client`` to measure ``weights`` on its private data, without training."""
    return Request(client, "measure", weights, tuple(measure), dict(context))


@dataclass(frozen=True)
class Reply:
    """What a client answers; ``id``, ``run`` and ``round`` echo the request.

    Args:
        update: parameters only: local minus the weights that were sent; ``None`` when it only
            measured.
        num_samples: images that passed the network in one local epoch.
        measurements: name -> number, estimate, or a mapping of these.
        buffers: absolute values of the buffers after training.
        num_cases: different volumes or photographs of the training set.
        num_steps: optimizer steps done.
        labelled: for each class of the output layer, whether any training label of this site tells
            it; a class that it does not tell was not trained here. Empty: all are told.
        error: why the client could not answer; all else is then ignored.
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


def failed(request: Request, error: str) -> Reply:
    """The reply to ``request`` of a client that could not answer it."""
    return Reply(
        request.client, None, 0, id=request.id, run=request.run, round=request.round, error=error
    )


def refusal(request: Request, reply: Reply, spec: ModelSpec) -> str | None:
    """Why ``reply`` must not reach a strategy, or ``None``. Values are the guards' business; form
    is checked here.

    >>> refusal(Request("A", "measure", {}, id=3), Reply("A", None, 1, id=2), ModelSpec(()))
    'answers request 2 of run  round -1, asked was request 3 of run  round -1'
    """
    if reply.error is not None:
        return f"error: {reply.error}"
    if (reply.id, reply.run, reply.round) != (request.id, request.run, request.round):
        return (
            f"answers request {reply.id} of run {reply.run} round {reply.round}, "
            f"asked was request {request.id} of run {request.run} round {request.round}"
        )
    if request.task == "measure":
        return (
            None if reply.update is None else "measured, and sent an update that was not asked for"
        )
    least = {"num_samples": 1, "num_cases": 0, "num_steps": 0}
    for name, minimum in least.items():
        count = getattr(reply, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
            return f"{name} must be a whole number of at least {minimum}, got {count!r}"
    if reply.update is None:
        return "trained but sent no update"
    if reply.labelled and len(reply.labelled) != (classes := spec.classes(request.weights)):
        return (
            f"labelled must name {classes} classes of the output layer, got {list(reply.labelled)}"
        )
    return _differs("update", reply.update, request.weights, spec.parameters) or _differs(
        "buffers",
        reply.buffers or {},
        request.weights,
        [name for name in spec.buffers if name in (reply.buffers or {})],
    )


def _differs(what: str, sent: Weights, reference: Weights, names: Sequence[str]) -> str | None:
    missing, extra = sorted(set(names) - set(sent)), sorted(set(sent) - set(names))
    if missing or extra:
        return f"{what} has other tensors than the model: missing {missing[:3]}, unexpected {extra[:3]}"
    for name in names:
        tensor, expected = sent[name], reference.get(
            name
        )  # looked up once: it may be read from disk
        if expected is not None and tensor.shape != expected.shape:
            return (
                f"{what} {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
            )
        if expected is not None and tensor.is_floating_point() != expected.is_floating_point():
            return f"{what} {name!r} has type {tensor.dtype}, expected {expected.dtype}"
    return None


def usable_measurements(reply: Reply) -> tuple[dict[str, Measurement], list[str]]:
    """The finite measurements of a reply, and the names of those that are not (dropped, never
    averaged).

    A measurement is a plain number, an :class:`Estimate` of one, or a mapping of these that holds
    ``"mean"``; what is anything else counts as not finite.

    >>> usable_measurements(Reply("A", None, 1, {"score": float("nan"), "train_loss": 0.3}))
    ({'train_loss': 0.3}, ['score'])
    """
    usable = {name: value for name, value in reply.measurements.items() if _is_finite(value)}
    return usable, sorted(set(reply.measurements) - set(usable))


def _is_finite(value: object) -> bool:
    if isinstance(value, Mapping):
        return "mean" in value and all(_is_estimate(item) for item in value.values())
    return _is_estimate(value)


def _is_estimate(value: object) -> bool:
    if not isinstance(value, Estimate):
        return _is_number(value)
    return (
        _is_number(value.value)
        and (value.stderr is None or _is_number(value.stderr))
        and isinstance(value.n, int)
    )


def _is_number(value: object) -> bool:
    try:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:  # an integer too large for a float
        return False


def to_json(value: Any) -> Any:
    """Measurements and contributions as plain JSON: an :class:`Estimate` becomes an object of its
    fields.

    >>> to_json({"A": Estimate(0.5, None, 2), "B": [1.0, float("nan")]})
    {'A': {'value': 0.5, 'stderr': None, 'n': 2}, 'B': [1.0, None]}
    """
    if isinstance(value, Estimate):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
