# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What crosses the wire: requests, replies, their numbers, and what each tensor of a model is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn

from monai_fairfl.errors import ConfigError

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


def value_of(measurement: Measurement) -> float:
    """The one number of a measurement: its value, or the ``"mean"`` of a mapping.

    >>> value_of({"mean": Estimate(0.8), "gland": 0.8})
    0.8
    """
    if isinstance(measurement, Mapping):
        return float(measurement["mean"])
    return float(measurement)


def is_finite_or_unchanged(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    """Whether a tensor is finite, but for entries that were the same before.

    Args:
        tensor: of a model.
        before: the same tensor of the model that this one was made of; ``None``: there was none.

    >>> mask = torch.tensor([0.0, -math.inf])
    >>> is_finite_or_unchanged(mask, mask), is_finite_or_unchanged(mask, None)
    (True, False)
    """
    if not tensor.is_floating_point():
        return True
    # One pass: a sum is finite only if all its terms are. It may overflow by itself, so that only
    # a finite one decides.
    if bool(torch.isfinite(tensor.sum())):
        return True
    good = torch.isfinite(tensor)
    if before is not None and before.shape == tensor.shape:
        is_unchanged = (tensor == before) | (torch.isnan(tensor) & torch.isnan(before))
        good |= is_unchanged
    return bool(good.all())


def plain_number(value: Any) -> Any:
    """A number of NumPy or PyTorch without dimensions as Python's; anything else as it is.

    >>> plain_number(torch.tensor(0.5)), plain_number([0.5])
    (0.5, [0.5])
    """
    return value.item() if getattr(value, "ndim", None) == 0 else value


def plain_numbers(value: Any) -> Any:
    """A measurement or contribution whose numbers are Python's, see :func:`plain_number`.

    >>> plain_numbers({"mean": Estimate(torch.tensor(0.5), None, 2), "cup": torch.tensor(0.25)})
    {'mean': Estimate(value=0.5, stderr=None, n=2), 'cup': 0.25}
    """
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, Estimate):
        return Estimate(*map(plain_number, (value.value, value.stderr, value.n)))
    return plain_number(value)


OWN_MODEL_PREFIXES = ("local_", "personal_", "adapted_", "averaged_", "alone_", "fused_")
"""How the name of a measurement begins that is of a model which the client itself trained in that
round. All others are of the model that the client was sent. The server dates a score by that.
"""


def is_of_own_model(measurement: str) -> bool:
    """Whether a measurement of this name is of a model which the client itself trained.

    >>> is_of_own_model("local_score"), is_of_own_model("global_score")
    (True, False)
    """
    return measurement.startswith(OWN_MODEL_PREFIXES)


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
    elif text != earlier and text not in earlier.split("; "):
        notes[client] = f"{earlier}; {text}"


def to_json(value: Any) -> Any:
    """Measurements and contributions as plain JSON.

    An :class:`Estimate` becomes an object of its fields, a number that is not finite ``None``.

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
    if not isinstance(plain, Mapping):
        return plain
    if is_plain_estimate(plain):
        return Estimate(plain["value"], plain["stderr"], plain["n"])
    return {name: measurement_of_json(value) for name, value in plain.items()}


IN_VALIDATION = "test_cases_in_validation"
"""Sent in place of a test score: how many of the client's test cases are validation cases, too."""

IN_TRAINING = "test_cases_in_training"
"""Sent in place of a test score: how many of the client's test cases are training cases, too."""


def printable(text: str) -> str:
    r"""``text`` in one line, with a space for each character that cannot be printed.

    A line break or a terminal's escape code in an error message would let a site write lines of its
    own into the log of all. Half of a surrogate pair cannot be written into a page.

    >>> printable("no space left\n2026-01-01 client oak: quarantined\x1b[31m")
    'no space left 2026-01-01 client oak: quarantined [31m'
    """
    return "".join(character if character.isprintable() else " " for character in text)


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
        """The same model, but its normalisation layers never leave the clients.

        This is FedBN (Li et al., ICLR 2021).
        """
        parameters = tuple(name for name in self.parameters if name not in self.norms)
        buffers = tuple(name for name in self.buffers if name not in self.norms)
        return replace(self, parameters=parameters, buffers=buffers, local=self.norms)

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
        if self.output is None:
            return None
        module, axis = self.output
        if self.layers.get(name) != module:
            return None
        return axis if name == weight_of(module) else 0

    def classes(self, weights: Weights) -> int:
        """Number of classes of the output layer in ``weights``; 0 where it is unknown."""
        if self.output is None:
            return 0
        module, axis = self.output
        weight = weights.get(weight_of(module))
        if weight is None:
            return 0
        return int(weight.shape[axis])

    def split(self, state: Weights) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Parameters and buffers of a full ``state_dict``, aliases left out."""
        parameters = {name: state[name] for name in self.parameters}
        buffers = {name: state[name] for name in self.buffers if name in state}
        return parameters, buffers

    def tensors_of(self, network: nn.Module) -> dict[str, torch.Tensor]:
        """Copies of a network's parameters and buffers on the CPU, aliases left out."""
        state = {}
        for name, tensor in network.state_dict().items():
            state[name] = tensor.detach().cpu().clone()
        parameters, buffers = self.split(state)
        return {**parameters, **buffers}

    def require_averageable(self, weights: Weights) -> None:
        """Refuse a model whose tensors cannot be averaged.

        Raises:
            ConfigError: naming a tensor that is missing, sparse, or of a type without a mean.

        >>> ModelSpec(("w",)).require_averageable({"w": torch.zeros(2, dtype=torch.complex64)})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the model's 'w' is a torch.complex64 tensor: ...
        """
        for name in (*self.parameters, *self.buffers):
            if name not in weights and name in self.buffers:
                continue  # it stays at the sites
            tensor = weights.get(name)
            if tensor is None or tensor.layout is not torch.strided or tensor.is_meta:
                raise ConfigError(
                    f"the model's {name!r} is missing, sparse or has no data: give a dense tensor"
                )
            is_small = tensor.is_floating_point() and tensor.element_size() < 2
            if tensor.is_complex() or tensor.is_quantized or is_small:
                raise ConfigError(
                    f"the model's {name!r} is a {tensor.dtype} tensor: it cannot be averaged; "
                    "convert it to torch.float32"
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
        complete = dict(weights)
        for name in self.missing_from(weights):
            complete[name] = own[name]
        return complete

    def with_aliases(self, weights: Weights) -> dict[str, torch.Tensor]:
        """The full ``state_dict``, as ``load_state_dict(strict=True)`` and bundles expect it."""
        state = dict(weights)
        for alias, name in self.aliases.items():
            if name in weights:
                state[alias] = weights[name]
        return state


BATCH_AND_INSTANCE_NORM = nn.modules.batchnorm._NormBase
NORMS = (BATCH_AND_INSTANCE_NORM, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
PARAMETRISED = ".parametrizations."
NO_MEAN = ("._u", ".weight_u", "_extra_state")
"""How the state of ``spectral_norm``, new and old, and a module's extra state end."""
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def read_spec(network: nn.Module, *inputs: torch.Tensor) -> ModelSpec:
    """Make the :class:`ModelSpec` of a network, by one forward pass in evaluation mode.

    The output layer is the module that the pass *calls* last, of those that own a weight with two
    or more dimensions. (``DynUNet`` registers its deep-supervision heads after it.) The class axis
    is 0, or 1 for a transposed convolution, whose weight has the shape (in, out, ...). Frozen
    parameters count as buffers, because nobody trains them.

    Args:
        network: the network, on any device. Its mode and the random state stay as they are.
        inputs: example inputs of the forward pass, such as one image of shape (1, C, H, W). Without
            inputs, the output layer stays unknown.

    A parametrised weight (``weight_norm``) is averaged in its parts, which belong to their layer.

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
        if name.endswith(NO_MEAN):
            raise ConfigError(
                f"the layer {_layer_of(name)!r} has {name!r}, and neither spectral_norm nor an "
                "extra state can be averaged: use a network without it"
            )
        canonical = first_name.setdefault(id(tensor), name)
        if canonical != name:
            aliases[name] = canonical
            continue
        layers[name] = _layer_of(name)
        if id(tensor) in trainable:
            parameters.append(name)
        else:
            buffers.append(name)

    norm_layers = set()
    for name, module in network.named_modules(remove_duplicate=False):
        if isinstance(module, NORMS):
            norm_layers.add(name)
    norms = [name for name in (*parameters, *buffers) if layers[name] in norm_layers]

    return ModelSpec(
        parameters=tuple(sorted(parameters)),
        aliases=aliases,
        buffers=tuple(sorted(buffers)),
        layers=layers,
        output=_output_layer(network, inputs, aliases, layers),
        norms=tuple(sorted(norms)),
    )


def _layer_of(name: str) -> str:
    """The module that owns a tensor; the parts of a parametrised weight belong to its module.

    >>> _layer_of("head.weight"), _layer_of("head.parametrizations.weight.original0")
    ('head', 'head')
    """
    module, parametrised, _ = name.partition(PARAMETRISED)
    return module if parametrised else name.rpartition(".")[0]


def _output_layer(
    network: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    aliases: Mapping[str, str],
    layers: Mapping[str, str],
) -> tuple[str, int] | None:
    """The module that makes the logits and the class axis of its weight; ``None``: unknown."""
    if not inputs:
        return None
    called = _modules_called(network, inputs)
    if not called:
        return None
    last = called[-1]
    weight = weight_of(last)
    owner = layers.get(aliases.get(weight, weight))
    if owner is None:
        return None  # it is parametrised: no tensor has a row for each class
    class_axis = 1 if isinstance(network.get_submodule(last), TRANSPOSED) else 0
    return owner, class_axis


def _modules_called(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    """Names of the modules with a weight of two or more dimensions, in the order of their calls."""
    # A module with several names is called by its first one.
    names: dict[int, str] = {}
    for name, module in network.named_modules():
        names.setdefault(id(module), name)

    called: list[str] = []

    def record(module: nn.Module, *_: Any) -> None:
        called.append(names[id(module)])

    hooks = []
    for module in network.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim >= 2:
            hooks.append(module.register_forward_hook(record))
    was_training = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network.eval()(*inputs)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return called


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


def score_names(candidate: str) -> dict[str, str]:
    """Closing measurement -> the same of a candidate, whether or not the site takes it.

    >>> score_names("alone")
    {'score': 'alone_score', 'test_score': 'alone_test_score'}
    """
    return {name: f"{candidate}_{name}" for name in ("score", "test_score")}


def candidates_asked(context: Mapping[str, float]) -> tuple[str, ...]:
    """The candidates that a run asks for.

    Args:
        context: of its closing requests.

    >>> candidates_asked({"adapt_epochs": 10.0})
    ('adapted', 'alone')
    """
    if context.get("adapt_fuse", 0):
        return CANDIDATES
    return tuple(name for name in CANDIDATES if name != "fused")


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
    best = None
    for name in CANDIDATES:
        if name not in gains or name == "fused" or not is_taken(gains[name]):
            continue
        if best is None or gains[name].value > gains[best].value:
            best = name
    return best


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


ROUNDING = 1e-6
"""Part of a range by which rounding may carry a value out of it; of 100 at most, so that counts of
a million cases are not rounded by one.
"""

MOST_NAME = 128
"""Characters of a measurement's name, or of the name of a class or layer in it."""

MOST_VALUES = 10_000
"""Numbers in one reply. A network of a thousand layers sends a thousand similarities."""

LEAST_PARTS = 100
"""Classes or layers that a measurement of any model may have."""

MOST_CASES = 1_000_000
"""Observations behind one estimate: cases of a site, or batches of an epoch."""

MOST_LISTED = 20
"""Dropped measurements of one reply that a record lists one by one."""


@dataclass(frozen=True)
class Range:
    """The values that a measurement can have.

    Args:
        unit: such as ``"Dice"``.
        least: value.
        most: value, finite: a value without bound would decide every mean.

    Raises:
        ValueError: when ``least`` and ``most`` are no finite interval.

    >>> Range("Dice", 0, 1).holds(1 + 1e-9), Range("Dice", 0, 1).holds(85.0)
    (True, False)
    >>> str(Range("loss", 0, 100))
    '0 to 100 (loss)'
    """

    unit: str
    least: float
    most: float

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.least) and math.isfinite(self.most)
        if not is_finite or not self.least < self.most:
            raise ValueError(
                f"the range of {self.unit} must be two finite numbers, the lower one first, got "
                f"{self.least!r} and {self.most!r}"
            )

    def holds(self, value: float) -> bool:
        """Whether ``value`` is in the range, but for rounding."""
        slack = ROUNDING * min(self.most - self.least, 100.0)
        return self.least - slack <= value <= self.most + slack

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g} ({self.unit})"


DICE = Range("Dice", 0.0, 1.0)

LOSS = Range("loss", 0.0, 100.0)
"""A cross-entropy has no upper bound, and weights by loss need one, else a single number takes all
of the weight. Dice losses are at most 1. A cross-entropy per voxel of 100 means a probability of
1e-43 for the true class, everywhere: no training that goes on reaches it.
"""

UNDECLARED = Range("no declared unit", -1e6, 1e6)
"""Of a measurement that no table declares. Its powers and sums stay finite."""

UNBIASED_CKA = Range("similarity", -10.0, 10.0)
"""The unbiased estimate is a ratio of differences. Of few images it may leave [0, 1], and Fed-LWR
clips it.
"""

DISTANCE = Range("distance in the unit of the spacing, mm", 0.0, 1e4)
"""Of two surfaces: none is farther than the diagonal of an image."""

RANGES: dict[str, Range] = {
    "leave_one_out_error": Range("1 - Dice", 0.0, 1.0),
    "global_score": DICE,
    "score": DICE,
    "test_score": DICE,
    "test_hd95": DISTANCE,
    "local_score": DICE,
    "personal_score": DICE,
    "personal_test_score": DICE,
    ADAPTED_EPOCHS: Range("epochs", 0, 1e6),
    "train_loss": LOSS,
    "global_loss": LOSS,
    "local_loss": LOSS,
    # A difference of two losses, which is negative where the loss falls along the gradient.
    "sharpness": Range("rise of the loss", -LOSS.most, LOSS.most),
    "cka": Range("similarity", 0.0, 1.0),
    "feature_cosine": Range("cosine", -1.0, 1.0),
    IN_VALIDATION: Range("cases", 0, MOST_CASES),
    IN_TRAINING: Range("cases", 0, MOST_CASES),
}
"""Measurement -> its range. A measurement of your own is one more line, at server and sites."""

for _candidate in CANDIDATES:
    RANGES[gain_name(_candidate)] = Range("gain in Dice", -1.0, 1.0)
    for _name in score_names(_candidate).values():
        RANGES[_name] = DICE

SENT_UNASKED = frozenset({IN_VALIDATION, IN_TRAINING})
"""What a client may send in place of the test score that it was asked for."""


@dataclass(frozen=True)
class Expected:
    """Which measurements a server takes.

    Args:
        ranges: measurement -> range; one that is not here has the range :data:`UNDECLARED`.
        unasked: whether names that no request asked for are taken, too: scripts choose their own.

    >>> asked = Request("A", "measure", {}, ("score",))
    >>> sent = Reply("A", None, 0, {"score": 85.0, "weight_of_B": 0.0})
    >>> Expected().checked(sent, asked).dropped["weight_of_B"]
    'the request did not ask for it'
    """

    ranges: Mapping[str, Range] = field(default_factory=lambda: RANGES)
    unasked: bool = False

    def checked(
        self,
        reply: Reply,
        request: Request | None,
        most_parts: Callable[[], int] = lambda: LEAST_PARTS,
    ) -> Checked:
        """The measurements of ``reply`` that can be used, and what is wrong with the others.

        Args:
            reply: of a client.
            request: that it answers; ``None``: unknown, then every name counts as asked for.
            most_parts: gives how many classes or layers one measurement may have, and is called
                for one with more than :data:`LEAST_PARTS`. The record of a round holds each of
                them.
        """
        found = Checked()
        values = 0
        for name, sent in reply.measurements.items():
            parts = sent.values() if isinstance(sent, Mapping) else ()
            # A mapping in a mapping may even be itself.
            is_nested = any(isinstance(part, Mapping) for part in parts)
            value = math.nan if is_nested else plain_numbers(sent)
            problem = self._problem_of_name(name, request)
            if problem is None and _size(value) > LEAST_PARTS and _size(value) > most_parts():
                problem = f"it has more than {most_parts()} values"
            if problem is None and _size(value) + values > MOST_VALUES:
                problem = f"the reply has more than {MOST_VALUES} values"
            if problem is None and not is_finite(value):
                found.not_finite.append(name)
                continue
            if problem is None:
                problem = self._problem_of_value(self._range_of(name, request), value)
            if problem is None:
                found.usable[name] = value
                values += _size(value)
            else:
                found.drop(name, problem)
        found.not_finite.sort()
        return found

    def _problem_of_name(self, name: object, request: Request | None) -> str | None:
        if not _is_name(name):
            return f"its name is no text of at most {MOST_NAME} printable characters"
        if request is None or self.unasked or name in SENT_UNASKED or name in request.measure:
            return None
        return "the request did not ask for it"

    def _range_of(self, name: str, request: Request | None) -> Range:
        is_unbiased = request is not None and request.context.get("cka_unbiased", 0)
        if name == "cka" and is_unbiased:
            return UNBIASED_CKA
        return self.ranges.get(name, UNDECLARED)

    def _problem_of_value(self, allowed: Range, value: Measurement) -> str | None:
        """What is wrong with a finite measurement; ``None`` where nothing is."""
        if not isinstance(value, Mapping):
            return _problem_of_number(allowed, value)
        for part, number in value.items():
            if not _is_name(part):
                return f"a name in it is no text of at most {MOST_NAME} printable characters"
            problem = _problem_of_number(allowed, number)
            if problem is not None:
                return f"{part!r} is {problem}"
        return None


@dataclass
class Checked:
    """The measurements of one reply after the check.

    Args:
        usable: name -> measurement.
        not_finite: names of those that are malformed or not finite, sorted.
        dropped: name -> reason, of all others; at most :data:`MOST_LISTED`, then their number.
    """

    usable: dict[str, Measurement] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    _unlisted: int = 0

    def drop(self, name: object, reason: str) -> None:
        """Record a measurement that is left out, and why."""
        if len(self.dropped) < MOST_LISTED:
            self.dropped[_shortened(name)] = reason
            return
        self._unlisted += 1
        self.dropped["..."] = f"and {self._unlisted} more"


def is_finite(value: object) -> bool:
    """Whether a measurement is finite, and so is everything in it.

    It is a plain number, an :class:`~monai_fairfl.messages.Estimate` of one, or a mapping of these
    that holds ``"mean"``. A deeper mapping counts as malformed, and that is as bad.

    >>> is_finite({"mean": Estimate(0.5, 0.1, 3), "cup": 0.4}), is_finite({"mean": {"mean": 0.5}})
    (True, False)
    """
    if isinstance(value, Mapping):
        return "mean" in value and all(_is_estimate(item) for item in value.values())
    return _is_estimate(value)


def _is_estimate(value: object) -> bool:
    if not isinstance(value, Estimate):
        return _is_number(value)
    if isinstance(value.n, bool) or not isinstance(value.n, int) or value.n < 1:
        return False
    if value.stderr is not None and not (_is_number(value.stderr) and value.stderr >= 0):
        return False
    return _is_number(value.value)


def _is_number(value: object) -> bool:
    """Whether ``value`` is a finite number, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _problem_of_number(allowed: Range, number: float | Estimate) -> str | None:
    """What is wrong with one finite number; ``None`` where nothing is."""
    if isinstance(number, Estimate) and number.n > MOST_CASES:
        return f"a mean of more than {MOST_CASES} observations, which are not believed"
    value = float(number)
    if allowed.holds(value):
        return None
    return f"{value:.6g}, outside of {allowed}: the setting ranges allows others"


def _size(value: object) -> int:
    """How many numbers a measurement holds."""
    return len(value) if isinstance(value, Mapping) else 1


def _is_name(name: object) -> bool:
    """Whether logs, records and pages can have this name."""
    return isinstance(name, str) and len(name) <= MOST_NAME and name.isprintable()


def _shortened(name: object) -> str:
    """A name as a record shows it."""
    text = printable(name) if isinstance(name, str) else type(name).__name__
    return text if len(text) <= MOST_NAME else text[:MOST_NAME] + "..."


LEAST_COUNTS = {"num_samples": 1, "num_cases": 0, "num_steps": 0}
"""The counts of a reply that trained, and the least value of each."""

MOST_SAMPLES = 1_000_000
"""Images of one site in one local epoch, and its cases, that are believed."""

MOST_STEPS = 1_000_000_000
"""Optimizer steps of one round that are believed."""

RUNNING_STATISTICS = ("running_mean", "running_var")
"""How the names of batch normalisation's statistics end."""

MOST_TEXT = 1000
"""Characters of a reason, which a client's reply may have made long."""


def refusal(
    request: Request, reply: Reply, spec: ModelSpec, most_samples: int = MOST_SAMPLES
) -> str | None:
    """Why ``reply`` must not reach a strategy; ``None`` where it may.

    Only the form is checked here. Values of an update are checked by the guards, measurements by
    :class:`~monai_fairfl.replies.Replies`.

    Args:
        request: that it answers.
        reply: of a client.
        spec: the model's tensors.
        most_samples: images of one site in one local epoch, and cases, that are believed.

    >>> refusal(Request("A", "measure", {}, id=3), Reply("A", None, 1, id=2), ModelSpec(()))
    'answers request 2 of run  round -1, asked was request 3 of run  round -1'
    """
    reason = _refusal(request, reply, spec, most_samples)
    if reason is None:
        return None
    # It may quote what the client sent.
    reason = printable(reason)
    if len(reason) > MOST_TEXT:
        return reason[:MOST_TEXT] + "..."
    return reason


def _refusal(request: Request, reply: Reply, spec: ModelSpec, most_samples: int) -> str | None:
    """As :func:`refusal`, in as many words as it takes."""
    if reply.error is not None:
        return f"error: {reply.error}"
    if (reply.id, reply.run, reply.round) != (request.id, request.run, request.round):
        return (
            f"answers request {reply.id} of run {reply.run} round {reply.round}, "
            f"asked was request {request.id} of run {request.run} round {request.round}"
        )
    if not isinstance(reply.measurements, Mapping):
        return f"measurements must be a mapping, got {type(reply.measurements).__name__}"
    if request.task == "measure":
        if reply.update is not None:
            return "measured, and sent an update that was not asked for"
        return None
    problem = _problem_of_counts(reply, most_samples)
    if problem is not None:
        return problem
    if reply.update is None:
        return "trained but sent no update"
    if not isinstance(reply.labelled, (tuple, list)):
        return f"labelled must be a tuple, got {type(reply.labelled).__name__}"
    if reply.labelled:
        classes = spec.classes(request.weights)
        if len(reply.labelled) != classes:
            return (
                f"labelled must name {classes} classes of the output layer, got "
                f"{list(reply.labelled)}"
            )
    difference = _difference("update", reply.update, request.weights, spec.parameters)
    if difference is not None:
        return difference
    buffers = reply.buffers or {}
    sent = [name for name in spec.buffers if name in buffers]
    return _difference("buffers", buffers, request.weights, sent)


def unsent_statistics(request: Request, reply: Reply, spec: ModelSpec) -> list[str]:
    """Running statistics of batch normalisation that a training reply lacks and its request had.

    Without them the averaged model keeps those that it had, unless another client sends some.

    Args:
        request: that it answers.
        reply: of a client.
        spec: the model's tensors.

    >>> import torch
    >>> spec = ModelSpec(("w",), buffers=("n.running_mean", "n.table"))
    >>> model = dict.fromkeys(("w", "n.running_mean", "n.table"), torch.zeros(1))
    >>> reply = Reply("A", {"w": model["w"]}, 1)
    >>> unsent_statistics(Request("A", "train", model), reply, spec)
    ['n.running_mean']
    >>> unsent_statistics(Request("A", "train", {"w": model["w"]}), reply, spec)  # they stay there
    []
    """
    if reply.update is None:
        return []
    unsent = []
    for name in spec.buffers:
        if name.endswith(RUNNING_STATISTICS) and name in request.weights:
            if name not in (reply.buffers or {}):
                unsent.append(name)
    return unsent


def _difference(
    what: str, tensors: Weights, reference: Weights, names: Sequence[str]
) -> str | None:
    """How ``tensors`` differ in names, shapes or types from the model's; ``None`` where they fit.

    Args:
        what: the tensors are, for the text.
        tensors: of a reply.
        reference: the model that was sent; tensors that it lacks are not compared.
        names: that ``tensors`` must have, and no others.
    """
    if not isinstance(tensors, Mapping):
        return f"{what} must be a mapping of tensors, got {type(tensors).__name__}"
    missing = sorted(set(names) - set(tensors))
    extra = sorted(set(tensors) - set(names))
    if missing or extra:
        return (
            f"{what} has other tensors than the model: missing {missing[:3]}, unexpected "
            f"{extra[:3]}"
        )
    for name in names:
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor):
            return f"{what} {name!r} is a {type(tensor).__name__}, not a tensor"
        if tensor.layout is not torch.strided or tensor.is_meta:
            return f"{what} {name!r} is sparse, or has no data: send a dense tensor"
        # Looked up once: it may be read from disk.
        expected = reference.get(name)
        if expected is None:
            continue
        if tensor.shape != expected.shape:
            return (
                f"{what} {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
            )
        if tensor.is_floating_point() != expected.is_floating_point():
            return f"{what} {name!r} has type {tensor.dtype}, expected {expected.dtype}"
    return None


def _problem_of_counts(reply: Reply, most_samples: int) -> str | None:
    """What is wrong with the counts of a reply that trained; ``None`` where nothing is."""
    for name, least in LEAST_COUNTS.items():
        count = getattr(reply, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            return f"{name} must be a whole number of at least {least}, got {count!r}"
    for name in ("num_samples", "num_cases"):
        count = getattr(reply, name)
        if count > most_samples:
            return (
                f"{name} is {_in_words(count)}, and most_samples allows a site {most_samples}: "
                "correct the site's count, or raise most_samples"
            )
    if reply.num_steps > MOST_STEPS:
        return f"num_steps is {_in_words(reply.num_steps)}, and at most {MOST_STEPS} are believed"
    return None


def _in_words(count: int) -> str:
    """A count as a text; one of thousands of digits, which Python refuses to write, by its size."""
    return str(count) if count.bit_length() <= 64 else f"a number of {count.bit_length()} bits"


NOT_FINITE = "no finite number"
"""Why a measurement that is malformed or not finite is dropped."""


class Refused(Exception):
    """Why a reply must not reach a strategy."""


def accepted(
    request: Request,
    reply: Reply,
    spec: ModelSpec,
    expected: Expected | None = None,
    most_samples: int = MOST_SAMPLES,
) -> tuple[Reply, dict[str, str]]:
    """Check a reply once, when it arrives.

    Args:
        request: that it answers.
        reply: of a client.
        spec: the model's tensors.
        expected: the measurements that are taken; ``None``: those of the package, in their ranges.
        most_samples: images of one site in one local epoch, and cases, that are believed.

    Returns:
        The reply with its usable measurements, in Python's own numbers; and name -> reason of each
        measurement that was dropped.

    Raises:
        Refused: with the reason, where the reply must not reach a strategy.

    >>> asked = Request("A", "measure", {}, ("score", "local_score"))
    >>> sent = asked.reply(measurements={"score": 0.8, "local_score": math.nan})
    >>> reply, dropped = accepted(asked, sent, ModelSpec(()))
    >>> reply.measurements, dropped
    ({'score': 0.8}, {'local_score': 'no finite number'})
    """
    reason = refusal(request, reply, spec, most_samples)
    if reason is not None:
        raise Refused(reason)
    # Each layer has a parameter or more; one value more is the mean.
    most_parts = len(spec.parameters) + spec.classes(request.weights) + 1
    found = (expected or Expected()).checked(reply, request, lambda: max(LEAST_PARTS, most_parts))
    dropped = {**dict.fromkeys(found.not_finite, NOT_FINITE), **found.dropped}
    return replace(reply, measurements=found.usable), dropped
