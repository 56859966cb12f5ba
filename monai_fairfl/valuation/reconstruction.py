# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Rebuilds coalitions' models from recorded updates, without any training.

After Song et al., IEEE Big Data 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.game import Coalition, Game
from monai_fairfl.messages import Weights
from monai_fairfl.replies import Replies, sample_shares
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.run.recorded_updates import RecordedRound, recorded_rounds
from monai_fairfl.strategies.coalitions import model_of_members, only_members
from monai_fairfl.valuation.finished import Evaluator, FinishedRun, RunValuation

RoundKey = tuple[tuple[str, int, tuple[bool, ...]], ...]
"""(client, number of images, labelled channels) of each reply of a round."""


class MultiRound:
    r"""Models of the coalitions of each round.

    .. math:: w_t + \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}

    The updates are those that the method's own training gave; only their average is another one, by
    images and with the run's buffer policy. The empty coalition's model is :math:`w_t`. A client
    that was sent a model of its own (a reward) adds what it changed in that one. One round's
    updates are in memory at a time.

    Args:
        rounds: all of the run.
    """

    def __init__(self, rounds: Sequence[RecordedRound]):
        self.rounds = rounds
        self._round: tuple[RecordedRound, Weights, Replies] | None = None

    def __call__(self, number: int, coalition: Coalition) -> Weights:
        """The model of ``coalition``, members of round ``number``."""
        recorded = self.rounds[number]
        if self._round is None or self._round[0] is not recorded:
            # Frees the memory of the previous round before another one is read.
            self._round = None
            self._round = (recorded, recorded.start(), recorded.replies())
        _, start, replies = self._round
        if not coalition:
            return start
        return model_of_members(start, only_members(replies, coalition), recorded.buffers)


class OneRound:
    r"""Models of the coalitions of a whole run.

    .. math:: w_0 + \sum_t \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}

    A round without any member of S adds nothing. Buffers (BatchNorm statistics) are those of S in
    the last round in which one of S took part. Rounds of the same clients, numbers of images and
    labelled classes are summed beforehand, in float64.

    Args:
        rounds: all of the run.
    """

    def __init__(self, rounds: Sequence[RecordedRound]):
        self.rounds = rounds
        self.start = rounds[0].start()
        # Rounds whose average has the same weights for every coalition -> their summed updates.
        self._sums: dict[RoundKey, Replies] = {}
        for recorded in rounds:
            replies = recorded.replies()
            key = tuple((reply.client, reply.num_samples, reply.labelled) for reply in replies)
            self._sums[key] = _with_sum(replies, self._sums.get(key))

    def __call__(self, coalition: Coalition) -> Weights:
        """The model of ``coalition``."""
        of_members = [recorded for recorded in self.rounds if coalition & set(recorded.clients)]
        if not of_members:
            return self.start
        last = of_members[-1]

        # Parameters: the initial ones, and every round's average of the members, in float64.
        parameters = {name: self.start[name].double() for name in last.spec.parameters}
        for replies in self._sums.values():
            members = only_members(replies, coalition)
            if members:
                parameters = members.average(sample_shares(members), "local", parameters)

        # Buffers: the members' average of their last round.
        members = only_members(last.replies(), coalition)
        model = model_of_members(last.start(), members, last.buffers)
        for name, tensor in parameters.items():
            model[name] = tensor.to(self.start[name].dtype)
        return model


class Reconstruction(RunValuation):
    """Values clients by models rebuilt from the run's recorded updates.

    Nothing is trained: each coalition takes one scoring pass.

    Args:
        method: see :class:`RunValuation`; ``"gtg"`` with ``"multi_round"`` only.
        utility: see :class:`~monai_fairfl.valuation.Utility`.
        data: the images that are scored.
        form: ``"multi_round"``: every round is a game, and values are summed over rounds;
            ``"one_round"``: one game of the whole run's summed updates, T times cheaper and further
            from what a coalition would have trained.
        decay: weight of rounds, see :func:`~monai_fairfl.valuation.sum_over_rounds` and what it
            says of late rounds; for multi_round.
        **others: ``samples``, ``tolerance``, ``seed`` and ``judged_by``, see
            :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Reconstruction("exact", utility="worst").name
    'reconstruction-multi_round-exact-worst'
    """

    needs_updates = True

    def __init__(
        self,
        method: str = "exact",
        utility: str = "mean",
        data: str = "validation",
        form: str = "multi_round",
        decay: float | None = None,
        **others: Any,
    ):
        super().__init__(method, utility, data, **others)
        if form not in ("multi_round", "one_round"):
            raise ConfigError(f"form must be 'multi_round' or 'one_round', got {form!r}")
        if form == "one_round" and (method == "gtg" or decay is not None):
            raise ConfigError("Reconstruction: gtg and decay need form 'multi_round'")
        if decay is not None and (method == "gtg" or not 0 < decay <= 1):
            raise ConfigError(f"decay must be above 0, at most 1, and not with gtg; got {decay}")
        self.form = form
        self.decay = decay

    def words(self) -> tuple[str, ...]:
        """As :meth:`RunValuation.words`."""
        decay = () if self.decay is None else (f"decay_{self.decay}",)
        return ("reconstruction", self.form, *decay)

    def stored(self, run: FinishedRun) -> tuple[Path, str]:
        """As :meth:`RunValuation.stored`.

        What was measured does not count when the run has gone on since, or its test images are
        scored otherwise.
        """
        model = read_ledger(run.run_dir / "ledger.jsonl")[-1]["model"]
        words = f"{model} {run.evaluation}".rstrip()
        return run.run_dir / "valuations" / "measured.jsonl", words

    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
        """As :meth:`RunValuation.games`."""
        rounds = recorded_rounds(run.run_dir)
        if self.form == "one_round":
            players = {client for recorded in rounds for client in recorded.clients}
            return [Game(players, _worth(evaluate, "one round", OneRound(rounds)))]
        models = MultiRound(rounds)
        games = []
        for number, recorded in enumerate(rounds):
            worth = _worth(evaluate, f"round {number}", partial(models, number))
            games.append(Game(recorded.clients, worth))
        return games


def _with_sum(replies: Replies, earlier: Replies | None) -> Replies:
    """``replies``, their updates added to those of earlier rounds, in float64."""
    summed = []
    for row, reply in enumerate(replies):
        update = {name: change.double() for name, change in replies.updates[row].items()}
        if earlier is not None:
            before = earlier.updates[row]
            update = {name: before[name] + change for name, change in update.items()}
        summed.append(replace(reply, update=update))
    return replies.rebuilt(summed, replies.missing)


def _worth(
    evaluate: Evaluator, game: str, model: Callable[[Coalition], Weights]
) -> Callable[[Coalition], float]:
    """What a coalition is worth in this game: the utility of its ``model``, built when needed."""
    return lambda coalition: evaluate(game, coalition, partial(model, coalition))
