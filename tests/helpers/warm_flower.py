# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Flower's app processes, without the seconds of their imports.

A SuperNode starts the program ``flwr-clientapp`` for every message, and each imports torch and
MONAI for seven seconds. Here one server per Flower system imports these libraries once. A program
of the same name, which the ``PATH`` has first, asks the server to fork, and hands over its
arguments, environment, folder and output. The fork runs Flower's own program, and imports this
project's modules itself. It dies with the program that asked for it.

This file is the server and the programs, too: it needs nothing but the standard library to start.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAMS = {"flwr-clientapp": "flwr.supernode.cli", "flwr-serverapp": "flwr.superlink.cli"}
"""Program -> the module that Flower imports before it reads the program's arguments."""
FORKS = "forks"
"""Folder with a file for each program that runs: its process id -> that of its fork."""
REQUEST_BYTES = 1 << 20


class WarmPrograms:
    """A server, and programs in ``folder / "bin"`` that it runs.

    Args:
        folder: a new one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        (folder / FORKS).mkdir()
        self._address = folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server; from now on, who looks for the programs finds the warm ones."""
        here = str(Path(__file__))
        command = [sys.executable, "-W", "ignore", here, "serve", str(self.folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the server of warm programs has ended"
        for program in PROGRAMS:
            # Without site-packages an interpreter starts in some hundredths of a second.
            words = [sys.executable, "-S", "-E", here, "launch", str(self.folder), program]
            file = self.bin / program
            file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            file.chmod(0o755)

    def stop(self) -> None:
        """End the server and its forks."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=30)

    def forks_of(self, processes: Iterable[int]) -> list[int]:
        """Return the process ids of the forks of those among these processes that asked for one."""
        found = []
        for process in processes:
            file = self.folder / FORKS / str(process)
            with suppress(FileNotFoundError):
                found.append(int(file.read_text()))
        return found


def serve(folder: Path) -> None:
    """Import the libraries, and fork for each program that asks."""
    import importlib

    from helpers.warm_python import LIBRARIES

    for name in [*LIBRARIES, *PROGRAMS.values()]:
        with suppress(ImportError):
            importlib.import_module(name)
    # Nobody waits for the forks: each tells its own exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _serve_one(folder, asking)
            asking.close()


def _serve_one(folder: Path, asking: socket.socket) -> None:
    """In the fork: become the program that asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, outputs, _, _ = socket.recv_fds(asking, REQUEST_BYTES, 2)
    request = json.loads(text)
    note = folder / FORKS / str(request["process"])
    note.write_text(str(os.getpid()))
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    threading.Thread(target=_die_with, args=(asking,), daemon=True).start()
    status = _run(request)
    with suppress(OSError):
        asking.sendall(str(status).encode())
    os._exit(status)


def _die_with(asking: socket.socket) -> None:
    """Wait until the program that asked is gone, and end."""
    with suppress(OSError):
        asking.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _run(request: dict[str, Any]) -> int:
    """Run Flower's own program as if this process had been started for it; returns its status."""
    from helpers.warm_python import begin_anew

    program = Path(sys.executable).parent / request["program"]
    begin_anew(request["environment"], Path(request["folder"]), program.parent)
    sys.argv = [str(program), *request["arguments"]]
    status = 0
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def launch(folder: Path, program: str, arguments: list[str]) -> int:
    """Ask the server to run a program with this process's output; returns its exit status."""
    request = {
        "process": os.getpid(),
        "program": program,
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / "socket"))
        socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
        # Empty: the fork was killed.
        status = server.recv(16)
    return int(status or b"1")


if __name__ == "__main__":
    _, task, place, *rest = sys.argv
    if task == "launch":
        sys.exit(launch(Path(place), rest[0], rest[1:]))
    sys.path.insert(0, str(Path(__file__).parents[1]))
    serve(Path(place))
