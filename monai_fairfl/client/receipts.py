# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site's receipts: which head of the ledger it was sent, and which update it sent back."""

from __future__ import annotations

import json
from pathlib import Path

from monai_fairfl.messages import Request
from monai_fairfl.utils.files import append_line

RECEIPTS = "receipts.jsonl"
"""The file in a site's private folder, for all of its runs."""


class Receipts:
    """The receipts of one site: JSON lines, each flushed to disk before the reply leaves.

    The head is the SHA-256 of the ledger's last line when the request was made. A change of a
    record changes every later head, so a stored head shows the change, see
    :mod:`monai_fairfl.audit.receipts`.

    Args:
        folder: private to this site.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> receipts = Receipts(folder)
    >>> receipts.add(Request("elm", "measure", {}, run="fedce", round=0, ledger_head="ab12"), "")
    >>> Path(folder, RECEIPTS).read_text().count('"head": "ab12"')
    1
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / RECEIPTS

    def add(self, request: Request, update: str) -> None:
        """Append the receipt of one request.

        A request without a head is of no ledger, such as one of a valuation, and gets none.

        Args:
            request: that was answered.
            update: SHA-256 of the update that was sent; empty where none was.
        """
        if not request.ledger_head:
            return
        receipt = {
            "client": request.client,
            "run": request.run,
            "round": request.round,
            "id": request.id,
            "task": request.task,
            "ended": bool(request.context.get("ended", 0)),
            "head": request.ledger_head,
            "update": update or None,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(receipt).encode() + b"\n"
        append_line(self.path, self._begin_of_line() + line)

    def _begin_of_line(self) -> bytes:
        """A line break where a crash cut the last line short, else nothing."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if not size:
            return b""
        with open(self.path, "rb") as file:
            file.seek(size - 1)
            last = file.read(1)
        return b"" if last == b"\n" else b"\n"
