# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site withdraws from a finished run: its files are deleted, and a statement says so.

Deleting its updates is not enough. A round's global step is the weighted sum of all updates. So the
models before and after the round, and what the others sent, give the missing update back. The
models between the rounds are deleted, too: the starts of the recorded rounds, and all checkpoints
but the last. The initial, the best and the last model stay. Of the updates between two of these
only the weighted sum can be computed; of a single round between them that is the update itself.
With ``all_updates`` nothing is left to compute it of.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from monai_fairfl import __version__
from monai_fairfl.audit.counterfactual import MEANING, what_if
from monai_fairfl.audit.statement import Statement, read_statement
from monai_fairfl.errors import ConfigError, FairFLError, FederationError, did_you_mean
from monai_fairfl.protocol.averages import weights_of_model
from monai_fairfl.run_folder.case_digests import SUFFIX as DIGESTS
from monai_fairfl.run_folder.checkpoint import (
    REWARDS,
    SUFFIX,
    UNREADABLE,
    Checkpoint,
    Checkpoints,
    read_checkpoint,
)
from monai_fairfl.run_folder.commands import command_without
from monai_fairfl.run_folder.ended import kept_results
from monai_fairfl.run_folder.ledger import head_of, no_record_in, number_in, read_ledger, runs_in
from monai_fairfl.run_folder.reading_records import counts_with_others, firsts_of_groups
from monai_fairfl.run_folder.recorded_updates import START, file_of
from monai_fairfl.run_folder.resuming import compared, recorded_config
from monai_fairfl.run_folder.withdrawn import SITE_REPORTS, withdrawn_sites
from monai_fairfl.utils.files import MANIFEST, locked, safe_name, write_atomically

PLAN = "plan.json"
CELLS = "cells"
"""What the folder of a comparison over seeds or folds holds."""


def plan_withdrawal(
    folder: str | Path,
    site: str,
    all_updates: bool = False,
    allow_import: bool = False,
    others: bool = False,
) -> list[Statement]:
    """What :func:`withdraw` would do; nothing is changed.

    Args:
        folder: of a finished run, or of a comparison of several.
        site: that withdraws.
        all_updates: whether the recorded updates of all sites are deleted.
        allow_import: whether a strategy outside this package may be imported, for the what-if.
        others: whether the statement has the other sites' names and numbers beside those without
            the site; by default a hospital gets its own numbers only.

    Returns:
        The statement of each run, as it would be. Paths in it begin at ``folder``. One of a site
        that withdrew already is as it was written.

    Raises:
        ConfigError: when the site took no part, or ``folder`` is no run or one of a comparison.
        FederationError: when a run has not ended, or its ledger's chain is broken.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "run": "cgsv", "clients": ["elm", "oak"]})
    ...     ledger.append({"kind": "end"})
    ...     Path(folder, "models").mkdir()
    ...     reward = Path(folder, "models/oak.pt")
    ...     reward.touch()
    ...     (planned,) = plan_withdrawal(folder, "oak")
    ...     [entry["path"] for entry in planned.deleted], reward.exists()
    (['models/oak.pt'], True)
    """
    root = Path(folder)
    statements = []
    for run in _runs_of(root, site):
        previous = read_statement(run, site)
        if previous is not None and previous.ended:
            statements.append(previous)
            continue
        planned = _planned(root, run, site, all_updates)
        if others:
            planned = replace(planned, what_if=_effect(run, site, allow_import))
        if previous is not None:
            planned = _continued(previous, planned)
        statements.append(planned)
    return statements


def withdraw(
    folder: str | Path,
    site: str,
    all_updates: bool = False,
    allow_import: bool = False,
    others: bool = False,
) -> list[Statement]:
    """Delete what the folder of a finished run holds of one site alone, and write the statements.

    The ledger, its chain and its receipts stay as they are. A second call changes nothing; after an
    interruption it finishes what was begun.

    Args:
        folder: as of :func:`plan_withdrawal`; so are the other arguments and errors.
        site: that withdraws.
        all_updates: whether the recorded updates of all sites are deleted.
        allow_import: whether a strategy outside this package may be imported, for the what-if.
        others: whether the statement has the other sites' numbers.

    Returns:
        The statement of each run, which ``withdrawn/SITE.json`` and ``SITE.md`` of the run hold.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from monai_fairfl.run_folder.ledger import Ledger
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger(folder + "/ledger.jsonl")
    ...     ledger.append({"kind": "start", "run": "cgsv", "clients": ["elm", "oak"]})
    ...     ledger.append({"kind": "end"})
    ...     Path(folder, "models").mkdir()
    ...     for site in ("elm", "oak"):
    ...         Path(folder, "models", site + ".pt").touch()
    ...     (statement,) = withdraw(folder, "oak")
    ...     [file.name for file in Path(folder, "models").iterdir()], statement.ledger["records"]
    (['elm.pt'], 2)
    """
    root = Path(folder)
    with ExitStack() as locks:
        for run in _runs_of(root, site):
            locks.enter_context(locked(run))
        runs = _runs_of(root, site)
        statements = plan_withdrawal(root, site, all_updates, allow_import, others)

        # All statements are there before anything is deleted, so that no interruption leaves a
        # site's files incomplete without a word.
        for run, statement in zip(runs, statements, strict=True):
            if not statement.ended:
                statement.write(run)
        done = []
        for run, statement in zip(runs, statements, strict=True):
            if not statement.ended:
                _delete(root, run, site, [entry["path"] for entry in statement.deleted])
                statement = replace(statement, ended=_now())
                statement.write(run)
            done.append(statement)
    return done


# ---- what may be done


def _runs_of(root: Path, site: str) -> list[Path]:
    """The finished runs in ``root`` in which the site took part."""
    safe_name(site, "site")
    _refuse_trainings_of_comparisons(root, site)
    runs = _all_runs(root)
    parent = root.resolve().parent
    if (root / "ledger.jsonl").exists() and root.resolve().name in compared(parent):
        raise ConfigError(
            f"{root} is one run of a comparison, whose runs share data lists and valuations: name "
            f"the folder of the comparison, {parent}"
        )
    known: set[str] = set()
    found = []
    not_begun = []
    for run in runs:
        records = read_ledger(run / "ledger.jsonl")
        if not records:
            not_begun.append(run)
        sites = _sites_in(records)
        known |= sites
        if site not in sites:
            continue
        if records[-1]["kind"] != "end":
            raise FederationError(
                f"{run} has not ended, and a checkpoint without {site} would not be the run's: "
                f"finish it without {site} first (--resume True and --site_names with the others; "
                "over NVIDIA FLARE stop the site's client and submit the same job again), then "
                "withdraw"
            )
        found.append(run)
    if not known:
        # Every run's opening record names its sites.
        raise ConfigError(no_record_in(runs[0] / "ledger.jsonl"))
    if not_begun:
        raise FederationError(
            f"{not_begun[0] / 'ledger.jsonl'} has no record: nobody can tell whether {site} is in "
            "this run. Finish it (--resume True), or delete its folder, then withdraw"
        )
    if not found:
        raise ConfigError(f"{site!r} took part in no round of {root}{did_you_mean(site, known)}")
    return found


def _refuse_trainings_of_comparisons(root: Path, site: str) -> None:
    """Refuse a comparison over seeds or folds, and one training of it.

    Its tables hold scores of the site's cases, and its data lists are all trainings'.
    """
    folder = root.resolve()
    for place in (folder, *folder.parents):
        inside = place == folder or place / CELLS in folder.parents
        if inside and (place / PLAN).is_file() and (place / CELLS).is_dir():
            raise ConfigError(
                f"{place} is a comparison over seeds or folds, whose tables hold scores of "
                f"{site}'s cases: nothing of it can be deleted by itself. Delete the folder, or "
                f"compare again without {site} in another one"
            )


def _all_runs(root: Path) -> list[Path]:
    if not root.exists():
        raise ConfigError(f"{root} does not exist: give the folder of a run")
    runs = runs_in(root)
    if not runs:
        raise ConfigError(f"{root} holds no run: neither it nor a folder in it has a ledger.jsonl")
    return runs


def _sites_in(records: Sequence[Mapping[str, Any]]) -> set[str]:
    sites: set[str] = set()
    for record in records:
        sites.update(record.get("clients", ()))
    return sites


# ---- the plan


def _planned(root: Path, run: Path, site: str, all_updates: bool) -> Statement:
    """The statement of one run before anything of it is deleted."""
    records = read_ledger(run / "ledger.jsonl")
    deleted = []
    for file in _files_of(root, run, site, all_updates):
        data = file.read_bytes()
        deleted.append(
            {
                "path": _name_in(root, file),
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
            }
        )
    rounds = _rounds_with(records, site)
    others_are_recorded = not all_updates and any((run / "updates").glob("round-*/clients/*"))
    computable = []
    if others_are_recorded:
        computable = _computable_rounds(run, records, rounds, site)
    return Statement(
        site=site,
        run=run.resolve().name,
        name=records[0]["run"],
        package=__version__,
        begun=_now(),
        ended="",
        ledger={"head": head_of(run / "ledger.jsonl"), "records": len(records)},
        rounds=rounds,
        deleted=deleted,
        rewritten=_rewritten(root, run, site, all_updates),
        remains=[
            *_remains(root, run, others_are_recorded, computable),
            *(_averaged_with_others(records, site) if others_are_recorded else ()),
        ],
        computable_rounds=computable,
        what_if={},
        retrain=_retrain(root, run, site),
    )


def _continued(previous: Statement, planned: Statement) -> Statement:
    """The statement of a withdrawal that was interrupted, and what is left of it to do."""
    entries = {entry["path"]: entry for entry in planned.deleted}
    entries.update({entry["path"]: entry for entry in previous.deleted})
    deleted = [entries[path] for path in sorted(entries)]
    return replace(planned, begun=previous.begun, deleted=deleted, rewritten=previous.rewritten)


def _files_of(root: Path, run: Path, site: str, all_updates: bool) -> list[Path]:
    """Every file to delete, sorted: those of the site alone, and those that give its update."""
    found = {*_regular_files(run / "sites" / site)}
    for folder in {root, run}:
        found.add(folder / "datalists" / f"{site}.json")
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
    for recorded in _recorded_folders(run):
        found.add(recorded / file_of(site))
        found.add(recorded / START)

    newest = _newest_checkpoint(run)
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


def _recorded_folders(run: Path) -> list[Path]:
    """The folders of recorded rounds that can still be read, in order."""
    return sorted(file.parent for file in run.glob(f"updates/round-*/{MANIFEST}"))


def _newest_checkpoint(run: Path) -> tuple[Path, Checkpoint] | None:
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
        if site in _sites_in(read_ledger(ledger)):
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


def _rewritten(root: Path, run: Path, site: str, all_updates: bool) -> list[dict[str, str]]:
    entries = []
    if not all_updates:
        for folder in _recorded_folders(run):
            why = "it lists the files that are left, and who withdrew"
            entries.append({"path": _name_in(root, folder / MANIFEST), "why": why})
    newest = _newest_checkpoint(run)
    if newest is not None:
        for name in (MANIFEST, "strategy.json"):
            why = "the site's reward, and the guards' sketches of that round, are taken out"
            entries.append({"path": _name_in(root, newest[0] / name), "why": why})
        for client in sorted(set(newest[1].rewards) - {site}):
            path = newest[0] / f"{REWARDS}{client}{SUFFIX}"
            why = "it holds the same model, perhaps as what differs from another site's"
            entries.append({"path": _name_in(root, path), "why": why})
    return entries


def _remains(
    root: Path, run: Path, others_are_recorded: bool, computable: Sequence[int]
) -> list[dict[str, str]]:
    """What still depends on the site, and why it stays."""
    entries = [
        {
            "what": "numbers in ledger.jsonl, and in reports made of it",
            "why": "the site's name, counts of images and cases, measurements, weights, "
            "contributions, verdicts, the digests of its updates, and their inner products with "
            "the others'. A ledger is append-only: without them no receipt of any site would fit",
        },
        {
            "what": "the global models, the other sites' rewards, and the last checkpoint",
            "why": "the site's data helped train them, and nobody can take that out; only a "
            "training without the site gives models without it",
        },
    ]
    if others_are_recorded:
        why = "they belong to the others. With the initial, the best and the last model they give "
        why += "weighted sums of the site's updates over several rounds"
        if computable:
            numbers = ", ".join(map(str, computable))
            why += f"; of round {numbers} they give the update itself"
        why += ". --all-updates deletes them"
        entries.append({"what": "the recorded updates of the other sites", "why": why})
    if (root / "config.json").exists() or (run / "models").exists():
        entries.append(
            {
                "what": "the site's name and settings in config.json and in the models' recipes",
                "why": "they say how the models were trained; no image or update is in them",
            }
        )
    entries.append(
        {
            "what": "copies elsewhere",
            "why": "backups, downloads of a job's results, and the models that other sites "
            "received and stored (in one process below sites/) are out of reach of this command; "
            "over NVIDIA FLARE give it for the server's own copy too, in fairfl/ of its kit",
        }
    )
    return entries


def _rounds_with(records: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, Any]]:
    """The rounds in which the site's update came in, with weight and contribution."""
    rounds = []
    for record in records:
        if record["kind"] != "round":
            continue
        # Of sites that count as one, the first alone has images in the record.
        if site in record.get("samples", {}) or counts_with_others(record, site):
            rounds.append(
                {
                    "round": record["round"],
                    "weight": weights_of_model(record["aggregation"]).get(site),
                    "contribution": number_in(record["contributions"].get(site)),
                }
            )
    return rounds


def _averaged_with_others(records: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, str]]:
    """What holds the site's update averaged with nearly the same ones, if anything does.

    The other site is not named: the statement is for one hospital.
    """
    rounds = []
    for record in records:
        if record["kind"] != "round":
            continue
        if any(first != site for first in firsts_of_groups(record, site)):
            rounds.append(record["round"])
    if not rounds:
        return []
    numbers = ", ".join(map(str, rounds))
    return [
        {
            "what": f"another site's recorded update of round {numbers}",
            "why": "a guard counted both sites as one, since their updates were nearly the same, "
            "and this is the mean of both. --all-updates deletes it",
        }
    ]


def _computable_rounds(
    run: Path,
    records: Sequence[Mapping[str, Any]],
    rounds: Sequence[Mapping[str, Any]],
    site: str,
) -> list[int]:
    """The rounds whose update follows from the models that stay and from the others' updates.

    Between two models lies the weighted sum of the updates of the rounds between them. Where the
    site took part in a single one of these, that is its update.
    """
    of_number = {record["round"]: record for record in records if record["kind"] == "round"}

    # Numbers of rounds after which a model is there.
    known = {0, len(of_number)}
    best = records[-1].get("best") or {}
    if "round" in best and (run / "models" / "best.pt").exists():
        known.add(int(best["round"]) + 1)

    counted = []
    for entry in rounds:
        # In the place of one that counts with others, there is their mean.
        if entry["weight"] and not counts_with_others(of_number[entry["round"]], site):
            counted.append(entry["round"])
    computable = []
    borders = sorted(known)
    for first, end in zip(borders, borders[1:]):
        between = [number for number in counted if first <= number < end]
        if len(between) == 1:
            computable += between
    return computable


def _effect(run: Path, site: str, allow_import: bool) -> dict[str, Any]:
    """The others' weights and contributions without the site, where the ledger has them."""
    try:
        found = what_if(run, without=site, allow_import=allow_import)
    except FairFLError as error:
        return {"refused": str(error)}
    return {
        "meaning": MEANING,
        "first_round_is_exact": found.first_round_is_exact,
        "why_not": found.why_not,
        "sites": dict(found.sites),
    }


def _retrain(root: Path, run: Path, site: str) -> str:
    """The command that trains the same without the site, in a new folder."""
    config = recorded_config(root)
    absent = {site, *withdrawn_sites(run)}
    sites = [name for name in config.get("sites") or {} if name not in absent]
    if not sites:
        return (
            f"Begin the training again without {site}, in a new run_dir; over NVIDIA FLARE submit "
            "a job of another name while the site's client is stopped."
        )
    folder = f"{root}-without-{'-'.join(sorted(absent))}"
    words = config.get("command")
    if not words:
        return (
            f"The run was begun from Python: run the same with site_names={sites!r} and "
            f"run_dir={folder!r}."
        )
    return command_without(words, sites, folder)


# ---- the deletion


def _delete(root: Path, run: Path, site: str, paths: Iterable[str]) -> None:
    """Delete the files; what lists them is mended first, so that the rest can always be read."""
    paths = list(paths)
    for recorded in _recorded_folders(run):
        if _name_in(root, recorded / MANIFEST) not in paths:
            _mark_withdrawn(recorded, site)
    newest = _newest_checkpoint(run)
    if newest is not None:
        Checkpoints(run / "checkpoints").save(_checkpoint_without(newest[1], site))

    for path in paths:
        (root / path).unlink(missing_ok=True)
    for path in paths:
        _remove_empty((root / path).parent, root)
    # Links and empty folders are left, at most.
    shutil.rmtree(run / "sites" / site, ignore_errors=True)


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


def _name_in(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
