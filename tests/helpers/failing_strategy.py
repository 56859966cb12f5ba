# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy that fails in its second round for as long as a test wants it to."""

from __future__ import annotations

from collections.abc import Sequence

from monai_fairfl.errors import FederationError
from monai_fairfl.strategies import FedAvg, Rounds


class Failing(FedAvg):
    """FedAvg whose second round raises while ``fails`` is set."""

    fails = True

    def round(self, clients: Sequence[str]) -> Rounds:
        result = yield from super().round(clients)
        self._rounds_done = getattr(self, "_rounds_done", 0) + 1
        if Failing.fails and self._rounds_done == 2:
            raise FederationError("it fails on purpose")
        return result
