# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The network of an inference or evaluation run, and whether a model file fits it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.errors import ConfigError
from monai_fairfl.model_files.recipe import is_torchscript, network_for, state_of_file


def network_of(
    network_def: nn.Module, ckpt_path: str | Path, device: torch.device | str
) -> nn.Module:
    """Return the network to run: the configured one, or that of a TorchScript file.

    A TorchScript file holds the weights, too. A fused model runs in copies of the configured
    network.

    Args:
        network_def: as configured; ``CheckpointLoader`` fills it from other files than TorchScript.
        ckpt_path: of the model.
        device: that it runs on.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> trained, configured = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(trained.weight, 3.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.jit.script(trained).save(f"{folder}/model.ts")
    ...     network = network_of(configured, f"{folder}/model.ts", "cpu")
    >>> network(torch.ones(1)).item()
    3.0
    """
    if is_torchscript(ckpt_path):
        scripted: nn.Module = torch.jit.load(str(ckpt_path), map_location=device)
        return scripted
    network = network_def
    # Of a file that is missing or damaged; `require_model` names it.
    with suppress(ConfigError):
        network = network_for(network_def, state_of_file(ckpt_path))
    return network.to(device)


def require_model(ckpt_path: str | Path, network: nn.Module) -> None:
    """Go on only with a model that fits the network.

    Args:
        ckpt_path: a ``state_dict``, a checkpoint with one under ``"model"`` as ``CheckpointLoader``
            reads it, or TorchScript.
        network: that it is for.

    Raises:
        ConfigError: when there is none, it cannot be read, or is of another network; it names the
            tensor and the keys. From the command line: the text, and exit code 2.

    >>> import tempfile, torch
    >>> from torch import nn
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
    ...     torch.save(nn.Linear(1, 4).state_dict(), f"{folder}/model.pt")
    ...     require_model(f"{folder}/model.pt", nn.Linear(1, 4))  # it fits
    ...     require_model(f"{folder}/model.pt", nn.Linear(1, 8))
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: ...: bias is (4,) in the file and (8,) in the network...
    """
    with errors_in_one_line():
        path = Path(ckpt_path)
        if not path.is_file():
            raise ConfigError(
                f"No trained weights at {path}: train the bundle first, or name a checkpoint with "
                "--ckpt_path."
            )
        try:
            state = state_of_file(path)
        except ConfigError as error:
            raise ConfigError(f"{error}: name another with --ckpt_path") from None
        in_file = {name: tuple(tensor.shape) for name, tensor in state.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        for name in sorted({*in_file, *expected}):
            here, there = in_file.get(name, "absent"), expected.get(name, "absent")
            if here != there:
                raise ConfigError(
                    f"{path} is of another network: {name} is {here} in the file and {there} in "
                    "the network. Give the values of its training, such as --channels '[16, 32, "
                    "64, 128]' or --norm; for a federation's model they are in the overrides of "
                    "its settings.json"
                )


def placed_network(
    network: nn.Module,
    device: torch.device | str,
    memory_format: str = "preserve_format",
    compiled: bool = False,
) -> nn.Module:
    """A network where it trains, laid out and compiled as asked; its weights' names stay.

    Args:
        network: that is trained.
        device: of its weights.
        memory_format: name of PyTorch's order of values in memory, such as ``"channels_last"``.
        compiled: whether PyTorch compiles it when it first runs.

    Raises:
        ConfigError: when PyTorch has no such order.

    >>> from torch import nn
    >>> placed_network(nn.Conv2d(1, 2, 3), "cpu", "channels_last").weight.stride()
    (9, 1, 3, 1)
    """
    layout = getattr(torch, memory_format, None)
    if not isinstance(layout, torch.memory_format):
        raise ConfigError(
            f"memory_format is {memory_format!r}: give 'preserve_format', 'channels_last' or, for "
            "networks of three dimensions, 'channels_last_3d'"
        )
    # PyTorch knows this argument; its declared types do not.
    network.to(device, memory_format=layout)  # type: ignore[call-overload]
    if compiled:
        # In place: a compiled copy would give the weights other names.
        network.compile()
    return network
