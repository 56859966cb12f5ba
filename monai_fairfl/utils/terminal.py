# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A run at a terminal: Ctrl-C ends it after the present round, and other libraries' log lines do
not hide its own.
"""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM end the run after the present round; a second one at once.

    Handlers belong to a process's main thread: in any other nothing changes.

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
        logger.warning("stopping after this round; press again to stop at once")
        stop()
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def warnings_as_notes() -> Iterator[list[str]]:
    """Warnings become notes, to be told with what was found: a list that is filled at the end.

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
    """All loggers but ours at warnings only: MONAI and ignite write several lines per client and
    round.

    >>> with quiet():
    ...     [logging.getLogger(name).isEnabledFor(logging.INFO) for name in ("ignite", "monai_fairfl")]
    [False, True]
    """
    others = [
        logging.getLogger(name)
        for name in logging.root.manager.loggerDict
        if not name.startswith("monai_fairfl")
    ]
    ours = logging.getLogger("monai_fairfl")
    levels = {logger: logger.level for logger in [logging.root, ours, *others]}
    for other in [logging.root, *others]:
        other.setLevel(logging.WARNING)
    for name in (
        "monai.bundle.workflows",
        "monai.data.nvimgcodec_pydicom_plugin",
    ):  # per client, per reader
        logging.getLogger(name).setLevel(logging.ERROR)
    ours.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            for noise in (
                "executing the bundle config",
                "NvImgCodecPydicomReader",
                ".*always_return_as_numpy",
            ):
                warnings.filterwarnings("ignore", message=noise)
            yield
    finally:
        for each, level in levels.items():
            each.setLevel(level)
