# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who watches a federation: one class with a method for each event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Observer:
    """Is notified of what happens in a federation. Every method does nothing by default.

    A method may call :meth:`~monai_fairfl.server.federation.Federation.stop` or
    :meth:`~monai_fairfl.server.federation.Federation.conclude`.

    >>> class Printing(Observer):
    ...     def record_added(self, record):
    ...         print(record["kind"])
    >>> Printing().record_added({"kind": "round", "round": 0})
    round
    """

    def run_started(self) -> None:
        """The folder is locked for this run and fits it; nothing of the run is written yet."""

    def record_added(self, record: Mapping[str, Any]) -> None:
        """A record was written to the ledger.

        Args:
            record: the opening, a round or the end, as the ledger has it.
        """
