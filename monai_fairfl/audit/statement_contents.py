# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the statement of a withdrawal says: of rounds, of files, and of what remains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.audit.counterfactual import MEANING, what_if
from monai_fairfl.audit.withdrawal_files import name_in, newest_checkpoint, recorded_folders
from monai_fairfl.errors import FairFLError
from monai_fairfl.protocol.averages import weights_of_model
from monai_fairfl.run_folder.checkpoint import REWARDS, SUFFIX
from monai_fairfl.run_folder.commands import command_without
from monai_fairfl.run_folder.ledger import number_in
from monai_fairfl.run_folder.resuming import recorded_config
from monai_fairfl.run_folder.withdrawn import withdrawn_sites
from monai_fairfl.utils.files import MANIFEST


def rounds_with(records: Sequence[Mapping[str, Any]], site: str) -> list[dict[str, Any]]:
    """The rounds in which the site's update came in, with weight and contribution."""
    rounds = []
    for record in records:
        if record["kind"] != "round":
            continue
        if site in record.get("samples", {}):
            rounds.append(
                {
                    "round": record["round"],
                    "weight": weights_of_model(record["aggregation"]).get(site),
                    "contribution": number_in(record["contributions"].get(site)),
                }
            )
    return rounds


def computable_rounds(
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
        if entry["weight"]:
            counted.append(entry["round"])
    computable = []
    borders = sorted(known)
    for first, end in zip(borders, borders[1:]):
        between = [number for number in counted if first <= number < end]
        if len(between) == 1:
            computable += between
    return computable


def rewritten_files(root: Path, run: Path, site: str, all_updates: bool) -> list[dict[str, str]]:
    """The files that are written again without the site, and why."""
    entries = []
    if not all_updates:
        for folder in recorded_folders(run):
            why = "it lists the files that are left, and who withdrew"
            entries.append({"path": name_in(root, folder / MANIFEST), "why": why})
    newest = newest_checkpoint(run)
    if newest is not None:
        for name in (MANIFEST, "strategy.json"):
            why = "the site's reward, and the guards' sketches of that round, are taken out"
            entries.append({"path": name_in(root, newest[0] / name), "why": why})
        for client in sorted(set(newest[1].rewards) - {site}):
            path = newest[0] / f"{REWARDS}{client}{SUFFIX}"
            why = "it holds the same model, perhaps as what differs from another site's"
            entries.append({"path": name_in(root, path), "why": why})
    return entries


def what_remains(
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
    if (root / "log.txt").exists():
        entries.append(
            {
                "what": "log.txt",
                "why": "it has what was printed of all sites: the site's name, weights and scores, "
                "values of valuations that are deleted, and messages that may name its files. "
                "Delete it if nobody needs it",
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


def effect_on_others(run: Path, site: str, allow_import: bool) -> dict[str, Any]:
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


def how_to_retrain(root: Path, run: Path, site: str) -> str:
    """The command that trains the same without the site, in a new folder."""
    config = recorded_config(root)
    absent = {site, *withdrawn_sites(run)}
    sites = [name for name in config.get("sites") or {} if name not in absent]
    if not sites:
        return (
            f"Begin the training again without {site}, in a new run_dir; over NVIDIA FLARE submit "
            "a job of another name while the site's client is stopped."
        )
    # A folder such as "." has no name of its own.
    named = root if root.name not in ("", "..") else root.resolve()
    folder = f"{named}-without-{'-'.join(sorted(absent))}"
    words = config.get("command")
    if not words:
        return (
            f"The run was begun from Python: run the same with site_names={sites!r} and "
            f"run_dir={folder!r}."
        )
    return command_without(words, sites, folder)
