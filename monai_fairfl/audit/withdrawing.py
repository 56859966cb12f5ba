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

import hashlib
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from monai_fairfl import __version__
from monai_fairfl.audit.statement import Statement, read_statement
from monai_fairfl.audit.statement_contents import (
    computable_rounds,
    effect_on_others,
    how_to_retrain,
    rewritten_files,
    rounds_with,
    what_remains,
)
from monai_fairfl.audit.withdrawal_files import delete_files, files_to_delete, name_in, sites_in
from monai_fairfl.errors import ConfigError, FederationError, did_you_mean
from monai_fairfl.run_folder.ledger import (
    no_record_in,
    read_ledger,
    read_ledger_and_heads,
    runs_in,
)
from monai_fairfl.run_folder.resuming import compared
from monai_fairfl.utils.files import locked
from monai_fairfl.utils.names import safe_name

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
            planned = replace(planned, what_if=effect_on_others(run, site, allow_import))
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
                delete_files(root, run, site, [entry["path"] for entry in statement.deleted])
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
        sites = sites_in(records)
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


# ---- the plan


def _planned(root: Path, run: Path, site: str, all_updates: bool) -> Statement:
    """The statement of one run before anything of it is deleted."""
    records, heads = read_ledger_and_heads(run / "ledger.jsonl")
    deleted = []
    for file in files_to_delete(root, run, site, all_updates):
        data = file.read_bytes()
        deleted.append(
            {
                "path": name_in(root, file),
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
            }
        )
    rounds = rounds_with(records, site)
    others_are_recorded = not all_updates and any((run / "updates").glob("round-*/clients/*"))
    computable = []
    if others_are_recorded:
        computable = computable_rounds(run, records, rounds, site)
    return Statement(
        site=site,
        run=run.resolve().name,
        name=records[0]["run"],
        package=__version__,
        begun=_now(),
        ended="",
        ledger={"head": heads[-1], "records": len(records)},
        rounds=rounds,
        deleted=deleted,
        rewritten=rewritten_files(root, run, site, all_updates),
        remains=[
            *what_remains(root, run, others_are_recorded, computable),
        ],
        computable_rounds=computable,
        what_if={},
        retrain=how_to_retrain(root, run, site),
    )


def _continued(previous: Statement, planned: Statement) -> Statement:
    """The statement of a withdrawal that was interrupted, and what is left of it to do."""
    entries = {entry["path"]: entry for entry in planned.deleted}
    entries.update({entry["path"]: entry for entry in previous.deleted})
    deleted = [entries[path] for path in sorted(entries)]
    return replace(planned, begun=previous.begun, deleted=deleted, rewritten=previous.rewritten)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
