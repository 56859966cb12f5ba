# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Values the clients of a finished federation by models of coalitions, which all clients score.

A coalition's model is rebuilt from recorded updates, without any training (Song et al., IEEE Big
Data 2019), or a whole federation trains it: the reference that cheaper estimates are compared with.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import stats

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.games import (
    MOST_PLAYERS,
    SAMPLES,
    TOLERANCE,
    Coalition,
    Game,
    Valuation,
    exact_shapley,
    gtg_shapley,
    leave_one_out,
    permutation_shapley,
    sum_over_rounds,
)
from monai_fairfl.messages import (
    Estimate,
    Expected,
    Measure,
    Measurement,
    ModelSpec,
    Weights,
    estimate_of,
    measurement_of_json,
    to_json,
)
from monai_fairfl.replies import Replies
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.run.recorded_updates import RECORD_UPDATES, RecordedRound, recorded_rounds
from monai_fairfl.server.exchange import Exchange, Transport
from monai_fairfl.server.round import Facts
from monai_fairfl.strategies.coalitions import JUDGED_BY, model_of_members, only_members
from monai_fairfl.utils.arguments import Checked, Component, argument
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.tables import text_of_table

if TYPE_CHECKING:
    from monai_fairfl.strategies.base import Strategy

logger = logging.getLogger(__name__)

METHODS = ("exact", "leave_one_out", "permutation")

GAME = "trained anew"
"""Name of the game of retrained coalitions in the file of what was measured; another one would
measure everything again.
"""

SHOWN = 20
"""After so many models a line of progress is shown; the log has one for each."""

UTILITIES = ("mean", "pooled", "worst")
"""What any bundle's models can be scored by, beside the names of its classes."""


@dataclass(frozen=True)
class Utility(Checked):
    """Makes one number of what every client measured of a model.

    It is a choice of what the federation is for.

    Args:
        name: ``"mean"``: mean Dice, every site counting alike, as in FedCE's leave-one-out study;
            ``"pooled"``: every case counting alike; ``"worst"``: the mean Dice of the worst site;
            the name of a class: its Dice, sites that label it counting alike.
        data: ``"validation"`` or ``"test"``, the images that are scored. Where test images are
            used, what is decided with the answer (who gets which share) is an analysis of them: no
            score of them is then unseen.

    Raises:
        ConfigError: when ``data`` is neither, or there is nothing to combine it with.

    >>> from monai_fairfl.messages import Estimate
    >>> Utility("worst")({"A": {"mean": 0.8}, "B": {"mean": 0.6}})
    0.6
    >>> scores = {"A": Estimate(0.9, None, 3), "B": Estimate(0.5, None, 1)}
    >>> Utility("pooled")({client: {"mean": score} for client, score in scores.items()})
    0.8
    """

    name: str = "mean"
    data: str = argument("validation", ("validation", "test"))

    @property
    def measurement(self) -> str:
        """The measurement it is made of."""
        return "score" if self.data == "validation" else "test_score"

    def __call__(self, measured: Mapping[str, Measurement]) -> float:
        """The utility.

        Args:
            measured: client -> its :attr:`measurement` of the model.

        Raises:
            ConfigError: when no client measured it, or none scores this class, naming the classes
                that they score.
        """
        if not measured:
            raise ConfigError(f"utility {self.name!r}: nobody measured anything")
        if self.name in UTILITIES:
            estimates = [estimate_of(measurement) for measurement in measured.values()]
            scores = [estimate.value for estimate in estimates]
            if self.name == "worst":
                return min(scores)
            if self.name == "pooled":
                cases = [estimate.n for estimate in estimates]
                return sum(score * n for score, n in zip(scores, cases, strict=True)) / sum(cases)
            return sum(scores) / len(scores)

        # The mean of a class's scores over the sites that label it.
        by_class = [found for found in measured.values() if isinstance(found, Mapping)]
        values = [float(found[self.name]) for found in by_class if self.name in found]
        if not values:
            known = {name for found in by_class for name in found} - {"mean"}
            raise ConfigError(
                f"utility {self.name!r} is neither one of {UTILITIES} nor a class that clients "
                f"score, which are {sorted(known)}"
            )
        return sum(values) / len(values)


@dataclass
class Panel:
    """All clients, asked to measure one model after the other.

    Args:
        transport: reaches them.
        clients: all of them must answer for every model, also those outside of the coalition that
            trained it.
        timeout: seconds a model may take; ``None``: no limit.
        expected: the measurements that are taken; by default those of the package, in their ranges.
        facts: counts of the clients' data, as far as the run knows them. The number of cases behind
            a score counts as it was first reported, so that no client weighs more in the score of
            one coalition than in that of another.

    >>> import torch
    >>> from monai_fairfl import InProcess, Reply
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         echo = {"id": asked.id, "run": asked.run, "round": asked.round}
    ...         return Reply(asked.client, None, 0, {"score": float(asked.weights["w"])}, **echo)
    >>> panel = Panel(InProcess({"elm": Hospital, "oak": Hospital}), ["elm", "oak"])
    >>> panel.measure({"w": torch.tensor(0.75)}, "score")
    {'elm': 0.75, 'oak': 0.75}
    """

    transport: Transport
    clients: Sequence[str]
    timeout: float | None = None
    expected: Expected = field(default_factory=Expected)
    facts: Facts = field(default_factory=Facts)

    def __post_init__(self) -> None:
        self.clients = sorted(self.clients)
        self._next_id = 0

    def measure(self, weights: Weights, measurement: str) -> dict[str, Measurement]:
        """client -> its ``measurement`` of ``weights``.

        Raises:
            FederationError: naming a client that did not answer, or whose answer is not finite or
                outside of its range.
        """
        requests = []
        for client in self.clients:
            request = Measure(client, weights, (measurement,))
            requests.append(replace(request, id=self._next_id, run="valuation", round=0))
            self._next_id += 1
        exchange = Exchange(requests, ModelSpec(()), {}, self.expected)
        replies = exchange.ask(self.transport, self.timeout)
        for client, note in self.facts.fix(replies).items():
            logger.warning("client %s: %s", client, note)
        measured = {
            reply.client: reply.measurements[measurement]
            for reply in replies
            if measurement in reply.measurements
        }
        reasons = {**replies.missing, **replies.why_dropped(measurement)}
        for client in self.clients:
            if client not in measured:
                reason = reasons.get(client, "it sent none: check its data and its evaluator")
                raise FederationError(
                    f"client {client!r} did not measure {measurement!r}: {reason}. All must score "
                    "every coalition: mend it, and go on with --resume True"
                )
        return measured


@dataclass
class Evaluator:
    """Utility of coalitions' models: each is measured once, stored on disk and logged.

    What a panel measured is ``known``: (game, coalition) -> client -> measurement. A game is a
    round or the whole run. All of it is in a file of JSON lines, too, so nothing is measured twice.
    A change of utility (mean, worst, a class) or of the method needs no new measurement. The
    last line, when cut short by a crash, is dropped.

    Args:
        title: of the lines of progress.
        utility: of what was measured.
        panel: whose measurements count. It learns the numbers of cases from the whole file, so
            that a valuation that goes on counts as it began.
        path: of the file; made when absent. It may hold other measurements, and those of other
            clients.
        run: identifies the finished run; measurements of another run (fewer rounds, say) are
            discarded.
        show: gets some of the lines.

    Raises:
        ConfigError: naming the line that is damaged.
    """

    title: str
    utility: Utility
    panel: Panel
    path: Path
    run: str
    show: Callable[[str], None] | None
    left_out: str = ""  # the client whose measurements do not count at present
    asked: set[tuple[str, Coalition]] = field(default_factory=set)  # those of which somebody asked
    known: dict[tuple[str, Coalition], dict[str, Measurement]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored = self.path.read_bytes() if self.path.exists() else b""
        # A crash may have cut the last line short.
        lines = [line for line in stored.splitlines(keepends=True) if line.endswith(b"\n")]
        header = (json.dumps({"run": self.run}) + "\n").encode()
        if lines[:1] != [header]:
            lines = [header]
        write_atomically(self.path, b"".join(lines))
        for number, line in enumerate(lines[1:], start=2):
            try:
                row = json.loads(line)
                of_game = row["game"], frozenset(row["coalition"])
                measured = {
                    client: measurement_of_json(value) for client, value in row["measured"].items()
                }
                for client, value in measured.items():
                    self.panel.facts.fixed(client, row["measurement"], value, [])
                is_asked_for = row["measurement"] == self.utility.measurement
                if is_asked_for and sorted(measured) == self.panel.clients:
                    self.known[of_game] = measured
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{self.path}, line {number} is damaged: delete it, to be measured again"
                ) from error

    def game(
        self, name: str, players: Sequence[str], model: Callable[[Coalition], Weights]
    ) -> Game:
        """A game of this name, in which a coalition is worth the utility of its ``model``."""
        return Game(players, lambda coalition: self._worth(name, coalition, model))

    def _worth(
        self, game: str, coalition: Coalition, model: Callable[[Coalition], Weights]
    ) -> float:
        """Utility of a coalition's model, which is made and measured where it is not known yet."""
        key = game, coalition
        self.asked.add(key)
        is_new = key not in self.known
        if is_new:
            measurement = self.utility.measurement
            self.known[key] = self.panel.measure(model(coalition), measurement)
            row = {"game": game, "coalition": sorted(coalition), "measurement": measurement}
            line = json.dumps({**row, "measured": to_json(self.known[key])}, allow_nan=False)
            write_atomically(self.path, (line + "\n").encode(), append=True)
        counted = {
            client: one for client, one in self.known[key].items() if client != self.left_out
        }
        value = self.utility(counted)
        if is_new:
            number, members = len(self.asked), ", ".join(sorted(coalition))
            line = f"{self.title}: model {number}, {game}, {{{members}}} {value:.4f}"
            logger.info("%s", line)
            if self.show is not None and number % SHOWN == 0:
                self.show(line)
        return value


@dataclass(frozen=True)
class FinishedRun:
    """What a valuation may use of a finished federation.

    Args:
        run_dir: its ledger and recorded updates.
        clients: all of them; they score every coalition's model.
        panel: asks them.
        train: (coalition, strategy, folder) -> the model that this coalition trains in ``folder``
            with the run's own settings; an unfinished one is resumed, a finished one read.
        retrained: folder of models trained for valuations of this run, and of others with the same
            settings.
        evaluation: identifies how test images are scored, beside the run's own settings; what was
            measured in another way is measured again.
        show: gets the table and some lines of progress, which are printed and logged, too.

    >>> import torch
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl import InProcess, Reply
    >>> from monai_fairfl.valuation import Panel, Retraining
    >>> class Hospital:
    ...     def answer(self, asked):
    ...         echo = {"id": asked.id, "run": asked.run, "round": asked.round}
    ...         return Reply(asked.client, None, 0, {"score": float(asked.weights["w"])}, **echo)
    >>> worth = {"elm": 0.5, "oak": 0.125}
    >>> def train(coalition, strategy, folder):
    ...     return {"w": torch.tensor(sum(worth[client] for client in coalition))}
    >>> panel = Panel(InProcess(dict.fromkeys(worth, Hospital)), list(worth))
    >>> with TemporaryDirectory() as folder:
    ...     run = FinishedRun(Path(folder), list(worth), panel, train, Path(folder, "retrained"))
    ...     Retraining("exact").value(run).shares()
    {'elm': 0.8, 'oak': 0.2}
    """

    run_dir: Path
    clients: Sequence[str]
    panel: Panel
    train: Callable[[Coalition, Strategy | None, Path], Weights]
    retrained: Path
    evaluation: str = ""
    show: Callable[[str], None] | None = None


class RunValuation(Component, ABC):
    """Values the clients of a finished run. A subclass says where a coalition's model comes from.

    Args:
        method: ``"exact"``, ``"leave_one_out"``, ``"permutation"`` or ``"gtg"``.
        utility: what a model is worth, see :class:`Utility`.
        data: the images that are scored, ``"validation"`` or ``"test"``.
        samples: of ``"permutation"``, the most permutations in every game. Each scores at most as
            many models as there are clients.
        tolerance: of ``"permutation"``: sampling ends when every standard error is below it.
        seed: of the sampling.
        judged_by: whose scores count. ``"everybody"``: all clients'; ``"others"``: for the value of
            client i, those of all clients but i, so that nothing that a client reports of itself
            raises or lowers its own value. The same models are scored; the values need not sum to
            what there is to share out.

    Raises:
        ConfigError: when an argument is none of these.

    >>> from monai_fairfl.valuation import Game, Retraining
    >>> valuation = Retraining("exact", utility="worst")
    >>> worth = {"elm": 0.6, "oak": 0.2}
    >>> game = Game(worth, lambda coalition: sum(worth[client] for client in coalition))
    >>> shares = valuation.play([game]).shares()
    >>> valuation.name, {client: round(share, 6) for client, share in shares.items()}
    ('retraining-FedAvg-exact-worst', {'elm': 0.75, 'oak': 0.25})
    """

    method: str = argument("exact", METHODS)
    utility: str = "mean"
    data: str = "validation"
    _: KW_ONLY
    samples: int = argument(SAMPLES, "[1, inf)")
    tolerance: float = argument(TOLERANCE, "[0, inf)")
    seed: int = 0
    judged_by: str = argument("everybody", JUDGED_BY)

    needs_updates: ClassVar[bool] = False
    """Whether the run must have been recorded (``record_updates``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.worth = Utility(self.utility, self.data)

    @property
    def name(self) -> str:
        """Fit for a file: ``reconstruction-exact-mean``."""
        words = [*self.words(), self.method, self.utility]
        if self.data != "validation":
            words.append(self.data)
        if self.judged_by != "everybody":
            words.append(self.judged_by)
        return "-".join(words)

    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """Where the coalitions' models come from, in words of the name."""

    @abstractmethod
    def stored(self, run: FinishedRun) -> tuple[Path, str]:
        """The file of what was measured of these models, and what identifies them."""

    @abstractmethod
    def games(self, run: FinishedRun, evaluator: Evaluator) -> list[Game]:
        """The games to play, one for each round or a single one."""

    def check(self, clients: Sequence[str], recorded: bool) -> None:
        """Refuse before the training what would fail after it.

        Raises:
            ConfigError: saying what to change.
        """
        problem = ""
        if self.needs_updates and not recorded:
            problem = f"it needs the updates: give {RECORD_UPDATES}, or take Retraining"
        if self.method == "exact" and len(clients) > MOST_PLAYERS:
            problem = f"{len(clients)} clients are too many; take 'permutation', or 'gtg'"
        if problem:
            raise ConfigError(f"valuation {self.name}: {problem}")

    def value(self, run: FinishedRun) -> Valuation:
        """The clients' values.

        Models that were measured already are not measured again; the result is the same to the bit.

        Raises:
            FederationError: naming a client that could not score a model.
        """
        games, evaluator = self._begun(run)
        if self.judged_by == "everybody":
            return self.play(games)

        # The games are played once for each client, with what the others measured.
        values = {}
        for client in sorted({player for game in games for player in game.players}):
            values[client] = self._without(client, games, evaluator)[client]
        total = math.fsum(value.value for value in values.values())
        return Valuation(self.method, values, len(evaluator.asked), total)

    def intervals(self, run: FinishedRun) -> dict[str, tuple[float, float]]:
        r"""client -> 95 % interval of its value over the hospitals that judge, by the jackknife.

        The games are played again without the scores of each judge :math:`j` in turn:

        .. math:: \phi_i \pm t_{N-1} \sqrt{\frac{N-1}{N} \sum_j (\phi_i^{(-j)} - \bar\phi_i)^2}

        With the utility ``"mean"`` that is Student's interval of the judges' own values. It says
        how far the hospitals agree; another seed of the training is not in it. Empty where
        coalitions were sampled, or each value has judges of its own.

        Args:
            run: that was valued, so that no model is measured again.
        """
        judges = len(run.clients)
        is_sampled = self.method not in ("exact", "leave_one_out")
        if is_sampled or self.judged_by == "others" or judges < 2:
            return {}
        games, evaluator = self._begun(run)
        values = self.play(games).values
        replayed = []
        for client in run.clients:
            found = self._without(client, games, evaluator)
            replayed.append([float(found[player]) for player in values])
        deviations = np.array(replayed) - np.mean(replayed, axis=0)
        errors = np.sqrt((judges - 1) / judges * (deviations**2).sum(axis=0))
        widths = stats.t.ppf(0.975, judges - 1) * errors
        ends = zip(values, widths.tolist(), strict=True)
        return {
            one: (float(values[one]) - width, float(values[one]) + width) for one, width in ends
        }

    def _begun(self, run: FinishedRun) -> tuple[list[Game], Evaluator]:
        """The games of a run, and what measures their models."""
        file, identity = self.stored(run)
        evaluator = Evaluator(self.name, self.worth, run.panel, file, identity, run.show)
        return self.games(run, evaluator), evaluator

    def _without(
        self, client: str, games: Sequence[Game], evaluator: Evaluator
    ) -> Mapping[str, Estimate]:
        """The values of the players by what all clients but one measured."""
        evaluator.left_out = client
        return self.play([Game(game.players, game.utility) for game in games]).values

    def play(self, games: Sequence[Game]) -> Valuation:
        """Apply the method to the games and add up what they give."""
        if self.method == "gtg":
            return gtg_shapley(games, seed=self.seed)
        by_game = []
        for number, game in enumerate(games):
            if self.method == "exact":
                found = exact_shapley(game)
            elif self.method == "leave_one_out":
                found = leave_one_out(game)
            else:
                seed = self.seed + number
                found = permutation_shapley(game, self.samples, self.tolerance, seed)
            by_game.append(found)
        return sum_over_rounds(by_game)


class Reconstruction(RunValuation):
    """Values clients by models rebuilt from the run's recorded updates.

    Nothing is trained: each coalition takes one scoring pass. Every round is a game, and values are
    summed over rounds.

    Args:
        method: see :class:`RunValuation`, or ``"gtg"``.
        utility: see :class:`~monai_fairfl.valuation.Utility`.
        data: the images that are scored.

    ``samples``, ``tolerance``, ``seed`` and ``judged_by``, see :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Reconstruction("exact", utility="worst").name
    'reconstruction-exact-worst'
    """

    needs_updates = True

    method: str = argument("exact", (*METHODS, "gtg"))

    def words(self) -> tuple[str, ...]:
        """As :meth:`RunValuation.words`."""
        return ("reconstruction",)

    def stored(self, run: FinishedRun) -> tuple[Path, str]:
        """As :meth:`RunValuation.stored`.

        What was measured does not count when the run has gone on since, or its test images are
        scored otherwise.
        """
        model = read_ledger(run.run_dir / "ledger.jsonl")[-1]["model"]
        words = f"{model} {run.evaluation}".rstrip()
        return run.run_dir / "valuations" / "measured.jsonl", words

    def games(self, run: FinishedRun, evaluator: Evaluator) -> list[Game]:
        """As :meth:`RunValuation.games`."""
        rounds = recorded_rounds(run.run_dir)
        model = model_in_round(rounds)
        games = []
        for number, recorded in enumerate(rounds):
            name = f"round {number}"
            games.append(evaluator.game(name, recorded.clients, partial(model, number)))
        return games


def model_in_round(rounds: Sequence[RecordedRound]) -> Callable[[int, Coalition], Weights]:
    r"""(number of a round, coalition of its members) -> the coalition's model of this round.

    .. math:: w_t + \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}

    The updates are those that the method's own training gave; only their average is another one, by
    images and with the run's buffer policy. The empty coalition's model is :math:`w_t`. A client
    that was sent a model of its own (a reward) adds what it changed in that one.

    Args:
        rounds: all of the run.
    """
    held: dict[int, tuple[Weights, Replies]] = {}

    def model(number: int, coalition: Coalition) -> Weights:
        recorded = rounds[number]
        if number not in held:
            # Frees the memory of the previous round before another one is read.
            held.clear()
            held[number] = recorded.start(), recorded.replies()
        start, replies = held[number]
        return model_of_members(
            start, only_members(replies, coalition), recorded.manifest["buffers"]
        )

    return model


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

    ``samples``, ``tolerance``, ``seed`` and ``judged_by``, see :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Retraining(data="test").name
    'retraining-FedAvg-leave_one_out-mean-test'
    """

    method: str = argument("leave_one_out", METHODS)
    strategy: Strategy | None = None

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
        if strategy.shares_nothing or smallest < strategy.min_clients:
            raise ConfigError(
                f"valuation {self.name}: {strategy.name} cannot average coalitions of {smallest}: "
                "leave out strategy (FedAvg)"
            )

    def stored(self, run: FinishedRun) -> tuple[Path, str]:
        """As :meth:`RunValuation.stored`."""
        _, strategy = self.words()
        return run.retrained / strategy / "measured.jsonl", run.retrained.name

    def games(self, run: FinishedRun, evaluator: Evaluator) -> list[Game]:
        """As :meth:`RunValuation.games`; a single game."""

        folder = self.stored(run)[0].parent

        def train(coalition: Coalition) -> Weights:
            # One set of clients in memory at a time.
            run.panel.transport.close()
            members = "\n".join(sorted(coalition)).encode()
            name = f"coalition-{hashlib.sha256(members).hexdigest()[:12]}"
            return run.train(coalition, self.strategy, folder / name)

        return [evaluator.game(GAME, run.clients, train)]


# ---- before and after a run


def check_valuations(
    valuations: Sequence[RunValuation],
    bundle_root: Path,
    clients: Sequence[str],
    settings: Mapping[str, Any],
) -> None:
    """Refuse before the training what would fail after it.

    Args:
        valuations: to run in the end.
        bundle_root: the bundle, for its classes and its evaluation.
        clients: the sites.
        settings: of the federation.

    Raises:
        ConfigError: naming the valuation and what to change.
    """
    names = [valuation.name for valuation in valuations]
    if len(set(names)) < len(names):
        raise ConfigError(f"valuations must differ in more than seed or sampling, got {names}")
    known_utilities = (*UTILITIES, *_classes(bundle_root))
    has_test_images = (bundle_root / "configs" / "evaluate.json").exists()
    for valuation in valuations:
        valuation.check(clients, recorded=bool(settings.get("record_updates")))
        problem = ""
        if valuation.utility not in known_utilities:
            problem = f"utility must be one of {known_utilities}, got {valuation.utility!r}"
        if valuation.data == "test" and not has_test_images:
            problem = "the bundle has no evaluate.json, so no test images"
        if settings.get("local_norm") or settings.get("buffers") == "local":
            problem = "with local_norm or buffers 'local' no coalition has a whole model"
        if problem:
            raise ConfigError(f"valuation {valuation.name}: {problem}")


def _classes(bundle_root: Path) -> tuple[str, ...]:
    """Classes with a score of their own; none where there is one class, whose score is the mean."""
    try:
        metadata = json.loads((bundle_root / "configs" / "metadata.json").read_text())
        channels = metadata["network_data_format"]["outputs"]["pred"]["channel_def"]
    except (OSError, ValueError, KeyError):
        return ()
    classes = tuple(name for name in channels.values() if name.lower() != "background")
    return classes if len(classes) > 1 else ()


def value_run(valuation: RunValuation, run: FinishedRun) -> Valuation | None:
    """Value one run, write ``run_dir/valuations/<name>.json`` and print the table.

    Args:
        valuation: what to do.
        run: a finished run.

    Returns:
        What was found; ``None`` for a run that averages nothing, and so has nothing to rebuild
        (Standalone).
    """
    records = read_ledger(run.run_dir / "ledger.jsonl")
    strategy = records[0]["name"]
    if valuation.needs_updates and not records[-2]["aggregation"]:
        logger.info("%s: %s averages nothing that can be rebuilt", valuation.name, strategy)
        return None

    found = valuation.value(run)
    intervals, shares = valuation.intervals(run), found.shares()
    result = {
        "name": valuation.name,
        "strategy": strategy,
        "model": records[-1]["model"],
        "utility": valuation.utility,
        "data": valuation.data,
        "judged_by": valuation.judged_by,
        **found.to_json(),
        "intervals": intervals,
    }
    text = json.dumps(to_json(result), indent=1, allow_nan=False)
    write_atomically(run.run_dir / "valuations" / f"{valuation.name}.json", text.encode())

    # The best first.
    rows = []
    for client, value in sorted(found.values.items(), key=lambda item: -item[1].value):
        error = "?" if value.stderr is None else f"{value.stderr:.4f}"
        share = f"{shares[client]:.1%}" if client in shares else "-"
        interval = "{:.4f} to {:.4f}".format(*intervals[client]) if client in intervals else "-"
        rows.append([client, f"{value.value:.4f}", error, share, interval])
    titles = ["client", "value", "sampling error", "share", "95 % interval over the hospitals"]
    table = text_of_table(titles, rows)
    models = f"total {found.total:.4f} from {found.evaluations} models"
    shown = f"Valuation {valuation.name} of {strategy}: {models}\n{table}"
    print(shown)
    if run.show is not None:
        run.show(shown)
    return found
