# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site stores: its state after each round, written whole or not at all, and receipts."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from monai_fairfl.messages import Measurement, Request, Weights
from monai_fairfl.utils.files import (
    LONGEST_NAME,
    load_saved,
    private_folder,
    safe_name,
    write_atomically,
)
from monai_fairfl.utils.spreadsheets import csv_text

logger = logging.getLogger(__name__)


KEPT_ROUNDS = 3
"""Rounds that stay on disk: a server repeats its last round, and the one before where its newest
checkpoint was damaged.
"""

ROUND = "round-{:04d}.pt"
"""End of the name of a state file, with the number of the round."""

RECEIPTS = "receipts.jsonl"
"""The file in a site's private folder, for all of its runs."""


class ClientState:
    """The state files of one client, by run and round, because a resumed server repeats rounds.

    Args:
        folder: private to this client.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def begin(self, run: str, run_id: str) -> None:
        """Delete the states of an earlier run of the same name, if there are any.

        Args:
            run: its name.
            run_id: of this run; empty: it is not known, and nothing is deleted.
        """
        file = self.path(run, "id.txt")
        known = file.read_text(errors="replace") if file.exists() else None
        if not run_id or known == run_id:
            return
        for number in self.before(run):
            logger.warning("the state of round %d of an earlier run %r is deleted", number, run)
            self.path(run, ROUND.format(number)).unlink()
        # A site of a job begins before its client makes the folder.
        private_folder(self.folder)
        write_atomically(file, run_id.encode())

    def before(self, run: str, number: int = sys.maxsize) -> list[int]:
        """Rounds before ``number`` whose state is on disk, newest first."""
        prefix = self.path(run, "round-").name
        # Another run's name may begin like this one's.
        rests = [path.stem.removeprefix(prefix) for path in self.folder.glob(f"{prefix}*.pt")]
        stored = [int(rest) for rest in rests if rest.isdecimal()]
        return sorted((each for each in stored if each < number), reverse=True)

    def save(self, run: str, number: int, state: Mapping[str, Any]) -> None:
        """Write the state after round ``number``, and delete what is obsolete.

        Later rounds are of an earlier try; of the others the newest :data:`KEPT_ROUNDS` stay.
        """
        file = self.path(run, ROUND.format(number))
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        write_atomically(file, buffer.getbuffer())
        kept = self.before(run, number + 1)[:KEPT_ROUNDS]
        for other in self.before(run):
            if other not in kept:
                self.path(run, ROUND.format(other)).unlink()

    def save_cases(self, run: str, name: str, cases: Mapping[str, Mapping[str, float]]) -> None:
        """Write the cases' own scores of a measurement to ``RUN-name.csv``.

        They stay in this site's private folder. A name that is no UTF-8, as of a file from a system
        with another encoding, is written with escapes.
        """
        columns = list(next(iter(cases.values())))
        rows: list[dict[str, Any]] = []
        for case, scores in cases.items():
            rows.append({"case": case, **{column: f"{scores[column]:.6f}" for column in columns}})
        table = csv_text(["case", *columns], rows)
        write_atomically(self.path(run, f"{name}.csv"), table.encode(errors="backslashreplace"))

    def add_receipt(self, request: Request, update: str) -> None:
        """Append the receipt of one request to :data:`RECEIPTS`, on disk before the reply leaves.

        It has the head of the ledger that came with the request, which is the SHA-256 of the
        ledger's last line. A change of a record changes every later head, so a stored head shows
        the change, see :mod:`monai_fairfl.audit.proofs`. A request without a head is of no
        ledger, such as one of a valuation, and gets no receipt.

        Args:
            request: that was answered.
            update: SHA-256 of the update that was sent; empty where none was.

        >>> import tempfile
        >>> states = ClientState(tempfile.mkdtemp())
        >>> asked = Request("elm", "measure", {}, run="fedce", round=0, ledger_head="ab12")
        >>> states.add_receipt(asked, "")
        >>> (states.folder / RECEIPTS).read_text().count('"head": "ab12"')
        1
        """
        if not request.ledger_head:
            return
        receipt = {key: getattr(request, key) for key in ("client", "run", "round", "id", "task")}
        receipt["ended"] = bool(request.context.get("ended", 0))
        receipt |= {"head": request.ledger_head, "update": update or None}
        file = private_folder(self.folder) / RECEIPTS
        # A crash may have cut the last line short.
        is_cut = file.exists() and not file.read_bytes().endswith(b"\n")
        line = json.dumps(receipt).encode() + b"\n"
        write_atomically(file, b"\n" * is_cut + line, append=True)

    def path(self, run: str, name: str) -> Path:
        """This client's file ``name`` of ``run``.

        Raises:
            ConfigError: when the run's name, which the server chose, could lead out of the folder
                or is no file name.

        >>> ClientState("private").path("fedce-2", "own.pt").as_posix()
        'private/fedce-2-own.pt'
        """
        return self.folder / f"{safe_name(run, 'run name', LONGEST_NAME)}-{name}"


class Task:
    """One request: what was measured for it, and the earlier models that it may use.

    It is the :class:`~monai_fairfl.measurements.Memory` of the request's measurements. Each file is
    read when it is first needed.

    Args:
        request: to the client.
        states: the client's files.
        epochs: that it asks for, if it trains.
        initial: the state before the first round.
    """

    def __init__(self, request: Request, states: ClientState, epochs: int, initial: dict[str, Any]):
        self.request = request
        self.states = states
        self.epochs = epochs
        self.initial = initial
        self.measurements: dict[str, Measurement] = {}
        # Number of a round -> the state after it, each read once. A file that cannot be read is an
        # error: without it the client would go on from an earlier round's.
        self._after = cache(
            lambda number: load_saved(states.path(request.run, ROUND.format(number)))
        )
        # Rounds up to this one, newest first.
        self._stored = states.before(request.run, request.round + 1)
        self._earlier = [number for number in self._stored if number < request.round]

    @property
    def state(self) -> dict[str, Any]:
        """The newest state of an earlier round, or the initial one."""
        return self._after(self._earlier[0]) if self._earlier else self.initial

    @property
    def previous(self) -> Weights | None:
        """The model trained in the previous round, exactly that one."""
        return self._local(self.request.round - 1)

    @property
    def present(self) -> Weights | None:
        """The model trained in this round."""
        return self._local(self.request.round)

    @property
    def personal(self) -> dict[str, Any] | None:
        """The newest state of the personal model; a round without one does not end it."""
        states = (self._after(number) for number in self._earlier)
        return next((state["personal"] for state in states if "personal" in state), None)

    def _local(self, number: int) -> Weights | None:
        return self._after(number)["local"] if number in self._stored else None
