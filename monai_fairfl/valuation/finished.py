# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Values the clients of a finished federation by models of coalitions, which all clients score."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from monai_fairfl.errors import ConfigError
from monai_fairfl.games import shapley
from monai_fairfl.games.game import MOST_PLAYERS, Coalition, Game
from monai_fairfl.games.valuation import Valuation, rank_stability, sum_over_rounds
from monai_fairfl.messages import Weights
from monai_fairfl.run.recorded_updates import RECORD_UPDATES
from monai_fairfl.strategies.coalitions import JUDGED_BY
from monai_fairfl.valuation.utility import MeasuredModels, Panel, Utility

if TYPE_CHECKING:
    from monai_fairfl.strategies.base import Strategy

logger = logging.getLogger(__name__)

LINES = 10
"""About so many lines of progress are shown, evenly over the models; the log has all of them."""

METHODS = ("exact", "leave_one_out", "permutation", "gtg")


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
        train_ahead: (coalition -> folder, strategy): trains the models of several coalitions at a
            time, before ``train`` is asked for each of them; ``None``: there is nobody to do so.
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
    train_ahead: Callable[[Mapping[Coalition, Path], Strategy | None], None] | None = None
    evaluation: str = ""
    show: Callable[[str], None] | None = None


class RunValuation(ABC):
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

    needs_updates: ClassVar[bool] = False
    """Whether the run must have been recorded (``record_updates``)."""
    decay: float | None = None

    def __init__(
        self,
        method: str,
        utility: str = "mean",
        data: str = "validation",
        samples: int = shapley.SAMPLES,
        tolerance: float = shapley.TOLERANCE,
        seed: int = 0,
        judged_by: str = "everybody",
    ):
        kind = type(self).__name__
        choices = {"judged_by": (judged_by, JUDGED_BY), "method": (method, METHODS)}
        for name, (given, known) in choices.items():
            if given not in known:
                raise ConfigError(f"{kind}: {name} must be one of {known}, got {given!r}")
        shapley.check_sampling(samples, tolerance)
        if method != "permutation" and (samples, tolerance) != (shapley.SAMPLES, shapley.TOLERANCE):
            raise ConfigError(f"{kind}: {method!r} takes neither samples nor tolerance")
        self.method = method
        self.utility = Utility(utility, data)
        self.seed = seed
        self.judged_by = judged_by
        self.samples = samples
        self.tolerance = tolerance

    @property
    def name(self) -> str:
        """Fit for a file: ``reconstruction-multi_round-exact-mean``."""
        words = [*self.words(), self.method, self.utility.name]
        if self.utility.data != "validation":
            words.append(self.utility.data)
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
    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
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
        if self.judged_by == "others" and len(clients) < 2:
            problem = f"nobody else can judge {clients[0]}: leave out judged_by, or use more sites"
        if problem:
            raise ConfigError(f"valuation {self.name}: {problem}")

    def trainings(self, clients: Sequence[str]) -> Iterator[Coalition]:
        """The coalitions that are trained for this valuation whatever is measured on the way."""
        return iter(())

    def value(self, run: FinishedRun) -> Valuation:
        """The clients' values.

        Models that were measured already are not measured again; the result is the same to the bit.

        Raises:
            FederationError: naming a client that could not score a model.
        """
        known = MeasuredModels(*self.stored(run), run.panel, self.utility.measurement)
        evaluate = Evaluator(self.name, self.utility, known, run.show)
        games = self.games(run, evaluate)
        for game in games:
            one_more = len(game.players) + 1
            most = {"leave_one_out": one_more, "permutation": self.samples * one_more}
            every = 2 ** len(game.players)
            evaluate.most += min(every, most.get(self.method, every))
        if self.judged_by == "others":
            return self._judged_by_others(games, evaluate)
        return self.play(games)

    def _judged_by_others(self, games: Sequence[Game], evaluate: Evaluator) -> Valuation:
        """Play the games once for each client, with what the others measured; its value counts."""
        values = {}
        for client in sorted({player for game in games for player in game.players}):
            evaluate.left_out = client
            played = [Game(game.players, game.utility) for game in games]
            values[client] = self.play(played).values[client]
        return Valuation(
            self.method,
            values,
            evaluations=len(evaluate.models),
            rank_stability=rank_stability(values),
            total=math.fsum(value.value for value in values.values()),
        )

    def play(self, games: Sequence[Game]) -> Valuation:
        """Apply the method to the games and add up what they give."""
        if self.method == "gtg":
            return shapley.gtg_shapley(games, seed=self.seed)
        by_game = []
        for number, game in enumerate(games):
            if self.method == "exact":
                found = shapley.exact_shapley(game)
            elif self.method == "leave_one_out":
                found = shapley.leave_one_out(game)
            else:
                seed = self.seed + number
                found = shapley.permutation_shapley(game, self.samples, self.tolerance, seed)
            by_game.append(found)
        return sum_over_rounds(by_game, self.decay)


@dataclass
class Evaluator:
    """Utility of coalitions' models: each is measured once, stored on disk and logged.

    Args:
        title: of the lines.
        utility: of what was measured.
        known: what was measured already.
        show: gets some of the lines.
        left_out: the client whose measurements do not count at present; empty: all count.
        most: number of models in all, at most.
        models: those of which somebody asked for the utility.
    """

    title: str
    utility: Utility
    known: MeasuredModels
    show: Callable[[str], None] | None
    left_out: str = ""
    most: int = 0
    models: set[tuple[str, Coalition]] = field(default_factory=set)

    def __call__(self, game: str, coalition: Coalition, build: Callable[[], Weights]) -> float:
        """Utility of the model that ``build`` makes, for ``coalition`` in the game of this name."""
        self.models.add((game, coalition))
        is_new = (game, coalition) not in self.known
        if is_new:
            self.known.measure(game, coalition, build())
        measured = self.known[game, coalition]
        # The utility, without what the client that is left out measured.
        value = self.utility({name: measured[name] for name in measured if name != self.left_out})
        if is_new:
            done = f"model {len(self.models)} of at most {self.most}"
            line = f"{self.title}: {game}, {{{', '.join(sorted(coalition))}}} {value:.4f}; {done}"
            logger.info("%s", line)
            if self.show is not None and len(self.models) % math.ceil(self.most / LINES) == 0:
                self.show(line)
        return value
