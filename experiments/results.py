# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Every table and figure of the results, from the committed tables of the studies.

::

    python experiments/results.py                        # names of all
    python experiments/results.py fedce_table2           # one table, printed
    python experiments/results.py fedce_figure3          # one figure, written as fedce_figure3.svg

    # what an experiment measures beside the studies is measured and written first
    python experiments/results.py controls_cgsv --measure --data DATA

The site has them all: a page names one by a line ``<!-- result NAME -->``, and
``docs/site/results_pages.py`` puts it there when ``make site`` runs.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import reading
from reading import NotFinished, markdown, touched_by_guards
from study import HERE, RESULTS, Study, studies, write_result


@cache
def makers() -> dict[str, dict[str, Callable[..., Any]]]:
    """Collect what the modules in ``papers`` make.

    Returns:
        Name -> its ``table``, ``figure`` and ``measure``, where it has them. A module names them
        in ``TABLES``, ``FIGURES`` and ``MEASURES``; what it calls ``table`` itself has the
        module's own name.
    """
    found: dict[str, dict[str, Callable[..., Any]]] = {"plan": {"table": plan}}
    for path in sorted((HERE / "papers").glob("*.py")):
        module = import_module(f"papers.{path.stem}")
        for kind in ("table", "figure", "measure"):
            named = dict(getattr(module, f"{kind.upper()}S", {}))
            if hasattr(module, kind):
                named[path.stem] = getattr(module, kind)
            for name, make in named.items():
                found.setdefault(name, {})[kind] = make
    return found


def plan() -> str:
    """Write a row for every study: its cells, minutes, processors and guards."""
    rows = []
    hours = 0.0
    touched_in_all = np.zeros(2, int)
    for name in studies():
        study = Study.read(name)
        found = list(study.results().values())
        minutes = sum(result["minutes"] for result in found)
        hours += minutes / 60
        processors = Counter(result.get("processor", "not recorded") for result in found)
        touched, client_rounds = touched_by_guards(found)
        touched_in_all += np.array([touched, client_rounds])
        done = f"{len(found)} of {len(list(study.cells()))}"
        on = ", ".join(f"{processor} {number}" for processor, number in sorted(processors.items()))
        row = [name, study.what, done, f"{study.minutes:g}", f"{minutes / 60:.1f}", on]
        rows.append([*row, f"{touched} of {client_rounds:,}"])
    touched_of_all = f"{touched_in_all[0]} of {touched_in_all[1]:,}"
    rows.append(["all", "", "", "", f"{hours:.1f}", "", touched_of_all])
    head = ["study", "what", "cells done", "minutes of a cell, estimated", "hours, measured"]
    return markdown([*head, "cells by processor", "client-rounds that guards touched"], rows)


@cache
def block(name: str) -> str:
    """Make a table, with a line that names what it was made from.

    Raises:
        KeyError: there is no such table.
    """
    reading.used.clear()
    try:
        text = str(makers()[name]["table"]())
    except NotFinished as absent:
        return f"*Not finished. Missing: {absent}.*"
    if not reading.used:
        return text
    names = ", ".join(f"`{each}`" for each in reading.used)
    return (
        f"{text}\n\nFrom {names} in `experiments/results`: `python experiments/results.py {name}`."
    )


def title(name: str) -> str:
    """Return the first sentence about a figure."""
    text = makers()[name]["figure"].__doc__ or name
    return " ".join(text.partition("\n\n")[0].split())


def picture(name: str) -> bytes:
    """Draw a figure as SVG."""
    from figures import svg

    return svg(makers()[name]["figure"]())


def measure(name: str, data: Path, runs: Path) -> None:
    """Measure what an experiment measures itself, and write its JSON."""
    # Of the processor: other work on the machine does not count.
    started = time.process_time()
    found = makers()[name]["measure"](data, runs)
    if not isinstance(found, Mapping):
        found = {"runs": list(found)}
    minutes = round((time.process_time() - started) / 60, 2)
    write_result(RESULTS / f"{name}.json", {"minutes": minutes, **found})


def main() -> None:
    """Read the command line, and make what it asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=sorted(makers()), help="none: list the names")
    parser.add_argument("--measure", action="store_true", help="measure it again first")
    parser.add_argument("--data", type=Path, default=Path("realdata"), help="real images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: runs")
    arguments = parser.parse_args()
    name = arguments.name
    if name is None:
        print("\n".join(makers()))
        return
    if arguments.measure:
        measure(name, arguments.data, arguments.runs)
    if "table" in makers()[name]:
        print(block(name))
    if "figure" in makers()[name]:
        file = Path(f"{name}.svg")
        file.write_bytes(picture(name))
        print(f"{file}: {title(name)}")


if __name__ == "__main__":
    main()
