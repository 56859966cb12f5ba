# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A comparison over seeds and folds: runs the cells that are not done, then writes the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.cell_display import CellDisplay
from monai_fairfl.bundle.cells import Cell, ComparisonPlan, check_plan, is_done, run_cell
from monai_fairfl.bundle.comparison import logged_failure
from monai_fairfl.errors import (
    ConfigError,
    DiskFullError,
    FederationError,
    TransportAborted,
)
from monai_fairfl.report.repeated import write_comparison
from monai_fairfl.server.progress import shown_by
from monai_fairfl.utils.files import locked, write_atomically
from monai_fairfl.utils.plain_values import object_of_json

PLAN = "plan.json"


def run_comparison(plan: ComparisonPlan, out: Path, jobs: int = 1) -> dict[str, Any]:
    """Train every cell of a plan that is not done, and write what came out.

    A cell that fails does not stop the others. A full disk and Ctrl-C end the comparison; the same
    call goes on. Every cell has its folder in ``out/cells``.

    Args:
        plan: what is trained.
        out: folder of the comparison; what it holds of the same plan goes on.
        jobs: sites that work at a time; the numbers are the same.

    Returns:
        What ``comparison.json`` holds, see
        :func:`~monai_fairfl.report.repeated.write_comparison`.

    Raises:
        ConfigError: when ``out`` holds another comparison; it names what differs.
        FairFLError: what is wrong with the plan or the data; a signal stopped it; or no two
            strategies have cells that can be compared.
    """
    with locked(out):
        _require_same_plan(out / PLAN, plan.record())
        cells = plan.cells()
        done = [cell for cell in cells if is_done(cell, out)]
        lists: dict[Path, bytes] = {}
        if len(done) < len(cells):
            lists = check_plan(plan, out)
        # The plan goes first: a folder without one holds nothing of a comparison.
        text = json.dumps(plan.record(), indent=4) + "\n"
        write_atomically(out / PLAN, text.encode())
        for file, content in lists.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)
        failed = _run_cells(plan, cells, done, out, jobs)
        finished = [cell for cell in cells if is_done(cell, out)]
        return write_comparison(
            out,
            plan.record(),
            [cell.folder(out) for cell in finished],
            {cell.title: reason for cell, reason in failed.items()},
        )


def _run_cells(
    plan: ComparisonPlan, cells: list[Cell], done: list[Cell], out: Path, jobs: int
) -> dict[Cell, str]:
    """Run the cells that are not done, one after the other; return why which ones failed."""
    failed: dict[Cell, str] = {}
    with CellDisplay(cells, done, plan.training()["rounds"], out) as display:
        for cell in cells:
            try:
                with shown_by(partial(display.round_done, cell)):
                    finished = run_cell(plan, cell, out, jobs)
            except (OSError, DiskFullError, TransportAborted):
                # These concern all cells.
                raise
            except Exception as error:
                failed[cell] = logged_failure(cell.title, error)
                display.cell_ended(cell, failed[cell])
                continue
            if not finished:
                raise FederationError(
                    f"stopped in {cell.title}: the same command goes on after its last whole round"
                )
            if cell not in done:
                display.cell_ended(cell)
    return failed


def _require_same_plan(file: Path, asked: Mapping[str, Any]) -> None:
    """Refuse to mix two comparisons in one folder.

    Raises:
        ConfigError: naming each setting that differs, with both values; or when the folder holds
            something else.
    """
    if not file.exists():
        others = [path.name for path in file.parent.iterdir() if path.name != ".lock"]
        if others:
            raise ConfigError(
                f"{file.parent} holds no comparison but {', '.join(sorted(others)[:3])}: give the "
                "comparison a folder of its own with --out"
            )
        return
    try:
        recorded = object_of_json(file.read_bytes())
    except ValueError as error:
        raise ConfigError(
            f"{file} is damaged ({error}): restore it, or give the comparison another folder"
        ) from error
    # As JSON has it: tuples are lists.
    plain = json.loads(json.dumps(asked))
    differences = []
    for name in plain:
        if plain[name] != recorded.get(name):
            differences.append(f"{name} was {recorded.get(name)}, asked for is {plain[name]}")
    if differences:
        raise ConfigError(
            f"{file.parent} holds another comparison: {'; '.join(differences)}. Give the same "
            "command as before to go on with it, or another folder with --out"
        )
