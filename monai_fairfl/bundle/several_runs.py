# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The runs of several strategies in one folder, some of which may have run before or fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fairfl.errors import (
    DiskFullError,
    FairFLError,
    FederationError,
    TransportAborted,
    in_words,
)
from monai_fairfl.run import resuming
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.workers import Failed

logger = logging.getLogger(__name__)

CONCERNS_ALL = (OSError, DiskFullError, TransportAborted)
"""Errors of one run that the other ones would meet, too."""


class SomeFailed(FederationError):
    """Some of several trainings failed; what the others reached is written."""


class RunFolders:
    """Where the runs of some strategies lie: a single one in ``run_dir``, several below it.

    Args:
        run_dir: of the single run or the comparison.
        strategies: that are to run.
    """

    def __init__(self, run_dir: Path, strategies: Sequence[Strategy]):
        self.run_dir = run_dir
        self.names = [strategy.name for strategy in strategies]

    def folder_of(self, strategy: Strategy) -> Path:
        """The folder of a strategy's run."""
        if len(self.names) == 1:
            return self.run_dir
        return self.run_dir / strategy.name

    def previous(self) -> list[str]:
        """Strategies whose runs the comparison in ``run_dir`` holds and that are not to run now."""
        recorded = resuming.compared(self.run_dir)
        return [name for name in recorded if name not in self.names]

    def used(self) -> list[Path]:
        """Folders that hold a run which goes on, or with which the new runs are compared.

        A run of a comparison that is not to run now is one of them.
        """
        if resuming.begun(self.run_dir):
            return [self.run_dir]
        return [self.run_dir / name for name in resuming.compared(self.run_dir, self.names)]


def logged_failure(name: str, error: Exception) -> str:
    """Log that strategy ``name`` failed, and return why, in words.

    The log has the traceback where the error is a fault of the code.
    """
    if isinstance(error, FairFLError):
        logger.error("%s failed: %s", name, error)
        return str(error)
    logger.error("%s failed", name, exc_info=error)
    return in_words(error)


def outcomes(
    found: Mapping[str, History | Failed], names: Sequence[str]
) -> tuple[list[History], dict[str, str]]:
    """The histories of the runs; and name -> reason of those that failed.

    Args:
        found: name of each strategy that ran -> its history, or why it failed.
        names: of all strategies, in the order of the histories.
    """
    histories: list[History] = []
    failed: dict[str, str] = {}
    for name in names:
        result = found.get(name)
        if isinstance(result, Failed):
            failed[name] = result.reason
        elif result is not None:
            histories.append(result)
    return histories, failed


def log_stop(histories: Sequence[History]) -> None:
    """Log after how many rounds a signal stopped the runs, and how to go on."""
    unfinished = [history for history in histories if not history.finished]
    for history in unfinished or histories[-1:]:
        logger.info(
            "stopped after %d rounds of %s; the same command with --resume True goes on",
            len(history.rounds),
            history.records[0]["name"],
        )


def failure_of(failed: Mapping[str, str], number: int, what: str = "strategies") -> SomeFailed:
    """The error that ends a comparison in which some runs failed.

    Args:
        failed: name of each -> reason.
        number: of all runs.
        what: the runs are called.
    """
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    return SomeFailed(
        f"{len(failed)} of {number} {what} failed ({reasons}). What the others reached is "
        f"not lost. The same command with --resume True tries again: {', '.join(failed)}"
    )
