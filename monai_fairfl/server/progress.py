# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Progress of a federation with the time left: a bar on a terminal, plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from rich import progress

from monai_fairfl.messages import value_of
from monai_fairfl.server.round import Round

logger = logging.getLogger(__name__)

RoundsDone = Callable[[int], None]
"""Is given the number of rounds that are done."""

_shown_by: ContextVar[RoundsDone | None] = ContextVar("shown_by", default=None)


@contextmanager
def shown_by(rounds_done: RoundsDone) -> Iterator[None]:
    """Let somebody else show the federations that run within: no bar of their own is drawn.

    Args:
        rounds_done: is called when a federation begins or goes on, and after each of its rounds.
    """
    token = _shown_by.set(rounds_done)
    try:
        yield
    finally:
        _shown_by.reset(token)


class Progress(progress.Progress):
    """Shows who answered, each round's scores, and how long the rest will take.

    Args:
        rounds: rounds in all.
        done: rounds done before.
        title: of the bar, usually the strategy's name.
    """

    def __init__(self, rounds: int, done: int, title: str):
        self.shown_by = _shown_by.get()
        super().__init__(disable=self.shown_by is not None or not sys.stderr.isatty())
        self.rounds = rounds
        self.title = title
        self.bar = self.add_task(title, total=rounds, completed=done)
        if self.shown_by is not None:
            self.shown_by(done)

    def answered(self, client: str, refused: str | None) -> None:
        """A client answered.

        Args:
            client: its name.
            refused: why its answer does not count; ``None`` where it does.
        """
        if refused is not None:
            logger.warning("client %s does not count in this exchange: %s", client, refused)
        self.update(self.bar, description=f"{self.title}: {client} answered")

    def round_done(self, played: Round, seconds: float) -> None:
        """A round was played, in so many seconds."""
        done = played.number + 1
        left = timedelta(seconds=round(seconds * (self.rounds - done)))
        text = f"{self.title} round {done}/{self.rounds}, {seconds:.1f} s, {left} left"
        scores = {}
        for reply in played.exchanges[0]:
            if "global_score" in reply.measurements:
                scores[reply.client] = value_of(reply.measurements["global_score"])
        if scores:
            worst = min(scores, key=scores.__getitem__)
            mean = sum(scores.values()) / len(scores)
            text += f"; Dice before this round: mean {mean:.3f}, worst {worst} {scores[worst]:.3f}"
        logger.info(text)
        self.update(self.bar, completed=done, description=f"{self.title} {done}/{self.rounds}")
        if self.shown_by is not None:
            self.shown_by(done)
