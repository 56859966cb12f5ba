# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command as a program: its help, its options, its pipes and the paths that it writes to."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.command_line import Commands

from monai_fairfl.cli import COMMANDS, main, parsed

HEAVY = r"\| +(torch|monai|numpy|nvflare|flwr)$"
"""A library that takes seconds, as Python shows what it imports."""


def help_of(cli: Commands, *command: str) -> str:
    """What ``--help`` shows."""
    code, shown, _ = cli.shown(*command, "--help")
    assert code == 0
    return shown


def test_help_is_quick() -> None:
    words = [sys.executable, "-X", "importtime", "-m", "monai_fairfl", "--help"]
    shown = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True)
    assert shown.returncode == 0 and "train" in shown.stdout
    assert not re.findall(HEAVY, shown.stderr, re.MULTILINE)


def test_every_command_has_help_knows_its_examples_and_says_which_option_was_meant(
    cli: Commands,
) -> None:
    commands = re.findall(r"^  ([a-z]+) +[A-Z]", help_of(cli), re.MULTILINE)
    assert commands == list(COMMANDS)
    for command in commands:
        shown = help_of(cli, command)
        examples = re.findall(r"^  monai-fairfl (.*?)(?: +#.*)?$", shown, re.MULTILINE)
        assert examples, command
        for example in examples:
            assert shlex.split(example)[0] == command
            parsed(shlex.split(example))
        options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
        for option in options - {"--help"}:
            words = shlex.split(examples[0])
            # As one types it: a letter too many.
            last = cli.refusal(*words, f"{option}{option[-1]}").splitlines()[-1]
            assert last.endswith(f"{option}?"), option


def test_characters_that_the_terminal_cannot_show_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (
        'from monai_fairfl.strategies import FedAvg\nclass Mine(FedAvg):\n    """M\u00fcnster."""\n'
    )
    (tmp_path / "of_munster.py").write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["strategies", "of_munster.Mine"]) == 0
    sys.stdout.flush()
    assert b"M?nster" in shown.getvalue()


# --- paths


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["demo", "--data-only", "--size", "24", "24", "6", "--out", "file/x"], "file/x"),
        (["doctor", "sites", "--write-lists", "file"], "file"),
        (["doctor", "sites/elm", "--write-lists", "folder"], "folder"),
        (["report", "small/run", "--out", "file"], "file"),
        (["train", "sites", "--out", "file/x"], "file/x"),
    ],
)
def test_a_path_that_cannot_be_written_is_named(
    words: list[str],
    named: str,
    sites: Path,
    small: Path,
    tmp_path: Path,
    cli: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").symlink_to(sites)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    said = cli.refusal(*words)
    assert named in said and "Errno" not in said
    assert (tmp_path / "file").read_bytes() == b""
