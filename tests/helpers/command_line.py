# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs the command ``monai-fairfl``, and writes runs that it can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.checkout import CHECKOUT

from monai_fairfl.cli import main
from monai_fairfl.run_folder.ledger import Ledger


def run_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, Any]:
    """Run a command with ``--json`` in this process; returns the one object that it prints."""
    arguments = [str(word) for word in words]
    assert main([*arguments, "--json"]) == code
    printed = capsys.readouterr().out
    # One object, whole on one line, and nothing else.
    assert printed.count("\n") == 1
    content: dict[str, Any] = json.loads(printed)
    return content


def run_process(
    *words: object, stdout: int = subprocess.PIPE, folder: Path = CHECKOUT, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in an interpreter of its own.

    Args:
        words: what follows ``monai-fairfl``.
        stdout: descriptor of the standard output.
        folder: the working folder.
        variables: of the environment, in addition to those of this process.
    """
    arguments = [str(word) for word in words]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "monai_fairfl", *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **variables},
        cwd=folder,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def write_run(folder: Path) -> Path:
    """Write the ledger of a finished run of two rounds; returns ``folder``."""
    folder.mkdir()
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.append({"kind": "start", "strategy": "FedAvg", "clients": ["Zürich"]})
    for number in range(2):
        ledger.append(
            {
                "kind": "round",
                "round": number,
                "clients": [],
                "aggregation": {},
                "contributions": {},
                "measurements": {},
                "of_round": {},
                "verdicts": {},
                "notes": {},
                "details": {},
                "facts": {},
                "samples": {},
                "cases": {},
                "gram": None,
            }
        )
    ledger.append({"kind": "end", "scores": {}})
    return folder
