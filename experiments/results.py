# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the experiments, made from the committed JSON files into
``docs/results.md``.

python experiments/results.py                                  # all of them: make results
python experiments/results.py fedce_table1                     # one, printed
python experiments/results.py fedce_table1 --run --data DATA   # what it needs is trained and measured first
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import re
import sys
import time
from pathlib import Path
from types import ModuleType

import run
from reading import NotFinished
from study import HERE, ROOT, Study, studies, write_result

PAGES = [
    HERE / "README.md",
    ROOT / "docs" / "results.md",
    *sorted(ROOT.glob("bundles/*/docs/README.md")),
]


def papers() -> list[str]:
    """The names of all experiments: the modules in ``papers``, and the blocks of the page."""
    return sorted(path.stem for path in (HERE / "papers").glob("*.py"))


def load(name: str) -> ModuleType:
    """The module of an experiment."""
    if name not in papers():
        raise SystemExit(f"no experiment {name!r}; there are {', '.join(papers())}")
    return importlib.import_module(f"papers.{name}")


def missing(module: ModuleType) -> str:
    """What is not there yet, in words; nothing where all is."""
    needed = [Study.read(name) for name in module.STUDIES]
    absent = [
        f"{len(s.missing())} of {len(list(s.cells()))} runs of `{s.name}`"
        for s in needed
        if s.missing()
    ]
    return ", ".join(absent)


def measured(module: ModuleType) -> Path:
    """The JSON of an experiment that measures something itself, beside or without trainings."""
    return HERE / "results" / f"{module.__name__.rpartition('.')[2]}.json"


def files(module: ModuleType) -> list[Path]:
    """The committed files that an experiment reads."""
    needed = [Study.read(name) for name in module.STUDIES]
    found = [study.path(cell) for study in needed for cell in study.cells()] + [measured(module)]
    return [path for path in found if path.exists()]


def cost(module: ModuleType) -> str:
    """How long it took, from the JSON files, and their checksum; studies are shared by experiments."""
    found = [path.read_bytes() for path in files(module)]
    hours = sum(json.loads(content)["minutes"] for content in found) / 60
    digest = hashlib.sha256(b"".join(found)).hexdigest()[:8]
    of = f" of {', '.join(f'`{name}`' for name in module.STUDIES)}" if module.STUDIES else ""
    return f"{len(found)} file{'s' * (len(found) > 1)}{of}, {hours:.1f} h of one thread, checksum {digest}"


def block(name: str) -> str:
    """An experiment's part of the page that is made: table, figure, command and run time."""
    if name == "plan":
        return run.plan(studies())
    module = load(name)
    command = f"`python experiments/results.py {name} --run --data DATA`"
    try:
        parts = [module.table()] if hasattr(module, "table") else []
        if hasattr(module, "figure"):
            if not image(name).exists():
                raise NotFinished("its figure")
            parts.append(f"![{title(module)}](images/results/{name}.svg)")
    except NotFinished as absent:
        return f"*Not finished: without {absent}.* {command}"
    left = (
        f" *Not finished: without {missing(module)}; what is not complete is left out.*"
        if missing(module)
        else ""
    )
    return "\n\n".join([*parts, f"{command}: {cost(module)}.{left}"])


def title(module: ModuleType) -> str:
    """The first sentence of its docstring."""
    return " ".join((module.__doc__ or "").partition("\n\n")[0].split())


def filled(page: str) -> str:
    """The page with every block made anew."""
    for name in re.findall(r"<!-- begin (\w+) -->", page):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{block(name)}\n\n{end}{rest.partition(end)[2]}"
    return page


def image(name: str) -> Path:
    """An experiment's figure."""
    return ROOT / "docs" / "images" / "results" / f"{name}.svg"


def draw(name: str) -> None:
    """Write an experiment's figure, where it has one and what it needs is there."""
    from figures import save

    module = load(name)
    if hasattr(module, "figure"):
        try:
            save(module.figure(), image(name))
        except NotFinished:
            image(name).unlink(missing_ok=True)


def train(module: ModuleType, arguments: list[str], data: Path, runs: Path) -> None:
    """Run the studies of an experiment, then what it measures itself."""
    if module.STUDIES:
        run.main([*module.STUDIES, *arguments])
    if hasattr(module, "measure") and not measured(module).exists():
        started = time.monotonic()
        found = module.measure(data, runs)
        minutes = round((time.monotonic() - started) / 60, 2)
        write_result(measured(module), {"minutes": minutes, **found})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(papers())}")
    parser.add_argument(
        "--run", action="store_true", help="train and measure what is missing first"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of real images, with prostate/ and fundus/"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        help="folder of the runs themselves; default: runs",
    )
    parser.add_argument("--jobs", default="2", help="runs at a time")
    arguments = parser.parse_args()
    if arguments.run:
        if not arguments.name:
            sys.exit("name the experiment to run")
        data = arguments.data or run.real_images()
        passed = ["--jobs", arguments.jobs, "--data", str(data), "--runs", str(arguments.runs)]
        train(load(arguments.name), passed, data, arguments.runs)
    if arguments.name:
        draw(arguments.name)
        print(block(arguments.name))
        return
    for name in papers():
        draw(name)
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
