# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures what a model is worth, by the clients on their own data; only numbers leave a site."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.games import Coalition, Game
from monai_fairfl.messages import (
    Expected,
    Measure,
    Measurement,
    ModelSpec,
    Weights,
    estimate_of,
    measurement_of_json,
    to_json,
)
from monai_fairfl.server.exchange import Exchange, Transport
from monai_fairfl.server.round import Facts
from monai_fairfl.utils.files import append_line, write_atomically

logger = logging.getLogger(__name__)

LINES = 10
"""About so many lines of progress are shown, evenly over the models; the log has all of them."""

UTILITIES = ("mean", "pooled", "worst", "negative_loss")
"""What any bundle's models can be scored by, beside the names of its classes."""


@dataclass(frozen=True)
class Utility:
    """Makes one number of what every client measured of a model.

    It is a choice of what the federation is for.

    Args:
        name: ``"mean"``: mean Dice, every site counting alike, as in FedCE's leave-one-out study;
            ``"pooled"``: every case counting alike; ``"worst"``: the mean Dice of the worst site;
            the name of a class: its Dice, sites that label it counting alike; ``"negative_loss"``:
            minus the bundle's training loss on the sites' training data.
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
    data: str = "validation"

    def __post_init__(self) -> None:
        if self.data not in ("validation", "test"):
            raise ConfigError(f"data must be 'validation' or 'test', got {self.data!r}")
        if (self.name, self.data) == ("negative_loss", "test"):
            raise ConfigError("'negative_loss' is of the training data; leave data as it is")

    @property
    def measurement(self) -> str:
        """The measurement it is made of."""
        if self.name == "negative_loss":
            return "global_loss"
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
            mean = sum(scores) / len(scores)
            return -mean if self.name == "negative_loss" else mean

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

    Raises:
        ConfigError: when there is no client.

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
        if not self.clients:
            raise ConfigError("a panel needs at least one client, which scores every model")
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

    def close(self) -> None:
        """Release the clients; they are built again for the next model."""
        self.transport.close()


class Evaluator(dict[tuple[str, Coalition], dict[str, Measurement]]):
    """Utility of coalitions' models: each is measured once, stored on disk and logged.

    As a mapping it is what a panel measured: (game, coalition) -> client -> measurement. A game is
    a round or the whole run. All of it is in a file of JSON lines, too, so nothing is measured
    twice. A change of utility (mean, worst, a class) or of the method needs no new measurement. The
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

    def __init__(
        self,
        title: str,
        utility: Utility,
        panel: Panel,
        path: Path,
        run: str,
        show: Callable[[str], None] | None,
    ):
        super().__init__()
        self.title = title
        self.utility = utility
        self.panel = panel
        self.path = path
        self.show = show
        self.left_out = ""  # the client whose measurements do not count at present
        self.most = 0  # number of models in all, at most
        self.asked: set[tuple[str, Coalition]] = set()  # those of which somebody asked
        lines = []
        if path.exists():
            # A crash may have cut the last line short.
            stored = path.read_bytes().splitlines(keepends=True)
            lines = [line for line in stored if line.endswith(b"\n")]
        header = (json.dumps({"run": run}) + "\n").encode()
        if lines[:1] != [header]:
            lines = [header]
        write_atomically(path, b"".join(lines))
        for number, line in enumerate(lines[1:], start=2):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{path}, line {number} is damaged: delete it, to be measured again"
                ) from error

    def _take(self, row: Mapping[str, Any]) -> None:
        measured = {client: measurement_of_json(value) for client, value in row["measured"].items()}
        for client, value in measured.items():
            self.panel.facts.fixed(client, row["measurement"], value, [])
        is_asked_for = row["measurement"] == self.utility.measurement
        if is_asked_for and sorted(measured) == self.panel.clients:
            self[row["game"], frozenset(row["coalition"])] = measured

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
        is_new = key not in self
        if is_new:
            measurement = self.utility.measurement
            self[key] = self.panel.measure(model(coalition), measurement)
            row = {"game": game, "coalition": sorted(coalition), "measurement": measurement}
            line = json.dumps({**row, "measured": to_json(self[key])}, allow_nan=False)
            append_line(self.path, (line + "\n").encode())
        counted = {client: one for client, one in self[key].items() if client != self.left_out}
        value = self.utility(counted)
        if is_new:
            done = f"model {len(self.asked)} of at most {self.most}"
            line = f"{self.title}: {game}, {{{', '.join(sorted(coalition))}}} {value:.4f}; {done}"
            logger.info("%s", line)
            if self.show is not None and len(self.asked) % math.ceil(self.most / LINES) == 0:
                self.show(line)
        return value
