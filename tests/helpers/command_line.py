# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs the command ``monai-fairfl``, and reads what it prints."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monai_fairfl.cli import main

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"

OVERRIDES = {
    "size": [32, 32],
    "channels": [4, 8, 8],
    "learning_rate": 0.02,
    "augmentation": [],
    "slices_per_volume": 8,
}
"""A small network that finds a gland in some epochs."""

TINY = ["--rounds", "2", "--local-epochs", "6", "--jobs", "1", "--overrides", json.dumps(OVERRIDES)]
FEDCE = ["--strategy", "FedCE('sum')"]

NO_DEVICE = ["--devices", "cuda:99"]
"""A training that does not begin."""


class Commands:
    """Runs commands in this process.

    Args:
        capture: of what they print.
    """

    def __init__(self, capture: pytest.CaptureFixture[str]):
        self.capture = capture

    def shown(self, *words: object) -> tuple[object, str, str]:
        """The exit code of a command, and what it printed to both outputs."""
        self.capture.readouterr()
        try:
            code: object = main([str(word) for word in words])
        except SystemExit as ended:
            # The parser of the arguments ends so.
            code = ended.code
        return code, *self.capture.readouterr()

    def run(self, *words: object, code: int = 0) -> str:
        """What a command printed to standard output."""
        ended, printed, said = self.shown(*words)
        assert ended == code, printed + said
        return printed

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        """The one object that a command prints with ``--json``."""
        printed = self.run(*words, "--json", code=code)
        # Whole on one line, and nothing else.
        assert printed.count("\n") == 1, printed
        content: dict[str, Any] = json.loads(printed)
        return content

    def keys(self, *words: object) -> dict[str, str]:
        """The keys of the line of MONAI that a command stands for."""
        _, _, said = self.shown(*words, "--verbose")
        [line] = [line for line in said.splitlines() if line.startswith("python -m monai.bundle")]
        given = shlex.split(line)[4:]
        names = [word.removeprefix("--") for word in given[::2]]
        return dict(zip(names, given[1::2], strict=True))

    def refusal(self, *words: object) -> str:
        """What a command that is refused says of that."""
        code, _, said = self.shown(*words)
        assert code == 2
        assert "Traceback" not in said
        return said


def wait_until(condition: Callable[[], bool], process: Any, log: Path) -> None:
    """Wait for something that a process does; ``log`` shows why it ended before."""
    deadline = time.monotonic() + 300
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline, log.read_text()
        time.sleep(0.002)


def lines_in(ledger: Path) -> int:
    """Whole records of a ledger, which may not be there yet."""
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def bytes_of(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The files of a folder that have these patterns, with their bytes."""
    found = {}
    for pattern in patterns:
        for file in folder.glob(pattern):
            if file.is_file():
                found[str(file.relative_to(folder))] = file.read_bytes()
    assert found
    return found
