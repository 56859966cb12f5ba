# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A workflow in several processes, each with a GPU of its own: what ``multi_gpu_*.json`` needs.

``torchrun`` starts the processes. Each trains on its share of the images, and PyTorch averages the
gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sized

import ignite.distributed as idist
import torch

from monai_fairfl.errors import ConfigError, DataError


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
