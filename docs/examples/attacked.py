# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The three trainings of ``demo_attack.py``, and what came out of them.

They stand in a module of their own, so that worker processes can import them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl import BundleFederation, find_bundle
from monai_fairfl.bundle.trainings import Training, run_logged
from monai_fairfl.data.demonstration import DEMO_SITES
from monai_fairfl.data.synthetic import Site
from monai_fairfl.run_folder.ledger import number_in, read_ledger
from monai_fairfl.strategies import FedCE, Strategy, compose
from monai_fairfl.transports.workers import Turn

HERE = Path(__file__).parent
NOISY = Site("hemlock", 18, "plain 3 T images", scale=600, fov=195, blur=0.6)
LYING = Site("yew", 18, "plain 3 T images", scale=1200, noise=0.03, fov=205)
HOSPITALS = (*DEMO_SITES, NOISY, LYING)
TRAIN = "configs/train.json"
ATTACKS = {
    NOISY.name: {"config": [TRAIN, str(HERE / "attacks" / "noise.json")]},
    LYING.name: {"config": [TRAIN, str(HERE / "attacks" / "lie.json")]},
}
"""Site -> what it changes in its own configuration."""


@dataclass(frozen=True)
class Story:
    """One of the three trainings.

    Args:
        name: of its folder.
        what: a line for the table.
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
    Story("honest", "nobody attacks", FedCE(), settings={"guards": []}),
    Story("unguarded", "two attack, no guards", FedCE(), ATTACKS, {"guards": []}),
    Story(
        "guarded",
        "two attack; guards, limited reports, judges",
        compose(FedCE(), clip_reports=3.0),
        ATTACKS,
        {"cross_evaluate_every": 4},
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
        federation = partial(_federation, story, out, rounds, seed)
        found.append(
            Training(
                title=story.what,
                kind=story.name,
                rounds=rounds,
                folder=out / story.name,
                federation=federation,
                run=partial(run_logged, out / story.name, federation),
            )
        )
    return found


def _federation(story: Story, out: Path, rounds: int, seed: int, turn: Turn) -> BundleFederation:
    return BundleFederation(
        str(find_bundle("prostate_mri_segmentation")),
        str(out / "hospitals"),
        story.strategy,
        rounds,
        str(out / story.name),
        sites=story.sites,
        overrides={"size": [64, 64], "channels": [16, 32, 64, 128]},
        local_epochs=4,
        resume=True,
        report=False,
        seed=seed,
        jobs=turn.jobs,
        **story.settings,
    )


def outcome(out: Path) -> str:
    """Write a table: each hospital's test Dice and mean weight in the three trainings."""
    rows = [["hospital", *(f"{story.name}: Dice, weight" for story in STORIES)]]
    records = {story.name: read_ledger(out / story.name / "ledger.jsonl") for story in STORIES}
    for site in sorted(hospital.name for hospital in HOSPITALS):
        row = [site]
        for of_story in records.values():
            weights = [
                record["aggregation"].get(site, 0.0)
                for record in of_story
                if record["kind"] == "round"
            ]
            score = number_in(of_story[-1]["scores"][site]["own"]["test_score"])
            row.append(f"{score:.3f}, {sum(weights) / len(weights):.2f}")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return "\n".join(lines)
