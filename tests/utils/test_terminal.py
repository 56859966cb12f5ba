# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Signals and logs around a run."""

from __future__ import annotations

import logging
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from monai_fairfl.utils import terminal
from monai_fairfl.utils.terminal import quiet, stopping_on_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "again"),
    [(signal.SIGINT, "press Ctrl-C again"), (signal.SIGTERM, "send SIGTERM again")],
)
def test_who_stops_a_run_reads_how_to_stop_it_at_once(
    number: signal.Signals, again: str, caplog: pytest.LogCaptureFixture
) -> None:
    with stopping_on_signals(lambda: None):
        signal.raise_signal(number)
    assert caplog.messages == [f"stopping after this round; {again} to stop at once"]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_to_stop_and_the_second_does_what_it_always_did(
    number: signal.Signals,
) -> None:
    before, asked = [signal.getsignal(each) for each in SIGNALS], []
    with stopping_on_signals(lambda: asked.append(number)):
        signal.raise_signal(number)
        assert asked == [number]
        second = signal.getsignal(number)
    assert second == (signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_in_another_thread_than_the_main_one_signals_are_left_alone() -> None:
    def handlers_inside() -> list[object]:
        with stopping_on_signals(lambda: None):
            return [signal.getsignal(each) for each in SIGNALS]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers_inside).result() == [signal.getsignal(each) for each in SIGNALS]


def test_a_noisy_logger_that_is_made_inside_is_as_any_other_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "noisy.library.of.this.test"
    monkeypatch.setattr(terminal, "NOISY_LOGGERS", (name,))
    with quiet():
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
    assert logging.getLogger(name).isEnabledFor(logging.WARNING)


def test_other_loggers_are_quiet_ours_is_not_and_all_is_as_before_afterwards() -> None:
    names = ("", "ignite.engine", "monai.bundle.workflows", "monai_fairfl")
    before = [logging.getLogger(name).level for name in names]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet():
            heard = [
                logging.getLogger(name).isEnabledFor(logging.INFO)
                for name in (*names, "monai_fairfl.server.progress")
            ]
            warnings.warn("executing the bundle config under /bundle", stacklevel=1)
            warnings.warn("the disk is full", stacklevel=1)
    assert heard == [False, False, False, True, True]
    assert [str(each.message) for each in caught] == ["the disk is full"]
    assert [logging.getLogger(name).level for name in names] == before
