# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the commands work on: two hospitals, one run of them, and a ledger."""

from __future__ import annotations

import shutil
from pathlib import Path

import monai.bundle  # noqa: F401  # its logger keeps the standard output of this moment
import pytest
from helpers.command_line import FEDCE, TINY, Commands
from helpers.made_once import MadeOnce
from helpers.tiny_networks import federation

from monai_fairfl.cli import main
from monai_fairfl.strategies import FedCE


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs commands in this process."""
    return Commands(capfd)


@pytest.fixture(scope="session")
def sites(hospitals: Path, made_once: MadeOnce) -> Path:
    """Two hospitals of four cases, alder and elm; read only."""

    def make(folder: Path) -> None:
        for name in ("alder", "elm"):
            shutil.copytree(hospitals / name, folder / name)

    return made_once("two_hospitals", make)


@pytest.fixture(scope="session")
def trained(sites: Path, made_once: MadeOnce) -> Path:
    """The folder of a finished run of both hospitals; read only."""

    def make(folder: Path) -> None:
        words = ["train", str(sites), "--out", str(folder / "run"), *FEDCE, *TINY]
        assert main(words) == 0

    return made_once("trained_by_the_command", make) / "run"


@pytest.fixture
def small(made_once: MadeOnce, tmp_path: Path) -> Path:
    """A folder with a FedCE run of three rounds of four tiny sites, to be changed."""
    made = made_once("run_for_commands", lambda folder: federation(FedCE(), folder).run())
    return Path(shutil.copytree(made, tmp_path / "small"))
