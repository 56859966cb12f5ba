# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands such as ``python -m monai.bundle run ...``, without the seconds of their imports.

Importing torch and MONAI takes five seconds, and the tests start dozens of commands. Here one
server per test worker imports these libraries and the project once (the fork server of
``multiprocessing``, see ``preloaded.py``), and every command is a fork of it: a process of its own,
with its own arguments, working folder, environment, output, signals and exit status. Tests of what
an interpreter loads, or of variables that it reads when it starts, need a real start:
``subprocess``.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from helpers.checkout import CHECKOUT


def run(
    arguments: Sequence[str], folder: Path, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture its output, as ``subprocess.run`` does.

    Args:
        arguments: what follows the word ``python``: perhaps ``-W ACTION``, then ``-m MODULE`` and
            the module's own arguments.
        folder: the working folder.
        timeout: in seconds; then the process is killed.
        environment: variables in addition to those of this process, and in place of its
            ``PYTHONPATH``, which is the checkout.
    """
    with TemporaryDirectory() as place:
        stdout, stderr = Path(place, "stdout"), Path(place, "stderr")
        stdout.touch()
        stderr.touch()
        # Nobody looks at its workers while it runs.
        shared = not environment
        process = start(arguments, folder, stdout, stderr, shared=shared, **environment)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout, stdout.read_text())
        return subprocess.CompletedProcess(
            list(arguments), process.exitcode, stdout.read_text(), stderr.read_text()
        )


def start(
    arguments: Sequence[str],
    folder: Path,
    stdout: Path = Path(os.devnull),
    stderr: Path = Path(os.devnull),
    shared: bool = False,
    **environment: str,
) -> ForkServerProcess:
    """Start a command; its output goes to files. See :func:`run` for the arguments.

    With ``shared`` its worker processes are forks of the same server, in place of one that the
    command begins: they save the imports, but are no children of the command.
    """
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(CHECKOUT),
        **environment,
    }
    context = fork_server()
    address = forkserver._forkserver._forkserver_address if shared else None
    process = context.Process(
        target=_become, args=(list(arguments), folder, variables, stdout, stderr, address)
    )
    process.start()
    return process


@cache
def fork_server() -> ForkServerContext:
    """The server that has imported, started with the first command.

    The package starts it as its own, without Ctrl-C, for a worker that ends at once.
    """
    # Not where this file begins: the process that deals out the tests reads it, too.
    from monai_fairfl import Measure
    from monai_fairfl.transports.workers import WorkerClients

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")]))
        patch.setattr(forkserver, "set_forkserver_preload", lambda modules: None)
        # Workers of tests that a shell began in the background would never notice Ctrl-C either.
        usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        clients = WorkerClients({"A": dict}, {"A": 0})
        list(clients.ask([Measure("A", {})]))
        clients.close()
        signal.signal(signal.SIGINT, usual)
    return context


def forks() -> list[int]:
    """The commands that run, and the workers of those that were started with ``shared``."""
    import psutil  # NVIDIA FLARE needs it; where Flower is tested it is absent

    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    return [process.pid for process in server.children()]


def _become(
    arguments: list[str],
    folder: Path,
    variables: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    address: str | None,
) -> None:
    """In the fork: what the interpreter does between its start and the module's first line."""
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)

    # Tests that a shell began in the background ignore Ctrl-C, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A process that also starts workers starts all others without Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The environment, folder and modules of an interpreter that just started.
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    given = [path for path in variables["PYTHONPATH"].split(os.pathsep) if path]
    # The modules that led here: another checkout has others, and a folder may.
    others = ["helpers"]
    if str(CHECKOUT) not in given or (folder / "monai_fairfl").exists():
        others.append("monai_fairfl")
    for name in [*sys.modules]:
        if name.partition(".")[0] in others:
            del sys.modules[name]
    if address and "monai_fairfl" not in others:
        forkserver._forkserver._forkserver_address = address
        forkserver._forkserver.ensure_running = forkserver.ensure_running = lambda: None
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(folder), *given, *installed]
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    assert arguments[0] == "-m", arguments
    sys.argv = arguments[1:]
    try:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
