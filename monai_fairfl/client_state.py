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
"""What a client keeps of its own training between rounds: one file per round, written whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from monai.engines import SupervisedTrainer

from monai_fairfl.files import safe_name, write_atomically

__all__ = ["ClientState", "handler_owner", "load_training_state", "on_cpu", "training_state"]


class ClientState:
    """The state files of one client, kept and read by round, because a resumed server repeats rounds.

    Args:
        folder: private to this client.
        keep: rounds kept: 2 when the server repeats its last round, 3 when its newest checkpoint was damaged too.
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        if keep < 2:
            raise ValueError(f"keep must be at least 2, so that a resumed server can repeat a round; got {keep}")
        self.folder, self.keep = Path(folder), keep

    def newest_before(self, run: str, number: int) -> int:
        """The newest round before ``number`` whose state is here; -1 when there is none."""
        return max((r for r in self._rounds(run) if r < number), default=-1)

    def load(self, run: str, number: int) -> dict[str, Any]:
        """The state after round ``number``; tensors and plain values only, whatever the file says."""
        state: dict[str, Any] = torch.load(self._path(run, number), map_location="cpu", weights_only=True)
        return state

    def save(self, run: str, number: int, state: Mapping[str, Any]) -> None:
        """Write the state after round ``number``; rounds from ``number`` on that an earlier try left are replaced."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_atomically(self._path(run, number), buffer.getvalue())
        rounds = self._rounds(run)
        for old in [r for r in rounds if r > number] + sorted(r for r in rounds if r <= number)[: -self.keep]:
            self._path(run, old).unlink()

    def _rounds(self, run: str) -> list[int]:
        return [int(path.stem.rpartition("-")[2]) for path in self.folder.glob(f"{safe_name(run)}-round-*.pt")]

    def _path(self, run: str, number: int) -> Path:
        return self.folder / f"{safe_name(run)}-round-{number:04d}.pt"


def training_state(trainer: SupervisedTrainer) -> dict[str, Any]:
    """Everything but the weights that training goes on from; the random state follows from each request's seed."""
    return {
        "optimizer": on_cpu(trainer.optimizer.state_dict()),
        "schedulers": [on_cpu(scheduler.state_dict()) for scheduler in _schedulers(trainer)],
        "epoch": trainer.state.epoch,
        "iteration": trainer.state.iteration,
        "scaler": trainer.scaler.state_dict() if trainer.scaler is not None else {},
    }


def load_training_state(trainer: SupervisedTrainer, state: Mapping[str, Any]) -> None:
    """The inverse of :func:`training_state`."""
    trainer.optimizer.load_state_dict(on_cpu(state["optimizer"]))
    for scheduler, saved in zip(_schedulers(trainer), state["schedulers"], strict=True):
        scheduler.load_state_dict(on_cpu(saved))
    trainer.state.epoch, trainer.state.iteration = state["epoch"], state["iteration"]
    if trainer.scaler is not None and state["scaler"]:
        trainer.scaler.load_state_dict(state["scaler"])


def _schedulers(trainer: SupervisedTrainer) -> list[Any]:
    """Learning-rate schedulers, found in the trainer's handlers."""
    found: dict[int, Any] = {}
    for entries in trainer._event_handlers.values():
        for entry in entries:
            scheduler = getattr(handler_owner(entry[0]), "lr_scheduler", None)
            if hasattr(scheduler, "state_dict"):
                found[id(scheduler)] = scheduler
    return list(found.values())


def handler_owner(handler: Any) -> Any:
    """The object whose method an engine's callback is, through ignite's wrapping."""
    inner = getattr(handler, "__wrapped__", handler)
    return getattr(inner, "__self__", inner)


def on_cpu(value: Any) -> Any:
    """A deep copy with every tensor on the CPU.

    >>> on_cpu([{"w": torch.ones(1)}])
    [{'w': tensor([1.])}]
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_cpu(item) for item in value)
    return value
