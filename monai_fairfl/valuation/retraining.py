# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trains every coalition's model: the reference that cheaper estimates are compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.game import Coalition, Game
from monai_fairfl.messages import Weights
from monai_fairfl.valuation.finished import Evaluator, FinishedRun, RunValuation

if TYPE_CHECKING:
    from monai_fairfl.strategies.base import Strategy

GAME = "trained anew"
"""Name of the game in the file of what was measured; another one would measure everything again."""


class Retraining(RunValuation):
    """Values clients by whole federations of every coalition.

    These are N + 1 trainings for leave-one-out, 2^N for exact. FedCE's ground truth (Jiang et al.,
    CVPR 2023) is leave-one-out with ``data="test"``. Its text does not say by which method the N +
    1 models were trained; here it is FedAvg unless ``strategy`` says otherwise, whatever method the
    run itself used, so that all methods are compared with one reference. Settings, splits and seeds
    are the run's own. The global model of each coalition is scored by *all* clients, also by those
    that did not train it. The empty coalition's model is the initial one. A finished coalition is
    never trained again, an unfinished one is resumed.

    Args:
        method: see :class:`RunValuation`; not ``"gtg"``, whose games are rounds.
        utility: see :class:`~monai_fairfl.valuation.Utility`.
        data: the images that are scored.
        strategy: trains the coalitions; ``None``: FedAvg.
        **others: ``samples``, ``tolerance``, ``seed`` and ``judged_by``, see
            :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Retraining(data="test").name
    'retraining-FedAvg-leave_one_out-mean-test'
    """

    def __init__(
        self,
        method: str = "leave_one_out",
        utility: str = "mean",
        data: str = "validation",
        strategy: Strategy | None = None,
        **others: Any,
    ):
        super().__init__(method, utility, data, **others)
        if method == "gtg":
            raise ConfigError("Retraining: gtg is of Reconstruction; take 'permutation'")
        self.strategy = strategy

    def words(self) -> tuple[str, ...]:
        """As :meth:`RunValuation.words`."""
        return ("retraining", "FedAvg" if self.strategy is None else self.strategy.name)

    def check(self, clients: Sequence[str], recorded: bool) -> None:
        """As :meth:`RunValuation.check`, and that the strategy can train the coalitions."""
        super().check(clients, recorded)
        strategy = self.strategy
        if strategy is None:
            return
        smallest = len(clients) - 1 if self.method == "leave_one_out" else 1
        problem = ""
        if strategy.shares_nothing:
            problem = "averages nothing, so that every coalition's model would be the initial one"
        if smallest < strategy.min_clients:
            problem = (
                f"needs {strategy.min_clients} clients, and coalitions have {smallest} and more"
            )
        if problem:
            raise ConfigError(
                f"valuation {self.name}: {strategy.name} {problem}: leave out strategy (FedAvg)"
            )

    def trainings(self, clients: Sequence[str]) -> Iterator[Coalition]:
        """As :meth:`RunValuation.trainings`; those of a sampling method follow from its sampling.

        >>> [sorted(coalition) for coalition in Retraining().trainings("AB")]
        [['A', 'B'], ['A'], ['B']]
        """
        members = sorted(clients)
        smallest = {"leave_one_out": len(members) - 1, "exact": 1}
        if self.method in smallest:
            for size in range(len(members), smallest[self.method] - 1, -1):
                yield from map(frozenset, combinations(members, size))

    def stored(self, run: FinishedRun) -> tuple[Path, str]:
        """As :meth:`RunValuation.stored`."""
        return self._folder(run) / "measured.jsonl", run.retrained.name

    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
        """As :meth:`RunValuation.games`; a single game."""

        folder = self._folder(run)

        def train(coalition: Coalition) -> Weights:
            # One set of clients in memory at a time.
            run.panel.close()
            place = folder / folder_of(coalition, run.clients)
            return run.train(coalition, self.strategy, place)

        if run.train_ahead is not None:
            unknown = {}
            for coalition in self.trainings(run.clients):
                if (GAME, coalition) not in evaluate.known:
                    unknown[coalition] = folder / folder_of(coalition, run.clients)
            run.panel.close()
            run.train_ahead(unknown, self.strategy)
        return [Game(run.clients, lambda members: evaluate(GAME, members, partial(train, members)))]

    def _folder(self, run: FinishedRun) -> Path:
        """Where the models that this valuation's strategy trains are stored."""
        _, strategy = self.words()
        return run.retrained / strategy


def folder_of(coalition: Coalition, clients: Sequence[str]) -> str:
    """Name of the folder of a coalition's own federation.

    >>> folder_of(frozenset("AC"), "ABC"), folder_of(frozenset("B"), "ABC")
    ('without-B', 'only-B')
    >>> folder_of(frozenset("ABC"), "ABC")
    'all'
    """
    absent = sorted(set(clients) - coalition)
    if not absent:
        return "all"
    if len(absent) == 1:
        return f"without-{absent[0]}"
    if len(coalition) == 1:
        return f"only-{next(iter(coalition))}"
    members = "\n".join(sorted(coalition))
    digest = hashlib.sha256(members.encode()).hexdigest()
    return f"coalition-{digest[:12]}"
