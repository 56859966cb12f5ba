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
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PYTHONS_OF_THE_OLDEST = ("3.10", "3.11")
"""The oldest NumPy has no wheel for a later Python."""

NAMED = ("torch==", "monai==", "numpy==", "pytorch-ignite==")
"""What a row's result says of its libraries."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows that were asked for; return 1 where one failed, or none could be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", type=Path, help="folder with the wheel and the source archive")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="3.X")
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
        for libraries in ("newest", "oldest"):
            name = f"Python {version}, {libraries} libraries"
            if python is None:
                results[name] = f"not run: python{version} is not on this machine"
                continue
            if libraries == "oldest" and version not in PYTHONS_OF_THE_OLDEST:
                results[name] = f"not run: the oldest NumPy has no wheel for Python {version}"
                continue
            folder = (args.out / f"python{version}-{libraries}").resolve()
            bounds = list(lower_bounds(wheel)) if libraries == "oldest" else []
            results[name] = run_row(
                python, bounds, args.torch, folder, wheel, archive if args.tests else None
            )
            print(f"{name}: {results[name]}", flush=True)

    print("\n" + "\n".join(f"{name}: {result}" for name, result in results.items()))
    ran = [result for result in results.values() if not result.startswith("not run")]
    failed = [result for result in ran if result.startswith("FAILED")]
    return int(bool(failed) or not ran)


def run_row(
    python: str,
    bounds: Sequence[str],
    torch: str,
    folder: Path,
    wheel: Path,
    archive: Path | None,
) -> str:
    """Install and use the wheel, and test the source archive where there is one.

    Args:
        python: the interpreter.
        bounds: the versions of the oldest libraries; empty: the newest.
        torch: requirement of the newest torch.
        folder: for the environment and what runs in it; an earlier one is replaced.
        wheel: to be installed.
        archive: with the tests.

    Returns:
        The versions and what ran, or ``FAILED`` with the command that did.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(bounds) + "\n")
    environment, log, place = folder / "environment", folder / "log.txt", folder
    interpreter = str(environment / "bin" / "python")
    command = str(environment / "bin" / "monai-fairfl")
    pip = [interpreter, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = [*pip, "install", "--constraint", str(constraints)]
    extras = "dev,report" if archive else "report"
    commands = [
        [python, "-m", "venv", str(environment)],
        # torch comes first, so that the build that was asked for stays.
        [*install, *([bound for bound in bounds if bound.startswith("torch==")] or [torch])],
        [*install, f"{wheel.resolve()}[{extras}]"],
        [*pip, "check"],
        [command, "doctor"],
        [command, "demo", "--data-only", "--out", "hospitals"],
        [command, "try", "hospitals", "--out", "first"],
    ]
    used = "installed, tried"
    if archive is not None:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
        quick = [f"tests/{name}" for name in ("numbers", "edge", "data")]
        commands.append([interpreter, "-m", "pytest", "-q", "-W", "ignore", *quick])
        used += ", quick tests passed"
    for words in commands:
        # Pytest knows which folders hold tests only in the folder of the archive's files.
        if archive is not None and "pytest" in words:
            place = folder / archive.name.removesuffix(".tar.gz")
        with log.open("a") as file:
            file.write(f"$ {' '.join(words)}\n")
            file.flush()
            done = subprocess.run(words, cwd=place, stdout=file, stderr=file)
        if done.returncode != 0:
            return f"FAILED with {done.returncode}: {' '.join(words)}; see {log}"
    freeze = [interpreter, "-m", "pip", "freeze"]
    listed = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
    # An environment takes up to six gigabytes; that of a row that failed stays, to look at it.
    shutil.rmtree(environment)
    return f"{used}; {', '.join(line for line in listed.splitlines() if line.startswith(NAMED))}"


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


if __name__ == "__main__":
    sys.exit(main())
