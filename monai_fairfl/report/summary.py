# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""From runs to the numbers of the report: plain JSON, everything else in this folder only words or draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl import __version__, fairness
from monai_fairfl.messages import to_json
from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.series import contribution_series, dice_series, events, weight_series

__all__ = ["LEFT_BEHIND", "MARGIN", "MEASUREMENTS", "left_behind", "summarise"]

DDOF = 1
MARGIN = 0.02
LEFT_BEHIND = (
    f"A site is called left behind when its Dice is more than one standard deviation (n - {DDOF} in the denominator) "
    f"below the mean of all sites, or more than {MARGIN} lower than when trained alone. The first rule needs at least "
    "three sites: of two, neither can be that far below their mean."
)
MEASUREMENTS = {"test_score": "test", "score": "validation", "global_score": "validation"}
"""Measurement -> the cases it is made on, best first: test cases were never used to choose anything."""


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """All numbers of the report.

    Tables show one measurement for all finished runs: ``test_score`` where each has one, else ``score``, else the
    last round's ``global_score``. A run without it (unfinished) shows its last ``global_score`` and is not compared.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.

    Returns:
        Plain JSON; ``report["strategies"][name]["sites"][site]`` holds a site's score, gain, contribution and whether it
        is left behind.
    """
    shown, sites, warnings = _shown(runs), sorted({site for run in runs for site in run.sites}), _differences(runs)
    scores = {run.name: _scores(run, shown, warnings) for run in runs}
    alone = next((run.name for run in runs if run.strategy == "Standalone"), None)
    if alone is not None and scores[alone]["measurement"] != shown:
        alone = None
    strategies = {run.name: _strategy(run, sites, shown, scores, alone) for run in runs}
    return to_json(
        {
            "version": __version__,
            "measurement": shown,
            "ddof": DDOF,
            "left_behind_rule": LEFT_BEHIND,
            "standalone": next((run.name for run in runs if run.strategy == "Standalone"), None),
            "focus": _focus(strategies, {run.name: _validation(run) for run in runs}),
            "sites": {site: _site(site, runs) for site in sites},
            "strategies": strategies,
            "events": [event for run in runs for event in events(run)],
            "warnings": warnings,
        }
    )


def left_behind(site: str, scores: Mapping[str, float], gain: float | None) -> dict[str, Any] | None:
    """Whether ``site`` is left behind, and why: see :data:`LEFT_BEHIND`.

    Args:
        site: its name.
        scores: site -> Dice, fractions in [0, 1].
        gain: Dice of ``site`` minus what it reaches alone; ``None`` where unknown.

    Returns:
        ``{"verdict", "below_mean", "deviations", "below_alone"}``; ``None`` where no rule can be applied.

    >>> left_behind("C", {"A": 0.9, "B": 0.9, "C": 0.6}, gain=0.01)["verdict"]
    True
    >>> left_behind("A", {"A": 0.9}, gain=None) is None
    True
    """
    if site not in scores or (len(scores) < 3 and gain is None):
        return None
    found = fairness.performance(scores, ddof=DDOF)
    below = found.mean - scores[site]
    behind = len(scores) >= 3 and below > found.std + 1e-12  # equal scores differ by rounding
    worse = gain is not None and gain < -MARGIN - 1e-12
    return {
        "verdict": behind or worse,
        "below_mean": below if behind else None,
        "deviations": below / found.std if behind and found.std > 0 else None,
        "below_alone": -gain if worse and gain is not None else None,
    }


def _shown(runs: Sequence[Run]) -> str:
    finished = [run for run in runs if run.end is not None]
    for name in ("test_score", "score"):
        if finished and all(any(run.final(site, name) for site in run.sites) for run in finished):
            return name
    return "global_score"


def _scores(run: Run, shown: str, warnings: list[str]) -> dict[str, Any]:
    """What ``run`` shows: measurement, rounds of training behind it, and site -> number."""
    found = {site: run.final(site, shown) for site in run.sites}
    measurement, after = shown, len(run.rounds)
    if not any(found.values()):
        measurement = "global_score"
        last = {site: run.measured(site, measurement) for site in run.sites}
        after = max((number for numbers in last.values() for number in numbers), default=0)
        found = {site: numbers.get(after) for site, numbers in last.items()}
    kept = {site: number for site, number in found.items() if number is not None and 0 <= number.value <= 1}
    for site in sorted({site for site, number in found.items() if number is not None} - set(kept)):
        warnings.append(f"{run.name}: the score of {site} is not a fraction in [0, 1] and is left out")
    return {"measurement": measurement, "after_rounds": after, "numbers": kept}


def _strategy(
    run: Run, sites: Sequence[str], shown: str, all_scores: Mapping[str, Any], alone: str | None
) -> dict[str, Any]:
    mine = all_scores[run.name]
    numbers: dict[str, Number] = mine["numbers"]
    values = {site: number.value for site, number in numbers.items()}
    same_measurement = mine["measurement"] == shown
    yardstick: dict[str, Number] = {}
    if alone is not None and alone != run.name and same_measurement and run.strategy != "Standalone":
        yardstick = {site: number for site, number in all_scores[alone]["numbers"].items() if site in numbers}
    weights, layers = weight_series(run)
    contributions = contribution_series(run)
    gains = _gains(numbers, yardstick)
    return {
        "strategy": run.strategy,
        "run": run.path.resolve().name,
        "seed": run.start.get("seed"),
        "rounds": len(run.rounds),
        "planned_rounds": run.planned,
        "finished": run.end is not None,
        "ledger_head": run.head,
        "chain_verified": True,  # reading it would have failed
        "measurement": mine["measurement"],
        "after_rounds": mine["after_rounds"],
        "comparable": same_measurement and set(numbers) == set(sites),
        "performance": asdict(fairness.performance(values, ddof=DDOF)) if values else None,
        "collaboration": _collaboration(values, yardstick),
        "layers_averaged": layers,
        "sites": {
            site: {
                "score": asdict(numbers[site]) if site in numbers else None,
                "global_model": _asdict(run.final(site, shown, "global")),
                "gain": gains.get(site),
                "contribution": contributions[site][-1] if contributions.get(site) else None,
                "aggregation_weight": weights[site][-1] if weights.get(site) else None,
                "left_behind": None
                if run.strategy == "Standalone"
                else left_behind(site, values, gains[site]["value"] if site in gains else None),
            }
            for site in run.sites
        },
        "series": {"dice": dice_series(run), "weights": weights, "contributions": contributions},
    }


def _gains(numbers: Mapping[str, Number], alone: Mapping[str, Number]) -> dict[str, dict[str, Any]]:
    """site -> gain over training alone; its standard error takes the two scores as independent.

    Both are of the same cases, so the true error is mostly smaller: this errs on the side of calling it noise.
    """
    if not alone:
        return {}
    differences = fairness.gain({s: numbers[s].value for s in alone}, {s: alone[s].value for s in alone})
    found = {}
    for site, value in differences.items():
        errors, counts = (numbers[site].stderr, alone[site].stderr), (numbers[site].n, alone[site].n)
        known = errors[0] is not None and errors[1] is not None
        stderr = math.hypot(errors[0] or 0.0, errors[1] or 0.0) if known else None
        n = min((count for count in counts if count is not None), default=None)
        within = None if stderr is None else abs(value) < stderr
        found[site] = {"value": value, "alone": alone[site].value, "stderr": stderr, "n": n, "within_noise": within}
    return found


def _collaboration(values: Mapping[str, float], alone: Mapping[str, Number]) -> dict[str, Any] | None:
    if len(alone) < 2 or set(alone) != set(values):
        return None
    reference = {site: number.value for site, number in alone.items()}
    r, p_value = fairness.performance_fairness_pearson(reference, values)
    return {"pearson": r, "p_value": p_value, "euclid": fairness.performance_distance(reference, values)}


def _focus(strategies: Mapping[str, Mapping[str, Any]], validation: Mapping[str, float | None]) -> str | None:
    """The federated strategy that the sentences speak of: best mean on validation cases, never chosen on test cases."""
    federated = [name for name, found in strategies.items() if found["strategy"] != "Standalone"]
    candidates = [name for name in federated if strategies[name]["finished"]] or federated
    return max(candidates, key=lambda name: -1.0 if validation[name] is None else validation[name], default=None)


def _validation(run: Run) -> float | None:
    numbers = [run.final(site, "score") for site in run.sites]
    if not any(numbers):
        numbers = [max(run.measured(site, "global_score").items(), default=(0, None))[1] for site in run.sites]
    known = [number.value for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _site(site: str, runs: Sequence[Run]) -> dict[str, int | None]:
    """Cases and images per epoch, as the site last told."""
    told: dict[str, int | None] = {"cases": None, "images": None}
    for record in (record for run in runs for record in run.rounds):
        for name, key in (("cases", "cases"), ("images", "samples")):
            told[name] = record.get(key, {}).get(site) or told[name]
    return told


def _differences(runs: Sequence[Run]) -> list[str]:
    """What makes the runs hard to compare."""
    found = []
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "seeds": [run.start.get("seed") for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
    }
    for what, values in facts.items():
        if any(value != values[0] for value in values):
            found.append(f"The runs have different {what}: their scores are not strictly comparable")
    return found


def _asdict(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else asdict(number)
