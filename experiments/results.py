# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the experiments, written into ``docs/results.md`` and ``docs/results``.

They are made from the committed JSON files alone::

    python experiments/results.py                                  # all of them: make results
    python experiments/results.py fedce_table1_prostate            # one, printed

    # what it needs is trained and measured first
    python experiments/results.py fedce_table1_prostate --run --data DATA
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import run
from reading import NotFinished, touched_by_guards
from study import HERE, ROOT, Study, studies, write_result

PAGES = [
    HERE / "README.md",
    ROOT / "docs" / "results.md",
    *sorted((ROOT / "docs" / "results").glob("*.md")),
    ROOT / "docs" / "guards.md",
    ROOT / "docs" / "controls.md",
    *sorted(ROOT.glob("bundles/*/docs/README.md")),
]


def papers() -> list[str]:
    """List the names of all experiments: the modules in ``papers``, and the blocks of the page."""
    return sorted(path.stem for path in (HERE / "papers").glob("*.py"))


def load(name: str) -> ModuleType:
    """Import the module of an experiment."""
    if name not in papers():
        raise SystemExit(f"no experiment {name!r}; there are {', '.join(papers())}")
    return importlib.import_module(f"papers.{name}")


def filled(page: Path) -> str:
    """Return the page's text with every block made again.

    A block that begins with ``<!-- begin NAME short -->`` has the experiment's short table.

    Raises:
        SystemExit: the end of a block is missing.
    """
    text = page.read_text()
    for name, short in re.findall(r"<!-- begin (\w+)( short)? -->", text):
        begin = f"<!-- begin {name}{short} -->"
        end = f"<!-- end {name}{short} -->"
        before, _, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if not ends:
            # All that follows on the page would be lost.
            sys.exit(f"{page}: {begin} has no {end}; write it behind the block")
        made = block(name, page.parent, short=bool(short))
        text = f"{before}{begin}\n\n{made}\n\n{end}{after}"
    return text


def block(name: str, folder: Path = ROOT / "docs", short: bool = False) -> str:
    """Make an experiment's part of a page: table, figure, command and run time.

    Args:
        name: of the experiment.
        folder: of the page, from which links to figures and pages lead.
        short: the experiment's ``short_table`` in place of its ``table``, and no figure.
    """
    if name == "plan":
        return run.plan(studies())
    module = load(name)
    command = f"`python experiments/results.py {name} --run --data DATA`"
    parts = []
    try:
        if short:
            parts.append(relinked(module.short_table(), folder))
        elif hasattr(module, "table"):
            parts.append(relinked(module.table(), folder))
        if hasattr(module, "figure") and not short:
            if not image(name).exists():
                raise NotFinished("its figure")
            parts.append(relinked(f"![{title(module)}](images/results/{name}.svg)", folder))
    except NotFinished as absent:
        return f"*Not finished. Missing: {absent}.* {command}"
    last_line = f"Made by {command} from {cost(module)}."
    if missing(module):
        last_line += f" *Not finished. Missing: {missing(module)}. Incomplete parts are left out.*"
    parts.append(last_line)
    return "\n\n".join(parts)


def relinked(text: str, folder: Path) -> str:
    """Make links, which lead from ``docs``, lead from a page's folder to the same place."""
    way = os.path.relpath(ROOT / "docs", folder)
    if way == ".":
        return text
    return re.sub(r"\]\((?!https?:|#)", f"]({way}/", text)


def title(module: ModuleType) -> str:
    """Return the first sentence of an experiment's docstring."""
    summary = (module.__doc__ or "").partition("\n\n")[0]
    return " ".join(summary.split())


def missing(module: ModuleType) -> str:
    """Describe the runs that do not exist yet; an empty text where all do."""
    absent = []
    for name in module.STUDIES:
        study = Study.read(name)
        if study.missing():
            number = len(list(study.cells()))
            absent.append(f"{len(study.missing())} of {number} runs of `{study.name}`")
    if hasattr(module, "result_files"):
        paths = module.result_files()
        number = sum(not path.exists() for path in paths)
        if number:
            absent.append(f"{number} of {len(paths)} of its own runs")
    return ", ".join(absent)


def cost(module: ModuleType) -> str:
    """Describe how long an experiment took, and the checksum of its JSON files.

    Studies are shared by experiments. Of trainings it also has the client-rounds that a guard
    touched, and the processors, where the files name them.
    """
    contents = [path.read_bytes() for path in files(module)]
    found = [json.loads(content) for content in contents]
    hours = sum(result["minutes"] for result in found) / 60
    digest = hashlib.sha256(b"".join(contents)).hexdigest()[:8]
    noun = "files"
    if len(contents) == 1:
        noun = "file"
    of_studies = ""
    if module.STUDIES:
        of_studies = " of " + ", ".join(f"`{name}`" for name in module.STUDIES)
    of_guards = ""
    touched = touched_by_guards(result for result in found if "study" in result)
    if touched.client_rounds:
        of_guards = f" Guards touched {touched.touched} of {touched.client_rounds:,} client-rounds."
    processors = Counter(result["processor"] for result in found if "processor" in result)
    on = ""
    if processors:
        counts = [f"{name} {count}" for name, count in sorted(processors.items())]
        unnamed = len(found) - sum(processors.values())
        if unnamed:
            counts.append(f"not recorded {unnamed}")
        on = f" Files by processor: {', '.join(counts)}."
    return (
        f"{len(contents)} {noun}{of_studies}: {hours:.1f} h of one thread.{on}{of_guards} "
        f"Checksum of the input: {digest}"
    )


def files(module: ModuleType) -> list[Path]:
    """List the committed files that an experiment reads."""
    paths = []
    for name in module.STUDIES:
        study = Study.read(name)
        paths += [study.path(cell) for cell in study.cells()]
    if hasattr(module, "result_files"):
        paths += module.result_files()
    paths.append(measured(module))
    for name in measured_by_others(module):
        paths.append(measured(load(name)))
    return [path for path in paths if path.exists()]


def measured_by_others(module: ModuleType) -> Sequence[str]:
    """List the experiments whose own measurements an experiment reads."""
    return getattr(module, "MEASUREMENTS", ())


def measured(module: ModuleType) -> Path:
    """Return the JSON of an experiment that measures something itself, beside trainings or not."""
    return HERE / "results" / f"{module.__name__.rpartition('.')[2]}.json"


def image(name: str) -> Path:
    """Return the file of an experiment's figure."""
    return ROOT / "docs" / "images" / "results" / f"{name}.svg"


def draw(name: str) -> None:
    """Write an experiment's figure, where it has one and what it needs exists."""
    from figures import save

    module = load(name)
    if hasattr(module, "figure"):
        try:
            save(module.figure(), image(name))
        except NotFinished:
            image(name).unlink(missing_ok=True)


def train(module: ModuleType, arguments: list[str], data: Path, runs: Path) -> None:
    """Run the studies of an experiment, then measure what it measures itself."""
    for name in measured_by_others(module):
        train(load(name), arguments, data, runs)
    if module.STUDIES:
        run.main([*module.STUDIES, *arguments])
    if hasattr(module, "measure_cells"):
        # One JSON a cell; what has its JSON is not measured again.
        module.measure_cells(data, runs)
    if hasattr(module, "measure") and not measured(module).exists():
        started = time.monotonic()
        found = module.measure(data, runs)
        minutes = round((time.monotonic() - started) / 60, 2)
        write_result(measured(module), {"minutes": minutes, **found})


def main() -> None:
    """Read the command line, and make what it asks for."""
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
        page.write_text(filled(page))


if __name__ == "__main__":
    main()
