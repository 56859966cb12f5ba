# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command that a run records."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_recorded: ContextVar[Sequence[str] | None] = ContextVar("command", default=None)


@contextmanager
def recorded_as(words: Sequence[str]) -> Iterator[None]:
    """Let the runs within record these words of ``python -m monai.bundle run``.

    >>> with recorded_as(["python", "-m", "monai.bundle", "run", "--rounds", "3"]):
    ...     command_to_record()[-1]
    '3'
    """
    token = _recorded.set(words)
    try:
        yield
    finally:
        _recorded.reset(token)


def command_to_record() -> Sequence[str] | None:
    """The words of :func:`recorded_as`, or else of the command that started this process.

    ``None`` where that was not MONAI's.
    """
    given = _recorded.get()
    if given is not None:
        return given
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name.startswith("monai.bundle"):
        return None
    return ["python", "-m", "monai.bundle", *sys.argv[1:]]
