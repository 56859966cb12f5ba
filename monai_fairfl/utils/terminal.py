# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run at a terminal: Ctrl-C ends it after the round, and other libraries' logs are quiet."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

NOISY_WARNINGS = ("executing the bundle", "NvImgCodecPydicomReader", ".*always_return_as_numpy")
"""Beginnings of libraries' warnings that a user of this package can do nothing about."""


STOPPING = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run after its present round."""

_stops: list[Callable[[], None]] = []
"""What ends the runs of this process after their present round, the outermost first."""

_stopping_for_good = threading.Event()
"""Set where also a run that has yet to begin in this process is to end at once."""


def stop_for_good() -> None:
    """End the runs of this process as a signal does, and those that have yet to begin.

    Another process asks for that, where a terminal's signal does not reach this one.
    """
    _stopping_for_good.set()
    for stop in list(_stops):
        stop()


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after the present round; a second one at once.

    They also end what this is within, such as a comparison whose next run would begin. Handlers
    belong to a process's main thread: in any other nothing changes.

    Args:
        stop: asks the run to end, such as :meth:`monai_fairfl.server.federation.Federation.stop`.

    >>> with stopping_on_signals(lambda: print("asked to stop")):
    ...     signal.raise_signal(signal.SIGINT)
    asked to stop
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def received(number: int, frame: object) -> None:
        logger.warning("stopping after this round; the same signal again stops at once")
        for each in list(_stops):
            each()
        at_once = signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
        signal.signal(number, at_once)

    _stops.append(stop)
    previous = {number: signal.signal(number, received) for number in STOPPING}
    try:
        if _stopping_for_good.is_set():
            stop()
        yield
    finally:
        _stops.remove(stop)
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def warnings_as_notes() -> Iterator[list[str]]:
    """Collect warnings as notes, to be reported with other results.

    The list is filled at the end.

    >>> with warnings_as_notes() as notes:
    ...     warnings.warn("its label is empty")
    >>> notes
    ['its label is empty']
    """
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield notes
    notes += [str(warning.message) for warning in caught]


@contextmanager
def quiet() -> Iterator[None]:
    """Let all loggers but ours write warnings only.

    MONAI and ignite would write several lines per client and round.

    >>> with quiet():
    ...     logging.getLogger("ignite").isEnabledFor(logging.INFO)
    ...     logging.getLogger("monai_fairfl").isEnabledFor(logging.INFO)
    False
    True
    """
    ours = logging.getLogger("monai_fairfl")
    levels = {logging.root: logging.root.level, ours: ours.level}
    for each in logging.root.manager.loggerDict.values():
        # The others have the level of one above them.
        if isinstance(each, logging.Logger) and each.level != logging.NOTSET:
            levels[each] = each.level
    for each in levels:
        if not each.name.startswith("monai_fairfl."):
            each.setLevel(logging.INFO if each is ours else logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in NOISY_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
