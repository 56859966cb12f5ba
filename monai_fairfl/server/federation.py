# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The federation: opens, resumes and closes a run, and records each round."""

from __future__ import annotations

import copy
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.protocol.values import Measurement, Weights, joined_notes
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints
from monai_fairfl.run_folder.ended import keep_result, kept_results
from monai_fairfl.run_folder.ledger import Ledger, count_rounds
from monai_fairfl.run_folder.models import Models
from monai_fairfl.run_folder.recording import record_round
from monai_fairfl.run_folder.records import (
    end_record,
    model_round,
    opening_record,
    round_record,
    training_of,
)
from monai_fairfl.run_folder.resuming import check_checkpoints, check_format, check_same
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.run_folder.withdrawn import refuse_withdrawn, withdrawn_sites
from monai_fairfl.server.closing import (
    closing_requests,
    closing_scores,
    notes_on_own_models,
    scores_of_global_model,
)
from monai_fairfl.server.cross_evaluation import LEAST_SITES, CrossEvaluator, ServerScore
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.global_models import GlobalModels
from monai_fairfl.server.observer import Observer
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.round import MeasuredEnd, PlayedRound, RoundPlayer, drawn_clients
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.utils.files import LONGEST_NAME, locked, safe_name
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.utils.torch_threads import torch_threads

Initial = Callable[[], tuple[Weights, ModelSpec]]
"""Builds the initial model: called inside ``run()``, under the run's seed."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """What a run left: its folder, its ledger's records, and whether all rounds are done.

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
        """The records of the rounds."""
        return [record for record in self.records if record["kind"] == "round"]


class Federation:
    """Runs ``rounds`` rounds of ``strategy`` over ``transport``, resumable to the bit.

    Args:
        strategy: the server half of a method.
        transport: reaches the clients.
        rounds: rounds in all, those of an earlier part of a resumed run included.
        initial: builds the initial model under the seed; returns its tensors and specification.
        guards: checks of every exchange's updates, in order; the federation uses copies of them.
        run_dir: everything is written here; its last part is the run's name, which a run that is
            resumed keeps in a renamed or copied folder.
        recipe: how the clients train, written into every model file; see
            :mod:`monai_fairfl.model_files.recipe`.
        observer: is notified of every record of the ledger, for live curves, or to
            :meth:`conclude`.
        server_score: mean Dice of a model on images of the server's own, for
            ``cross_evaluators=["server"]``.
        settings: fields of :class:`~monai_fairfl.server.settings.RunSettings`, such as
            ``min_clients``, ``retries``, ``evaluate`` and ``final``.

    Raises:
        ConfigError: when an argument is unknown or out of range; it names argument, value and
            range.

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
        server_score: ServerScore | None = None,
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
        self.guards = tuple(copy.deepcopy(list(guards)))
        self._guards_at_start = [guard.state_dict() for guard in self.guards]
        self.run_dir = Path(run_dir)
        safe_name(self.run_dir.name, "the run's name, the last part of run_dir,", LONGEST_NAME)
        self.recipe = recipe
        self.observer = observer or Observer()
        self.server_score = server_score
        self._check_cross_evaluation()
        self._check_gram()
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", self.settings.keep)
        self._stop_asked = threading.Event()
        self._conclude_asked = threading.Event()

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.settings.rounds

    def stop(self) -> None:
        """Ask the run to end after the present round; it can be resumed."""
        self._stop_asked.set()

    def conclude(self) -> None:
        """Make the present round the last: the run then closes as if all its rounds were done."""
        self._conclude_asked.set()

    def run(self, resume: bool = False) -> History:
        """Run until all rounds are done or :meth:`stop` is called.

        Args:
            resume: continue from the newest whole checkpoint of ``run_dir``; a fresh run refuses a
                used folder.

        Raises:
            FederationError: when too few clients answered, or the folder does not fit; it names the
                way to resume.
        """
        try:
            with torch_threads(self.settings.threads), locked(self.run_dir):
                done = self._open(resume)
                with Progress(self.rounds, done, self.strategy.name) as progress:
                    finished = self._run_rounds(done, progress)
                return History(self.run_dir, self.ledger.records, finished)
        finally:
            # What was asked of this run is not asked of the next.
            self._stop_asked.clear()
            self._conclude_asked.clear()
            self.transport.close()

    def _run_rounds(self, done: int, progress: Progress) -> bool:
        """Run the rounds from number ``done`` on, and close the run.

        Returns:
            Whether the run is finished; it is not where it was asked to stop.
        """
        player = RoundPlayer(
            # As the run was begun: sites name their states by it, and the folder may be renamed.
            self.ledger.records[0]["run"],
            self.run_id,
            self.strategy,
            self.transport,
            self.settings,
            self.guards,
            self.models.withheld,
            progress,
            Facts(self.settings.samples, self.ledger.records),
            CrossEvaluator(
                self.strategy, self.settings.seed, self.settings.sites_judge, self.server_score
            ),
        )
        for number in range(done, self.rounds):
            if self._conclude_asked.is_set():
                break
            if self._stop_asked.is_set():
                return False
            self._round(number, player, progress)
        self._close(player)
        return True

    # ---- the beginning

    def _check_cross_evaluation(self) -> None:
        """Refuse what cannot be judged, or would tell a judge too much.

        That is: sites with models of their own, a server that judges without images, and images
        that nobody asks for.
        """
        if self.settings.sites_judge and self.strategy.averages_own_models:
            raise ConfigError(
                f"sites cannot judge {self.strategy.name}: each site continues from a model of its "
                "own, and the global model is the mean of these, so that over two rounds a judge "
                "could compute the update of another site. Let the server judge "
                "(cross_evaluators=['server']), take a strategy whose sites begin from the global "
                "model, or leave cross_evaluate_every out"
            )
        judges = self.settings.cross_evaluators
        server_judges = self.settings.cross_evaluate_every is not None and "server" in judges
        if server_judges and self.server_score is None:
            raise ConfigError(
                "cross_evaluators has 'server', and the server has no images: give server_score "
                "(of a bundle: server_data), or take 'server' out"
            )
        if self.server_score is not None and not server_judges:
            raise ConfigError(
                "the server has images, and nobody asks it to judge: set cross_evaluate_every and "
                "cross_evaluators=['server'] or ['sites', 'server']"
            )

    def _check_gram(self) -> None:
        """Refuse a method or guards that compare pairs of updates, where nobody computes these."""
        if self.settings.gram:
            return
        weighting = self.strategy.parts.weighting
        for part in (self.strategy, weighting):
            if part is not None and part.needs_gram:
                raise ConfigError(
                    f"{type(part).__name__} compares all pairs of updates, and gram=False computes "
                    "none: set gram to True, or take another method"
                )
        comparing = [type(guard).__name__ for guard in self.guards if guard.needs_gram]
        if comparing:
            others = [type(guard).__name__ for guard in self.guards if not guard.needs_gram]
            raise ConfigError(
                f"the guards {', '.join(comparing)} compare all pairs of updates, and gram=False "
                f"computes none: set gram to True, or name the others only (guards={others})"
            )

    def _open(self, resume: bool) -> int:
        """Begin the run, or take it up after its newest checkpoint.

        Returns:
            The number of rounds that are done.
        """
        clients = self._checked_clients()
        ledger_path = self.run_dir / "ledger.jsonl"
        if not resume and ledger_path.exists() and ledger_path.stat().st_size:
            raise FederationError(
                f"{self.run_dir} already holds a run: resume it (--resume True) or choose another "
                "run_dir"
            )
        check_checkpoints([self.run_dir])
        checkpoint = self.checkpoints.load() if resume else None
        self.ledger = Ledger(ledger_path)
        if checkpoint is not None:
            check_format(self.run_dir, self.ledger.records[0])

        if checkpoint is None:
            self._begin(self._start_strategy(clients))
            return 0
        # As the run was begun, whoever is connected now.
        opening = self._start_strategy(self.ledger.records[0]["clients"])
        self._take_up(checkpoint, opening, clients)
        return checkpoint.round + 1

    def _checked_clients(self) -> list[str]:
        """The transport's clients, sorted: enough of them, with names that can be file names."""
        clients = sorted(safe_name(client) for client in self.transport.clients)
        for name in ("best", "global"):
            if name in clients:
                raise ConfigError(
                    f"a client cannot be called {name!r}: models/{name}.pt is the federation's; "
                    "rename it"
                )
        unknown = sorted(set(self.settings.samples) - set(clients))
        if unknown:
            logger.warning(
                "samples names %s, and the clients are %s: correct the name, unless the client "
                "comes later",
                ", ".join(unknown),
                ", ".join(clients),
            )
        per_round = min(self.settings.clients_per_round or len(clients), len(clients))
        if self.settings.sites_judge and per_round < LEAST_SITES:
            raise ConfigError(
                f"sites can judge each other's updates from {LEAST_SITES} sites a round on, got "
                f"{per_round}: with fewer, one could compute the update of another. Let the server "
                "judge (cross_evaluators=['server']), or leave cross_evaluate_every out"
            )
        needed = max(self.strategy.min_clients, self.settings.min_clients)
        if len(clients) < needed:
            raise FederationError(
                f"{self.strategy.name} needs at least {needed} clients, got {len(clients)} "
                f"{clients}: add sites, lower min_clients, or use a strategy for one client "
                "(FedAvg, Standalone)"
            )
        if per_round < self.strategy.min_clients:
            raise ConfigError(
                f"{self.strategy.name} compares the clients of a round, at least "
                f"{self.strategy.min_clients}, and clients_per_round is {per_round}: raise it, or "
                "use a strategy for one client (FedAvg, Standalone)"
            )
        return clients

    def _start_strategy(self, clients: Sequence[str]) -> dict[str, Any]:
        """Build the initial model and start the strategy with it.

        Args:
            clients: of the run's beginning.

        Returns:
            The opening record.
        """
        with own_random_state(self.settings.seed):
            weights, spec = self.initial()
        if self.settings.local_norm:
            spec = spec.with_local_norms()
        # Tensors that are not sent: they stay each client's own.
        withheld = {*spec.local}
        if self.settings.buffers == "local":
            withheld.update(spec.buffers)
        self.strategy.buffers = self.settings.buffers
        self.strategy.rounds_planned = self.rounds
        self.strategy.start(weights, clients, spec)
        self._use(GlobalModels(weights))
        self._load_guards(self._guards_at_start)
        recipe = self.recipe
        if recipe is not None:
            recipe = recipe.trained(strategy=self.strategy.name, seed=self.settings.seed)
        self.models = Models(self.run_dir / "models", spec, frozenset(withheld), recipe)
        return opening_record(
            self.run_dir.name,
            self.strategy,
            self.guards,
            clients,
            spec,
            weights,
            self.settings.opening(),
        )

    def _begin(self, opening: Mapping[str, Any]) -> None:
        """Begin a run in an empty folder."""
        # By chance, and not by the seed: the same run may be begun twice.
        self.run_id = secrets.token_hex(8)
        self.observer.run_started()
        self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=False)
        self.ledger.keep(0)
        self._record(opening)

    def _take_up(
        self, checkpoint: Checkpoint, opening: Mapping[str, Any], clients: Sequence[str]
    ) -> None:
        """Go on after ``checkpoint``: its models and state, and the ledger's records until then."""
        # The opening, and rounds 0 to r. What follows was written after the checkpoint, or is the
        # end of a run that now has more rounds.
        rounds_done = checkpoint.round + 1
        records_done = rounds_done + 1
        self._check_ledger(checkpoint, records_done)
        ended = [record["kind"] for record in self.ledger.records[records_done:]] == ["end"]
        planned = checkpoint.state.get("rounds", rounds_done)
        over = ended and self.rounds <= planned
        if over:
            records_done += 1
            self.conclude()
            self._warn_of_new_clients(clients, self.ledger.records[:records_done])
        else:
            refuse_withdrawn(self.run_dir, clients, "further rounds")
        if not ended:
            self._refuse_fewer_rounds(rounds_done, planned)
        check_same(self.run_dir, self.ledger.records[0], opening)
        if ended and not over:
            kept = keep_result(self.run_dir, rounds_done)
            logger.warning(
                "%s is finished after %d rounds, and now it is extended to %d: its result is kept "
                "in %s",
                self.run_dir,
                rounds_done,
                self.rounds,
                kept,
            )
        self.observer.run_started()
        if not over:
            self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=True)
        self.ledger.keep(records_done)
        self.strategy.load_state_dict(checkpoint.state["strategy"])
        self.strategy.clients = self._known_after(rounds_done)
        self._use(GlobalModels(checkpoint.weights, checkpoint.rewards))
        self._load_guards(checkpoint.state["guards"])
        self.models.best = dict(checkpoint.state["best"])
        # A run that an earlier version began has none.
        self.run_id = checkpoint.state.get("run_id", "")
        for record in self.ledger.records:
            self.observer.record_replayed(record)

    def _known_after(self, rounds_done: int) -> list[str]:
        """The clients that the strategy knew after so many rounds, less those that withdrew since.

        A site that withdrew gets no new reward.
        """
        withdrawn = withdrawn_sites(self.run_dir)
        last_round = self.ledger.records[rounds_done]
        return [client for client in last_round["known_clients"] if client not in withdrawn]

    def _refuse_fewer_rounds(self, done: int, planned: int) -> None:
        """Refuse to close a run that has not ended after more rounds than are asked for.

        Raises:
            FederationError: naming the numbers, what to do, and where an earlier result is.
        """
        if self.rounds >= done:
            return
        kept = ""
        for folder in kept_results(self.run_dir):
            kept += f". An earlier result is in {folder}"
        raise FederationError(
            f"{self.run_dir} has {done} of {planned} rounds and has not ended, and now rounds is "
            f"{self.rounds}: give rounds {planned} to go on, or {done} to end it here{kept}"
        )

    def _check_ledger(self, checkpoint: Checkpoint, records_done: int) -> None:
        """Refuse to go on from a ledger that is not the one of the checkpoint.

        An intact chain does not show a ledger that was rewritten as a whole, or cut at its end.

        Raises:
            FederationError: naming the round, and what to do.
        """
        written = checkpoint.state.get("ledger_head")
        heads = self.ledger.heads[:records_done]
        if len(heads) < records_done:
            problem = f"it has {len(heads)} records, and the checkpoint was written after "
            problem += f"{records_done}: records were cut off"
        elif heads[-1] != written:
            problem = f"its head after that round is {heads[-1]}, and the checkpoint has {written}"
            problem += ": one of its records was changed"
        else:
            return
        raise FederationError(
            f"{self.ledger.path} does not fit the checkpoint of round {checkpoint.round}; "
            f"{problem}. Restore the ledger from a copy, or choose another run_dir"
        )

    def _warn_of_new_clients(
        self, clients: Sequence[str], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Warn of clients that took no part in a run which is over."""
        trained: set[str] = set()
        for record in records:
            trained.update(record.get("clients", ()))
        new = sorted(set(clients) - trained)
        if new:
            logger.warning(
                "%s is finished, without %s: name more rounds for these to take part, or another "
                "run_dir",
                self.run_dir,
                ", ".join(new),
            )

    # ---- a round and the end

    def _round(self, number: int, player: RoundPlayer, progress: Progress) -> None:
        """Play one round, record it, and save a checkpoint."""
        begun = time.monotonic()
        clients = drawn_clients(self.transport.clients, self.settings, number)
        played = player.play(number, clients, self.ledger.head)

        received = {reply.client: reply.measurements for reply in played.exchanges[0]}
        self._keep_best(number, received)
        if self.settings.record_updates:
            # Before the checkpoint, so that a round that is done is a recorded one.
            updates = training_of(played.exchanges)
            record_round(
                self.run_dir, number, self.global_models.weights, updates, self.settings.buffers
            )
        self._use(self.global_models.after(played.result))
        self.ledger.append(_record_of(number, played, self.strategy))
        self.checkpoints.save(self._checkpoint(number))
        self.observer.record_added(self.ledger.records[-1])
        seconds = time.monotonic() - begun
        self.schedule.took(self.run_dir, number, seconds)
        progress.round_done(number, seconds, received, played.result)

    def _checkpoint(self, number: int) -> Checkpoint:
        state = {
            "strategy": self.strategy.state_dict(),
            "guards": [guard.state_dict() for guard in self.guards],
            "best": self.models.best,
            "rounds": self.rounds,
            "ledger_head": self.ledger.head,
            "run_id": self.run_id,
        }
        return Checkpoint(number, self.global_models.weights, self.global_models.rewards, state)

    def _keep_best(self, number: int, received: Mapping[str, Mapping[str, Measurement]]) -> None:
        """Store the global model if its score, measured in round ``number``, is the best so far."""
        of_global = {}
        for client, measured in received.items():
            # A client with a reward received that one, not the global model.
            if client not in self.global_models.rewards:
                of_global[client] = measured
        scored = model_round("global_score", number)
        self._write_best(scored, of_global, "global_score")

    def _write_best(
        self, scored: int, of_global: Mapping[str, Mapping[str, Measurement]], name: str
    ) -> None:
        everybody = self.ledger.records[0]["clients"]
        self.models.keep_best(scored, self.global_models.weights, of_global, name, everybody)

    def _close(self, player: RoundPlayer) -> None:
        """Measure what every client would use and the global model, and write the models."""
        records = self.ledger.records
        if records[-1]["kind"] == "end":
            return
        clients = sorted(self.transport.clients)
        personal = self.strategy.personal
        final = self.settings.final
        done = count_rounds(records)

        end = MeasuredEnd(Replies([], [], self.strategy.spec))
        if final:
            requests = closing_requests(
                self.global_models,
                personal,
                clients,
                final,
                self.settings.last_mile,
                self.settings.score_global,
            )
            end = player.measure_at_end(requests, done, self.ledger.head)
        scores = closing_scores(end.replies, personal, final)
        notes = dict(end.notes)
        for client, note in notes_on_own_models(end.replies).items():
            logger.warning("client %s: %s", client, note)
            notes[client] = joined_notes(notes.get(client), note)
        self._write_best(done - 1, scores_of_global_model(scores, self.global_models), "score")
        self.models.write(self.global_models.weights, self.global_models.rewards, done)
        weights = self.global_models.weights
        self._record(
            end_record(done, scores, end.replies, self.models.best, weights, notes, end.facts)
        )
        # Also where nothing is measured at the end: the last round's record is in no earlier head.
        player.announce_end(clients, done, self.ledger.head)

    def _load_guards(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Set what the guards remember, in their order."""
        for guard, state in zip(self.guards, states, strict=True):
            guard.load_state_dict(copy.deepcopy(dict(state)))

    def _use(self, models: GlobalModels) -> None:
        """Hold ``models`` from now on: the one place where the strategy is lent them, too."""
        self.global_models = models
        models.lend_to(self.strategy)

    def _record(self, record: Mapping[str, Any]) -> None:
        """Write a record to the ledger, and notify the observer."""
        self.ledger.append(record)
        self.observer.record_added(self.ledger.records[-1])


def _record_of(number: int, played: PlayedRound, strategy: Strategy) -> dict[str, Any]:
    return round_record(
        number,
        played.clients,
        played.result,
        played.exchanges,
        played.verdicts,
        strategy,
        digests=played.digests,
        server_notes=played.notes,
        facts=played.facts,
        cross_evaluation=played.cross_evaluation,
    )
