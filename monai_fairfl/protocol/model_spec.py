# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each tensor of a model is, read from the network itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.protocol.values import Weights


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

    :func:`~monai_fairfl.protocol.model_spec.read_spec` makes it from a network.

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
