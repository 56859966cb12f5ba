# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run at a terminal: Ctrl-C ends it after the round, and other libraries' logs are quiet."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from monai_fairfl.errors import DataWarning

logger = logging.getLogger(__name__)

NOISY_LOGGERS = ("monai.bundle.workflows", "monai.data.nvimgcodec_pydicom_plugin")
"""Loggers that warn once per client, or once per reader of images."""

NOISY_WARNINGS = (
    "executing the bundle config",
    "NvImgCodecPydicomReader",
    ".*always_return_as_numpy",
)
"""Beginnings of libraries' warnings that a user of this package can do nothing about."""


_stops: list[Callable[[], None]] = []
"""What ends the runs of this process after their present round, the outermost first."""

_stopping_for_good = threading.Event()
"""Set where also a run that has yet to begin in this process is to end at once."""


_shown: set[str] = set()
"""The notes on data that the present command has shown."""


@contextmanager
def data_notes_to(take: Callable[[str], None]) -> Iterator[None]:
    """Inside, ``take`` gets the text of each note on a site's data, in place of Python's warning.

    >>> with data_notes_to(print):
    ...     warnings.warn("elm: one file has no mask", DataWarning)
    elm: one file has no mask
    """
    show = warnings.showwarning

    def take_or_show(
        message: Warning | str, category: type[Warning], *where: Any, **more: Any
    ) -> None:
        if issubclass(category, DataWarning):
            take(str(message))
        else:
            show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = take_or_show
        yield


@contextmanager
def data_notes_shown_once() -> Iterator[None]:
    """Inside, a note on a site's data is a plain line on standard error, once for each text.

    Python would show the line of code that warns, and each place that warns of it again.

    >>> from contextlib import redirect_stderr
    >>> with redirect_stderr(sys.stdout), data_notes_shown_once():
    ...     for _ in range(2):
    ...         warnings.warn("elm: one file has no mask", DataWarning)
    note: elm: one file has no mask
    """

    def show_once(text: str) -> None:
        if text not in _shown:
            _shown.add(text)
            print(f"note: {text}", file=sys.stderr)

    try:
        with data_notes_to(show_once):
            yield
    finally:
        _shown.clear()


def print_replacing(text: str) -> None:
    """Print a text; what standard output cannot show of it is replaced, and no error.

    A path may not be UTF-8, and a terminal may have few characters.

    >>> print_replacing("41.3 ml")
    41.3 ml
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def was_shown(text: str) -> bool:
    """Whether the present command has shown this note on data.

    >>> was_shown("elm: nothing of the kind")
    False
    """
    return text in _shown


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
        again = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
        logger.warning("stopping after this round; %s to stop at once", again)
        for each in list(_stops):
            each()
        at_once = signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
        signal.signal(number, at_once)

    _stops.append(stop)
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, received)
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
    # A noisy one may be made inside: it must not stay as quiet as that.
    loggers = map(logging.getLogger, {*logging.root.manager.loggerDict, *NOISY_LOGGERS})
    ours = logging.getLogger("monai_fairfl")
    levels = {logger: logger.level for logger in [logging.root, ours, *loggers]}
    for each in levels:
        if not each.name.startswith(ours.name):
            each.setLevel(logging.ERROR if each.name in NOISY_LOGGERS else logging.WARNING)
    ours.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            for message in NOISY_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
