# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which files of a run a site's withdrawal deletes, and how the rest stays readable."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monai_fairfl.errors import FederationError
from monai_fairfl.run_folder.case_digests import SUFFIX as DIGESTS
from monai_fairfl.run_folder.checkpoint import (
    REWARDS,
    SUFFIX,
    UNREADABLE,
    Checkpoint,
    Checkpoints,
    read_checkpoint,
)
from monai_fairfl.run_folder.ended import kept_results
from monai_fairfl.run_folder.ledger import read_ledger
from monai_fairfl.run_folder.recorded_updates import START, file_of
from monai_fairfl.run_folder.withdrawn import SITE_REPORTS
from monai_fairfl.utils.files import MANIFEST, write_atomically


def files_to_delete(root: Path, run: Path, site: str, all_updates: bool) -> list[Path]:
    """Every file to delete, sorted: those of the site alone, and those that give its update.

    Args:
        root: that the user named: of the run, or of the comparison that it is one of.
        run: folder of the run.
        site: that withdraws.
        all_updates: whether the recorded updates of all sites are deleted.
    """
    found = {*_regular_files(run / "sites" / site)}
    for folder in {root, run}:
        found.add(folder / "datalists" / f"{site}.json")
        # What a crash left of writing it; a later process writes under another name.
        found.update(folder.glob(f"datalists/{site}.json.*.part"))
        found.add(folder / "datalists" / f"{site}{DIGESTS}")
        found.add(folder / SITE_REPORTS / f"{site}.html")
        found.update(_valuations_of(folder / "valuations", site))
        if _csv_names(folder / "cases.csv", site):
            found.add(folder / "cases.csv")
    found.add(run / "models" / f"{site}.pt")
    found.add(run / "models" / f"{site}.recipe.json")
    for folder in kept_results(run):
        # They are models between the rounds of a run that went on.
        found.update(_regular_files(folder / "models"))

    if all_updates:
        found.update(_regular_files(run / "updates"))
    # Also of a round that has lost its manifest, and so can no longer be valued.
    for recorded in run.glob("updates/round-*"):
        found.add(recorded / file_of(site))
        found.add(recorded / START)

    newest = newest_checkpoint(run)
    checkpoints = Checkpoints(run / "checkpoints")
    for folder in (*checkpoints.newest_first(), *checkpoints.damaged()):
        if newest is None or folder != newest[0]:
            found.update(_regular_files(folder))
        else:
            found.add(folder / f"{REWARDS}{site}{SUFFIX}")
    # What a crash left of writing a round or a checkpoint.
    for beside in (*run.glob("updates/.writing-*"), *run.glob("checkpoints/.writing-*")):
        found.update(_regular_files(beside))
    return sorted(file for file in found if file.is_file())


def delete_files(root: Path, run: Path, site: str, paths: Iterable[str]) -> None:
    """Delete the files; what lists them is mended first, so that the rest can always be read.

    Args:
        root: as of :func:`files_to_delete`.
        run: folder of the run.
        site: that withdraws.
        paths: of the files, from ``root`` on.
    """
    paths = list(paths)
    for recorded in recorded_folders(run):
        if name_in(root, recorded / MANIFEST) not in paths:
            _mark_withdrawn(recorded, site)
    newest = newest_checkpoint(run)
    if newest is not None:
        Checkpoints(run / "checkpoints").save(_checkpoint_without(newest[1], site))

    for path in paths:
        (root / path).unlink(missing_ok=True)
    for path in paths:
        _remove_empty((root / path).parent, root)
    # Links and empty folders are left, at most.
    shutil.rmtree(run / "sites" / site, ignore_errors=True)


def recorded_folders(run: Path) -> list[Path]:
    """The folders of recorded rounds that can still be read, in order."""
    return sorted(file.parent for file in run.glob(f"updates/round-*/{MANIFEST}"))


def newest_checkpoint(run: Path) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that is whole, with its folder."""
    for folder in Checkpoints(run / "checkpoints").newest_first():
        try:
            return folder, read_checkpoint(folder)
        except UNREADABLE:
            continue
    return None


def _valuations_of(folder: Path, site: str) -> set[Path]:
    """The files of valuations that name the site, and of coalitions that it trained in."""
    found = set()
    for file in (*folder.glob("*.json"), *folder.glob("**/measured.jsonl")):
        if json.dumps(site) in file.read_text(encoding="utf-8"):
            found.add(file)
    for ledger in folder.glob("retrained-*/*/*/ledger.jsonl"):
        if site in sites_in(read_ledger(ledger)):
            found.update(_regular_files(ledger.parent))
    return found


def _csv_names(file: Path, site: str) -> bool:
    """Whether a table has a row of the site."""
    if not file.is_file():
        return False
    with open(file, newline="", encoding="utf-8-sig") as text:
        return any(row.get("site") == site for row in csv.DictReader(text))


def _regular_files(folder: Path) -> list[Path]:
    """The files below a folder; a link is not followed."""
    files = []
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            files.append(file)
    return files


def _mark_withdrawn(recorded: Path, site: str) -> None:
    """Take the site's update and the round's start out of the manifest of a recorded round.

    Raises:
        FederationError: when the manifest is damaged.
    """
    try:
        about = json.loads((recorded / MANIFEST).read_bytes())
        for name in (file_of(site), START):
            about["sha256"].pop(name, None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(
            f"{recorded / MANIFEST} is damaged ({error!r}): restore it from a copy, or withdraw "
            "with --all-updates, which deletes all recorded rounds"
        ) from error
    about["withdrawn"] = sorted({*about.get("withdrawn", ()), site})
    text = json.dumps(about, sort_keys=True, indent=1)
    write_atomically(recorded / MANIFEST, text.encode())


def _checkpoint_without(checkpoint: Checkpoint, site: str) -> Checkpoint:
    """A checkpoint without the site's reward, and without what guards remember of its rounds."""
    rewards = {name: model for name, model in checkpoint.rewards.items() if name != site}
    state = dict(checkpoint.state)
    state["guards"] = [_forgotten(of_guard, site) for of_guard in state.get("guards", ())]
    return replace(checkpoint, rewards=rewards, state=state)


def _forgotten(value: Any, site: str) -> Any:
    """Plain JSON whose mappings by client are empty where they have the site.

    The others' sketches go, too: those of the models that they were sent are of the model before
    the round.
    """
    if isinstance(value, Mapping):
        if site in value:
            return {}
        return {name: _forgotten(item, site) for name, item in value.items()}
    if isinstance(value, list):
        return [_forgotten(item, site) for item in value]
    return value


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and those above it that are empty, up to ``root``."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def sites_in(records: Sequence[Mapping[str, Any]]) -> set[str]:
    """The sites that took part in any round of a ledger."""
    sites: set[str] = set()
    for record in records:
        sites.update(record.get("clients", ()))
    return sites


def name_in(root: Path, file: Path) -> str:
    """The path of a file as a statement has it: it begins at ``root``."""
    return file.relative_to(root).as_posix()
