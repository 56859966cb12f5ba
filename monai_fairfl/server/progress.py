# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Progress of a federation with the time left: a bar on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.progress import BarColumn
from rich.progress import Progress as Bar
from rich.progress import TaskID, TextColumn, TimeRemainingColumn

from monai_fairfl.protocol.values import value_of
from monai_fairfl.strategies.base import RoundResult

logger = logging.getLogger(__name__)


class Progress:
    """Tells who answered, each round's scores and weights, and how long the rest will take.

    Args:
        rounds: rounds in all.
        done: rounds done before.
        title: of the bar, usually the strategy's name.
    """

    def __init__(self, rounds: int, done: int, title: str):
        self.rounds, self.done, self.title = rounds, done, title
        self.seconds: deque[float] = deque(maxlen=8)
        self.bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:g}/{task.total} rounds"),
            TextColumn("{task.fields[news]}"), TimeRemainingColumn(), disable=not sys.stderr.isatty(),
        )  # fmt: skip
        self.task: TaskID | None = None

    def __enter__(self) -> Progress:
        self.bar.__enter__()
        self.task = self.bar.add_task(self.title, total=self.rounds, completed=self.done, news="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.__exit__(kind, error, trace)

    def asked(self, requests: int) -> None:
        """An exchange of ``requests`` requests begins."""
        self.expected, self.came = requests, 0

    def answered(self, client: str, refused: str | None) -> None:
        """``client`` answered; ``refused`` says why its answer does not count."""
        self.came += 1
        if refused is not None:
            logger.warning("client %s does not count in this exchange: %s", client, refused)
        if self.task is not None:
            self.bar.update(self.task, news=f"{client} {self.came}/{self.expected}")

    def round_done(
        self,
        number: int,
        seconds: float,
        received: Mapping[str, Mapping[str, Any]],
        result: RoundResult,
    ) -> None:
        """Round ``number`` took ``seconds``; ``received`` holds what clients measured of the model
        they were sent.
        """
        self.done = number + 1
        self.seconds.append(seconds)
        left = timedelta(
            seconds=round(sum(self.seconds) / len(self.seconds) * (self.rounds - self.done))
        )
        scores = {
            c: value_of(m["global_score"]) for c, m in received.items() if "global_score" in m
        }
        text = f"{self.title} round {self.done}/{self.rounds}, {seconds:.1f} s, {left} left"
        if scores:
            worst = min(scores, key=lambda client: scores[client])
            mean = sum(scores.values()) / len(scores)
            text += f"; Dice before this round: mean {mean:.3f}, worst {worst} {scores[worst]:.3f}"
        weights = {c: w for c, w in result.aggregation.items() if isinstance(w, float)}
        if weights:
            text += "; weights " + ", ".join(
                f"{client} {weight:.2f}" for client, weight in weights.items()
            )
        logger.info(text)
        if self.task is not None:
            self.bar.update(self.task, completed=self.done, news="")
