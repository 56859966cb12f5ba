# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation: opens, resumes and closes a run, and records each round."""

from __future__ import annotations

import copy
import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.messages import Measure, ModelSpec, Request, Weights, add_note
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.replies import Replies
from monai_fairfl.run import resuming
from monai_fairfl.run.checkpoint import Checkpoint, Checkpoints, Models, Schedule
from monai_fairfl.run.ledger import Ledger, count_rounds
from monai_fairfl.run.recorded_updates import record_round
from monai_fairfl.run.records import (
    end_record,
    opening_record,
    round_record,
    stated_digests,
    training_of,
)
from monai_fairfl.server.closing import closing_requests, closing_scores
from monai_fairfl.server.exchange import Exchange, Transport
from monai_fairfl.server.observer import Observer
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.round import (
    Facts,
    NotFinite,
    Round,
    TooFewClients,
    guarded,
    only_trained,
    require_finite,
)
from monai_fairfl.server.settings import RECORDED, RunSettings
from monai_fairfl.strategies.base import Strategy, play_round
from monai_fairfl.utils.arguments import marked
from monai_fairfl.utils.devices import torch_threads
from monai_fairfl.utils.files import LONGEST_NAME, locked, safe_name
from monai_fairfl.utils.named_classes import made
from monai_fairfl.utils.tensors import own_random_state, seed_of

SECONDS_TO_ANNOUNCE = 60.0
"""How long the clients have to take the last head; nothing depends on their answers."""

Initial = Callable[[], tuple[Weights, ModelSpec]]
"""Builds the initial model: called inside ``run()``, under the run's seed."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """What a run left.

    Args:
        run_dir: the folder of the run.
        records: those of its ledger: the opening, the rounds and, if the run has ended, the end.
        finished: whether all rounds are done, and the end is recorded.

    >>> from pathlib import Path
    >>> opening = {"kind": "start", "clients": ["A", "B"]}
    >>> done = {"kind": "round", "round": 0, "contributions": {"A": 0.7, "B": 0.3}}
    >>> history = History(Path("runs/first"), [opening, done], finished=False)
    >>> [record["contributions"]["A"] for record in history.rounds]
    [0.7]
    """

    run_dir: Path
    records: Sequence[Mapping[str, Any]]
    finished: bool

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        """The records of the rounds, in their order."""
        return [record for record in self.records if record["kind"] == "round"]


class Federation:
    """Runs the rounds of a strategy over a transport.

    A run that was stopped can be resumed, and then gives the same bits as without the stop.

    Args:
        strategy: the server's half of a method.
        transport: carries requests to the clients, and replies back.
        rounds: number of rounds, including those of an earlier part of a resumed run.
        initial: a function that builds the initial model. It is called under the run's seed, and
            returns the model's tensors by name, and their :class:`~monai_fairfl.ModelSpec`.
        guards: checks of every exchange's updates, in order. The federation uses copies of them.
        run_dir: the folder for all results. Its last part is the name of the run, which a resumed
            run keeps if the folder was renamed or copied.
        recipe: how the clients train, for every model file; see
            :mod:`monai_fairfl.model_files.recipe`.
        observer: gets every record of the ledger, for live curves, or to :meth:`conclude` the run.
        settings: fields of :class:`~monai_fairfl.server.settings.RunSettings`, such as
            ``min_clients``, ``retries``, ``evaluate`` and ``final``.

    Raises:
        ConfigError: if an argument is unknown or out of range; it names argument, value and range.

    >>> import tempfile
    >>> import torch
    >>> from monai_fairfl import InProcess, ModelSpec, Reply
    >>> from monai_fairfl.strategies import FedAvg
    >>> class Hospital:
    ...     def answer(self, request):
    ...         update = {"w": torch.ones(1)} if request.task == "train" else None
    ...         echo = {"id": request.id, "run": request.run, "round": request.round}
    ...         return Reply(request.client, update, num_samples=1, **echo)
    >>> def initial():
    ...     return {"w": torch.zeros(1)}, ModelSpec(("w",))
    >>> hospitals = InProcess({"A": Hospital, "B": Hospital})
    >>> folder = f"{tempfile.mkdtemp()}/run"
    >>> history = Federation(FedAvg(), hospitals, 2, initial, run_dir=folder).run()
    >>> history.rounds[-1]["aggregation"]
    {'A': 0.5, 'B': 0.5}
    """

    # Set when a run begins or is taken up:
    ledger: Ledger
    guards: Sequence[Guard]
    facts: Facts
    models: Models
    progress: Progress
    schedule: Schedule
    run_id: str
    """Tells this run from another one of the same settings."""

    def __init__(
        self,
        strategy: Strategy,
        transport: Transport,
        rounds: int,
        initial: Initial,
        guards: Sequence[Guard] = DEFAULT,
        run_dir: str | Path = "runs/run",
        *,
        recipe: ModelRecipe | None = None,
        observer: Observer | None = None,
        **settings: Any,
    ):
        self.settings: RunSettings = made(RunSettings, [], {"rounds": rounds, **settings})
        self.rounds = rounds
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategy must be a Strategy, got {type(strategy).__name__}")
        self.strategy = strategy
        self.transport = transport
        self.initial = initial
        self._guards_at_start = copy.deepcopy(tuple(guards))
        self.run_dir = Path(run_dir)
        safe_name(self.run_dir.name, "the run's name, the last part of run_dir,", LONGEST_NAME)
        self.recipe = recipe
        self.observer = observer or Observer()
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", self.settings.keep)
        self._stop_asked = False
        self._conclude_asked = False

    def stop(self) -> None:
        """Ask the run to stop after the current round. It can be resumed."""
        self._stop_asked = True

    def conclude(self) -> None:
        """Make the current round the last one: the run then ends as if all rounds were done."""
        self._conclude_asked = True

    def run(self, resume: bool = False) -> History:
        """Run until all rounds are done, or :meth:`stop` is called.

        Args:
            resume: continue from the newest complete checkpoint in ``run_dir``. ``False``: a folder
                with a run is refused.

        Returns:
            The history of the whole run, with the rounds of earlier parts.

        Raises:
            FederationError: if too few clients answered, or if the folder has a run with which this
                one cannot go on; it says how to resume.
        """
        try:
            with torch_threads(self.settings.threads), locked(self.run_dir):
                done = self._open(resume)
                self.facts = Facts(self.settings.samples, self.ledger.records)
                with Progress(self.rounds, done, self.strategy.name) as self.progress:
                    for number in range(done, self.rounds):
                        if self._conclude_asked:
                            break
                        if self._stop_asked:
                            return History(self.run_dir, self.ledger.records, finished=False)
                        self._round(number)
                    if self.ledger.records[-1]["kind"] != "end":
                        self._close()
                return History(self.run_dir, self.ledger.records, finished=True)
        finally:
            # What was asked of this run is not asked of the next.
            self._stop_asked = self._conclude_asked = False
            self.transport.close()

    # ---- the beginning

    def _open(self, resume: bool) -> int:
        """Begin the run, or take it up after its newest checkpoint.

        Returns:
            The number of rounds that are done.
        """
        strategy, settings = self.strategy, self.settings
        clients = sorted(map(safe_name, self.transport.clients))
        if len({*clients, "best", "global"}) < len(clients) + 2:
            raise ConfigError(f"a client cannot be called twice, 'best' or 'global': {clients}")
        needed = max(strategy.min_clients, settings.min_clients)
        size = min(settings.clients_per_round or len(clients), len(clients))
        if not needed <= size <= strategy.max_clients:
            raise ConfigError(
                f"{strategy.name} takes {needed} to {strategy.max_clients} clients in a round, and "
                f"clients_per_round is {size} of {clients}: change sites, it or min_clients"
            )
        if not resume and resuming.records_of(self.run_dir):
            raise FederationError(
                f"{self.run_dir} holds a run: give --resume True, or another run_dir"
            )
        resuming.check_checkpoints([self.run_dir])
        checkpoint = self.checkpoints.load() if resume else None
        self.ledger = Ledger(self.run_dir / "ledger.jsonl")
        if checkpoint is not None:
            self._take_up(checkpoint)
            return checkpoint.round + 1

        opening = self._start(clients)
        # By chance, and not by the seed: the same run may be begun twice.
        self.run_id = secrets.token_hex(8)
        self.observer.run_started()
        self.schedule = Schedule.begun(self.run_dir, resumed=False)
        if self.ledger.records:
            self.ledger.truncate(0)
        self.ledger.append(opening)
        self.observer.record_added(self.ledger.records[-1])
        return 0

    def _start(self, clients: Sequence[str]) -> dict[str, Any]:
        """Start strategy and guards with the initial model, and return the opening record.

        Args:
            clients: of the run's beginning.
        """
        strategy, settings = self.strategy, self.settings
        with own_random_state(settings.seed):
            weights, spec = self.initial()
        if settings.local_norm:
            spec = spec.with_local_norms()
        spec.require_averageable(weights)
        strategy.buffers = settings.buffers
        strategy.rounds_planned = self.rounds
        strategy.start(weights, clients, spec)
        self.guards = copy.deepcopy(self._guards_at_start)

        # The files of models lack what stays each client's own.
        withheld = {*spec.local, *(spec.buffers if settings.buffers == "local" else ())}
        recipe = self.recipe
        if recipe is not None:
            recipe = recipe.trained(strategy=strategy.name, seed=settings.seed)
        self.models = Models(self.run_dir / "models", spec, clients, withheld, recipe)
        recorded = marked(settings, RECORDED)
        return opening_record(
            self.run_dir.name, strategy, self.guards, clients, spec, weights, recorded
        )

    def _take_up(self, checkpoint: Checkpoint) -> None:
        """Go on after ``checkpoint``: its models and state, and the ledger's records until then.

        A run that has ended is over.
        """
        # The opening, and rounds 0 to r. What follows was written after the checkpoint, or is the
        # end of the run.
        done = checkpoint.round + 1
        records, count = self.ledger.records, done + 1
        # As the run was begun: which sites are connected now does not count.
        opening = self._start(records[0]["clients"])
        # An intact chain does not show a ledger that was rewritten as a whole, or cut at its end.
        if self.ledger.heads[done:count] != [checkpoint.state["ledger_head"]]:
            raise FederationError(
                f"{self.ledger.path} does not fit the checkpoint of round {checkpoint.round}, "
                f"which was written after {count} records: one was changed, or some were cut off. "
                "Restore the ledger from a copy, or choose another run_dir"
            )
        planned = checkpoint.state["rounds"]
        ended = [record["kind"] for record in records[count:]] == ["end"]
        if ended and self.rounds > planned:
            raise FederationError(f"{self.run_dir} has ended: choose another run_dir to train on")
        if not ended and self.rounds < done:
            raise FederationError(
                f"{self.run_dir} has {done} of {planned} rounds, and now rounds is {self.rounds}: "
                f"give {planned} to go on, or {done} to end it here"
            )
        resuming.check_same(self.run_dir, records[0], opening)

        self.observer.run_started()
        if ended:
            self.conclude()
        else:
            self.schedule = Schedule.begun(self.run_dir, resumed=True)
        self.ledger.truncate(count + ended)

        self.strategy.load_state_dict(checkpoint.state["strategy"])
        self.strategy.clients = sorted(self.ledger.records[done]["known_clients"])
        self.strategy.weights, self.strategy.rewards = checkpoint.weights, checkpoint.rewards
        for guard, state in zip(self.guards, checkpoint.state["guards"], strict=True):
            guard.load_state_dict(state)
        # The best global model so far, whose file is there.
        self.models.best = checkpoint.state["best"]
        self.run_id = checkpoint.state["run_id"]

    # ---- a round

    def _round(self, number: int) -> None:
        """Play one round, record it, and save a checkpoint."""
        begun = time.monotonic()
        strategy, settings = self.strategy, self.settings
        clients = sorted(self.transport.clients)
        if settings.clients_per_round is not None and settings.clients_per_round < len(clients):
            generator = random.Random(seed_of(settings.seed, "sampling", number))
            clients = sorted(generator.sample(clients, settings.clients_per_round))
        played = self._tried(f"round {number}", number, clients, self._play)
        received = {reply.client: reply.measurements for reply in played.exchanges[0]}
        # A client with a reward received that one, not the global model of the previous round.
        of_global = {name: received[name] for name in received if name not in strategy.rewards}
        self.models.save_if_best(number - 1, strategy.weights, of_global, "global_score")
        if settings.record_updates:
            # Before the checkpoint, so that a round that is done is a recorded one.
            updates = training_of(played.exchanges)
            record_round(self.run_dir, number, strategy.weights, updates, settings.buffers)

        # The one place where the models change. Without rewards, those of earlier rounds stay.
        strategy.weights = played.result.weights
        if played.result.rewards is not None:
            strategy.rewards = played.result.rewards
        self.ledger.append(round_record(played, strategy))
        state = {
            "strategy": strategy.state_dict(),
            "guards": [guard.state_dict() for guard in self.guards],
            "best": self.models.best,
            "rounds": self.rounds,
            "ledger_head": self.ledger.head,
            "run_id": self.run_id,
        }
        self.checkpoints.save(Checkpoint(number, strategy.weights, strategy.rewards, state))
        self.observer.record_added(self.ledger.records[-1])
        seconds = time.monotonic() - begun
        self.schedule.took(self.run_dir, number, seconds)
        self.progress.round_done(played, seconds)

    def _new_round(self, number: int, clients: Sequence[str], next_id: int = 0) -> Round:
        # The name as the run was begun: sites name their states by it, and the folder may be
        # renamed.
        run = self.ledger.records[0]["run"]
        stamp = {"run": run, "run_id": self.run_id, "ledger_head": self.ledger.head}
        return Round(number, clients, self.settings, stamp, self.models.withheld, next_id)

    def _tried(
        self, what: str, number: int, clients: Sequence[str], play: Callable[[Round], object]
    ) -> Round:
        """A round that ``play`` has played; it is undone and repeated while too few answer.

        Raises:
            FederationError: when all retries failed, or a model is not finite.
        """
        snapshot = self.strategy.state_as_json()
        known_clients = self.strategy.clients
        reason: Exception
        next_id = 0
        for _ in range(self.settings.retries + 1):
            tried = self._new_round(number, clients, next_id)
            self.facts.learned = tried.facts
            try:
                play(tried)
                return tried
            except TooFewClients as error:
                self.strategy.load_state_dict(json.loads(snapshot))
                self.strategy.clients = known_clients
                self.facts = Facts(self.settings.samples, self.ledger.records)
                reason, next_id = error, tried.next_id
            except NotFinite as error:
                reason = error
                break
        raise FederationError(
            f"{what}: {reason}. Nothing of it was recorded; rounds done: {number}. Mend the cause, "
            "and start the same again (MONAI's command: --resume True; Python: run(resume=True))"
        ) from None

    def _play(self, tried: Round) -> None:
        """Play the strategy's round, and let guards and facts take it in."""
        strategy = self.strategy
        # A client that joins is known from here on. The record of the round has its name, and a
        # resumed run takes it from there.
        strategy.clients = sorted({*strategy.clients, *tried.clients})

        tried.evaluate, tried.training = self.settings.evaluate, strategy.exchanged.training
        tried.result = play_round(strategy, tried.clients, partial(self._ask, tried))
        # Before anything of the round is stored.
        strategy.state_as_json()
        require_finite(tried.result)
        for trained in map(only_trained, tried.exchanges):
            if trained:
                for guard in self.guards:
                    guard.remember(trained)

    def _ask(self, tried: Round, requests: Sequence[Request]) -> Replies:
        """Send requests, take in what comes, and let the guards judge it.

        Raises:
            TooFewClients: where fewer than ``min_clients`` are left.
        """
        strategy, settings = self.strategy, self.settings
        exchange = Exchange(
            tried.stamped(requests),
            strategy.spec,
            strategy.weights,
            settings.expected,
            self.progress.answered,
        )
        arrived = exchange.ask(self.transport, settings.timeout)

        tried.digests.update(stated_digests(arrived))
        notes = self.facts.fix(arrived)
        for reply in arrived:
            # Without them the averaged model keeps what it had, unless another client sends some.
            due = arrived.start(reply).keys() & strategy.spec.buffers
            if reply.update is not None and due and not reply.buffers:
                add_note(
                    notes, reply.client, "it sent no Reply.buffers, and has none in the average"
                )
        for client, note in notes.items():
            add_note(tried.notes, client, note)
            logger.warning("client %s: %s", client, note)

        replies, verdicts = guarded(arrived, self.guards, strategy.shares_nothing)
        for client, of_client in verdicts.items():
            tried.verdicts.setdefault(client, []).extend(of_client)
        present, least = len(replies.clients), settings.min_clients
        if present < least:
            asked = {request.client for request in replies.requests.values()}
            missing = [f"{client} ({why})" for client, why in sorted(replies.missing.items())]
            raise TooFewClients(
                f"{present} of {len(asked)} clients answered, min_clients is {least}; missing: "
                f"{', '.join(missing)}"
            )
        tried.exchanges.append(replies)
        return replies

    # ---- the end

    def _close(self) -> None:
        """Measure what every client would use and the global model, and write the models."""
        strategy, settings = self.strategy, self.settings
        clients = sorted(self.transport.clients)
        done = count_rounds(self.ledger.records)
        requests = closing_requests(
            strategy, clients, settings.final, settings.last_mile, settings.score_global
        )
        end = self._new_round(done, clients)
        end.exchanges = [Replies([], [], strategy.spec)]
        if settings.final:
            end = self._tried("the end", done, clients, lambda end: self._ask(end, requests))
        scores = closing_scores(end.exchanges[0], settings.final)
        of_global = {
            client: found["global"] if "global" in found else found["own"]
            for client, found in scores.items()
            if "global" in found or client not in strategy.rewards
        }
        self.models.save_if_best(done - 1, strategy.weights, of_global, "score")
        self.models.write(strategy.weights, strategy.rewards, done)
        self.ledger.append(end_record(end, scores, self.models.best, strategy.weights))
        self.observer.record_added(self.ledger.records[-1])
        # Also where nothing is measured at the end: the last round's record is in no earlier head.
        self._announce(end)

    def _announce(self, end: Round) -> None:
        """Send every client the head of the whole ledger; one that takes it not is no error."""
        told = self._new_round(end.number, end.clients, end.next_id)
        requests = [Measure(client, {}, (), {"ended": 1}) for client in told.clients]
        seconds = min(self.settings.timeout or SECONDS_TO_ANNOUNCE, SECONDS_TO_ANNOUNCE)
        try:
            for _ in self.transport.ask(told.stamped(requests), seconds):
                pass
        except Exception as error:  # whatever a transport raises
            logger.warning("not every client was sent the last head of the ledger: %s", error)
