# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One round: the strategy's requests go out, the replies come in, until it has a result."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import Guard, Verdict
from monai_fairfl.messages import (
    Measure,
    Reply,
    Request,
    add_note,
    is_of_own_model,
    unsent_statistics,
)
from monai_fairfl.replies import Replies
from monai_fairfl.run_folder.records import stated_digests, training_of
from monai_fairfl.server.continuity import Continuity
from monai_fairfl.server.exchange import Inbox, TooFewClients, Transport, require_min_clients
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.finite import require_finite
from monai_fairfl.server.guarding import Verdicts, guarded, only_trained
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.strategies.playing import play_round
from monai_fairfl.utils.random_state import seed_of
from monai_fairfl.utils.words import rounds_done

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
    """

    clients: Sequence[str]
    result: RoundResult
    exchanges: Sequence[Replies]
    verdicts: Verdicts
    digests: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


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


@dataclass
class Attempt:
    """One try at a round, or at the end of a run, and what it has brought so far.

    Args:
        number: of the round, from 0; at the end, of the rounds that are done.
        ledger_head: digest of the ledger, which goes with every request.
        exchanges: as in :class:`PlayedRound`; so are the others.
    """

    number: int
    ledger_head: str
    exchanges: list[Replies] = field(default_factory=list)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


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
        continuity: in which round each client trained last.
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
        continuity: Continuity,
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
        self.continuity = continuity
        self.expected = settings.expected(strategy.ranges)
        # Requests of a round are numbered from 0, over all of its exchanges and attempts.
        self._next_id = 0
        # (client, measurement) of those that were dropped, each logged once.
        self._dropped: set[tuple[str, str]] = set()
        # Clients that sent no statistics of batch normalisation, each logged once.
        self._without_statistics: set[str] = set()

    def play(self, number: int, clients: Sequence[str], ledger_head: str) -> PlayedRound:
        """Play round ``number``.

        Args:
            number: of the round, from 0.
            clients: that take part.
            ledger_head: digest of the ledger, which goes with every request.

        Raises:
            FederationError: when too few clients answer, also when it is tried again.
        """
        play_once = partial(self._play_once, clients)
        return self._with_retries(f"round {number}", number, ledger_head, play_once)

    def measure_at_end(
        self, requests: Sequence[Request], rounds_done: int, ledger_head: str
    ) -> MeasuredEnd:
        """The replies to the closing requests of a run, tried again like a round.

        Raises:
            FederationError: when too few clients answer, also when it is tried again.
        """

        def measure(attempt: Attempt) -> MeasuredEnd:
            known = self.facts.copy()
            replies = self._exchange(attempt, requests)
            return MeasuredEnd(replies, attempt.notes, self.facts.since(known))

        return self._with_retries("the end", rounds_done, ledger_head, measure)

    def announce_end(self, clients: Sequence[str], rounds_done: int, ledger_head: str) -> None:
        """Send every client the head of the whole ledger, which only now is known.

        A client that does not take it is no error: the run has ended.

        Args:
            clients: that are sent it.
            rounds_done: number of rounds of the run.
            ledger_head: digest of the ledger after its end record.
        """
        end = Attempt(rounds_done, ledger_head)
        requests = []
        for client in clients:
            request = Measure(client, {}, (), {"ended": 1})
            requests.append(self._stamped(request, end))
        seconds = min(self.settings.timeout or SECONDS_TO_ANNOUNCE, SECONDS_TO_ANNOUNCE)
        try:
            self.transport.exchange(requests, _ignore, seconds)
        except Exception as error:  # whatever a transport raises
            logger.warning("not every client was sent the last head of the ledger: %s", error)

    def _with_retries(
        self, what: str, number: int, ledger_head: str, play: Callable[[Attempt], T]
    ) -> T:
        """Return what ``play`` makes of an attempt; undo and repeat it while too few answer.

        Args:
            what: is tried, for the text.
            number: of the attempts.
            ledger_head: of the attempts.
            play: plays one attempt.

        Raises:
            FederationError: when all retries failed; it names the way to resume.
        """
        snapshot = self.strategy.state_as_json()
        known_clients = self.strategy.clients
        known = self.facts.copy()
        failures = 0
        # Ids go on over the attempts, so that a late reply to a previous one answers no request:
        # it may be of another model.
        self._next_id = 0
        while True:
            try:
                return play(Attempt(number, ledger_head))
            except TooFewClients as reason:
                self.strategy.load_state_dict(json.loads(snapshot))
                self.strategy.clients = known_clients
                self.facts.restore(known)
                failures += 1
                if failures > self.settings.retries:
                    fix = "Bring the clients back" if reason.are_gone else "Mend these causes"
                    raise FederationError(
                        f"{what}: {reason}. Nothing of it was recorded; {rounds_done(number)}. "
                        f"{fix}, and run the same command with --resume True (in Python: "
                        "run(resume=True))"
                    ) from None

    def _play_once(self, clients: Sequence[str], attempt: Attempt) -> PlayedRound:
        """Play the strategy's round, and let the guards take it in."""
        known = self.facts.copy()
        # A client that joins is known from here on. The record of the round has its name, and a
        # resumed run takes it from there.
        self.strategy.clients = sorted({*self.strategy.clients, *clients})
        result = play_round(self.strategy, clients, partial(self._answer, attempt))
        # Before anything of the round is stored.
        self.strategy.state_as_json()
        self._require_finite(attempt, result)

        self._let_guards_remember(attempt.exchanges)
        self.continuity.remember(attempt.number, attempt.digests)
        return PlayedRound(
            clients,
            result,
            attempt.exchanges,
            attempt.verdicts,
            digests=attempt.digests,
            notes=attempt.notes,
            facts=self.facts.since(known),
        )

    def _answer(self, attempt: Attempt, requests: Sequence[Request]) -> Replies:
        """The replies to the requests of the strategy, which are sent with the run's own."""
        asked = _with_measurements(requests, self.settings.evaluate, attempt.exchanges)
        return self._exchange(attempt, asked)

    def _let_guards_remember(self, exchanges: Sequence[Replies]) -> None:
        """Let the guards take in a round that is done: its exchanges in which clients trained."""
        for replies in exchanges:
            trained = only_trained(replies)
            if not trained:
                continue
            for guard in self.guards:
                guard.remember(trained)

    def _require_finite(self, attempt: Attempt, result: RoundResult) -> None:
        """Refuse models that are not finite before anything of the round is stored.

        Raises:
            FederationError: naming the tensor, the client and the way to go on.
        """
        number = attempt.number
        try:
            require_finite(result, self.strategy.weights, training_of(attempt.exchanges))
        except FederationError as reason:
            raise FederationError(
                f"round {number}: {reason}. Nothing of it was recorded; {rounds_done(number)}. "
                "Look at that site's training, and run the same command with --resume True"
            ) from None

    def _exchange(self, attempt: Attempt, requests: Sequence[Request]) -> Replies:
        """Deliver requests, and let the guards judge what comes back."""
        arrived = self._delivered(attempt, requests)
        replies, verdicts = guarded(arrived, self.guards, self.strategy.shares_nothing)
        for client, of_client in verdicts.items():
            attempt.verdicts.setdefault(client, []).extend(of_client)
        require_min_clients(replies, self.settings.min_clients)
        attempt.exchanges.append(replies)
        return replies

    def _delivered(self, attempt: Attempt, requests: Sequence[Request]) -> Replies:
        """Stamp requests, let the transport carry them, and check what comes back."""
        stamped = [self._stamped(request, attempt) for request in requests]
        inbox = Inbox(
            stamped,
            self.strategy.spec,
            self.strategy.weights,
            notify=self.progress.answered,
            expected=self.expected,
            most_samples=self.settings.most_samples,
        )
        self.progress.asked(len(stamped))
        self.transport.exchange(stamped, inbox.arrived, self.settings.timeout)
        arrived = inbox.close()
        self._log_dropped(arrived)
        attempt.digests.update(stated_digests(arrived))
        for notes in (
            self.facts.fix(arrived),
            self._notes_on_statistics(arrived),
            self.continuity.notes_on(arrived),
        ):
            for client, note in notes.items():
                add_note(attempt.notes, client, note)
        return arrived

    def _log_dropped(self, arrived: Replies) -> None:
        """Log each client's measurement that is dropped, when it is the first time."""
        names: set[str] = set()
        for of_reply in arrived.dropped.values():
            names.update(of_reply)
        for name in sorted(names):
            for client, reason in arrived.why_dropped(name).items():
                if (client, name) not in self._dropped:
                    self._dropped.add((client, name))
                    logger.warning("client %s: its %r does not count: %s", client, name, reason)

    def _notes_on_statistics(self, arrived: Replies) -> dict[str, str]:
        """client -> note, of those that sent no statistics; each is logged once."""
        notes: dict[str, str] = {}
        for reply in arrived:
            unsent = unsent_statistics(arrived.requests[reply.id], reply, arrived.spec)
            if not unsent:
                continue
            notes[reply.client] = (
                f"its reply lacks running statistics, such as {unsent[0]!r}: the average does "
                "without them; send them in Reply.buffers"
            )
            if reply.client not in self._without_statistics:
                self._without_statistics.add(reply.client)
                logger.warning("client %s: %s", reply.client, notes[reply.client])
        return notes

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

    def _stamped(self, request: Request, attempt: Attempt) -> Request:
        """``request`` with what the federation adds: its number, seed and context."""
        number = attempt.number
        context = dict(request.context)
        if request.task == "train":
            context = self._with_training(context)
        if self.settings.local_norm:
            context["local_norm"] = 1.0
        weights = request.weights
        if self.withheld:
            weights = {name: weights[name] for name in weights if name not in self.withheld}
        id = self._next_id
        self._next_id += 1
        return replace(
            request,
            weights=weights,
            context=context,
            id=id,
            run=self.run,
            round=number,
            seed=seed_of(self.settings.seed, request.client, number),
            ledger_head=attempt.ledger_head,
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
    is_first_exchange = not exchanges
    have_trained = set()
    for replies in exchanges:
        for earlier in replies.requests.values():
            if earlier.task == "train":
                have_trained.add(earlier.client)

    asked = []
    for request in requests:
        trains_first = request.task == "train" and request.client not in have_trained
        names = []
        for name in evaluate:
            needs_training = name == "train_loss" or is_of_own_model(name)
            is_due = trains_first if needs_training else is_first_exchange
            if is_due:
                names.append(name)
        # Each name once: a strategy may ask for what the run asks for.
        names = list(dict.fromkeys([*names, *request.measure]))
        asked.append(replace(request, measure=tuple(names)))
    return asked


def _ignore(reply: Reply) -> None:
    """Take in a reply that nothing depends on."""
