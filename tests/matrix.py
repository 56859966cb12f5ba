# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Install the wheel with several Pythons, with the newest and the oldest libraries, and use it.

``make matrix`` runs it. A row is an environment of its own: the wheel and the extra ``report`` are
installed, ``pip check`` finds no conflict, and ``monai-fairfl try`` trains generated hospitals to a
report. With ``--tests`` the quick tests of the source archive run there, too. The environment of a
row that passed is removed. The last lines name the Pythons that are not on this machine: they were
not tried.

::

    python tests/matrix.py build/dist --torch torch==2.13.0 --tests
"""

from __future__ import annotations

import argparse
import email
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
NEWEST = "newest"
OLDEST = "oldest"
PYTHONS_OF_THE_OLDEST = ("3.10", "3.11")
"""The oldest NumPy has no wheel for a later Python."""

EXTRAS_OF_TESTS = "dev,report"
NAMED = ("torch==", "monai==", "numpy==", "pytorch-ignite==")
"""What a row's result says of its libraries."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for; return 1 where one failed, or none could be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path, help="folder with the wheel and the source archive")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="3.X")
    parser.add_argument("--libraries", nargs="+", default=[NEWEST, OLDEST], metavar="WHICH")
    parser.add_argument(
        "--torch", default="torch", help="requirement of the newest torch, such as a CPU build"
    )
    parser.add_argument("--out", type=Path, default=Path("build", "matrix"))
    parser.add_argument("--tests", action="store_true", help="run the quick tests, too")
    args = parser.parse_args(words)

    (wheel,) = args.dist.glob("monai_fairfl-*.whl")
    (archive,) = args.dist.glob("monai_fairfl-*.tar.gz")
    results = {}
    for version in args.pythons:
        python = shutil.which(f"python{version}")
        for libraries in args.libraries:
            name = f"Python {version}, {libraries} libraries"
            if python is None:
                results[name] = f"not run: python{version} is not on this machine"
                continue
            if libraries == OLDEST and version not in PYTHONS_OF_THE_OLDEST:
                results[name] = f"not run: the oldest NumPy has no wheel for Python {version}"
                continue
            folder = args.out / f"python{version}-{libraries}"
            row = Row(python, libraries, args.torch, folder)
            results[name] = row.run(wheel, archive if args.tests else None)
            print(f"{name}: {results[name]}", flush=True)

    print("\n" + "\n".join(f"{name}: {result}" for name, result in results.items()))
    ran = [result for result in results.values() if not result.startswith("not run")]
    failed = [result for result in ran if result.startswith("FAILED")]
    return int(bool(failed) or not ran)


class Row:
    """One Python with one choice of libraries.

    Args:
        python: the interpreter.
        libraries: ``newest``, or ``oldest``: the lower bounds of ``setup.py``.
        torch: requirement of the newest torch.
        folder: for the environment and what runs in it; an earlier one is replaced.
    """

    def __init__(self, python: str, libraries: str, torch: str, folder: Path):
        self.python = python
        self.libraries = libraries
        self.torch = torch
        self.folder = folder.resolve()
        self.bin = self.folder / "environment" / "bin"
        self.log = self.folder / "log.txt"

    def run(self, wheel: Path, archive: Path | None) -> str:
        """Install and use the wheel, and test the source archive where there is one.

        Returns:
            The versions and what ran, or ``FAILED`` with the command that did.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        start = time.monotonic()
        for command in self._commands(wheel, archive):
            # Pytest knows which folders hold tests only in the folder of the archive's files.
            folder = self.folder
            if archive is not None and "pytest" in command:
                folder = unpacked(archive, self.folder)
            with self.log.open("a") as log:
                log.write(f"$ {' '.join(command)}\n")
                log.flush()
                done = subprocess.run(command, cwd=folder, stdout=log, stderr=log)
            if done.returncode != 0:
                return f"FAILED with {done.returncode}: {' '.join(command)}; see {self.log}"
        minutes = (time.monotonic() - start) / 60
        used = "installed, tried"
        if archive is not None:
            used += ", quick tests passed"
        result = f"{used}; {self._versions()}; {minutes:.1f} minutes"
        # An environment takes up to six gigabytes; that of a row that failed stays, to look at it.
        shutil.rmtree(self.bin.parent)
        return result

    def _commands(self, wheel: Path, archive: Path | None) -> Iterator[list[str]]:
        pip = [str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        command = str(self.bin / "monai-fairfl")
        extras = EXTRAS_OF_TESTS if archive else "report"
        bounds = list(lower_bounds(wheel)) if self.libraries == OLDEST else []
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(bounds) + "\n")
        torch = [bound for bound in bounds if bound.startswith("torch==")] or [self.torch]

        yield [self.python, "-m", "venv", str(self.bin.parent)]
        # torch comes first, so that the build that was asked for stays.
        yield [*pip, "install", *torch, "--constraint", str(constraints)]
        yield [*pip, "install", f"{wheel.resolve()}[{extras}]", "--constraint", str(constraints)]
        yield [*pip, "check"]
        yield [command, "doctor"]
        yield [command, "demo", "--data-only", "--out", "hospitals"]
        yield [command, "try", "hospitals", "--out", "first"]
        if archive is not None:
            python = str(self.bin / "python")
            quick = [f"tests/{name}" for name in ("numbers", "edge", "data")]
            yield [python, "-m", "pytest", "-q", "-W", "ignore", *quick]

    def _versions(self) -> str:
        """The versions of the largest libraries."""
        command = [str(self.bin / "python"), "-m", "pip", "freeze"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return ", ".join(line for line in done.stdout.splitlines() if line.startswith(NAMED))


def lower_bounds(wheel: Path) -> Iterator[str]:
    """Yield the lower bound of each library that the wheel or its extra ``report`` needs."""
    with zipfile.ZipFile(wheel) as content:
        (metadata,) = [name for name in content.namelist() if name.endswith("dist-info/METADATA")]
        message = email.message_from_bytes(content.read(metadata))
    for text in message.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": "report"}):
            continue
        for specifier in requirement.specifier:
            if specifier.operator == ">=":
                yield f"{requirement.name}=={specifier.version}"


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack the source archive, and return its folder."""
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


if __name__ == "__main__":
    sys.exit(main())
