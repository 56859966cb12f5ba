# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Files written whole or not at all, and names that are safe in a path."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from monai_fairfl.messages import Weights

__all__ = ["safe_name", "save_state_dict", "write_atomically"]


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, flush it to disk, then rename: a crash leaves the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.writing")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def safe_name(client: str) -> str:
    """``client``, if it can be a file name everywhere.

    Raises:
        ValueError: for names with other characters than letters, digits, ``_``, ``-``, ``.`` and space, names that do
            not begin with a letter, a digit or ``_``, or that are longer than 64 characters.

    >>> safe_name("RUNMC-3T")
    'RUNMC-3T'
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,63}", client):
        raise ValueError(
            f"client name {client!r} cannot be used: give it 1 to 64 letters, digits, '_', '-', '.' or spaces, "
            "beginning with a letter, a digit or '_'"
        )
    return client


def save_state_dict(path: Path, weights: Weights) -> None:
    """Write a plain ``state_dict`` that a bundle's ``CheckpointLoader`` and ``torch.load(weights_only=True)`` read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.writing")
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in weights.items()}, beside)
    os.replace(beside, path)
