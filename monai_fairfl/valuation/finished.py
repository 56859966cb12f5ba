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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

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
    measurement_of_json,
    to_json,
    value_of,
)
from monai_fairfl.replies import Replies
from monai_fairfl.run.ledger import read_ledger
from monai_fairfl.run.recorded_updates import RECORD_UPDATES, recorded_rounds
from monai_fairfl.server.exchange import Exchange, Transport
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies.coalitions import JUDGED_BY, model_of_members, only_members
from monai_fairfl.utils.arguments import Component, argument
from monai_fairfl.utils.files import write_atomically
from monai_fairfl.utils.tables import text_of_table

logger = logging.getLogger(__name__)

METHODS = ("exact", "leave_one_out", "permutation")

GAME = "trained anew"
"""Name of the game of retrained coalitions in the file of what was measured; another one would
measure everything again.
"""

SHOWN = 20
"""After so many models a line of progress is shown; the log has one for each."""

UTILITIES = ("mean", "worst")
"""What any bundle's models can be scored by, beside the names of its classes."""


@dataclass
class Panel:
    """All clients, asked to measure one model after the other.

    Args:
        transport: reaches them.
        clients: all of them must answer for every model, also those outside of the coalition that
            trained it.
        expected: the measurements that are taken; by default those of the package, in their ranges.

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
    expected: Expected = field(default_factory=Expected)

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
        replies = Exchange(requests, ModelSpec(()), {}, self.expected).ask(self.transport)
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
        valuation: that asks.
        run: whose panel measures.
        path: of the file; made when absent. It may hold other measurements, and those of other
            clients.
        identity: of the models; measurements of others (after fewer rounds, say) are discarded.
        games: to play, one for each round or a single one.

    Raises:
        ConfigError: naming the line that is damaged.
    """

    valuation: RunValuation
    run: FinishedRun
    path: Path
    identity: str
    games: list[Game] = field(default_factory=list)
    left_out: str = ""  # the client whose measurements do not count at present
    asked: set[tuple[str, Coalition]] = field(default_factory=set)  # those of which somebody asked
    known: dict[tuple[str, Coalition], dict[str, Measurement]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored = self.path.read_bytes() if self.path.exists() else b""
        # A crash may have cut the last line short.
        lines = [line for line in stored.splitlines(keepends=True) if line.endswith(b"\n")]
        header = (json.dumps({"run": self.identity}) + "\n").encode()
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
                if row["measurement"] == self.valuation.measurement:
                    if sorted(measured) == self.run.panel.clients:
                        self.known[of_game] = measured
            except Exception as error:  # whatever a damaged line leads to
                raise ConfigError(
                    f"{self.path}, line {number} is damaged: delete it, to be measured again"
                ) from error

    def worth(
        self, game: str, model: Callable[[Coalition], Weights], coalition: Coalition
    ) -> float:
        """Utility of a coalition's model, which is made and measured where it is not known yet."""
        key = game, coalition
        self.asked.add(key)
        is_new = key not in self.known
        if is_new:
            measurement = self.valuation.measurement
            self.known[key] = self.run.panel.measure(model(coalition), measurement)
            row = {"game": game, "coalition": sorted(coalition), "measurement": measurement}
            line = json.dumps({**row, "measured": to_json(self.known[key])}, allow_nan=False)
            write_atomically(self.path, (line + "\n").encode(), append=True)
        counted = {
            client: one for client, one in self.known[key].items() if client != self.left_out
        }
        value = self.valuation.worth(counted)
        if is_new:
            number, members = len(self.asked), ", ".join(sorted(coalition))
            line = f"{self.valuation.name}: model {number}, {game}, {{{members}}} {value:.4f}"
            logger.info("%s", line)
            if self.run.show is not None and number % SHOWN == 0:
                self.run.show(line)
        return value


@dataclass(frozen=True)
class FinishedRun:
    """What a valuation may use of a finished federation.

    Args:
        run_dir: its ledger and recorded updates.
        clients: all of them; they score every coalition's model.
        panel: asks them.
        train: (coalition, folder) -> the model that this coalition trains in ``folder`` by FedAvg,
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
    >>> def train(coalition, folder):
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
    train: Callable[[Coalition, Path], Weights]
    retrained: Path
    evaluation: str = ""
    show: Callable[[str], None] | None = None


class RunValuation(Component, ABC):
    """Values the clients of a finished run. A subclass says where a coalition's model comes from.

    Args:
        method: ``"exact"``, ``"leave_one_out"``, ``"permutation"`` or ``"gtg"``.
        utility: what a model is worth. ``"mean"``: mean Dice, every site counting alike, as in
            FedCE's leave-one-out study; ``"worst"``: the mean Dice of the worst site; the name of a
            class: its Dice, sites that label it counting alike.
        data: the images that are scored, ``"validation"`` or ``"test"``. What is decided with an
            answer from test images is an analysis of them: no score of them is then unseen.
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
    data: str = argument("validation", ("validation", "test"))
    _: KW_ONLY
    samples: int = argument(SAMPLES, "[1, inf)")
    tolerance: float = argument(TOLERANCE, "[0, inf)")
    seed: int = 0
    judged_by: str = argument("everybody", JUDGED_BY)

    needs_updates: ClassVar[bool] = False
    """Whether the run must have been recorded (``record_updates``)."""

    source: ClassVar[str]
    """Where the coalitions' models come from, in words of the name."""

    @property
    def name(self) -> str:
        """Fit for a file: ``reconstruction-exact-mean``."""
        words = (self.source, self.method, self.utility, self.data, self.judged_by)
        return "-".join(word for word in words if word not in ("validation", "everybody"))

    @property
    def measurement(self) -> str:
        """The measurement that a model's worth is made of."""
        return "score" if self.data == "validation" else "test_score"

    def worth(self, measured: Mapping[str, Measurement]) -> float:
        """What a model is worth.

        Args:
            measured: client -> its :attr:`measurement` of the model.

        Raises:
            ConfigError: when no client scores this class, naming the classes that they score.
        """
        if self.utility in UTILITIES:
            scores = [value_of(measurement) for measurement in measured.values()]
            return min(scores) if self.utility == "worst" else sum(scores) / len(scores)

        # The mean of a class's scores over the sites that label it.
        by_class = [found for found in measured.values() if isinstance(found, Mapping)]
        values = [float(found[self.utility]) for found in by_class if self.utility in found]
        if not values:
            known = {name for found in by_class for name in found} - {"mean"}
            raise ConfigError(
                f"utility {self.utility!r} is neither one of {UTILITIES} nor a class that clients "
                f"score, which are {sorted(known)}"
            )
        return sum(values) / len(values)

    @abstractmethod
    def begun(self, run: FinishedRun) -> Evaluator:
        """What measures the coalitions' models, with the games to play."""

    def value(self, run: FinishedRun) -> Valuation:
        """The clients' values.

        Models that were measured already are not measured again; the result is the same to the bit.

        Raises:
            FederationError: naming a client that could not score a model.
        """
        evaluator = self.begun(run)
        if self.judged_by == "everybody":
            return self.play(evaluator.games)

        # The games are played once for each client, with what the others measured.
        players = sorted({player for game in evaluator.games for player in game.players})
        values = {one: self._without(one, evaluator)[one] for one in players}
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
        evaluator = self.begun(run)
        values = self.play(evaluator.games).values
        replayed = []
        for client in run.clients:
            found = self._without(client, evaluator)
            replayed.append([float(found[player]) for player in values])
        deviations = np.array(replayed) - np.mean(replayed, axis=0)
        errors = np.sqrt((judges - 1) / judges * (deviations**2).sum(axis=0))
        widths = stats.t.ppf(0.975, judges - 1) * errors
        ends = zip(values.items(), widths.tolist(), strict=True)
        return {one: (mean.value - width, mean.value + width) for (one, mean), width in ends}

    def _without(self, client: str, evaluator: Evaluator) -> Mapping[str, Estimate]:
        """The values of the players by what all clients but one measured."""
        evaluator.left_out = client
        return self.play([Game(game.players, game.utility) for game in evaluator.games]).values

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
    r"""Values clients by models rebuilt from the run's recorded updates.

    Nothing is trained: each coalition takes one scoring pass. Every round is a game, and values are
    summed over rounds. The model of a coalition in round t is

    .. math:: w_t + \sum_{i \in S} \frac{n_i}{n_S} \Delta_{t,i}

    The updates are those that the method's own training gave; only their average is another one, by
    images and with the run's buffer policy. The empty coalition's model is :math:`w_t`. A client
    that was sent a model of its own (a reward) adds what it changed in that one.

    Args:
        method: see :class:`RunValuation`, or ``"gtg"``.

    ``utility``, ``data``, ``samples``, ``tolerance``, ``seed`` and ``judged_by``: see
    :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Reconstruction("exact", utility="worst").name
    'reconstruction-exact-worst'
    """

    needs_updates = True
    source = "reconstruction"

    method: str = argument("exact", (*METHODS, "gtg"))

    def begun(self, run: FinishedRun) -> Evaluator:
        """As :meth:`RunValuation.begun`.

        What was measured does not count when the run has gone on since, or its test images are
        scored otherwise.
        """
        model_of_run = read_ledger(run.run_dir / "ledger.jsonl")[-1]["model"]
        path = run.run_dir / "valuations" / "measured.jsonl"
        evaluator = Evaluator(self, run, path, f"{model_of_run} {run.evaluation}")
        rounds = recorded_rounds(run.run_dir)
        held: dict[int, Replies] = {}

        def model(number: int, coalition: Coalition) -> Weights:
            if number not in held:
                # Frees the memory of the previous round before another one is read.
                held.clear()
                held[number] = rounds[number].replies()
            replies = held[number]
            members, buffers = only_members(replies, coalition), rounds[number].manifest["buffers"]
            return model_of_members(replies.start(replies[0]), members, buffers)

        for number, recorded in enumerate(rounds):
            worth = partial(evaluator.worth, f"round {number}", partial(model, number))
            evaluator.games.append(Game(recorded.clients, worth))
        return evaluator


class Retraining(RunValuation):
    """Values clients by whole federations of every coalition.

    These are N + 1 trainings for leave-one-out, 2^N for exact. FedCE's ground truth (Jiang et al.,
    CVPR 2023) is leave-one-out with ``data="test"``. Its text does not say by which method the N +
    1 models were trained; here it is FedAvg, whatever method the run itself used, so that all
    methods are compared with one reference. Settings, splits and seeds
    are the run's own. The global model of each coalition is scored by *all* clients, also by those
    that did not train it. The empty coalition's model is the initial one. A finished coalition is
    never trained again, an unfinished one is resumed.

    Args:
        method: see :class:`RunValuation`; not ``"gtg"``, whose games are rounds.

    ``utility``, ``data``, ``samples``, ``tolerance``, ``seed`` and ``judged_by``: see
    :class:`RunValuation`.

    Raises:
        ConfigError: when an argument is out of range or does not go with another.

    >>> Retraining(data="test").name
    'retraining-FedAvg-leave_one_out-mean-test'
    """

    source = "retraining-FedAvg"

    method: str = argument("leave_one_out", METHODS)

    def begun(self, run: FinishedRun) -> Evaluator:
        """As :meth:`RunValuation.begun`; a single game."""
        folder = run.retrained / "FedAvg"
        evaluator = Evaluator(self, run, folder / "measured.jsonl", run.retrained.name)

        def train(coalition: Coalition) -> Weights:
            # One set of clients in memory at a time.
            run.panel.transport.close()
            members = "\n".join(sorted(coalition)).encode()
            name = f"coalition-{hashlib.sha256(members).hexdigest()[:12]}"
            return run.train(coalition, folder / name)

        evaluator.games.append(Game(run.clients, partial(evaluator.worth, GAME, train)))
        return evaluator


# ---- before and after a run


def check_valuations(
    valuations: Sequence[RunValuation],
    bundle_root: Path,
    channels: Iterable[str],
    clients: Sequence[str],
    settings: RunSettings,
) -> None:
    """Refuse before the training what would fail after it.

    Args:
        valuations: to run in the end.
        bundle_root: the bundle, for its evaluation.
        channels: names of the model's output channels.
        clients: the sites.
        settings: of the federation.

    Raises:
        ConfigError: naming the valuation and what to change.
    """
    names = [valuation.name for valuation in valuations]
    if len(set(names)) < len(names):
        raise ConfigError(f"valuations must differ in more than seed or sampling, got {names}")
    # The score of a single class is the mean.
    classes = [name for name in channels if name.lower() != "background"]
    known_utilities = (*UTILITIES, *(classes if len(classes) > 1 else ()))
    has_test_images = (bundle_root / "configs" / "evaluate.json").exists()
    for valuation in valuations:
        problem = ""
        if valuation.needs_updates and not settings.record_updates:
            problem = f"it needs the updates: give {RECORD_UPDATES}, or take Retraining"
        if valuation.method == "exact" and len(clients) > MOST_PLAYERS:
            problem = f"{len(clients)} clients are too many; take 'permutation', or 'gtg'"
        if valuation.judged_by == "others" and len(clients) < 2:
            problem = "others cannot judge a single client"
        if valuation.utility not in known_utilities:
            problem = f"utility must be one of {known_utilities}, got {valuation.utility!r}"
        if valuation.data == "test" and not has_test_images:
            problem = "the bundle has no evaluate.json, so no test images"
        if settings.local_norm or settings.buffers == "local":
            problem = "with local_norm or buffers 'local' no coalition has a whole model"
        if problem:
            raise ConfigError(f"valuation {valuation.name}: {problem}")


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
