# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire: requests, replies, their numbers, and what each tensor of a model is.

A reply is checked once, when it arrives: :meth:`Expected.accepted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.arguments import is_finite, is_whole

Weights = Mapping[str, torch.Tensor]
"""A ``state_dict``: tensor name -> tensor."""


@dataclass(frozen=True)
class Estimate:
    """A mean of several observations, such as of the Dice of a site's cases, with its uncertainty.

    Args:
        value: the mean, in the unit of the observations.
        stderr: the standard error of the mean, in the same unit; ``None``: not known.
        n: the number of observations.

    >>> dice = Estimate(0.81, 0.02, 5)
    >>> dice.stderr, float(dice)
    (0.02, 0.81)
    """

    value: float
    stderr: float | None = None
    n: int = 1

    def __float__(self) -> float:
        return float(self.value)


Measurement = float | Estimate | Mapping[str, float | Estimate]
"""A number, an estimate, or a mapping of these: ``"mean"``, and one entry per class or layer."""


def estimate_of(measurement: Measurement) -> Estimate:
    """The one number of a measurement with its cases; a number without cases counts as of one.

    >>> estimate_of({"mean": Estimate(0.8, None, 5), "gland": 0.8}).n, estimate_of(0.8).n
    (5, 1)
    """
    mean = measurement["mean"] if isinstance(measurement, Mapping) else measurement
    return mean if isinstance(mean, Estimate) else Estimate(mean)


def value_of(measurement: Measurement) -> float:
    """The one number of a measurement: its value, or the ``"mean"`` of a mapping.

    >>> value_of({"mean": Estimate(0.8), "gland": 0.8})
    0.8
    """
    return float(estimate_of(measurement).value)


def plain_numbers(value: Any) -> Any:
    """A measurement or contribution with Python's numbers in place of NumPy's or PyTorch's.

    >>> plain_numbers({"mean": Estimate(torch.tensor(0.5), None, 2), "cup": torch.tensor(0.25)})
    {'mean': Estimate(value=0.5, stderr=None, n=2), 'cup': 0.25}
    """
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, Estimate):
        return Estimate(*map(plain_numbers, (value.value, value.stderr, value.n)))
    return value.item() if getattr(value, "ndim", None) == 0 else value


def to_json(value: Any) -> Any:
    """Measurements and contributions as plain JSON.

    An :class:`Estimate` or :class:`ModelSpec` becomes an object of its fields, a number that is not
    finite ``None``.

    >>> to_json({"A": Estimate(0.5, None, 2), "B": [1.0, float("nan")]})
    {'A': {'value': 0.5, 'stderr': None, 'n': 2}, 'B': [1.0, None]}
    """
    if isinstance(value, (Estimate, ModelSpec)):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_plain_estimate(plain: object) -> bool:
    """Whether a value of a record is what :func:`to_json` makes of an :class:`Estimate`.

    A site's classes and layers may be called ``"value"`` or ``"stderr"``, too: then there is also a
    ``"mean"``.

    >>> is_plain_estimate({"value": 0.5, "stderr": None, "n": 2})
    True
    >>> is_plain_estimate({"mean": 0.5, "value": 0.4, "stderr": 0.6})
    False
    """
    return isinstance(plain, Mapping) and set(plain) == {"value", "stderr", "n"}


def measurement_of_json(plain: Any) -> Any:
    """A measurement of a record or a file: the inverse of :func:`to_json`.

    A number that was not finite stays ``None``.

    >>> measurement_of_json({"mean": {"value": 0.5, "stderr": None, "n": 2}, "cup": 0.25})
    {'mean': Estimate(value=0.5, stderr=None, n=2), 'cup': 0.25}
    """
    if is_plain_estimate(plain):
        return Estimate(**plain)
    if isinstance(plain, Mapping):
        return {name: measurement_of_json(value) for name, value in plain.items()}
    return plain


OWN_MODEL_PREFIXES = ("local_", "personal_", "adapted_", "alone_", "fused_")
"""How the name of a measurement begins that is of a model which the client itself trained in that
round. All others are of the model that the client was sent. The server dates a score by that.
"""


def is_of_own_model(measurement: str) -> bool:
    """Whether a measurement of this name is of a model which the client itself trained.

    >>> is_of_own_model("local_score"), is_of_own_model("global_score")
    (True, False)
    """
    return measurement.startswith(OWN_MODEL_PREFIXES)


def printable(text: str) -> str:
    r"""``text`` in one line, with a space for each character that cannot be printed.

    A line break or a terminal's escape code in an error message would let a site write lines of its
    own into the log of all. Half of a surrogate pair cannot be written into a page.

    >>> printable("no space left\n2026-01-01 client oak: quarantined\x1b[31m")
    'no space left 2026-01-01 client oak: quarantined [31m'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def add_note(notes: dict[str, str], client: str, text: str) -> None:
    """Add a note on a client to those that it has; a text that is already there is not repeated.

    >>> notes = {"elm": "late"}
    >>> add_note(notes, "elm", "no score")
    >>> add_note(notes, "elm", "late")
    >>> notes
    {'elm': 'late; no score'}
    """
    earlier = notes.get(client)
    if not earlier:
        notes[client] = text
    elif text not in earlier.split("; "):
        notes[client] = f"{earlier}; {text}"


# ---- what each tensor of a model is


def weight_of(module: str) -> str:
    """The name of a module's weight; the module of the network itself has an empty name.

    >>> weight_of("head"), weight_of("")
    ('head.weight', 'weight')
    """
    return f"{module}.weight".lstrip(".")


def bias_of(module: str) -> str:
    """The name of a module's bias, as :func:`weight_of`."""
    return f"{module}.bias".lstrip(".")


@dataclass(frozen=True)
class ModelSpec:
    """Says what each tensor of a model is. It has names only, so it is plain JSON.

    :func:`~monai_fairfl.messages.read_spec` makes it from a network.

    Args:
        parameters: names of the trainable tensors without aliases, sorted. Only they count in inner
            products and contributions.
        aliases: name in the ``state_dict`` -> name of the tensor whose storage it shares (shared
            modules, DynUNet's heads).
        buffers: names of all other tensors: BatchNorm statistics, counters, frozen parameters.
        layers: name of a tensor -> name of the module that owns it.
        output: name of the module that makes the logits, and the class axis of its weight;
            ``None``: not known.
        norms: names of the parameters and buffers of normalisation layers, which are also in
            ``parameters`` or ``buffers``.
        local: names of the tensors that never leave the clients, which are in neither.

    >>> to_json(ModelSpec(("w",), {}, (), {"w": ""}))["parameters"]
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
        """The same model, but its normalisation layers never leave the clients.

        This is FedBN (Li et al., ICLR 2021).
        """
        parameters = tuple(name for name in self.parameters if name not in self.norms)
        buffers = tuple(name for name in self.buffers if name not in self.norms)
        return replace(self, parameters=parameters, buffers=buffers, local=self.norms)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of :func:`to_json`."""
        rows: dict[str, Any] = {}
        for name, value in data.items():
            rows[name] = tuple(value) if isinstance(value, list) else value
        return cls(**rows)

    def output_layer(self, named: str | None = None) -> tuple[str, int] | None:
        """The module that makes the logits, and the class axis of its weight; ``None``: unknown.

        Args:
            named: the module's name; ``None``: the one found when the network ran. Another module
                has its classes on the first axis, as convolutions and linear layers have.

        >>> spec = ModelSpec(("head.weight",), output=("head", 1))
        >>> spec.output_layer(), spec.output_layer("head"), spec.output_layer("other")
        (('head', 1), ('head', 1), ('other', 0))
        """
        if named is None or (self.output is not None and named == self.output[0]):
            return self.output
        return named, 0

    def class_axis(self, name: str) -> int | None:
        """The axis of the classes in a tensor of the output layer; ``None``: it is of another.

        Args:
            name: of the tensor. All but the weight have their classes on the first axis.

        >>> layers = {"head.weight": "head", "head.bias": "head", "stem.weight": "stem"}
        >>> spec = ModelSpec(tuple(layers), layers=layers, output=("head", 1))
        >>> [spec.class_axis(name) for name in layers]
        [1, 0, None]
        """
        if self.output is None or self.layers.get(name) != self.output[0]:
            return None
        return self.output[1] if name == weight_of(self.output[0]) else 0

    def classes(self, weights: Weights) -> int:
        """Number of classes of the output layer in ``weights``; 0 where it is unknown."""
        if self.output is None or weight_of(self.output[0]) not in weights:
            return 0
        module, axis = self.output
        return int(weights[weight_of(module)].shape[axis])

    def tensors_of(self, network: nn.Module) -> dict[str, torch.Tensor]:
        """Copies of a network's parameters and buffers on the CPU, aliases left out."""
        state, names = network.state_dict(), (*self.parameters, *self.buffers)
        return {name: state[name].detach().cpu().clone() for name in names}

    def require_averageable(self, weights: Weights) -> None:
        """Refuse a model whose tensors cannot be averaged.

        Raises:
            ConfigError: naming a tensor that is sparse, or of a type without a mean.

        >>> ModelSpec(("w",)).require_averageable({"w": torch.zeros(2, dtype=torch.complex64)})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the model's 'w' is of torch.complex64 or sparse: make ...
        """
        for name in (*self.parameters, *weights.keys() & self.buffers):
            tensor = weights[name]
            is_small = tensor.is_floating_point() and tensor.element_size() < 2
            is_odd = tensor.is_complex() or tensor.is_quantized or is_small
            if is_odd or tensor.layout is not torch.strided:
                raise ConfigError(
                    f"the model's {name!r} is of {tensor.dtype} or sparse: make it torch.float32"
                )

    def missing_from(self, weights: Weights) -> list[str]:
        """The parameters and buffers that ``weights`` lacks."""
        return [name for name in (*self.parameters, *self.buffers) if name not in weights]

    def completed(self, weights: Weights, own: Weights) -> dict[str, torch.Tensor]:
        """``weights``, with tensors of ``own`` in place of those that it lacks.

        >>> spec = ModelSpec(("w",), buffers=("mean",))
        >>> spec.completed({"w": torch.ones(1)}, {"w": torch.zeros(1), "mean": torch.zeros(1)})
        {'w': tensor([1.]), 'mean': tensor([0.])}
        """
        return {**weights, **{name: own[name] for name in self.missing_from(weights)}}

    def with_aliases(self, weights: Weights) -> dict[str, torch.Tensor]:
        """The full ``state_dict``, as ``load_state_dict(strict=True)`` and bundles expect it."""
        aliases = self.aliases.items()
        return {**weights, **{alias: weights[name] for alias, name in aliases if name in weights}}


NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Layers of normalisation; the first is the base of batch and instance normalisation."""

NO_MEAN = ("._u", ".weight_u", "_extra_state")
"""How the state of ``spectral_norm``, new and old, and a module's extra state end."""

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def read_spec(network: nn.Module, *inputs: torch.Tensor) -> ModelSpec:
    """Make the :class:`ModelSpec` of a network, by one forward pass in evaluation mode.

    The output layer is the module that the pass *calls* last, of those that own a weight with two
    or more dimensions. (``DynUNet`` registers its deep-supervision heads after it.) The class axis
    is 0, or 1 for a transposed convolution, whose weight has the shape (in, out, ...). Frozen
    parameters count as buffers, because nobody trains them. A parametrised weight
    (``weight_norm``) is averaged in its parts, which belong to their layer.

    Args:
        network: the network, on any device. Its mode and the random state stay as they are.
        inputs: example inputs of the forward pass, such as one image of shape (1, C, H, W). Without
            inputs, the output layer stays unknown.

    Raises:
        ConfigError: naming a module with ``spectral_norm``, whose estimate of the norm has no mean,
            or with an extra state, which is no tensor.

    >>> import torch
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    >>> spec = read_spec(net, torch.zeros(1, 1, 8, 8))
    >>> spec.output, spec.parameters[:2], len(spec.buffers)
    (('2', 0), ('0.bias', '0.weight'), 3)
    """
    trainable = {id(parameter) for parameter in network.parameters() if parameter.requires_grad}
    first_name: dict[int, str] = {}  # id of a tensor -> the name under which it was first met
    aliases: dict[str, str] = {}
    layers: dict[str, str] = {}
    parameters: list[str] = []
    buffers: list[str] = []
    for name, tensor in network.state_dict(keep_vars=True).items():
        module, is_parametrised, _ = name.partition(".parametrizations.")
        layer = module if is_parametrised else name.rpartition(".")[0]
        if name.endswith(NO_MEAN):
            raise ConfigError(
                f"the layer {layer!r} has {name!r}, and neither spectral_norm nor an extra state "
                "can be averaged: use a network without it"
            )
        canonical = first_name.setdefault(id(tensor), name)
        if canonical != name:
            aliases[name] = canonical
            continue
        layers[name] = layer
        (parameters if id(tensor) in trainable else buffers).append(name)

    modules = dict(network.named_modules(remove_duplicate=False))
    norms = sorted(name for name in layers if isinstance(modules.get(layers[name]), NORMS))

    # Modules with a weight of two or more dimensions, in the order of their calls.
    called: list[nn.Module] = []
    with ExitStack() as undo, torch.no_grad(), torch.random.fork_rng(devices=[]):
        for part in network.modules() if inputs else ():
            weight = getattr(part, "weight", None)
            if isinstance(weight, torch.Tensor) and weight.ndim >= 2:
                hook = part.register_forward_hook(lambda part, *_: called.append(part))
                undo.callback(hook.remove)
        if inputs:
            undo.callback(network.train, network.training)
            network.eval()(*inputs)
    output = None
    # No tensor of a parametrised layer has a row for each class: its weight has no name.
    if called and id(called[-1].weight) in first_name:
        owner = layers[first_name[id(called[-1].weight)]]
        output = (owner, int(isinstance(called[-1], TRANSPOSED)))
    return ModelSpec(
        tuple(sorted(parameters)), aliases, tuple(sorted(buffers)), layers, output, tuple(norms)
    )


# ---- the names of the last mile

CANDIDATES = ("adapted", "alone", "fused")
"""The models that a site may use in place of the one that it would use:

- ``"adapted"``: that one, trained a little further on the site's own images;
- ``"alone"``: the one that the site trained alone, where it did;
- ``"fused"``: the one that it would take of these and the one that it trained alone, with the mean
  of both outputs (``adapt_fuse``).
"""

FUSED_LOSS = 0.02
"""By so much may the score of ``"fused"`` be below that of the model that the site would use. Two
models that were trained apart seldom fail on the same case, so this one need not gain; it must not
lose. It is not compared with the best candidate, whose gain a single case may have made."""

ADAPTED_EPOCHS = "adapted_epochs"
"""Epochs of the further training until its best one; 0: none was better."""


def gain_name(candidate: str) -> str:
    """The measurement that decides whether a candidate is taken.

    It is the mean over the site's validation cases of the candidate's score less that of the model
    that the site would use.

    >>> gain_name("adapted")
    'adapted_gain'
    """
    return f"{candidate}_gain"


SCORES = ("score", "test_score")
"""What is measured of each model when a run closes."""


def score_names(candidate: str) -> dict[str, str]:
    """Closing measurement -> the same of a candidate, whether or not the site takes it.

    The scores of a client's personal model have such names, too.

    >>> score_names("alone")
    {'score': 'alone_score', 'test_score': 'alone_test_score'}
    """
    return {name: f"{candidate}_{name}" for name in SCORES}


def is_taken(gain: Estimate) -> bool:
    """Whether a gain counts: it is larger than its standard error.

    One validation case has no standard error, and no gain is taken by it.

    Args:
        gain: of a candidate, with its standard error.

    >>> is_taken(Estimate(0.03, 0.01, 5)), is_taken(Estimate(0.03, 0.04, 5))
    (True, False)
    >>> is_taken(Estimate(0.03, None, 1))
    False
    """
    return gain.stderr is not None and gain.value > gain.stderr


def chosen(gains: Mapping[str, Estimate]) -> str | None:
    """The candidate that a site takes: of those whose gain counts, the one with the largest.

    The exception is ``"fused"``, which a site takes if it does not lose, see :data:`FUSED_LOSS`.

    Args:
        gains: candidate -> its gain.

    Returns:
        Its name; ``None``: the site stays with the model that it would use.

    >>> chosen({"adapted": Estimate(0.03, 0.01, 5), "alone": Estimate(0.05, 0.06, 5)})
    'adapted'
    >>> chosen({"adapted": Estimate(0.03, 0.04, 5)}) is None
    True
    >>> chosen({"adapted": Estimate(0.03, 0.01, 5), "fused": Estimate(-0.01, 0.04, 5)})
    'fused'
    """
    fused = gains.get("fused")
    if fused is not None and fused.n and fused.value >= -FUSED_LOSS:
        return "fused"
    taken = [name for name in ("adapted", "alone") if name in gains and is_taken(gains[name])]
    return max(taken, key=lambda name: gains[name].value, default=None)


# ---- requests and replies

TRAINING: dict[str, tuple[str | tuple[int, ...], str]] = {
    # The radius of sharpness-aware training, and of the measurement sharpness.
    "sam_rho": ("[0, inf)", "monai_fairfl.handlers.SharpnessAware"),
    # GSAM's share of the orthogonal gradient; only with sam_rho.
    "gsam_alpha": ("[0, inf)", "monai_fairfl.handlers.SharpnessAware"),
    # The weight of FedProx's proximal term.
    "prox_mu": ("[0, inf)", "monai_fairfl.handlers.Proximal"),
    # At 1 the client forgets the optimizer's moments before training; the learning-rate
    # schedule goes on.
    "reset_optimizer": ((0, 1), ""),
    # The epochs of this request's training.
    "local_epochs": ("[1, inf)", ""),
}
"""Key that a strategy's ``training`` may have -> its range, and the dotted path of the handler that
acts where a request has the key; empty: no handler does. Several keys of a handler are its
arguments, in this order.

A client attaches the handlers in this order: one that replaces gradients comes before one that adds
to them.
"""

CONTEXT_KEYS = {
    *TRAINING,
    # The weight with which this client's last update entered the model that it now receives.
    "previous_weight",
    # The pull of Ditto's personal model towards the global one.
    "ditto_lambda",
    # At 1 the weights lack the parameters of normalisation layers, which stay at the site
    # (FedBN).
    "local_norm",
    # At 1 the request ends a run: the site stores each case's score, and the model that it uses
    # if only it has all of it.
    "closing",
    # The most epochs of the last mile: the site trains its own model on, and takes the result
    # if its validation cases gain.
    "adapt_epochs",
    # The learning rate of the last mile.
    "adapt_rate",
    # At 1 the model that the site would take in the last mile, fused with the one that it
    # trained alone, is another candidate.
    "adapt_fuse",
    # At 1 the run has ended and the request asks for nothing: it brings the head of the whole
    # ledger, which the site stores.
    "ended",
    # At 1 features are of training images, not of validation images.
    "cka_training",
    # At 1 CKA is computed by the unbiased mini-batch estimator.
    "cka_unbiased",
}
"""Everything that a request's context may hold. Any other name is an error, wherever a request is
made: also at a client whose version does not know it.
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
        ValueError: if a context key is unknown.

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
        for key in self.context:
            if key not in CONTEXT_KEYS:
                raise ValueError(f"unknown context key {key!r}, not {sorted(CONTEXT_KEYS)}")

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
        fields |= {"id": self.id, "run": self.run, "round": self.round}
        return Reply(self.client, update, num_samples, **fields)


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
        ValueError: if a context key is unknown.

    >>> Train("A", {}, ("train_loss",)).task
    'train'
    """
    return Request(client, "train", weights, tuple(measure), dict(context))


def Measure(
    client: str, weights: Weights, measure: Iterable[str] = (), context: Mapping[str, float] = {}
) -> Request:
    """Make a request to measure a model on the client's private data, without training it.

    Arguments and errors are those of :func:`Train`.

    >>> Measure("A", {}, ("score",)).measure
    ('score',)
    """
    return replace(Train(client, weights, measure, context), task="measure")


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
    precision: str = ""


# ---- what is believed of a reply

MOST_STEPS = 1_000_000_000
"""Optimizer steps of one round that are believed."""

MOST_CASES = 1_000_000
"""Cases of a site, images or batches of its epoch, and observations behind one estimate."""

MOST_NAME = 128
"""Characters of a measurement's name, or of the name of a class or layer in it."""

MOST_VALUES = 10_000
"""Numbers in one reply. A network of a thousand layers sends a thousand similarities."""

MOST_DROPPED = 100
"""Measurements of one reply of which the ledger says why they do not count."""

MOST_TEXT = 1000
"""Characters of a reason, which a client's reply may have made long."""

NOT_FINITE = "no finite number"
"""Why a measurement was dropped that is malformed or not finite."""

MOST = 1e6
"""Size of a number that a client reports: powers and sums of such numbers stay finite."""

ROUNDING = 1e-6
"""Part of a range by which rounding may carry a value out of it; of 100 at most, so that counts of
a million cases are not rounded by one.
"""


@dataclass(frozen=True)
class Range:
    """The values that a measurement can have.

    Args:
        unit: such as ``"Dice"``.
        least: value.
        most: value: one without bound would decide every mean.

    Raises:
        ValueError: when ``least`` and ``most`` are no interval within -1e6 to 1e6.

    >>> Range("Dice", 0, 1).holds(1 + 1e-9), Range("Dice", 0, 1).holds(85.0)
    (True, False)
    >>> str(Range("loss", 0, 100))
    '0 to 100 (loss)'
    """

    unit: str
    least: float
    most: float

    def __post_init__(self) -> None:
        if not -MOST <= self.least < self.most <= MOST:
            limits = f"{self.least!r} to {self.most!r}"
            raise ValueError(f"range of {self.unit}: {limits} must rise within {MOST:g}")

    def holds(self, value: float) -> bool:
        """Whether ``value`` is in the range, but for rounding."""
        slack = ROUNDING * min(self.most - self.least, 100.0)
        return self.least - slack <= value <= self.most + slack

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g} ({self.unit})"


IN_VALIDATION = "test_cases_in_validation"
"""Sent in place of a test score: how many of the client's test cases are validation cases, too."""

IN_TRAINING = "test_cases_in_training"
"""Sent in place of a test score: how many of the client's test cases are training cases, too."""

SENT_UNASKED = (IN_VALIDATION, IN_TRAINING)
"""What a client may send in place of the test score that it was asked for."""

UNDECLARED = Range("no declared unit", -MOST, MOST)
"""Of a measurement that no table declares."""

UNBIASED_CKA = Range("similarity", -10.0, 10.0)
"""The unbiased estimate is a ratio of differences. Of few images it may leave [0, 1], and Fed-LWR
clips it.
"""

DICE = Range("Dice", 0.0, 1.0)

# A cross-entropy has no upper bound, and weights by loss need one, else a single number takes all
# of the weight. Dice losses are at most 1. A cross-entropy per voxel of 100 means a probability of
# 1e-43 for the true class, everywhere: no training that goes on reaches it.
LOSS = Range("loss", 0.0, 100.0)


@dataclass(frozen=True)
class Entry:
    """One measurement: how a client makes it, of which model and data, and what is believed of it.

    Args:
        function: ``(probe, weights, memory, context) -> value``, or its dotted path, so that a
            server need not load it. ``probe`` runs weights on the client's data: a
            :class:`~monai_fairfl.measurements.TrainingProbe` for ``"training"`` data, else a
            :class:`~monai_fairfl.measurements.Probe`. ``weights`` is the model in question,
            ``memory`` a :class:`~monai_fairfl.measurements.Memory`, and ``context`` has the numbers
            that came with the request. ``None`` means that it could not be measured; nothing is
            sent then. Empty: no function makes it, the client counts it as it works.
        range: a value outside of it is dropped.
        of: the ``"received"`` model, before any training, the ``"trained"`` one, the
            ``"personal"`` one (Ditto), or a candidate of the last mile, one of :data:`CANDIDATES`.
        data: ``"validation"``, ``"test"`` or ``"training"``. Where the client has none of the
            first two, nothing is measured.
        needs_present: whether it compares with the model that the client has trained in this
            round; no request to train makes it.
        training_key: context key that, at 1, moves it to the training data.

    >>> MEASUREMENTS["test_score"].of, MEASUREMENTS["test_score"].data
    ('received', 'test')
    """

    function: str | Callable[..., Measurement | None]
    range: Range
    of: str = "received"
    data: str = "validation"
    needs_present: bool = False
    training_key: str = ""

    def __call__(self, probe: Any, *of: Any) -> Measurement | None:
        """The value, of ``(probe, weights, memory, context)``."""
        # MONAI skips the run of an engine that has no batch of data.
        if self.data != "training" and probe.engine.state.epoch_length == 0:
            return None
        make = resolve_name(self.function) if isinstance(self.function, str) else self.function
        value: Measurement | None = make(probe, *of)
        return value


FUNCTIONS = "monai_fairfl.measurements.functions"
FEATURES = "monai_fairfl.measurements.features"
SCORE = f"{FUNCTIONS}.score"
OF_FEATURES: dict[str, Any] = {"needs_present": True, "training_key": "cka_training"}

MEASUREMENTS: dict[str, Entry] = {
    "leave_one_out_error": Entry(f"{FUNCTIONS}.leave_one_out_error", Range("1 - Dice", 0.0, 1.0)),
    "global_score": Entry(SCORE, DICE),
    "score": Entry(SCORE, DICE),
    "test_score": Entry(SCORE, DICE, data="test"),
    # Of two surfaces: none is farther than the diagonal of an image.
    "test_hd95": Entry(
        f"{FUNCTIONS}.surface_distance",
        Range("distance in the unit of the spacing, mm", 0.0, 1e4),
        data="test",
    ),
    "local_score": Entry(SCORE, DICE, "trained"),
    "global_loss": Entry(f"{FUNCTIONS}.loss", LOSS, data="training"),
    "local_loss": Entry(f"{FUNCTIONS}.loss", LOSS, "trained", "training"),
    # A difference of two losses, which is negative where the loss falls along the gradient.
    "sharpness": Entry(
        f"{FUNCTIONS}.sharpness", Range("rise of the loss", -LOSS.most, LOSS.most), data="training"
    ),
    "cka": Entry(f"{FEATURES}.cka", Range("similarity", 0.0, 1.0), **OF_FEATURES),
    "feature_cosine": Entry(
        f"{FEATURES}.feature_cosine", Range("cosine", -1.0, 1.0), **OF_FEATURES
    ),
    # A handler collects it during training.
    "train_loss": Entry("", LOSS, "", "training"),
    ADAPTED_EPOCHS: Entry("", Range("epochs", 0, 1e6), ""),
    IN_VALIDATION: Entry("", Range("cases", 0, MOST_CASES), ""),
    IN_TRAINING: Entry("", Range("cases", 0, MOST_CASES), ""),
}
"""name -> what it is. A measurement of your own is one more row, at server and sites."""

# The models that only their site may have.
for _model in ("personal", *CANDIDATES):
    MEASUREMENTS[f"{_model}_score"] = Entry(SCORE, DICE, _model)
    MEASUREMENTS[f"{_model}_test_score"] = Entry(SCORE, DICE, _model, data="test")
for _candidate in CANDIDATES:
    MEASUREMENTS[gain_name(_candidate)] = Entry("", Range("gain in Dice", -1.0, 1.0), "")


class Refused(Exception):
    """A reply that must not reach a strategy.

    Args:
        reason: may quote what the client sent; it becomes one printable line of bounded length.

    >>> str(Refused("no room\\n" + "x" * 2000))[:9], len(str(Refused("x" * 2000)))
    ('no room x', 1000)
    """

    def __init__(self, reason: str):
        super().__init__(printable(reason)[:MOST_TEXT])


def _check_tensors(what: str, tensors: Weights, model: Weights, names: Sequence[str]) -> None:
    """Refuse tensors that differ in names, shapes or types from the model that was sent.

    Args:
        what: the tensors are, for the text.
        tensors: of a reply.
        model: tensors that it lacks are not compared.
        names: that ``tensors`` must have, and no others; a client need not have each buffer.
    """
    if not isinstance(tensors, Mapping):
        raise Refused(f"{what} must be a mapping of tensors, got a {type(tensors).__name__}")
    if what == "buffers":
        names = [name for name in names if name in tensors]
    if set(tensors) != set(names):
        odd = sorted(map(str, set(tensors) ^ set(names)))[:3]
        raise Refused(f"{what} is not as the model: {odd} are missing or unexpected")
    for name in names:
        tensor = tensors[name]
        is_dense = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        if not is_dense or tensor.is_meta:
            raise Refused(f"{what} {name!r} is no dense tensor with data")
        # Looked up once: it may be read from disk.
        sent = model.get(name, tensor)
        if tensor.shape != sent.shape or tensor.is_floating_point() != sent.is_floating_point():
            forms = [f"{tuple(form.shape)} of {form.dtype}" for form in (tensor, sent)]
            raise Refused(f"{what} {name!r} has shape {forms[0]}, expected {forms[1]}")


@dataclass(frozen=True)
class Expected:
    """What a server believes of a reply.

    Args:
        ranges: measurement -> range in place of that in :data:`MEASUREMENTS`; one that is in
            neither has the range :data:`UNDECLARED`.
        unasked: whether names that no request asked for are taken, too: scripts choose their own.

    >>> asked = Request("A", "measure", {}, ("score", "cka"))
    >>> sent = asked.reply(measurements={"score": 0.8, "cka": 7.0, "weight_of_B": 0.0})
    >>> found, dropped = Expected().accepted(asked, sent, ModelSpec(()))
    >>> found.measurements, dropped["cka"]
    ({'score': 0.8}, 'mean 7 is outside of 0 to 1 (similarity): the setting ranges allows others')
    >>> dropped["weight_of_B"]
    'the request did not ask for it'
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    unasked: bool = False

    def accepted(
        self, request: Request, reply: Reply, spec: ModelSpec
    ) -> tuple[Reply, dict[str, str]]:
        """Check a reply when it arrives: its counts, its measurements and the form of its tensors.

        The values of an update are checked by the guards.

        Args:
            request: that it answers.
            reply: of a client.
            spec: the model's tensors.

        Returns:
            The reply with its usable measurements, in Python's numbers; and the name of each other
            measurement -> why it was dropped.

        Raises:
            Refused: if the reply must not reach a strategy.

        >>> asked = Request("A", "train", {})
        >>> Expected().accepted(asked, asked.reply(None, num_samples=8), ModelSpec(()))
        Traceback (most recent call last):
        ...
        monai_fairfl.messages.Refused: trained but sent no update
        """
        if reply.error is not None:
            raise Refused(f"error: {reply.error}")
        usable, dropped = self.measurements(reply, request)
        checked = replace(reply, measurements=usable)
        if request.task == "measure":
            if reply.update is not None:
                raise Refused("measured, and sent an update that was not asked for")
            return replace(checked, labelled=()), dropped

        counts = {
            "num_samples": (reply.num_samples, 1, MOST_CASES),
            "num_cases": (reply.num_cases, 0, MOST_CASES),
            "num_steps": (reply.num_steps, 0, MOST_STEPS),
        }
        for name, (count, least, most) in counts.items():
            if not is_whole(count) or not least <= count <= most:
                raise Refused(f"{name} must be a whole number from {least} to {most}")

        if reply.update is None:
            raise Refused("trained but sent no update")
        classes = spec.classes(request.weights)
        if not isinstance(reply.labelled, (tuple, list)) or len(reply.labelled) not in (0, classes):
            raise Refused(f"labelled must be a tuple of {classes} classes, got {reply.labelled!r}")
        _check_tensors("update", reply.update, request.weights, spec.parameters)
        _check_tensors("buffers", reply.buffers or {}, request.weights, spec.buffers)
        return checked, dropped

    def measurements(
        self, reply: Reply, request: Request
    ) -> tuple[dict[str, Measurement], dict[str, str]]:
        """The usable measurements of ``reply``, and why each of the others was dropped.

        Raises:
            Refused: for too many, and for names that logs, records and pages cannot have.
        """
        sent = reply.measurements
        if not isinstance(sent, Mapping):
            raise Refused(f"measurements are a {type(sent).__name__}, not a mapping")
        names: list[object] = [*sent]
        for value in sent.values():
            names += value if isinstance(value, Mapping) else ()
        if len(names) > MOST_VALUES:
            raise Refused(f"measurements have more than {MOST_VALUES} values")
        for name in names:
            if not isinstance(name, str) or len(name) > MOST_NAME or not name.isprintable():
                raise Refused(f"a measurement's name is no printable text up to {MOST_NAME} long")

        usable: dict[str, Measurement] = {}
        dropped: dict[str, str] = {}
        for name, value in sent.items():
            parts = value if isinstance(value, Mapping) else {"mean": value}
            if not any(isinstance(part, Mapping) for part in parts.values()):
                parts = plain_numbers(parts)
            problem = self._problem(name, parts, request)
            if problem is None:
                usable[name] = parts if isinstance(value, Mapping) else parts["mean"]
            elif len(dropped) < MOST_DROPPED:
                dropped[name] = problem
        return usable, dropped

    def _problem(self, name: str, parts: Mapping[str, Any], request: Request) -> str | None:
        """What is wrong with a measurement; ``None`` where nothing is."""
        if not self.unasked and name not in (*request.measure, *SENT_UNASKED):
            return "the request did not ask for it"
        if "mean" not in parts:
            return NOT_FINITE
        found = {}
        for part, sent in parts.items():
            number = found[part] = sent if isinstance(sent, Estimate) else Estimate(sent)
            error = 0.0 if number.stderr is None else number.stderr
            is_mean = is_whole(number.n) and number.n >= 1 and is_finite(error) and error >= 0
            if not is_mean or not is_finite(number.value):
                return NOT_FINITE
        known = MEASUREMENTS[name].range if name in MEASUREMENTS else UNDECLARED
        allowed = self.ranges.get(name, known)
        if name == "cka" and request.context.get("cka_unbiased"):
            allowed = UNBIASED_CKA
        for part, number in found.items():
            if number.n > MOST_CASES:
                return f"{part!r} is of more than {MOST_CASES} observations"
            if not allowed.holds(number.value):
                out = f"{part} {float(number.value):.6g} is outside of {allowed}"
                return f"{out}: the setting ranges allows others"
        return None


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether every entry of a tensor is finite.

    >>> all_finite(torch.tensor([0.0, 1.0])), all_finite(torch.tensor([0.0, -math.inf]))
    (True, False)
    """
    if not tensor.is_floating_point():
        return True
    # One pass: a sum is finite only if all its terms are. It may overflow by itself, so that only
    # a finite one decides.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
