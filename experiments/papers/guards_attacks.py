# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Guards: one attacker among real trainings, with and without them.

A wrapper around a real client changes what it sends. Four real hospitals and six generated ones
train for 20 rounds with FedAvg and with FedCE. The attacker is the last site by name, or the first
one; an attacker with several identities has half of the sites.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reading import markdown, measurement
from study import ROOT
from trainings import TRAININGS, Training

from monai_fairfl.guards import DEFAULT, Guard
from monai_fairfl.run.ledger import number_in
from monai_fairfl.server.federation import History
from monai_fairfl.strategies import FedAvg, FedCE, Strategy
from monai_fairfl.transports.in_process import Client
from monai_fairfl.utils.files import write_atomically

sys.path.append(str(ROOT / "benchmarks"))
from attackers import (  # noqa: E402
    ATTACKS,
    Attack,
    Attacker,
    AttackersLast,
    Scene,
    Watched,
    together,
)

STUDIES = ()
ROUNDS = 20
FIRST_COUNTED_ROUND = 2
SITES = {
    "four hospitals": ("BIDMC", "HK", "RUNMC", "UCL"),
    "six generated hospitals": ("alder", "birch", "cedar", "elm", "hazel", "rowan"),
}
STRATEGIES: dict[str, type[Strategy]] = {"FedAvg": FedAvg, "FedCE": FedCE}
GUARDS: dict[str, Sequence[Guard]] = {"none": (), "default": DEFAULT}
FIRST = " by the first name"
CHOSEN = (
    "",
    "zeros",
    "noise of honest length",
    "flipped sign",
    "x10",
    "copy",
    f"copy{FIRST}",
    "identities",
    f"identities{FIRST}",
    "replay of the last step",
    f"replay of the last step{FIRST}",
    "plausible false report",
)
"""Attacks, by the last name where nothing is said; the empty name is none."""
DONE: dict[str, Attack] = {**ATTACKS, "identities": Attack(together)}


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


def attackers_of(name: str, attack: str) -> tuple[str, ...]:
    """The names under which the attacker takes part."""
    sites = SITES[name]
    number = len(sites) // 2 if attack.startswith("identities") else 1
    return sites[:number] if attack.endswith(FIRST) else sites[-number:]


def _trained(
    name: str, strategy: str, attack: str, guards: str, data: Path, runs: Path
) -> dict[str, Any]:
    """Run one federation; what came out of it."""
    training: Training = replace(
        TRAININGS[name],
        rounds=ROUNDS,
        overrides={**TRAININGS[name].overrides, "size": [64, 64]},
    )
    attackers = attackers_of(name, attack)
    honest = [site for site in SITES[name] if site not in attackers]
    scene = Scene(victim=honest[-1] if attack.endswith(FIRST) else honest[0])

    def wrap(site: str, client: Client) -> Client:
        if attack and site in attackers:
            of_attacker = DONE[attack.removesuffix(FIRST)]
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
        partial(AttackersLast, attackers=attackers),
        final=("score", "test_score"),
        retries=0,
    )
    return _result(history, attackers)


def _result(history: History, attackers: Sequence[str]) -> dict[str, Any]:
    """The attacker's mean weight, and the honest sites' test Dice with the last global model."""
    weights = []
    of_sites: dict[str, list[float]] = {}
    for record in history.rounds[FIRST_COUNTED_ROUND:]:
        weights.append(sum(record["aggregation"].get(site, 0.0) for site in attackers))
        for site, weight in record["aggregation"].items():
            of_sites.setdefault(site, []).append(weight)
    scores = {}
    for site, models in history.records[-1]["scores"].items():
        if site not in attackers:
            scores[site] = number_in(models["own"].get("test_score"))
    verdicts: dict[str, list[list[Any]]] = {}
    for record in history.rounds:
        for site, of_site in record["guards"].items():
            verdicts.setdefault(site, []).append([record["round"], of_site.partition(":")[0]])
    return {
        "weight": float(np.mean(weights)),
        "weights": {site: float(np.mean(each)) for site, each in of_sites.items()},
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
                row.append(_verdicts(with_guards["verdicts"], attackers_of(name, attack)))
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


def _verdicts(verdicts: dict[str, list[Any]], attackers: Sequence[str]) -> str:
    """The number of verdicts on the attacker's names, and on all others."""
    of_all = sum(len(of_site) for of_site in verdicts.values())
    of_attackers = sum(len(verdicts.get(site, [])) for site in attackers)
    return f"{of_attackers}, {of_all - of_attackers}"
