# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""NVFlare's simulator, which waits for ever where it has lost the process of a client.

The simulator starts one process for each client. It gives a process a minute to open its port, and
the process gives the server ten seconds to answer. A machine that is busy misses either, another
program may take the port in between, and a process may be killed. Each time the simulator writes an
error and goes on without the client, for which the job's server waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monai_fairfl.errors import FederationError

SIMULATOR = "nvflare.private.fed.app.simulator"
"""Beginning of the modules that the simulator's processes run."""

LOST = (
    "Failed to create connection to the child process",
    "Communication error with client",
    "Subprocess died for client",
)
"""What the simulator logs where it has lost the process of a client."""

ERRORS = "error_log.txt"
"""Name of the file, within the folder of the simulator's server, that has its errors alone."""

SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_TO_END = 10.0
"""A job that ends at the same moment has this long to do so."""


class LostClientError(FederationError):
    """NVFlare's simulator has lost the process of a client."""


def lost_client(errors: Path) -> str | None:
    """Return what the simulator says of a client whose process it has lost.

    Args:
        errors: the log of the simulator's errors.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     errors = Path(folder) / ERRORS
    ...     before = lost_client(errors)
    ...     _ = errors.write_text("09:30 - Runner - ERROR - Communication error with client ash: ")
    ...     before, lost_client(errors)
    (None, 'Communication error with client ash:')
    """
    if not errors.is_file():
        return None
    for line in errors.read_text(errors="replace").splitlines():
        for words in LOST:
            if words in line:
                return line[line.index(words) :].strip()
    return None


@contextmanager
def ending_without_a_client(errors: Path) -> Iterator[None]:
    """Inside, NVFlare's simulator is ended when it has lost the process of a client.

    Args:
        errors: the log of the simulator's errors; an earlier one is removed.

    Raises:
        LostClientError: when it was ended.
    """
    errors.unlink(missing_ok=True)
    done = threading.Event()

    def look() -> None:
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            if lost_client(errors) is not None:
                if not done.wait(SECONDS_TO_END):
                    _end_simulator()
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    except RuntimeError as error:
        lost = lost_client(errors)
        if lost is None:
            raise
        raise LostClientError(
            f"NVFlare's simulator has lost the process of a client ({lost}), for which it would "
            "wait for ever. This happens on a busy machine: start it again, with fewer clients at "
            "a time (num_threads) if it happens often"
        ) from error
    finally:
        done.set()
        looking.join()


def _end_simulator() -> None:
    """End the simulator that this process started, and its clients."""
    import psutil  # NVFlare needs it, too

    for process in psutil.Process().children(recursive=True):
        try:
            if any(word.startswith(SIMULATOR) for word in process.cmdline()):
                process.kill()
        except psutil.NoSuchProcess:
            continue
