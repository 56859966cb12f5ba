# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client keeps of its own training between rounds: one file per round, written whole or not
at all.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from monai.engines import SupervisedTrainer

from monai_fairfl.errors import FederationError
from monai_fairfl.measurements.probe import load_weights
from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.files import DAMAGED, safe_name, write_atomically
from monai_fairfl.utils.spreadsheets import csv_text
from monai_fairfl.utils.tensors import on_cpu


class ClientState:
    """The state files of one client, kept and read by round, because a resumed server repeats
    rounds.

    Args:
        folder: private to this client.
        keep: rounds kept: 2 when the server repeats its last round, 3 when its newest checkpoint
            was damaged too.
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        if keep < 2:
            raise ValueError(
                f"keep must be at least 2, so that a resumed server can repeat a round; got {keep}"
            )
        self.folder, self.keep = Path(folder), keep

    def before(self, run: str, number: int) -> list[int]:
        """Rounds before ``number`` whose state is here, newest first."""
        return sorted((r for r in self._rounds(run) if r < number), reverse=True)

    def has(self, run: str, number: int) -> bool:
        """Whether the state after round ``number`` is here."""
        return self._path(run, number).exists()

    def load(self, run: str, number: int) -> dict[str, Any]:
        """The state after round ``number``; tensors and plain values only, whatever the file says.

        Raises:
            FederationError: when the file is damaged.
        """
        path = self._path(run, number)
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except DAMAGED as error:
            raise FederationError(
                f"the state after round {number} in {path} is damaged ({type(error).__name__}): delete the file, and "
                "this client goes on from an earlier round's state, or with a new optimizer where there is none"
            ) from error
        return state

    def save(self, run: str, number: int, state: Mapping[str, Any]) -> None:
        """Write the state after round ``number``; rounds from ``number`` on that an earlier try
        left are replaced.
        """
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_atomically(self._path(run, number), buffer.getvalue())
        rounds = self._rounds(run)
        for old in [r for r in rounds if r > number] + sorted(r for r in rounds if r <= number)[
            : -self.keep
        ]:
            self._path(run, old).unlink()

    def save_cases(self, run: str, name: str, cases: Mapping[str, Mapping[str, float]]) -> None:
        """The cases' own scores of a measurement stay at this site: ``RUN-name.csv`` in its private
        folder.
        """
        columns = list(next(iter(cases.values())))
        rows = []
        for case, scores in cases.items():
            row: dict[str, Any] = {"case": case}
            for column in columns:
                row[column] = f"{scores[column]:.6f}"
            rows.append(row)
        write_atomically(self.path(run, f"{name}.csv"), csv_text(["case", *columns], rows).encode())

    def path(self, run: str, name: str) -> Path:
        """This client's file ``name`` of ``run``.

        Raises:
            ConfigError: when the run's name, which the server chose, could lead out of the folder
                or is no file name.

        >>> ClientState("private").path("fedce-2", "own.pt").as_posix()
        'private/fedce-2-own.pt'
        """
        return self.folder / f"{safe_name(run, 'run name', 128)}-{name}"

    def _rounds(self, run: str) -> list[int]:
        name = re.compile(
            re.escape(self.path(run, "round-").name) + r"([0-9]+)\.pt"
        )  # another run's may begin alike
        return [
            int(found[1])
            for path in self.folder.glob("*.pt")
            if (found := name.fullmatch(path.name))
        ]

    def _path(self, run: str, number: int) -> Path:
        return self.path(run, f"round-{number:04d}.pt")


class Past:
    """What one request may look back on; each file is read when it is first needed.

    Args:
        states: the client's files.
        run: of the request.
        number: the request's round.
    """

    def __init__(self, states: ClientState, run: str, number: int):
        self._states, self._run, self.round = states, run, number
        self.newest = next(iter(states.before(run, number)), -1)

    @cached_property
    def state(self) -> dict[str, Any] | None:
        """The newest state of an earlier round."""
        return self._states.load(self._run, self.newest) if self.newest >= 0 else None

    @property
    def local(self) -> Weights | None:
        """The model trained last, in whatever earlier round."""
        return self.state["local"] if self.state is not None else None

    @property
    def previous(self) -> Weights | None:
        """The model trained in the round before, exactly."""
        return self.local if self.newest == self.round - 1 else None

    @cached_property
    def present(self) -> Weights | None:
        """The model trained in this round."""
        here = self._states.has(self._run, self.round)
        return self._states.load(self._run, self.round)["local"] if here else None

    @cached_property
    def personal(self) -> dict[str, Any] | None:
        """The newest state of the personal model; a round without one does not end it."""
        for number in self._states.before(self._run, self.round):
            state = self.state if number == self.newest else self._states.load(self._run, number)
            if state is not None and "personal" in state:
                personal: dict[str, Any] = state["personal"]
                return personal
        return None


def state_of(trainer: SupervisedTrainer) -> dict[str, Any]:
    """Everything that training goes on from; the random state follows from each request's seed."""
    return {
        "local": on_cpu(trainer.network.state_dict()),
        "optimizer": on_cpu(trainer.optimizer.state_dict()),
        "schedulers": [on_cpu(scheduler.state_dict()) for scheduler in _schedulers(trainer)],
        "epoch": trainer.state.epoch,
        "iteration": trainer.state.iteration,
        "scaler": trainer.scaler.state_dict() if trainer.scaler is not None else {},
    }


def load_state(trainer: SupervisedTrainer, state: Mapping[str, Any]) -> None:
    """The inverse of :func:`state_of`; tensors that its ``local`` does not name stay as they are."""
    load_weights(trainer.network, state["local"])
    trainer.optimizer.load_state_dict(on_cpu(state["optimizer"]))
    for scheduler, saved in zip(_schedulers(trainer), state["schedulers"], strict=True):
        scheduler.load_state_dict(on_cpu(saved))
    trainer.state.epoch, trainer.state.iteration = state["epoch"], state["iteration"]
    trainer.scaler = None
    if trainer.amp and state["scaler"]:
        trainer.scaler = torch.cuda.amp.GradScaler()  # as ``Trainer.run`` does
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
