# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a bundle's configurations call: of the data, the network, the model's file, processes.

In several processes, each with a GPU of its own, which ``torchrun`` starts and ``multi_gpu_*.json``
joins, each process trains on its share of the images, and PyTorch averages the gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from torch import nn

from monai_fairfl.bundle.configuration import errors_in_one_line
from monai_fairfl.data import check_cases
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.model_files.recipe import (
    ModelRecipe,
    is_torchscript,
    network_for,
    save_model_file,
    state_of_file,
)
from monai_fairfl.model_files.recipe import write_recipe_file as write_recipe_file


def check_data(
    dataset_dir: str | Path, cases: Sequence[CaseFiles] | None = None, **of_check: Any
) -> None:
    """Go on only with data without faults.

    Args:
        dataset_dir: of the site; every file is read once, see
            :func:`monai_fairfl.data.check_cases`.
        cases: see :func:`~monai_fairfl.data.check_cases`; a configuration that uses some cases of
            its data list names these.
        of_check: ``structures``, ``values``, ``stereo``, ``field_of_view`` and ``size``, see there.

    Raises:
        DataError: with the number of faults, and the first three. From the command line: the text,
            and exit code 2.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from monai_fairfl.data import SITES, write_sites
    >>> with tempfile.TemporaryDirectory() as root:  # doctest: +ELLIPSIS
    ...     _ = write_sites(root, sites=SITES[:1], size=(24, 24, 6), cases=1)
    ...     check_data(f"{root}/alder")  # without faults
    ...     Path(root, "alder", "Case00_segmentation.nii.gz").unlink()
    ...     check_data(f"{root}/alder")
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.DataError: ...alder: 1 problem(s)
    - ...: alder/Case00.nii.gz has no mask Case00_segmentation.nii.gz; add it, or remove the file
    """
    with errors_in_one_line():
        check_cases(dataset_dir, cases=cases, **of_check)


def save_model(path: str | Path, network: nn.Module, recipe: ModelRecipe | None = None) -> None:
    """Write a model with the recipe of its training, as ``CheckpointLoader`` reads it.

    >>> from pathlib import Path
    >>> from torch import nn
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "models", "model.pt")
    >>> save_model(path, nn.Linear(1, 1))
    >>> path.is_file()
    True
    """
    save_model_file(path, network.state_dict(), recipe)


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
    with suppress(ConfigError):  # of a file that is missing or damaged, which require_model names
        network_def = network_for(network_def, state_of_file(ckpt_path))
    return network_def.to(device)


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
    monai_fairfl.errors.ConfigError: ...is of another network, which differs in ('bias', (4,)): ...
    """
    with errors_in_one_line():
        if not Path(ckpt_path).is_file():
            raise ConfigError(f"no model at {ckpt_path}: train first, or name one with --ckpt_path")
        shapes = []
        for state in (state_of_file(ckpt_path), network.state_dict()):
            shapes.append({(name, tuple(tensor.shape)) for name, tensor in state.items()})
        if differing := sorted(shapes[0] ^ shapes[1]):
            raise ConfigError(
                f"{ckpt_path} is of another network, which differs in {differing[0]}: give the "
                "values of its training, such as --channels '[16, 32, 64, 128]' or --norm"
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

    >>> from torch import nn
    >>> placed_network(nn.Conv2d(1, 2, 3), "cpu", "channels_last").weight.stride()
    (9, 1, 3, 1)
    """
    # PyTorch knows this argument; its declared types do not.
    network.to(device, memory_format=getattr(torch, memory_format))  # type: ignore[call-overload]
    if compiled:
        # In place: a compiled copy would give the weights other names.
        network.compile()
    return network


def join_processes() -> None:
    """Join the processes that ``torchrun`` started: with NCCL on GPUs, with Gloo where none is.

    Afterwards ``ignite.distributed`` knows the rank of this process and its device.

    Raises:
        ConfigError: when ``torchrun`` did not start this process.

    >>> join_processes()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    monai_fairfl.errors.ConfigError: multi_gpu_train.json and multi_gpu_evaluate.json need...
    """
    if "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            "multi_gpu_train.json and multi_gpu_evaluate.json need a process for each GPU: start "
            "with 'torchrun --standalone --nproc_per_node=GPUS -m monai.bundle run ...'"
        )
    if torch.distributed.is_initialized():
        # Here and not with the first handler: not every rank has every handler, and ranks that do
        # not join together wait for each other forever.
        idist.sync()
        return
    idist.initialize("nccl" if torch.cuda.is_available() else "gloo")


def require_case_per_process(**parts: Sized) -> None:
    """Refuse more processes than cases: MONAI's metrics wait forever for one that has none.

    Args:
        parts: name of a part of the data -> its cases.

    Raises:
        DataError: when a part has fewer cases than there are processes.

    >>> require_case_per_process(training=["a.nii.gz"])
    """
    processes = idist.get_world_size()
    for part, cases in parts.items():
        if len(cases) < processes:
            raise DataError(
                f"{len(cases)} {part} case(s) for {processes} processes: each needs one; start "
                f"with --nproc_per_node={max(len(cases), 1)} or less"
            )
