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
"""The model of an inference run: there, readable, and of the network that the configuration builds."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.files import read_state_dict
from monai_fairfl.preflight import errors_told

__all__ = ["require_model"]


def require_model(ckpt_path: str | Path, network: nn.Module) -> None:
    """Go on only with a model that fits; from the command line it ends with the reason and exit code 2.

    Args:
        ckpt_path: a ``state_dict``, or a checkpoint with one under ``"model"``, as ``CheckpointLoader`` reads it.
        network: that it is for.

    Raises:
        ConfigError: when there is none, it cannot be read, or is of another network; it names the tensor and the keys.
    """
    with errors_told():
        _check(Path(ckpt_path), network)


def _check(path: Path, network: nn.Module) -> None:
    if not path.is_file():
        raise ConfigError(
            f"No trained weights at {path}: train the bundle first, or name a checkpoint with --ckpt_path."
        )
    try:
        state, expected = read_state_dict(path), network.state_dict()
    except ConfigError as error:
        raise ConfigError(f"{error}: name another with --ckpt_path") from None
    for name in sorted({*state, *expected}):
        here, there = (tuple(of[name].shape) if name in of else None for of in (expected, state))
        if here != there:
            raise ConfigError(
                f"{path} is of another network: {name} is {there or 'absent'} in the file and {here or 'absent'} in "
                "the network. Give the values of its training, such as --channels '[16, 32, 64, 128]' or --norm; for "
                "a federation's model they are in the overrides of its config.json"
            )
