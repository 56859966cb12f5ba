# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One round: the strategy's requests go out, the replies come in, until it has a result."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.protocol.memory import ReusedMemory
from monai_fairfl.protocol.messages import Measure, Reply, Request
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import is_of_own_model, joined_notes
from monai_fairfl.run_folder.records import stated_digests, training_of
from monai_fairfl.server.cross_evaluation import CrossEvaluation, CrossEvaluator
from monai_fairfl.server.exchange import (
    Inbox,
    TooFewClients,
    Transport,
    Verdicts,
    guarded,
    only_trained,
    require_min_clients,
)
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.finite import require_finite
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.server.sharing import divided, parts_of_groups
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.utils.random_state import seed_of

T = TypeVar("T")

SECONDS_TO_ANNOUNCE = 60.0
"""How long the clients have to take the last head; nothing depends on their answers."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlayedRound:
    """What a round brought.

    Args:
        clients: that were asked.
        result: of the strategy.
        exchanges: the replies of each exchange, in order.
        verdicts: client -> verdicts of the guards.
        digests: client -> SHA-256 of the update that arrived, as the client stated it; also of
            those that no strategy saw.
        notes: client -> what the server replaced in its replies.
        facts: client -> fact -> number, of those that became known in this round.
        cross_evaluation: what others measured of its updates; ``None`` where nobody was asked.
    """

    clients: Sequence[str]
    result: RoundResult
    exchanges: Sequence[Replies]
    verdicts: Verdicts
    digests: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cross_evaluation: CrossEvaluation | None = None


@dataclass(frozen=True)
class MeasuredEnd:
    """What the closing requests of a run brought.

    Args:
        replies: to them.
        notes: client -> what the server replaced in its replies.
        facts: client -> fact -> number, of those that became known by them.
    """

    replies: Replies
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def drawn_clients(clients: Sequence[str], settings: RunSettings, number: int) -> list[str]:
    """The clients of round ``number``, sorted; drawn by the run's seed where not all take part."""
    everybody = sorted(clients)
    size = settings.clients_per_round
    if size is None or size >= len(everybody):
        return everybody
    generator = random.Random(seed_of(settings.seed, "sampling", number))
    return sorted(generator.sample(everybody, size))


class RoundPlayer:
    """Plays the rounds of a run, and undoes and repeats one that too few clients answer.

    Args:
        run: the run's name.
        run_id: of this run, and of no other one of that name.
        strategy: that was started.
        transport: reaches the clients.
        settings: of the run.
        guards: checks of every exchange's updates, in order.
        withheld: names of the tensors that are not sent: they stay each client's own.
        progress: is notified of every answer.
        facts: sizes of the clients' data sets, as far as they are known.
        cross_evaluator: asks others what the updates of a round are worth to them.
    """

    def __init__(
        self,
        run: str,
        run_id: str,
        strategy: Strategy,
        transport: Transport,
        settings: RunSettings,
        guards: Sequence[Guard],
        withheld: Collection[str],
        progress: Progress,
        facts: Facts,
        cross_evaluator: CrossEvaluator,
    ):
        self.run = run
        self.run_id = run_id
        self.strategy = strategy
        self.transport = transport
        self.settings = settings
        self.guards = guards
        self.withheld = withheld
        self.progress = progress
        self.facts = facts
        self.cross_evaluator = cross_evaluator
        self.expected = settings.expected(strategy.ranges)
        # client -> what was replaced in its replies, in the present round.
        self._notes: dict[str, str] = {}
        # Requests of a round are numbered from 0, over all of its exchanges and attempts.
        self._next_id = 0
        # What the clients of this round stated of their updates, see PlayedRound.
        self._digests: dict[str, str] = {}
        # Memory of the update matrix, used again every round.
        self._storage: torch.Tensor | None = None
        # Memory of the global model and the rewards; as much is unused between two rounds as they
        # need.
        self._model_bytes = sum(tensor.nbytes for tensor in strategy.weights.values())
        self._memory = ReusedMemory(most=self._model_bytes)

    def play(self, number: int, clients: Sequence[str], ledger_head: str) -> PlayedRound:
        """Play round ``number``.

        Args:
            number: of the round, from 0.
            clients: that take part.
            ledger_head: digest of the ledger, which goes with every request.

        Raises:
            FederationError: when too few clients answer, also when it is tried again.
        """
        return self._with_retries(
            f"round {number}", number, lambda: self._play_once(number, clients, ledger_head)
        )

    def measure_at_end(
        self, requests: Sequence[Request], rounds_done: int, ledger_head: str
    ) -> MeasuredEnd:
        """The replies to the closing requests of a run, tried again like a round.

        Raises:
            FederationError: when too few clients answer, also when it is tried again.
        """

        def measure() -> MeasuredEnd:
            known = self.facts.copy()
            replies, _ = self._exchange(requests, rounds_done, ledger_head, first=False)
            return MeasuredEnd(replies, self._notes, self.facts.since(known))

        return self._with_retries("the end", rounds_done, measure)

    def announce_end(self, clients: Sequence[str], rounds_done: int, ledger_head: str) -> None:
        """Send every client the head of the whole ledger, which only now is known.

        A client that does not take it is no error: the run has ended.

        Args:
            clients: that are sent it.
            rounds_done: number of rounds of the run.
            ledger_head: digest of the ledger after its end record.
        """
        requests = []
        for client in clients:
            request = Measure(client, {}, (), {"ended": 1})
            requests.append(self._stamped(request, rounds_done, ledger_head))
            self._next_id += 1
        seconds = min(self.settings.timeout or SECONDS_TO_ANNOUNCE, SECONDS_TO_ANNOUNCE)
        try:
            self.transport.exchange(requests, _ignore, seconds)
        except Exception as error:  # whatever a transport raises
            logger.warning("not every client was sent the last head of the ledger: %s", error)

    def _with_retries(self, what: str, rounds_done: int, attempt: Callable[[], T]) -> T:
        """Return ``attempt()``; undo and repeat it while too few clients answer.

        Raises:
            FederationError: when all retries failed; it names the way to resume.
        """
        snapshot = json.dumps(self.strategy.state_dict())
        known = self.facts.copy()
        failures = 0
        # Ids go on over the attempts, so that a late reply to a previous one answers no request:
        # it may be of another model.
        self._next_id = 0
        while True:
            self._notes = {}
            try:
                return attempt()
            except TooFewClients as reason:
                self.strategy.load_state_dict(json.loads(snapshot))
                self.facts.restore(known)
                failures += 1
                if failures > self.settings.retries:
                    raise FederationError(
                        f"{what}: {reason}. Nothing of it was recorded; {rounds_done} rounds are "
                        "done. Bring the clients back and run the same command with --resume True"
                    ) from None

    def _play_once(self, number: int, clients: Sequence[str], ledger_head: str) -> PlayedRound:
        """Drive the strategy's generator through one round."""
        known = self.facts.copy()
        generator = self.strategy.round(clients)
        exchanges: list[Replies] = []
        verdicts: dict[str, list[Verdict]] = {}
        self._digests = {}
        try:
            requests = next(generator)
            while True:
                first = not exchanges
                requests = _with_measurements(requests, self.settings.evaluate, exchanges)
                replies, found = self._exchange(requests, number, ledger_head, first, verdicts)
                replies.parts = parts_of_groups(found)
                exchanges.append(replies)
                for client, of_client in found.items():
                    verdicts.setdefault(client, []).extend(of_client)
                requests = generator.send(replies)
        except StopIteration as stop:
            result = self.strategy.require_result(stop.value)
            self._require_finite(result, exchanges, number)
            parts = parts_of_groups(verdicts)
            evaluation = self._cross_evaluated(number, exchanges, result, ledger_head)
            if evaluation is not None:
                evaluation.together = {
                    client: sorted(of_group) for client, of_group in parts.items()
                }
            self._let_guards_remember(exchanges)
            self._memory.most = self._model_bytes * (1 + len(result.rewards or {}))
            return PlayedRound(
                clients,
                divided(result, parts),
                exchanges,
                verdicts,
                digests=self._digests,
                notes=self._notes,
                facts=self.facts.since(known),
                cross_evaluation=evaluation,
            )
        finally:
            generator.close()

    def _cross_evaluated(
        self, number: int, exchanges: Sequence[Replies], result: RoundResult, ledger_head: str
    ) -> CrossEvaluation | None:
        """What others measured of this round's updates; a judge that does not answer is no error.

        ``None`` where the settings ask nobody in this round.
        """
        if not self.settings.cross_evaluates(number):
            return None
        generator = self.cross_evaluator.of_round(number, training_of(exchanges), result)
        try:
            requests = next(generator)
            while True:
                requests = generator.send(self._delivered(requests, number, ledger_head))
        except StopIteration as stop:
            found: CrossEvaluation = stop.value
            return found

    def _let_guards_remember(self, exchanges: Sequence[Replies]) -> None:
        """Let the guards take in a round that is done: its exchanges in which clients trained."""
        for replies in exchanges:
            trained = only_trained(replies)
            if not trained:
                continue
            for guard in self.guards:
                guard.remember(trained)

    def _require_finite(
        self, result: RoundResult, exchanges: Sequence[Replies], number: int
    ) -> None:
        """Refuse models that are not finite before anything of the round is stored.

        Raises:
            FederationError: naming the tensor, the client and the way to go on.
        """
        try:
            require_finite(result, self.strategy.weights, training_of(exchanges))
        except FederationError as reason:
            raise FederationError(
                f"round {number}: {reason}. Nothing of it was recorded; {number} rounds are done. "
                "Look at that site's training, and run the same command with --resume True"
            ) from None

    def _exchange(
        self,
        requests: Sequence[Request],
        number: int,
        ledger_head: str,
        first: bool,
        earlier: Verdicts | None = None,
    ) -> tuple[Replies, Verdicts]:
        """Deliver requests, and guard what comes back.

        Args:
            requests: of the strategy.
            number: of the round.
            ledger_head: digest of the ledger.
            first: whether it is the first exchange of a round, whose memory may be used again in
                the next round. Replies of an earlier exchange of the same round may still be in
                use.
            earlier: verdicts of the round's earlier exchanges: who shares the weight of another
                client is not asked again, and counts as long as that one answers. ``None``: there
                was none.
        """
        arrived = self._delivered(requests, number, ledger_head, first)
        replies, verdicts = guarded(arrived, self.guards, self.strategy.shares_nothing)
        of_round = {client: list(found) for client, found in (earlier or {}).items()}
        for client, found in verdicts.items():
            of_round.setdefault(client, []).extend(found)
        require_min_clients(replies, self.settings.min_clients, of_round)
        return replies, verdicts

    def _delivered(
        self, requests: Sequence[Request], number: int, ledger_head: str, first: bool = False
    ) -> Replies:
        """Stamp requests, let the transport carry them, and check what comes back.

        The arguments are those of :meth:`_exchange`.
        """
        stamped = []
        for request in requests:
            stamped.append(self._stamped(request, number, ledger_head))
            self._next_id += 1
        storage = self._storage if first else None
        inbox = Inbox(
            stamped,
            self.strategy.spec,
            self.strategy.weights,
            notify=self.progress.answered,
            storage=storage,
            expected=self.expected,
            most_samples=self.settings.most_samples,
            memory=self._memory,
            adopts=getattr(self.transport, "gives_updates", False),
            gram=self.settings.gram,
        )
        self.progress.asked(len(stamped))
        self.transport.exchange(stamped, inbox.arrived, self.settings.timeout)
        if first:
            self._storage = inbox.storage
        arrived = inbox.replies()
        self._digests.update(stated_digests(arrived))
        for client, note in self.facts.fix(arrived).items():
            self._notes[client] = joined_notes(self._notes.get(client), note)
        return arrived

    def _with_training(self, context: Mapping[str, float]) -> dict[str, float]:
        """The context of a training request, with the ``training`` of ``compose``.

        Raises:
            ConfigError: when the strategy itself sends another number: the run's name would say
                what no client does.
        """
        composed = self.strategy.parts.training
        for key, value in composed.items():
            own = context.get(key, value)
            if own != value:
                raise ConfigError(
                    f"{self.strategy.name}: training has {key} {value:g}, and the strategy itself "
                    f"sends {own:g}: leave {key} out of training"
                )
        return {**composed, **context}

    def _stamped(self, request: Request, number: int, ledger_head: str) -> Request:
        """``request`` with what the federation adds: its number, seed and context."""
        context = dict(request.context)
        if request.task == "train":
            context = self._with_training(context)
            average_from = self.settings.average_from
            if average_from is not None and number >= average_from:
                context["average_from"] = float(average_from)
        if self.settings.local_norm:
            context["local_norm"] = 1.0
        if self.settings.sites_judge:
            context["cross_evaluation"] = 1.0
        weights = request.weights
        if self.withheld:
            weights = {name: weights[name] for name in weights if name not in self.withheld}
        return replace(
            request,
            weights=weights,
            context=context,
            id=self._next_id,
            run=self.run,
            round=number,
            seed=seed_of(self.settings.seed, request.client, number),
            ledger_head=ledger_head,
            run_id=self.run_id,
        )


def _with_measurements(
    requests: Sequence[Request], evaluate: Sequence[str], exchanges: Sequence[Replies]
) -> list[Request]:
    """``requests`` with the run's own measurements before those of the strategy.

    Args:
        requests: of one exchange.
        evaluate: measurements of the model that a client receives, for the first exchange, and of
            what it trains, for the first exchange in which it does.
        exchanges: the earlier ones of the round.
    """
    earlier = [request for replies in exchanges for request in replies.requests.values()]
    have_trained = {request.client for request in earlier if request.task == "train"}
    asked = []
    for request in requests:
        trains_first = request.task == "train" and request.client not in have_trained
        names = []
        for name in evaluate:
            of_training = name == "train_loss" or is_of_own_model(name)
            if trains_first if of_training else not exchanges:
                names.append(name)
        asked.append(replace(request, measure=tuple(dict.fromkeys((*names, *request.measure)))))
    return asked


def _ignore(reply: Reply) -> None:
    """Take in a reply that nothing depends on."""
