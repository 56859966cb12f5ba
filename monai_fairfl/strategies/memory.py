# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers that a method keeps of each client from round to round, also over rounds it misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monai_fairfl.replies import normalise


class Memory(dict[str, float]):
    """Client -> number, of all clients that were ever seen; plain JSON for a checkpoint.

    >>> memory = Memory(A=0.5)
    >>> memory.put(["B"], np.array([0.25]))
    >>> memory.of(["A", "B", "C"], 0.0).tolist()
    [0.5, 0.25, 0.0]
    """

    def of(self, clients: Sequence[str], default: float) -> np.ndarray:
        """The numbers of ``clients``, shape (N,); ``default`` where a client is new."""
        return np.array([self.get(client, default) for client in clients], float)

    def put(self, clients: Sequence[str], values: np.ndarray) -> None:
        """Take the ``values`` of ``clients`` in the place of their earlier ones."""
        self.update(zip(clients, np.asarray(values, float).tolist(), strict=True))


class Shares(Memory):
    """Client -> weight, of sum one over all clients that were ever seen."""

    def of_present(self, clients: Sequence[str]) -> np.ndarray:
        """The weights of the present ``clients``, which sum to one; shape (N,).

        A client that was never seen gets the mean weight; all are equal where nobody was seen. The
        weights of the same clients are returned as they are.

        >>> Shares(A=0.25, B=0.75).of_present(["B", "C"]).tolist()
        [0.6, 0.4]
        """
        weights = self.of(clients, self._mean())
        # Where nobody is absent and nobody is new, nothing is divided: the same bits.
        return weights if set(clients) == set(self) else normalise(weights)

    def put(self, clients: Sequence[str], values: np.ndarray) -> None:
        """Take the new weights of the present ``clients``, which sum to one.

        They divide among them the share that they had before, so that a client loses nothing by
        its absence.

        >>> shares = Shares(A=0.5, B=0.3, C=0.2)
        >>> shares.put(["A", "B"], np.array([0.5, 0.5]))
        >>> shares
        {'A': 0.4, 'B': 0.4, 'C': 0.2}
        """
        if not set(self) <= set(clients):
            present_share = self.of(clients, self._mean()).sum()
            super().put(clients, present_share * values)
            # Sorted, so that the bits of the sum do not depend on who was absent.
            clients = sorted(self)
            values = normalise(self.of(clients, 0.0))
        super().put(clients, values)

    def _mean(self) -> float:
        return sum(self.values()) / len(self) if self else 1.0
