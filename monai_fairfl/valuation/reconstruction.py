# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Coalitions' models rebuilt from recorded updates, without any training (Song et al., IEEE Big
Data 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from monai_fairfl.errors import ConfigError
from monai_fairfl.games.game import Coalition, Game
from monai_fairfl.games.stopping import StoppingRule
from monai_fairfl.protocol.averages import sample_shares
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Weights
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.run_folder.recording import RecordedRound, recorded_rounds
from monai_fairfl.valuation.finished import Evaluator, FinishedRun, RunValuation
from monai_fairfl.valuation.utility import MeasuredModels


class MultiRound:
    r"""Models of the coalitions of each round,
    :math:`w_t + \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}`.

    The updates are those that the method's own training gave; only their averaging is anew, by
    images and with the run's buffer policy. Nobody's model is :math:`w_t`. A client that was sent a
    model of its own (a reward) adds what it changed in that one. One round's updates are in memory
    at a time.

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
            self._round = None  # frees the memory of the round before
            self._round = (recorded, recorded.start(), recorded.replies())
        _, start, replies = self._round
        return _average(start, _only(replies, coalition), recorded.buffers) if coalition else start


class OneRound:
    r"""Models of the coalitions of a whole run,
    :math:`w_0 + \sum_t \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}`.

    A round without any member of S adds nothing. Buffers (BatchNorm statistics) are those of S in
    the last round in which one of S took part. Rounds of the same clients, numbers of images and
    labelled classes are summed beforehand, in float64.

    Args:
        rounds: all of the run.
    """

    def __init__(self, rounds: Sequence[RecordedRound]):
        self.rounds, self.start = rounds, rounds[0].start()
        self._sums: dict[tuple[tuple[str, int, tuple[bool, ...]], ...], Replies] = {}
        for recorded in rounds:
            replies = recorded.replies()
            rows = replies.matrix.rows.double()
            summed = self._sums.setdefault(
                tuple((r.client, r.num_samples, r.labelled) for r in replies), replies
            )
            summed.matrix.rows = rows if summed is replies else summed.matrix.rows + rows

    def __call__(self, coalition: Coalition) -> Weights:
        """The model of ``coalition``."""
        last = next((r for r in reversed(self.rounds) if coalition & set(r.clients)), None)
        if last is None:
            return self.start
        moved = {name: self.start[name].double() for name in last.spec.parameters}
        for members in (_only(replies, coalition) for replies in self._sums.values()):
            if members:
                moved = members.average(sample_shares(members), "local", moved)
        model = _average(
            last.start(), _only(last.replies(), coalition), last.buffers
        )  # for its buffers
        return {
            **model,
            **{name: tensor.to(self.start[name].dtype) for name, tensor in moved.items()},
        }


def _only(replies: Replies, coalition: Coalition) -> Replies:
    return replies.without(
        {reply.id: "not of this coalition" for reply in replies if reply.client not in coalition}
    )


def _average(start: Weights, replies: Replies, buffers: str) -> Weights:
    return {**start, **replies.average(sample_shares(replies), buffers, start)}


class Reconstruction(RunValuation):
    """Values clients by models rebuilt from the run's recorded updates: no training, one scoring
    pass per coalition.

    Args:
        method: see :class:`RunValuation`; ``"gtg"`` with ``"multi_round"`` only.
        utility: see :class:`Utility`.
        data: the images that are scored.
        form: ``"multi_round"``: every round is a game, and values are summed over rounds;
            ``"one_round"``: one game of the whole run's summed updates, T times cheaper and further
            from what a coalition would have trained.
        decay: weight of rounds, see :func:`sum_over_rounds` and what it says of late rounds; for
            multi_round.
        stop: when sampling ends, in every game.
        seed: of the sampling.

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
        stop: StoppingRule | None = None,
        seed: int = 0,
    ):
        super().__init__(method, utility, data, stop, seed)
        if form not in ("multi_round", "one_round"):
            raise ConfigError(
                f"Reconstruction: form must be 'multi_round' or 'one_round', got {form!r}"
            )
        if form == "one_round" and (method == "gtg" or decay is not None):
            raise ConfigError(
                f"Reconstruction: {'gtg' if method == 'gtg' else 'decay'} needs form 'multi_round'"
            )
        if decay is not None and (method == "gtg" or not 0 < decay <= 1):
            raise ConfigError(
                f"Reconstruction: decay must be above 0, at most 1, and not with gtg; got {decay}"
            )
        self.form, self.decay = form, decay

    def words(self) -> tuple[str, ...]:
        """As :meth:`RunValuation.words`."""
        return (
            "reconstruction",
            self.form,
            *([] if self.decay is None else [f"decay_{self.decay}"]),
        )

    def measured(self, run: FinishedRun) -> MeasuredModels:
        """As :meth:`RunValuation.measured`; discarded when the run has gone on since."""
        model = read_ledger(run.run_dir / "ledger.jsonl")[-1]["model"]
        return MeasuredModels(run.run_dir / "valuations" / "measured.jsonl", model)

    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
        """As :meth:`RunValuation.games`."""
        rounds = recorded_rounds(run.run_dir)
        if self.form == "one_round":
            players = {client for recorded in rounds for client in recorded.clients}
            return [Game(players, _utility(evaluate, "one round", OneRound(rounds)))]
        models = MultiRound(rounds)
        return [
            Game(recorded.clients, _utility(evaluate, f"round {number}", partial(models, number)))
            for number, recorded in enumerate(rounds)
        ]


def _utility(
    evaluate: Evaluator, game: str, model: Callable[[Coalition], Weights]
) -> Callable[[Coalition], float]:
    return lambda coalition: evaluate(game, coalition, lambda: model(coalition))
