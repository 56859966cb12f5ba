# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Stores a client's state between rounds: one file per round, written whole or not at all."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from monai_fairfl.errors import FederationError
from monai_fairfl.protocol.values import Weights
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.names import LONGEST_NAME, safe_name
from monai_fairfl.utils.private import private_folder
from monai_fairfl.utils.saved_files import damaged_part, system_reason
from monai_fairfl.utils.spreadsheets import csv_text

logger = logging.getLogger(__name__)


class ClientState:
    """The state files of one client, by run and round, because a resumed server repeats rounds.

    Args:
        folder: private to this client.
        keep: number of rounds that stay on disk: 2 when the server repeats its last round, 3 when
            its newest checkpoint was damaged too.
    """

    def __init__(self, folder: str | Path, keep: int = 3):
        if keep < 2:
            raise ValueError(
                f"keep must be at least 2, so that a resumed server can repeat a round; got {keep}"
            )
        self.folder = Path(folder)
        self.keep = keep

    def begin(self, run: str, run_id: str) -> bool:
        """Delete the states of an earlier run of the same name, if there are any.

        Args:
            run: its name.
            run_id: of this run; empty: it is not known, and nothing is deleted.

        Returns:
            Whether there were any.
        """
        file = self.path(run, "id.txt")
        known = file.read_text(errors="replace") if file.exists() else None
        if not run_id or known == run_id:
            return False
        stored = self._rounds(run)
        if stored:
            logger.warning(
                "the states of run %r in %s are of an earlier run of that name: they are deleted, "
                "and this site begins anew",
                run,
                self.folder,
            )
        for number in stored:
            self._path(run, number).unlink()
        # A site of a job begins before its client makes the folder.
        private_folder(self.folder)
        write_atomically(file, run_id.encode())
        return bool(stored)

    def before(self, run: str, number: int) -> list[int]:
        """Rounds before ``number`` whose state is on disk, newest first."""
        earlier = [stored for stored in self._rounds(run) if stored < number]
        return sorted(earlier, reverse=True)

    def has(self, run: str, number: int) -> bool:
        """Whether the state after round ``number`` is on disk."""
        return self._path(run, number).exists()

    def load(self, run: str, number: int) -> dict[str, Any]:
        """The state after round ``number``.

        Only tensors and plain values are read, whatever the file contains.

        Raises:
            FederationError: when the file is damaged, or the system does not let it be read.
        """
        path = self._path(run, number)
        damaged = damaged_part(path)
        if damaged is None:
            try:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
                return state
            except Exception as error:  # PyTorch raises whatever a damaged byte leads to
                reason = system_reason(error)
                if reason is not None:
                    raise FederationError(
                        f"the state after round {number} in {path} cannot be read ({reason}): let "
                        "this client's process read the file, which may be whole, and look at its "
                        "disk; then the client goes on"
                    ) from error
                damaged = type(error).__name__
        raise FederationError(
            f"the state after round {number} in {path} is damaged ({damaged}): delete the file, "
            "and this client goes on from an earlier round's state, or with a new optimizer where "
            "there is none"
        )

    def save(self, run: str, number: int, state: Mapping[str, Any]) -> None:
        """Write the state after round ``number``, and delete what is obsolete.

        Later rounds are of an earlier try; of the others the newest ``keep`` stay.
        """
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_atomically(self._path(run, number), buffer.getbuffer())

        stored = sorted(self._rounds(run))
        of_earlier_try = [other for other in stored if other > number]
        up_to_now = [other for other in stored if other <= number]
        for obsolete in of_earlier_try + up_to_now[: -self.keep]:
            self._path(run, obsolete).unlink()

    def save_cases(self, run: str, name: str, cases: Mapping[str, Mapping[str, float]]) -> None:
        """Write the cases' own scores of a measurement to ``RUN-name.csv``.

        They stay in this site's private folder. A name that is no UTF-8, as of a file from a system
        with another encoding, is written with escapes.
        """
        columns = list(next(iter(cases.values())))
        rows = []
        for case, scores in cases.items():
            row: dict[str, Any] = {"case": case}
            for column in columns:
                row[column] = f"{scores[column]:.6f}"
            rows.append(row)
        table = csv_text(["case", *columns], rows)
        write_atomically(self.path(run, f"{name}.csv"), table.encode(errors="backslashreplace"))

    def path(self, run: str, name: str) -> Path:
        """This client's file ``name`` of ``run``.

        Raises:
            ConfigError: when the run's name, which the server chose, could lead out of the folder
                or is no file name.

        >>> ClientState("private").path("fedce-2", "own.pt").as_posix()
        'private/fedce-2-own.pt'
        """
        return self.folder / f"{safe_name(run, 'run name', LONGEST_NAME)}-{name}"

    def _rounds(self, run: str) -> list[int]:
        """Rounds of ``run`` whose state is on disk, in any order."""
        prefix = self.path(run, "round-").name
        # The whole name must match: another run's name may begin like this one's.
        pattern = re.compile(re.escape(prefix) + r"([0-9]+)\.pt")
        rounds = []
        for path in self.folder.glob("*.pt"):
            match = pattern.fullmatch(path.name)
            if match is not None:
                rounds.append(int(match[1]))
        return rounds

    def _path(self, run: str, number: int) -> Path:
        return self.path(run, f"round-{number:04d}.pt")


class TrainedModel(NamedTuple):
    """A model in memory, and the round in which it was trained."""

    run: str
    round: int
    weights: Weights


class Past:
    """The earlier models that one request may use; each file is read when it is first needed.

    Args:
        states: the client's files.
        run: of the request.
        number: the request's round.
        at_hand: the model that this process trained last, where it has it: then no file is read.
    """

    def __init__(
        self, states: ClientState, run: str, number: int, at_hand: TrainedModel | None = None
    ):
        self._states = states
        self._run = run
        self._at_hand = at_hand
        self.round = number
        earlier = states.before(run, number)
        self.newest = earlier[0] if earlier else -1

    @cached_property
    def state(self) -> dict[str, Any] | None:
        """The newest state of an earlier round."""
        if self.newest < 0:
            return None
        return self._states.load(self._run, self.newest)

    @property
    def local(self) -> Weights | None:
        """The model trained last, in whichever earlier round."""
        if self.newest >= 0 and self._is_at_hand(self.newest):
            assert self._at_hand is not None
            return self._at_hand.weights
        return None if self.state is None else self.state["local"]

    def _is_at_hand(self, number: int) -> bool:
        """Whether the model trained in this round is in memory."""
        known = self._at_hand
        return known is not None and (known.run, known.round) == (self._run, number)

    @property
    def previous(self) -> Weights | None:
        """The model trained in the previous round, exactly that one."""
        return self.local if self.newest == self.round - 1 else None

    @cached_property
    def present(self) -> Weights | None:
        """The model trained in this round."""
        if not self._states.has(self._run, self.round):
            return None
        if self._is_at_hand(self.round):
            assert self._at_hand is not None
            return self._at_hand.weights
        local: Weights = self._states.load(self._run, self.round)["local"]
        return local

    @cached_property
    def personal(self) -> dict[str, Any] | None:
        """The newest state of the personal model; a round without one does not end it."""
        for number in self._states.before(self._run, self.round):
            state = self.state if number == self.newest else self._states.load(self._run, number)
            if state is not None and "personal" in state:
                personal: dict[str, Any] = state["personal"]
                return personal
        return None
