# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each tensor of a model is, read from the network itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from monai_fairfl.protocol.values import Weights


@dataclass(frozen=True)
class ModelSpec:
    """What each tensor of a model is; names only, so it is plain JSON. Made by
    :func:`monai_fairfl.protocol.model_spec.read_spec`.

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


NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
)  # the first: BatchNorm and InstanceNorm


def read_spec(network: nn.Module, *inputs: torch.Tensor) -> ModelSpec:
    """The :class:`~monai_fairfl.protocol.model_spec.ModelSpec` of ``network``, from one forward pass in
    evaluation mode.

    The output layer is the module that was *called* last among those that own a weight of two or
    more dimensions (``DynUNet`` registers its deep-supervision heads after it); the class axis is
    0, and 1 for a transposed convolution, whose weight is (in, out, ...). Frozen parameters count
    as buffers: nobody trains them.

    Args:
        network: the network on any device; its mode and random state are left as they were.
        inputs: example inputs of the forward pass, for example one image of shape (1, C, H, W);
            without any, the output layer stays unknown.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    >>> spec = read_spec(net, torch.zeros(1, 1, 8, 8))
    >>> spec.output, spec.parameters[:2], len(spec.buffers)
    (('2', 0), ('0.bias', '0.weight'), 3)
    """
    first_name: dict[int, str] = {}
    aliases: dict[str, str] = {}
    layers: dict[str, str] = {}
    trainable = {id(p) for p in network.parameters() if p.requires_grad}
    parameters: list[str] = []
    buffers: list[str] = []
    for name, tensor in network.state_dict(keep_vars=True).items():
        canonical = first_name.setdefault(id(tensor), name)
        if canonical != name:
            aliases[name] = canonical
            continue
        layers[name] = name.rpartition(".")[0]
        (parameters if id(tensor) in trainable else buffers).append(name)
    norms = {
        name
        for name, module in network.named_modules(remove_duplicate=False)
        if isinstance(module, NORMS)
    }
    return ModelSpec(
        parameters=tuple(sorted(parameters)),
        aliases=aliases,
        buffers=tuple(sorted(buffers)),
        layers=layers,
        output=_output(network, inputs, aliases),
        norms=tuple(sorted(name for name in (*parameters, *buffers) if layers[name] in norms)),
    )


def _output(
    network: nn.Module, inputs: tuple[torch.Tensor, ...], aliases: dict[str, str]
) -> tuple[str, int] | None:
    if not inputs:
        return None
    called: list[str] = []
    names = {id(module): name for name, module in reversed(list(network.named_modules()))}
    hooks = [
        module.register_forward_hook(lambda m, *_: called.append(names[id(m)]))
        for module in network.modules()
        if getattr(module, "weight", None) is not None and module.weight.ndim >= 2  # type: ignore[operator]
    ]
    training = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network.eval()(*inputs)
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    if not called:
        return None
    module = network.get_submodule(called[-1])
    transposed = isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    owner = aliases.get(f"{called[-1]}.weight", f"{called[-1]}.weight").rpartition(".")[0]
    return owner, int(transposed)
