# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The three trainings of ``demo_attack.py``, and what came out of them.

They stand in a module of their own, so that worker processes can import them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl import BundleFederation, History, find_bundle
from monai_fairfl.bundle.trainings import Training, run_logged
from monai_fairfl.data.pelvis import DEMO_SITES, Site
from monai_fairfl.run.ledger import number_in, read_ledger
from monai_fairfl.strategies import FedCE, Strategy
from monai_fairfl.transports.workers import Turn

HERE = Path(__file__).parent
NOISY = Site("hemlock", 18, scale=600, fov=195, blur=0.6)
LYING = Site("yew", 18, scale=1200, noise=0.03, fov=205)
HOSPITALS = (*DEMO_SITES, NOISY, LYING)
LIGHT = ["configs/train.json", "configs/light.json"]
ATTACKS = {
    NOISY.name: {"config": [*LIGHT, str(HERE / "attacks" / "noise.json")]},
    LYING.name: {"config": [*LIGHT, str(HERE / "attacks" / "lie.json")]},
}
"""Site -> what it changes in its own configuration."""


@dataclass(frozen=True)
class Story:
    """One of the three trainings.

    Args:
        name: of its folder.
        what: its name in the table.
        strategy: of the federation.
        sites: site -> what it changes.
        settings: of the federation.
    """

    name: str
    what: str
    strategy: Strategy
    sites: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


STORIES = (
    Story("honest", "FedCE (nobody attacks)", FedCE(), settings={"guards": []}),
    Story("unguarded", "FedCE (attacked, unguarded)", FedCE(), ATTACKS, {"guards": []}),
    Story(
        "guarded",
        "FedCE (attacked, guarded)",
        FedCE(clip_reports=3.0),
        ATTACKS,
    ),
)


def trainings(out: Path, rounds: int, seed: int) -> list[Training]:
    """List the three trainings, which can be run beside each other.

    Args:
        out: has ``hospitals/``, and gets a folder of each training.
        rounds: of each.
        seed: of each.
    """
    found = []
    for story in STORIES:
        run = partial(run_logged, out / story.name, partial(_run, story, out, rounds, seed))
        found.append(Training(title=story.what, rounds=rounds, run=run))
    return found


def _run(story: Story, out: Path, rounds: int, seed: int, turn: Turn) -> list[History]:
    federation = BundleFederation(
        str(find_bundle("prostate_mri_segmentation")),
        str(out / "hospitals"),
        story.strategy,
        rounds,
        str(out / story.name),
        sites=story.sites,
        config=LIGHT,
        overrides={"size": [64, 64], "channels": [16, 32, 64, 128]},
        local_epochs=4,
        resume=True,
        report=False,
        seed=seed,
        jobs=turn.jobs,
        **story.settings,
    )
    return federation.run()


def outcome(out: Path) -> str:
    """Write each hospital's test Dice and mean weight in the three trainings, and what happened.

    Args:
        out: folder of the three trainings.
    """
    records = {story.name: read_ledger(out / story.name / "ledger.jsonl") for story in STORIES}
    rows = [["", *(story.what for story in STORIES)]]
    for site in sorted(hospital.name for hospital in HOSPITALS):
        row = [site]
        for of_story in records.values():
            score = number_in(of_story[-1]["scores"][site]["own"]["test_score"])
            row.append(f"Dice {score:.3f}, weight {_mean_weight(of_story, site):.2f}")
        rows.append(row)
    lines = [_line(row, rows) for row in rows]
    stopped = _rounds_stopped(records["guarded"], NOISY.name)
    rounds = sum(record["kind"] == "round" for record in records["guarded"])
    lines += [
        "",
        f"{NOISY.name} sent noise. Guards stopped its update in {stopped} of {rounds} rounds.",
        f"{LYING.name} reported that every model is useless for it. FedCE takes that for a "
        "hospital that needs weight.",
        "Reports are limited in the last training. No guard can see that a report is false.",
    ]
    return "\n".join(lines)


def _mean_weight(records: Sequence[Mapping[str, Any]], site: str) -> float:
    weights = []
    for record in records:
        if record["kind"] == "round":
            weights.append(record["aggregation"].get(site, 0.0))
    return sum(weights) / len(weights)


def _rounds_stopped(records: Sequence[Mapping[str, Any]], site: str) -> int:
    """Count the rounds in which a guard kept the site's update out of the model.

    >>> round_of = {"kind": "round", "verdicts": {"yew": [{"action": "quarantine"}]}}
    >>> flagged = {"kind": "round", "verdicts": {"yew": [{"action": "flag"}]}}
    >>> _rounds_stopped([round_of, flagged], "yew")
    1
    """
    stopped = 0
    for record in records:
        if record["kind"] == "round":
            verdicts = record["verdicts"].get(site, ())
            stopped += any(verdict["action"] == "quarantine" for verdict in verdicts)
    return stopped


def _line(row: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align a row with the columns of all."""
    cells = []
    for column, cell in enumerate(row):
        width = max(len(each[column]) for each in rows)
        cells.append(cell.ljust(width))
    return "  ".join(cells).rstrip()
