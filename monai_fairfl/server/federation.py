# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation: drives a strategy's rounds over a transport, and keeps ledger and checkpoints."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT, Guard, Verdict
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Measurement, Weights
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints
from monai_fairfl.run_folder.ledger import Ledger, digest_of
from monai_fairfl.run_folder.models import Models
from monai_fairfl.run_folder.recording import record_round
from monai_fairfl.run_folder.records import check_same, opening_record, round_record, training_of
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.server.closing import closing_requests, closing_scores
from monai_fairfl.server.exchange import Inbox, TooFewClients, Transport, enough, guarded
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import RoundResult, Strategy
from monai_fairfl.utils.files import held, safe_name
from monai_fairfl.utils.random_state import own_random_state, seed_of

Initial = Callable[[], tuple[Weights, ModelSpec]]
"""Builds the initial model: called inside ``run()``, under the run's seed."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """What a run left: its folder, its ledger's records, and whether all rounds are done."""

    run_dir: Path
    records: Sequence[Mapping[str, Any]]
    finished: bool

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        """The records of the rounds."""
        return [record for record in self.records if record["kind"] == "round"]


class Federation:
    """Runs ``rounds`` rounds of ``strategy`` over ``transport``, resumable to the bit.

    Args:
        strategy: the server half of a method.
        transport: reaches the clients.
        rounds: rounds in all, those of an earlier part of a resumed run included.
        initial: builds the initial model under the seed; returns its tensors and specification.
        guards: checks of every exchange's updates, in order.
        run_dir: everything is written here; its last part is the run's name.
        recipe: how the clients train, written into every model file; see
            :mod:`monai_fairfl.model_files.recipe`.
        told: called with every record of the ledger as it is written, for live curves, or to
            :meth:`conclude`.
        replayed: called with every record of before that a resumed run keeps, before its first
            round.
        begun: called when the folder is this run's alone and what it holds fits, before anything of
            the run is written.
        settings: fields of :class:`~monai_fairfl.server.settings.RunSettings`, such as
            ``min_clients``, ``retries``, ``evaluate`` and ``final``.

    Raises:
        ConfigError: when an argument is unknown or out of range; it names argument, value and
            range.
    """

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
        told: Callable[[Mapping[str, Any]], None] = lambda record: None,
        replayed: Callable[[Mapping[str, Any]], None] = lambda record: None,
        begun: Callable[[], None] = lambda: None,
        **settings: Any,
    ):
        self.settings = RunSettings.of("Federation", {"rounds": rounds, **settings})
        if not isinstance(strategy, Strategy):
            raise ConfigError(
                f"strategy must be a monai_fairfl Strategy, got {type(strategy).__name__}"
            )
        self.strategy = strategy
        self.transport = transport
        self.initial = initial
        self.guards = tuple(guards)
        self.run_dir = Path(run_dir)
        safe_name(self.run_dir.name, "the run's name, the last part of run_dir,", most=128)
        self.recipe = recipe
        self.told = told
        self.replayed = replayed
        self.begun = begun
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", self.settings.keep)
        self._stop = threading.Event()
        self._enough = threading.Event()
        self._next_id = 0
        self._verdicts: dict[str, Verdict] = {}
        # Tensors that are not sent: they stay each client's own.
        self._withheld: frozenset[str] = frozenset()
        # Memory of the update matrix, used again every round.
        self._storage: torch.Tensor | None = None

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.settings.rounds

    def stop(self) -> None:
        """Ask the run to end after the present round; it can be resumed."""
        self._stop.set()

    def conclude(self) -> None:
        """Make the present round the last: the run then closes as if all its rounds were done."""
        self._enough.set()

    def run(self, resume: bool = False) -> History:
        """Run until all rounds are done or :meth:`stop` is called.

        Args:
            resume: continue from the newest whole checkpoint of ``run_dir``; a fresh run refuses a
                used folder.

        Raises:
            FederationError: too few clients answered, or the folder does not fit; says how to
                resume.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self.settings.threads)
        try:
            with held(self.run_dir):
                done = self._begin(resume)
                with Progress(self.rounds, done, self.strategy.name) as self.progress:
                    for number in range(done, self.rounds):
                        if self._enough.is_set():
                            break
                        if self._stop.is_set():
                            return History(self.run_dir, self.ledger.records, finished=False)
                        self._round(number)
                    self._finish()
                return History(self.run_dir, self.ledger.records, finished=True)
        finally:
            self._stop.clear()  # what was asked of this run is not asked of the next
            self._enough.clear()
            torch.set_num_threads(threads)
            self.transport.close()

    # ---- beginning and end
    # ------------------------------------------------------------------------------------

    def _begin(self, resume: bool) -> int:
        clients = sorted(safe_name(client) for client in self.transport.clients)
        if taken := sorted({"global", "best"} & set(clients)):
            raise ConfigError(
                f"a client cannot be called {taken[0]!r}: models/{taken[0]}.pt is the federation's; rename it"
            )
        needed = max(self.strategy.min_clients, self.settings.min_clients)
        if len(clients) < needed:
            raise FederationError(
                f"{self.strategy.name} needs at least {needed} clients, got {len(clients)} {clients}: "
                "add sites, lower min_clients, or use a strategy for one client (FedAvg, Standalone)"
            )
        ledger_path = self.run_dir / "ledger.jsonl"
        if not resume and ledger_path.exists() and ledger_path.stat().st_size:
            raise FederationError(
                f"{self.run_dir} already holds a run: resume it (--resume True) or choose another run_dir"
            )
        checkpoint = self.checkpoints.load() if resume else None
        self.ledger = Ledger(ledger_path)
        with own_random_state(self.settings.seed):
            weights, spec = self.initial()
        spec = spec.with_local_norms() if self.settings.local_norm else spec
        self._withheld = frozenset(
            (*spec.local, *(spec.buffers if self.settings.buffers == "local" else ()))
        )
        self.strategy.buffers, self.strategy.rounds_planned = self.settings.buffers, self.rounds
        self.strategy.start(weights, clients, spec)
        self.models = Models(self.run_dir / "models", spec, self._withheld, self.recipe)
        opening = self._opening(clients, spec, weights)
        if checkpoint is None:
            self.begun()
            self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=False)
            self.ledger.keep(0)
            self.ledger.append(opening)
            self.told(self.ledger.records[-1])
            return 0
        kept = checkpoint.round + 2  # the opening, and rounds 0..r
        ended = [record["kind"] for record in self.ledger.records[kept:]] == ["end"]
        planned = checkpoint.state.get("rounds", checkpoint.round + 1)
        over = (
            ended and self.rounds <= planned
        )  # no more rounds than planned then: nothing is trained
        if over:
            kept += 1
            self.conclude()
            trained = {
                client
                for record in self.ledger.records[:kept]
                for client in record.get("clients", ())
            }
            if new := sorted(set(clients) - trained):
                logger.warning(
                    "%s is finished, without %s: name more rounds for these to take part, or another run_dir",
                    *(self.run_dir, ", ".join(new)),
                )
        check_same(self.run_dir, self.ledger.records[0], opening)
        self.begun()
        if not over:
            self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=True)
        self.ledger.keep(kept)
        self.strategy.load_state_dict(checkpoint.state["strategy"])
        self.strategy.weights, self.strategy.rewards = checkpoint.weights, checkpoint.rewards
        self.models.best = dict(checkpoint.state["best"])
        for record in self.ledger.records:
            self.replayed(record)
        return checkpoint.round + 1

    def _opening(self, clients: list[str], spec: ModelSpec, weights: Weights) -> dict[str, Any]:
        return opening_record(
            self.run_dir.name, self.strategy, clients, spec, weights, self.settings.opening()
        )

    def _finish(self) -> None:
        """Measure what every client would use and the global model, and write the models."""
        if self.ledger.records[-1]["kind"] == "end":
            return
        strategy, clients = self.strategy, sorted(self.transport.clients)
        done = sum(record["kind"] == "round" for record in self.ledger.records)
        replies = Replies([], [], strategy.spec)
        if self.settings.final:
            requests = closing_requests(strategy, clients, self.settings.final)
            replies = self._tried(
                "the end", done, partial(self._exchange, requests, done, first=False)
            )
        scores, not_finite = closing_scores(strategy, replies, self.settings.final)
        of_global = {
            client: (
                found["global"]
                if "global" in found
                else {} if client in strategy.rewards else found["own"]
            )
            for client, found in scores.items()
        }
        self._keep_best(done - 1, of_global, "score")
        self.models.write(strategy.weights, strategy.rewards)
        self.ledger.append(
            {
                "kind": "end",
                "scores": scores,
                "missing": replies.missing,
                "not_finite": not_finite,
                "best": self.models.best,
                "model": digest_of(strategy.weights),
            }
        )
        self.told(self.ledger.records[-1])

    # ---- one round --------------------------------------------------------------------------------------------

    def _round(self, number: int) -> None:
        begun = time.monotonic()
        clients = self._sample(number)
        result, exchanges = self._tried(
            f"round {number}", number, partial(self._play, number, clients)
        )
        received = {reply.client: reply.measurements for reply in exchanges[0]}
        of_global = {
            client: found
            for client, found in received.items()
            if client not in self.strategy.rewards
        }
        self._keep_best(number - 1, of_global, "global_score")
        if (
            self.settings.record_updates
        ):  # before the checkpoint, so that a round that is done is a recorded one
            record_round(
                self.run_dir,
                number,
                self.strategy.weights,
                training_of(exchanges),
                self.settings.buffers,
            )
        self.strategy.weights = result.weights
        if result.rewards is not None:
            self.strategy.rewards = result.rewards
        self.ledger.append(round_record(number, clients, result, exchanges, self._verdicts))
        state = {
            "strategy": self.strategy.state_dict(),
            "best": self.models.best,
            "rounds": self.rounds,
        }
        self.checkpoints.save(
            Checkpoint(number, self.strategy.weights, self.strategy.rewards, state)
        )
        self.told(self.ledger.records[-1])
        seconds = time.monotonic() - begun
        self.schedule.took(self.run_dir, number, seconds)
        self.progress.round_done(number, seconds, received, result)

    def _keep_best(
        self, number: int, measured: Mapping[str, Mapping[str, Measurement]], name: str
    ) -> None:
        self.models.keep_best(
            number, self.strategy.weights, measured, name, self.ledger.records[0]["clients"]
        )

    def _tried(self, what: str, done: int, attempt: Callable[[], T]) -> T:
        """``attempt()``, undone and tried again while too few clients answer; at last an error to
        resume from.
        """
        snapshot = json.dumps(self.strategy.state_dict())
        failures = 0
        while True:
            self._next_id, self._verdicts = 0, {}
            try:
                return attempt()
            except TooFewClients as reason:
                self.strategy.load_state_dict(json.loads(snapshot))
                failures += 1
                if failures > self.settings.retries:
                    raise FederationError(
                        f"{what}: {reason}. Nothing of it was kept; {done} rounds are done. "
                        f"Bring the clients back and run the same command with --resume True"
                    ) from None

    def _sample(self, number: int) -> list[str]:
        clients = sorted(self.transport.clients)
        if self.settings.clients_per_round is None or self.settings.clients_per_round >= len(
            clients
        ):
            return clients
        return sorted(
            random.Random(seed_of(self.settings.seed, "sampling", number)).sample(
                clients, self.settings.clients_per_round
            )
        )

    def _play(self, number: int, clients: list[str]) -> tuple[RoundResult, list[Replies]]:
        """Drive the strategy's generator through one round."""
        generator = self.strategy.round(clients)
        exchanges: list[Replies] = []
        try:
            requests = next(generator)
            while True:
                exchanges.append(self._exchange(requests, number, first=not exchanges))
                requests = generator.send(exchanges[-1])
        except StopIteration as stop:
            return stop.value, exchanges
        finally:
            generator.close()

    def _exchange(self, requests: Sequence[Request], number: int, first: bool) -> Replies:
        """Stamp requests, let the transport carry them, check and guard what comes back."""
        stamped = [
            self._stamp(request, i, number, first)
            for i, request in enumerate(requests, self._next_id)
        ]
        self._next_id += len(stamped)
        storage = (
            self._storage if first else None
        )  # an earlier exchange of this round may still be in use
        inbox = Inbox(
            stamped, self.strategy.spec, self.strategy.weights, self.progress.answered, storage
        )
        self._storage = inbox.storage if first else self._storage
        self.progress.asked(len(stamped))
        self.transport.exchange(stamped, inbox.arrived, self.settings.timeout)
        replies, verdicts = guarded(inbox.replies(), self.guards)
        self._verdicts |= verdicts
        return enough(replies, self.settings.min_clients)

    def _stamp(self, request: Request, id: int, number: int, first: bool) -> Request:
        measure = (
            tuple(dict.fromkeys((*self.settings.evaluate, *request.measure)))
            if first
            else request.measure
        )
        training = self.strategy.parts.training if request.task == "train" else {}
        context = {
            **training,
            **request.context,
            **({"local_norm": 1.0} if self.settings.local_norm else {}),
        }
        weights = request.weights
        if self._withheld:
            weights = {
                name: tensor for name, tensor in weights.items() if name not in self._withheld
            }
        stamp = {
            "id": id,
            "run": self.run_dir.name,
            "round": number,
            "ledger_head": self.ledger.head,
        }
        return replace(
            request,
            weights=weights,
            measure=measure,
            context=context,
            seed=seed_of(self.settings.seed, request.client, number),
            **stamp,  # type: ignore[arg-type]
        )
