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
from monai_fairfl.protocol.values import Measurement, Weights, add_note
from monai_fairfl.run_folder.checkpoint import Checkpoint, Checkpoints
from monai_fairfl.run_folder.ended import best_at_earlier_ends, keep_result
from monai_fairfl.run_folder.ledger import Ledger, count_rounds
from monai_fairfl.run_folder.models import Models
from monai_fairfl.run_folder.recorded_updates import record_round
from monai_fairfl.run_folder.records import (
    end_record,
    model_round,
    opening_record,
    round_record,
    training_of,
)
from monai_fairfl.run_folder.resuming import check_checkpoints, check_same
from monai_fairfl.run_folder.schedule import Schedule
from monai_fairfl.server.closing import (
    closing_requests,
    closing_scores,
    notes_on_own_models,
    scores_of_global_model,
)
from monai_fairfl.server.continuity import Continuity
from monai_fairfl.server.exchange import Transport
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.global_models import GlobalModels
from monai_fairfl.server.observer import Observer
from monai_fairfl.server.progress import Progress
from monai_fairfl.server.round import MeasuredEnd, PlayedRound, RoundPlayer, drawn_clients
from monai_fairfl.server.run_checks import (
    checked_clients,
    refuse_fewer_rounds,
    require_ledger_of,
    warn_of_new_clients,
)
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.utils.files import locked
from monai_fairfl.utils.names import LONGEST_NAME, safe_name
from monai_fairfl.utils.random_state import own_random_state
from monai_fairfl.utils.torch_threads import torch_threads

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
    global_models: GlobalModels
    models: Models
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
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", self.settings.keep)
        self._stop_asked = threading.Event()
        self._conclude_asked = threading.Event()

    @property
    def rounds(self) -> int:
        """Number of rounds, including those of an earlier part of a resumed run."""
        return self.settings.rounds

    def stop(self) -> None:
        """Ask the run to stop after the current round. It can be resumed."""
        self._stop_asked.set()

    def conclude(self) -> None:
        """Make the current round the last one: the run then ends as if all rounds were done."""
        self._conclude_asked.set()

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
            Continuity(self.ledger.records),
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

    def _open(self, resume: bool) -> int:
        """Begin the run, or take it up after its newest checkpoint.

        Returns:
            The number of rounds that are done.
        """
        clients = checked_clients(self.transport.clients, self.strategy, self.settings)
        ledger_path = self.run_dir / "ledger.jsonl"
        if not resume and ledger_path.exists() and ledger_path.stat().st_size:
            raise FederationError(
                f"{self.run_dir} already holds a run: resume it (--resume True) or choose another "
                "run_dir"
            )
        check_checkpoints([self.run_dir])
        checkpoint = self.checkpoints.load() if resume else None
        self.ledger = Ledger(ledger_path)
        if checkpoint is None:
            self._begin(self._start(clients))
            return 0
        # As the run was begun: which sites are connected now does not count.
        opening = self._start(self.ledger.records[0]["clients"])
        self._take_up(checkpoint, opening, clients)
        return checkpoint.round + 1

    def _start(self, clients: Sequence[str]) -> dict[str, Any]:
        """Start strategy and guards with the initial model.

        Args:
            clients: of the run's beginning.

        Returns:
            The opening record.
        """
        weights, spec = self._initial_model()
        spec.require_averageable(weights)
        self.strategy.buffers = self.settings.buffers
        self.strategy.rounds_planned = self.rounds
        self.strategy.start(weights, clients, spec)
        self._use(GlobalModels(weights))
        self._load_guards(self._guards_at_start)
        self.models = self._model_files(spec)
        return opening_record(
            self.run_dir.name,
            self.strategy,
            self.guards,
            clients,
            spec,
            weights,
            self.settings.opening(),
        )

    def _initial_model(self) -> tuple[Weights, ModelSpec]:
        """The first global model, and what each of its tensors is."""
        with own_random_state(self.settings.seed):
            weights, spec = self.initial()
        if self.settings.local_norm:
            spec = spec.with_local_norms()
        return weights, spec

    def _model_files(self, spec: ModelSpec) -> Models:
        """The files of the run's models, which lack the tensors that stay each client's own."""
        withheld = {*spec.local}
        if self.settings.buffers == "local":
            withheld.update(spec.buffers)
        recipe = self.recipe
        if recipe is not None:
            recipe = recipe.trained(strategy=self.strategy.name, seed=self.settings.seed)
        return Models(self.run_dir / "models", spec, frozenset(withheld), recipe)

    def _begin(self, opening: Mapping[str, Any]) -> None:
        """Begin a run in an empty folder."""
        # By chance, and not by the seed: the same run may be begun twice.
        self.run_id = secrets.token_hex(8)
        self.observer.run_started()
        self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=False)
        self.ledger.truncate(0)
        self._record(opening)

    def _take_up(
        self, checkpoint: Checkpoint, opening: Mapping[str, Any], clients: Sequence[str]
    ) -> None:
        """Go on after ``checkpoint``: its models and state, and the ledger's records until then.

        A run that has not ended goes on. One that has is extended where more rounds are asked for;
        else it is over, and only closes again.
        """
        # The opening, and rounds 0 to r. What follows was written after the checkpoint, or is the
        # end of the run.
        rounds_done = checkpoint.round + 1
        records_done = rounds_done + 1
        require_ledger_of(checkpoint, self.ledger, records_done)
        planned = checkpoint.state["rounds"]
        ended = [record["kind"] for record in self.ledger.records[records_done:]] == ["end"]
        is_over = ended and self.rounds <= planned

        if not ended:
            refuse_fewer_rounds(self.run_dir, self.rounds, rounds_done, planned)
        check_same(self.run_dir, self.ledger.records[0], opening)

        if is_over:
            records_done += 1
            self.conclude()
            warn_of_new_clients(self.run_dir, clients, self.ledger.records)
        elif ended:
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
        if not is_over:
            self.schedule = Schedule.begun(self.run_dir, self.rounds, resumed=True)
        self.ledger.truncate(records_done)
        self._restore(checkpoint)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Take over the models and the state of a checkpoint, and replay the ledger."""
        self.strategy.load_state_dict(checkpoint.state["strategy"])
        self.strategy.clients = self._known_after(checkpoint.round + 1)
        self._use(GlobalModels(checkpoint.weights, checkpoint.rewards))
        self._load_guards(checkpoint.state["guards"])
        self.models.best = self._best_until(checkpoint)
        self.run_id = checkpoint.state["run_id"]
        for record in self.ledger.records:
            self.observer.record_replayed(record)

    def _best_until(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Round and score of the best global model so far, whose file is there."""
        best = checkpoint.state["best"]
        for earlier in best_at_earlier_ends(self.run_dir):
            if not best or earlier["score"] > best["score"]:
                best = earlier
        return dict(best)

    def _known_after(self, rounds_done: int) -> list[str]:
        """The clients that the strategy knew after so many rounds."""
        # The first record is the opening.
        return sorted(self.ledger.records[rounds_done]["known_clients"])

    # ---- a round and the end

    def _round(self, number: int, player: RoundPlayer, progress: Progress) -> None:
        """Play one round, record it, and save a checkpoint."""
        begun = time.monotonic()
        clients = drawn_clients(self.transport.clients, self.settings, number)
        played = player.play(number, clients, self.ledger.head)

        received = {reply.client: reply.measurements for reply in played.exchanges[0]}
        self._save_if_best(number, received)
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

    def _save_if_best(self, number: int, received: Mapping[str, Mapping[str, Measurement]]) -> None:
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
        self.models.save_if_best(scored, self.global_models.weights, of_global, name, everybody)

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
            add_note(notes, client, note)
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
    )
