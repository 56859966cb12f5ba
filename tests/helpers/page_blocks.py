# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The code blocks of the pages, and a place where their commands run as they are printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from helpers import warm_python
from helpers.checkout import CHECKOUT

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(file.relative_to(CHECKOUT)) for file in CHECKOUT.glob("docs/**/*.md")),
    *sorted(str(file.relative_to(CHECKOUT)) for file in CHECKOUT.glob("bundles/*/docs/README.md")),
]

FEW = 'pelvis.write_sites("hospitals", pelvis.DEMO_SITES[2:], size=(32, 32, 6), cases=4)'
"""In place of the demo's hospitals: maple and willow, with fewer cases."""

MARKED = re.compile(r"^<!-- not run:(.*?)-->$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(
    r"(?:^<!-- not run:(?P<reason>[^>]*?)-->\n\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A code block of a page.

    Args:
        page: its path in the checkout.
        language: the word after the fence; empty for a drawing or a list of files.
        text: what stands between the fences.
        reason: why it is not run, of the marker above it; ``None`` without a marker.
    """

    page: str
    language: str
    text: str
    reason: str | None

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0]

    @property
    def runs(self) -> bool:
        """Whether it has commands or Python, which somebody could run."""
        return self.language in ("bash", "python")


def blocks_of_text(text: str, page: str = "") -> list[Block]:
    """All code blocks of a page's text, in their order."""
    found = []
    for match in BLOCK.finditer(text):
        reason = match["reason"]
        if reason is not None:
            reason = " ".join(reason.split())
        found.append(Block(page, match["language"], match["text"], reason))
    return found


def blocks_of_page(page: str) -> list[Block]:
    return blocks_of_text((CHECKOUT / page).read_text(), page)


def blocks_in(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in a language."""
    return [block.text for block in blocks_of_page(page) if block.language == language]


# ---- commands ----

# A shell reads a block as a reader's shell does. It finds mkdir, and nothing else: no page starts
# what its test does not know. Every other command is written down with its words, among them "...",
# the beginning of the command before.
RECORDING = """
set -eu
command_not_found_handle() { printf '%s\\0' "$#" "$@" >> "$RECORDED"; }
"""
FEDERATE = [
    *("python", "-m", "monai.bundle", "run", "--config_file", "configs/federate.json"),
    *("--bundle_root", ".", "--sites_root", "DATA", "--run_dir", "runs/shown"),
]
"""In place of ``...``."""

ONE_ROUND = ["--rounds", "1", "--jobs", "1"]


def program(name: str) -> str:
    """Where this machine has a program."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


def recorded(block: Block, folder: Path) -> list[list[str]]:
    """The words of the block's commands as its shell makes them, in a folder."""
    with TemporaryDirectory() as made:
        record, programs = Path(made, "recorded"), Path(made, "programs")
        record.touch()
        programs.mkdir()
        (programs / "mkdir").symlink_to(program("mkdir"))
        environment = {**os.environ, "PATH": str(programs), "RECORDED": str(record)}
        shell = [program("bash"), "-c", RECORDING + block.text]
        done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
        words = record.read_text().split("\0")[:-1]
    assert done.returncode == 0, f"{block.page}: {block.first_line}\n{done.stderr}"

    commands = []
    while words:
        count = int(words[0])
        commands.append(words[1 : 1 + count])
        words = words[1 + count :]
    return commands


def smaller(words: list[str], small: Mapping[str, object]) -> list[str]:
    """The last arguments of a command, which make a training tiny and answer its questions."""
    short = [*ONE_ROUND, "--overrides", str(small)]
    if words[0] == "monai-fairfl":
        found = {
            "compare": [*short, "--local-epochs", "1", "--seeds", "0", "--folds", "None"],
            "train": [*short, "--local-epochs", "1", "--report", "False"],
            "try": ONE_ROUND,
        }
        return found.get(words[1], [])
    if "run" not in words:
        return []
    config = words[words.index("--config_file") + 1]
    if "federate.json" in config:
        short += ["--local_epochs", "1", "--report", "False"]
        if "--seeds" in words:
            short += ["--seeds", "[0]", "--folds", "2"]
    else:
        short = []
        if "train.json" in config:
            short = ["--max_epochs", "1"]
            for key, value in small.items():
                short += [f"--{key}", str(value)]
    return [*short, "--device", "cpu"]


def run_commands(
    commands: Iterable[list[str]], folder: Path, small: Mapping[str, object], trains: bool = True
) -> str:
    """Run commands of a page in turn, each to its end, which is a success; return their output.

    Args:
        commands: the words of each.
        folder: in which they run.
        small: overrides for a tiny network.
        trains: whether sites train; they answer at once otherwise.
    """
    modules = []
    for words in commands:
        if words[0] == "...":
            words = [*FEDERATE, *words[1:]]
        words = [*words, *smaller(words, small)]
        if trains and "--rounds" in words:
            # Nobody looks at their scores.
            words += ["--evaluate", "[]", "--final", "[]"]
        if words[0] == "monai-fairfl":
            modules.append(["monai_fairfl", *words[1:]])
        else:
            assert words[:2] == ["python", "-m"], f"no test knows how to run {words[0]!r}"
            modules.append(words[2:])
    places = [CHECKOUT, CHECKOUT / "docs" / "examples", CHECKOUT / "tests"]
    path = os.pathsep.join(map(str, places))
    arguments = ["-W", "ignore", "-m", "helpers.in_turn", json.dumps([trains, modules])]
    done = warm_python.run(arguments, folder, PYTHONPATH=path)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout
