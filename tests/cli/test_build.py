# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Two checkouts of one version are told apart by their commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from monai_fairfl import __version__
from monai_fairfl.cli.build import build_of


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *settings, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    """Write the checkout's file, commit it, and return the commit."""
    (folder / "setup.py").write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", text)
    return git(folder, "rev-parse", "HEAD")


def test_each_commit_has_a_build_of_its_own_and_a_change_shows(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    builds = []
    for text in ("first", "second"):
        head = commit(tmp_path, text)
        build = build_of(tmp_path)
        short = build.removeprefix(f"{__version__} (commit ").removesuffix(")")
        assert len(short) >= 7 and head.startswith(short)
        builds.append(build)
    assert builds[0] != builds[1]

    # A tag is no commit.
    git(tmp_path, "tag", "v9")
    assert build_of(tmp_path) == builds[1]
    (tmp_path / "setup.py").write_text("third")
    assert build_of(tmp_path) == builds[1].replace(")", ", changed since)")


def test_an_environment_in_the_repository_of_something_else_is_the_version_alone(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "site-packages").mkdir()
    assert build_of(tmp_path / "site-packages") == __version__
    # Another project's repository, with the package in its top folder.
    assert build_of(tmp_path) == __version__


def test_a_checkout_that_git_cannot_read_says_so(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "setup.py").touch()
    assert build_of(tmp_path) == f"{__version__} (a checkout, commit unknown)"
