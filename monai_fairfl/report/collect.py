# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Finds run directories and reads them: each ledger's chain is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.run import Run, Split
from monai_fairfl.report.valuations import read_valuations
from monai_fairfl.run.checkpoint import Schedule
from monai_fairfl.run.ledger import no_record_in, read_ledger_and_heads, runs_in
from monai_fairfl.run.resuming import read_digests
from monai_fairfl.utils.files import distinct_names
from monai_fairfl.utils.plain_values import object_of_json

NEEDED: dict[str, dict[str, type]] = {
    "start": {"strategy": str, "clients": list},
    "round": {
        "round": int,
        "clients": list,
        "aggregation": dict,
        "contributions": dict,
        "measurements": dict,
        "of_round": dict,
        "verdicts": dict,
        "notes": dict,
        "details": dict,
        "facts": dict,
        "samples": dict,
        "cases": dict,
    },
    "end": {"scores": dict},
}
"""Kind of a record -> what a report reads of every one, and of which type it is."""

FORMS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}

MOST_FOLDERS = 6
"""So many folders deep an engine's workspace is searched for runs."""

COMPARISON_PAGE = "comparison.html"
"""Name of the page that a comparison over seeds or folds writes."""

PARTS = ("training", "validation", "testing")
"""Parts of a site's data list."""


def load_runs(
    folders: Sequence[str | Path], names: Mapping[str | Path, str] | None = None
) -> list[Run]:
    """All runs of ``folders``: Standalone, the yardstick, first, the others as given.

    Runs of the same name get their seed, their fold or their folder in parentheses, whatever
    differs first: ``FedAvg (seed 1)``.

    Args:
        folders: of the runs.
        names: folder of a run -> how it is called here, for those that shall have another name.
    """
    chosen = {Path(folder).resolve(): name for folder, name in (names or {}).items()}
    runs = [read_run(path) for path in find_runs(folders)]
    usual = _names_with_marks(runs)
    wanted = [chosen.get(run.path.resolve(), name) for run, name in zip(runs, usual)]
    named = [replace(run, name=name) for run, name in zip(runs, _unique(wanted))]
    return sorted(named, key=lambda run: not run.is_standalone)


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """The run directories among ``folders``, each once, wherever an engine put them.

    A folder is a run, or holds runs, such as a comparison; or it is the workspace of NVIDIA FLARE's
    simulator, of a server or of a downloaded job, which holds a run further down.

    Raises:
        ConfigError: naming a folder that does not exist, or holds no run; or several that do not
            belong together, which are listed; or a single folder in place of a list.
    """
    if isinstance(folders, (str, Path)):
        raise ConfigError(f"several folders are expected: give a list, [{str(folders)!r}]")
    found: list[Path] = []
    seen: set[Path] = set()
    for folder in map(Path, folders):
        for run in _runs_in(folder):
            if run.resolve() not in seen:
                seen.add(run.resolve())
                found.append(run)
    if not found:
        raise ConfigError(
            "no run directory was given; name at least one folder with a ledger.jsonl"
        )
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The run directory ``folder``, or those directly in it."""
    if not folder.exists():
        raise ConfigError(
            f"{folder} does not exist (looked for {folder.absolute()}): " "give the folder of a run"
        )
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is a file: give the folder of the run that it is of; a ledger alone must be "
            "in a folder, under the name ledger.jsonl"
        )
    runs = runs_in(folder)
    if runs:
        return runs
    runs = _runs_below(folder)
    if not runs:
        raise ConfigError(
            f"{folder} holds no run: neither it nor a folder in it has a ledger.jsonl"
        )
    if len({run.parent for run in runs}) > 1 or not _is_comparison(runs[0].parent, runs):
        raise ConfigError(_several_runs(folder, runs))
    return runs


def _several_runs(folder: Path, runs: Sequence[Path]) -> str:
    """Say that a folder holds several runs; of a comparison over seeds, also where its page is."""
    listed = ", ".join(str(run) for run in runs)
    text = f"{folder} holds several runs: name the one that you mean, {listed}"
    page = folder / COMPARISON_PAGE
    if page.is_file():
        text += f". The page that compares them is {page}"
    return text


def find_run(folder: str | Path) -> Path:
    """The only run directory of a folder, see :func:`find_runs`.

    Raises:
        ConfigError: when there is none, or several, which are listed.
    """
    runs = find_runs([folder])
    if len(runs) > 1:
        raise ConfigError(_several_runs(Path(folder), runs))
    return runs[0]


def _runs_below(folder: Path) -> list[Path]:
    """The runs further down in a folder, without the runs of runs and without copies.

    NVIDIA FLARE's server copies the results into its job, so that they can be downloaded.
    """
    runs: list[Path] = []
    known: set[bytes] = set()
    for depth in range(2, MOST_FOLDERS + 1):
        for file in sorted(folder.glob("/".join(["*"] * depth) + "/ledger.jsonl")):
            run = file.parent
            # A coalition that was trained for a valuation lies in its run.
            inside = any(run.is_relative_to(found) for found in runs)
            ledger = file.read_bytes()
            if not inside and ledger not in known:
                known.add(ledger)
                runs.append(run)
    return runs


def _is_comparison(folder: Path, runs: Sequence[Path]) -> bool:
    """Whether runs belong together: a single one, or the strategies of a comparison."""
    if len(runs) == 1:
        return True
    config = _read_object(folder / "settings.json") or {}
    strategies = config.get("strategies")
    return isinstance(strategies, list) and all(run.name in strategies for run in runs)


def read_run(path: str | Path) -> Run:
    """One run directory, its ledger's chain verified.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: when its records are not those of a run, see :func:`read_records`, or a
            valuation is damaged.
    """
    path = Path(path)
    records, head = read_records_and_head(path)
    start = records[0]
    rounds = [record for record in records if record["kind"] == "round"]
    ends = [record for record in records if record["kind"] == "end"]
    config_folder, config = _read_config(path, str(start.get("name")))
    return Run(
        path=path,
        name=str(start.get("name", start["strategy"])),
        strategy=str(start["strategy"]),
        head=head,
        start=start,
        rounds=rounds,
        end=ends[0] if ends else None,
        config=config,
        valuations=read_valuations(path),
        split=_read_splits(config_folder / "datalists"),
        digests=read_digests(config_folder / "datalists"),
        schedule=Schedule.read(path),
    )


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """A run's records: the chain holds, the opening is first, and each has what a report needs.

    Raises:
        FederationError: when the ledger's chain is broken.
        ConfigError: naming the ledger, the line and what is wrong in it.
    """
    records, _ = read_records_and_head(run_dir)
    return records


def read_records_and_head(run_dir: Path) -> tuple[list[dict[str, Any]], str]:
    """What :func:`read_records` returns, and the SHA-256 of the ledger's last line.

    Raises:
        FederationError: as :func:`read_records`.
        ConfigError: as :func:`read_records`.
    """
    file = run_dir / "ledger.jsonl"
    records, heads = read_ledger_and_heads(file)
    if not records:
        raise ConfigError(no_record_in(file))
    if records[0].get("kind") != "start":
        raise ConfigError(
            f"{file} does not begin with a run's opening record; restore it from a copy"
        )
    for number, record in enumerate(records, 1):
        _check_record(record, f"{file}, line {number}")
    return records, heads[-1]


def _check_record(record: Mapping[str, Any], place: str) -> None:
    """Raise an error that names ``place`` where a record lacks what a report reads."""
    kind = str(record.get("kind"))
    if kind not in NEEDED:
        raise ConfigError(
            f"{place}: 'kind' must be one of {list(NEEDED)}, got {record.get('kind')!r}"
        )
    for key, form in NEEDED[kind].items():
        if isinstance(record.get(key), form):
            continue
        found = f"{record[key]!r:.40}" if key in record else "nothing"
        raise ConfigError(
            f"{place}: a record of kind {kind!r} needs {key!r}, {FORMS[form]}, got {found}; "
            f"restore the file from a copy"
        )


def _read_config(path: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The ``settings.json`` of the run ``name``, and the folder that it lies in; else an empty one.

    A comparison of several strategies has one ``settings.json`` beside their folders.
    """
    own = _read_object(path / "settings.json")
    if own is not None:
        return path, own

    parent = path.resolve().parent
    shared = _read_object(parent / "settings.json")
    if shared is not None:
        strategies = shared.get("strategies")
        if isinstance(strategies, list) and name in strategies:
            return parent, shared
    return path, {}


def _read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in ``file``; ``None`` where it is missing, damaged or something else."""
    try:
        return object_of_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _read_splits(folder: Path) -> dict[str, Split]:
    """site -> its data list, as a run in one process leaves it; a damaged list is not read."""
    splits: dict[str, Split] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            splits[file.stem] = _read_split(file)
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return splits


def _read_split(file: Path) -> Split:
    """Part -> images of one data list, sorted."""
    lists = object_of_json(file.read_bytes())
    split = {}
    for part in PARTS:
        split[part] = sorted(_files_of_image(case["image"]) for case in lists[part])
    return split


def _files_of_image(image: Any) -> str:
    """The file of an image; of several files, one per channel, a line for each."""
    return "\n".join(image) if isinstance(image, list) else str(image)


def _names_with_marks(runs: Sequence[Run]) -> list[str]:
    """The runs' names; equal ones are marked by what differs: the seed, the fold, the folder."""
    seeds = [f"seed {run.seed}" for run in runs]
    folds = [f"fold {run.fold}" for run in runs]
    folders = distinct_names([str(run.path.resolve()) for run in runs])

    marked: list[tuple[str, ...]] = [(run.name,) for run in runs]
    for marks in (seeds, folds, folders):
        marked = _mark_equal_names(marked, marks)

    names = []
    for name, *marks in marked:
        names.append(f"{name} ({', '.join(marks)})" if marks else name)
    return names


def _mark_equal_names(
    names: Sequence[tuple[str, ...]], marks: Sequence[str]
) -> list[tuple[str, ...]]:
    """Each name with its mark added, where runs of that name have several marks."""
    marks_of: dict[tuple[str, ...], set[str]] = {}
    for name, mark in zip(names, marks):
        marks_of.setdefault(name, set()).add(mark)

    marked = []
    for name, mark in zip(names, marks):
        marked.append((*name, mark) if len(marks_of[name]) > 1 else name)
    return marked


def _unique(names: Sequence[str]) -> list[str]:
    """The names, with a number after one that is used already.

    A user may name a strategy as another run is called here.
    """
    unique: list[str] = []
    for name in names:
        free = name
        number = 2
        while free in unique:
            free = f"{name} #{number}"
            number += 1
        unique.append(free)
    return unique
