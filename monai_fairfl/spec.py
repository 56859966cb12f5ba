# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Read off a network which tensors are parameters, buffers, aliases, layers and the output."""

from __future__ import annotations

import torch
from torch import nn

from monai_fairfl.messages import ModelSpec

__all__ = ["read_spec"]

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
)  # the first: BatchNorm and InstanceNorm


def read_spec(network: nn.Module, *inputs: torch.Tensor) -> ModelSpec:
    """The :class:`~monai_fairfl.messages.ModelSpec` of ``network``, from one forward pass in
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
