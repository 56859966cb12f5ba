# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards: one attacker among real trainings, with and without them.

A wrapper around a real client changes what it sends. Four real hospitals and six generated ones
train for 20 rounds with FedAvg and with FedCE; the attacker is the last site by name.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from reading import markdown, measurement
from study import ROOT
from trainings import TRAININGS, Training

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.run_folder.ledger import number_in
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import FedAvg, FedCE, Strategy
from monai_fairfl.transports.in_process import Client
from monai_fairfl.utils.files import write_atomically

sys.path.append(str(ROOT / "benchmarks"))
from attackers import ATTACKS, Attack, Attacker, Scene, Watched  # noqa: E402

STUDIES = ()
ROUNDS = 20
FIRST_COUNTED_ROUND = 2
SITES = {
    "four hospitals": ("BIDMC", "HK", "RUNMC", "UCL"),
    "six generated hospitals": ("alder", "birch", "cedar", "elm", "hazel", "rowan"),
}
STRATEGIES: dict[str, type[Strategy]] = {"FedAvg": FedAvg, "FedCE": FedCE}
GUARDS: dict[str, Sequence[Guard]] = {"none": (), "default": DEFAULT}
CHOSEN = (
    "",
    "zeros",
    "noise of honest length",
    "flipped sign",
    "x10",
    "copy",
    "plausible false report",
)
"""Attacks; the empty name is none."""


def measure(data: Path, runs: Path) -> dict[str, Any]:
    """Train every combination; what is done is read again."""
    found = {}
    for name in SITES:
        for strategy in STRATEGIES:
            for attack in CHOSEN:
                for guards in GUARDS:
                    key = " | ".join([name, strategy, attack, guards])
                    done = runs / "guards_attacks" / f"{key.replace(' ', '_')}.json"
                    if not done.exists():
                        result = _trained(name, strategy, attack, guards, data, runs)
                        write_atomically(done, json.dumps(result).encode())
                        print(key, result, flush=True)
                    found[key] = json.loads(done.read_text())
    return found


def _trained(
    name: str, strategy: str, attack: str, guards: str, data: Path, runs: Path
) -> dict[str, Any]:
    """Run one federation; what came out of it."""
    training: Training = replace(
        TRAININGS[name],
        rounds=ROUNDS,
        overrides={**TRAININGS[name].overrides, "size": [64, 64]},
    )
    scene = Scene(victim=SITES[name][0])
    attacker = SITES[name][-1]

    def wrap(site: str, client: Client) -> Client:
        if attack and site == attacker:
            of_attacker: Attack = ATTACKS[attack]
            return Attacker(client, of_attacker, scene)
        return Watched(client, scene)

    run_dir = runs / "guards" / "attacked"
    shutil.rmtree(run_dir, ignore_errors=True)
    history = training.run(
        STRATEGIES[strategy](),
        GUARDS[guards],
        data,
        run_dir,
        wrap,
        final=("score", "test_score"),
        retries=0,
    )
    return _result(history, attacker)


def _result(history: History, attacker: str) -> dict[str, Any]:
    """The attacker's mean weight, and the honest sites' test Dice with the last global model."""
    weights = []
    for record in history.rounds[FIRST_COUNTED_ROUND:]:
        weights.append(record["aggregation"].get(attacker, 0.0))
    scores = {}
    for site, models in history.records[-1]["scores"].items():
        if site != attacker:
            scores[site] = number_in(models["own"].get("test_score"))
    verdicts: dict[str, list[list[Any]]] = {}
    for record in history.rounds:
        for site, of_site in record["guards"].items():
            verdicts.setdefault(site, []).append([record["round"], of_site.partition(":")[0]])
    return {
        "weight": float(np.mean(weights)),
        "scores": scores,
        "verdicts": verdicts,
        "model": history.records[-1]["model"],
    }


def table() -> str:
    """A row per federation and attack: the attacker's weight, honest sites' Dice, verdicts."""
    found = measurement("guards_attacks")
    rows = []
    for name in SITES:
        for strategy in STRATEGIES:
            for attack in CHOSEN:
                row = [name, strategy, attack or "none"]
                for guards in GUARDS:
                    result = found[" | ".join([name, strategy, attack, guards])]
                    scores = list(result["scores"].values())
                    row.append(f"{result['weight']:.3f}")
                    row.append(f"{np.mean(scores):.3f}, {min(scores):.3f}")
                with_guards = found[" | ".join([name, strategy, attack, "default"])]
                row.append(_verdicts(with_guards["verdicts"], SITES[name][-1]))
                rows.append(row)
    head = [
        "sites",
        "strategy",
        "attack",
        "attacker's weight",
        "honest sites' Dice: mean, worst",
        "its weight with guards",
        "Dice with guards: mean, worst",
        "verdicts on it, on honest sites",
    ]
    return markdown(head, rows)


def _verdicts(verdicts: dict[str, list[Any]], attacker: str) -> str:
    """The number of rounds with a verdict on the attacker, and on all others."""
    others = sum(len(of_site) for site, of_site in verdicts.items() if site != attacker)
    return f"{len(verdicts.get(attacker, []))}, {others}"
