# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How trainings are dealt out to processes, and shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from monai_fairfl.bundle.runs_display import RunsDisplay, is_shown
from monai_fairfl.server.federation import History
from monai_fairfl.transports.workers import Failed, Work, carry_out
from monai_fairfl.utils.terminal import quiet

logger = logging.getLogger(__name__)


@contextmanager
def display_of(titles: Sequence[str], rounds: int, at_a_time: int) -> Iterator[RunsDisplay | None]:
    """One display of the trainings of these titles; ``None`` where each shows itself.

    Args:
        titles: of the trainings.
        rounds: of each.
        at_a_time: how many processes work on them beside each other.
    """
    if at_a_time == 1 and not is_shown():
        yield None
        return
    kinds = {title: title for title in titles}
    with quiet(), RunsDisplay(kinds, rounds, at_a_time=at_a_time) as display:
        yield display


def deal_out(
    pieces: Mapping[str, Work], devices: Sequence[str], display: RunsDisplay | None
) -> tuple[dict[str, Any], bool]:
    """Do all trainings, in their order as far as several are not done at a time.

    Args:
        pieces: title -> a training. One that a signal stopped returns ``False``, or a history that
            is not finished.
        devices: of the processes that work at a time.
        display: of all; ``None``: each shows itself.

    Returns:
        Title -> result of those that ended, in the order in which they did; and whether a signal
        asked to stop.

    Raises:
        Exception: what a training raised; the others end at once.
    """
    found: dict[str, Any] = {}

    def ended(title: str, result: Any) -> None:
        found[title] = result
        if display is None:
            return
        if isinstance(result, Failed):
            display.run_ended(title, result.reason)
        elif is_finished(result):
            display.run_ended(title)

    if len(devices) > 1:
        logger.info("%d processes work at a time", len(devices))
    rounds_done = None if display is None else display.round_done
    stopped = carry_out(pieces, len(devices), devices, rounds_done, ended)
    return found, stopped


def is_finished(result: Any) -> bool:
    """Whether a training that did not fail came to its end, and no signal stopped it.

    >>> is_finished(True), is_finished(False), is_finished(None)
    (True, False, True)
    """
    if isinstance(result, History):
        return result.finished
    return result is not False
