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

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monai_fairfl import __version__, fairness
from monai_fairfl.catalogue import shipped
from monai_fairfl.messages import to_json
from monai_fairfl.records import training_settings
from monai_fairfl.report.collect import Number, Run
from monai_fairfl.report.comparison import DDOF, LEFT_BEHIND, collaboration, gains, left_behind
from monai_fairfl.report.details import details_of
from monai_fairfl.report.scores import Shown, comparable, scores_of, shown_measurement, validation_mean
from monai_fairfl.report.series import (
    FREE_RIDER_RULE,
    SUSPICIOUS,
    contribution_series,
    dice_series,
    events,
    free_rider_series,
    weight_series,
)

__all__ = ["summarise"]


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """All numbers of the report.

    Tables show one measurement for all finished runs: ``test_score`` where each has one, else ``score``, else the
    last round's ``global_score``. A run without it (unfinished) shows its last ``global_score`` and is not compared.

    Args:
        runs: of :func:`~monai_fairfl.report.collect.load_runs`.

    Returns:
        Plain JSON; ``report["strategies"][name]["sites"][site]`` holds a site's score, gain, contribution, and whether
        it is left behind.
    """
    shown = shown_measurement(runs)
    warnings: list[str] = []
    groups = [dict(run.start.get("groups") or {}) for run in runs]
    sites = sorted({site for run in runs for site in run.sites})
    scores = {run.name: scores_of(run, shown, warnings) for run in runs}
    warnings = _differences(runs, scores) + _structures(runs, shown) + warnings
    standalone = next((run.name for run in runs if run.strategy == "Standalone"), None)
    same = comparable(scores, shown)
    alone = scores[standalone].numbers if standalone in same else {}
    strategies = {}
    for run in runs:
        yardstick = alone if run.strategy != "Standalone" and run.name in same else {}
        strategies[run.name] = _strategy(run, scores[run.name], yardstick, shown)
        for valuation in run.valuations:
            if not _is_current(valuation, run):
                hint = "run the same command with it and --resume True"
                warnings.append(f"{run.name}: {valuation['name']} is of another end of this run and not shown; {hint}")
        for site, number in strategies[run.name]["flagged"].items():
            looks = f"In {run.name}, the free-rider score of {site} was {SUSPICIOUS}, the third of them round {number}"
            warnings.append(f"{looks}. So are honest sites' that are unlike the others: a reason to ask, not a proof")
        strategies[run.name]["comparable"] = run.name in same and set(scores[run.name].numbers) == set(sites)
    return to_json(
        {
            "version": __version__,
            "measurement": shown,
            "ddof": DDOF,
            "left_behind_rule": LEFT_BEHIND,
            "free_rider_rule": FREE_RIDER_RULE,
            "standalone": standalone,
            "focus": _focus(strategies, {run.name: validation_mean(run) for run in runs}),
            "sites": {site: _site(site, runs) | {"scored": _scored(site, scores)} for site in sites},
            "groups": groups[0] if all(of == groups[0] for of in groups) else {},  # else a column would mix sites
            "strategies": strategies,
            "events": [event for run in runs for event in events(run)],
            "warnings": warnings,
        }
    )


def _strategy(run: Run, mine: Shown, alone: Mapping[str, Number], shown: str) -> dict[str, Any]:
    numbers = mine.numbers
    values = {site: number.value for site, number in numbers.items()}
    weights, layers = weight_series(run)
    contributions, (suspicion, flagged) = contribution_series(run), free_rider_series(run)
    gained = gains(numbers, {site: number for site, number in alone.items() if site in numbers})
    kind = shipped().get(run.strategy)
    estimates = kind.estimates if kind else None  # a strategy of somebody's own may estimate anything
    return {
        "strategy": run.strategy,
        "run": run.path.resolve().name,
        "seed": run.start.get("seed"),
        "rounds": len(run.rounds),
        "planned_rounds": run.planned,
        "finished": run.end is not None,
        "ledger_head": run.head,
        "chain_verified": True,  # reading it would have failed
        "measurement": mine.measurement,
        "after_rounds": mine.after_rounds,
        "performance": asdict(fairness.performance(values, ddof=DDOF)) if values else None,
        "collaboration": collaboration(values, alone),
        "layers_averaged": layers,
        "estimates": estimates,
        "estimates_contributions": estimates != "",
        "personal": run.personal,
        "flagged": flagged,
        "sites": {
            site: {
                "score": asdict(numbers[site]) if site in numbers else None,
                "global_model": _asdict(run.final(site, shown, "global")),
                "gain": gained.get(site),
                "contribution": contributions[site][-1] if contributions.get(site) else None,
                "aggregation_weight": weights[site][-1] if weights.get(site) else None,
                "left_behind": (None if run.strategy == "Standalone" else left_behind(site, numbers, gained.get(site))),
            }
            for site in run.sites
        },
        "series": {
            "dice": dice_series(run),
            "weights": weights,
            "contributions": contributions,
            "free_rider_scores": suspicion,
        },
        "details": details_of(run),
        "valuations": [valuation for valuation in run.valuations if _is_current(valuation, run)],
    }


def _is_current(valuation: Mapping[str, Any], run: Run) -> bool:
    """Whether a valuation is of the model that the run ended with; it may have gone on since."""
    return run.end is not None and valuation.get("model", run.end.get("model")) == run.end.get("model")


def _focus(strategies: Mapping[str, Mapping[str, Any]], validation: Mapping[str, float | None]) -> str | None:
    """The federated strategy that the sentences speak of: best mean on validation cases, never chosen on test cases.

    Of those with a score of every site, where there are any: means over other sites are of other patients.
    """
    federated = [name for name, found in strategies.items() if found["strategy"] != "Standalone"]
    whole = [name for name in federated if strategies[name]["comparable"]] or federated
    candidates = [name for name in whole if strategies[name]["finished"]] or whole
    return max(candidates, key=lambda name: (validation[name] is not None, validation[name] or 0.0), default=None)


def _site(site: str, runs: Sequence[Run]) -> dict[str, int | None]:
    """Cases and images per epoch, as the site last told."""
    told: dict[str, int | None] = {"cases": None, "images": None}
    for record in (record for run in runs for record in run.rounds):
        for name, key in (("cases", "cases"), ("images", "samples")):
            told[name] = record.get(key, {}).get(site) or told[name]
    return told


def _scored(site: str, scores: Mapping[str, Shown]) -> int | None:
    """Cases behind the site's shown Dice: the fewest of all runs."""
    known = [of.numbers[site].n for of in scores.values() if site in of.numbers]
    return min((n for n in known if n is not None), default=None)


def _told(run: Run, key: str) -> dict[str, int]:
    """What each site last told of its training data."""
    return {site: number for record in run.rounds for site, number in record.get(key, {}).items() if number}


def _differences(runs: Sequence[Run], scores: Mapping[str, Shown]) -> list[str]:
    """What makes the runs hard to compare."""
    found = []
    facts: dict[str, list[Any]] = {
        "sites": [run.sites for run in runs],
        "seeds": [run.start.get("seed") for run in runs],
        "numbers of rounds": [len(run.rounds) for run in runs],
        "initial models": [run.start.get("model") for run in runs],
        "training cases": [_told(run, "cases") for run in runs],
        "images per epoch": [_told(run, "samples") for run in runs],
        "groups": [run.start.get("groups") or {} for run in runs],
        "scored cases": [{site: number.n for site, number in of.numbers.items()} for of in scores.values()],
    }
    for what, values in facts.items():
        if any(value != values[0] for value in values):
            found.append(f"The runs have different {what}: their scores are not strictly comparable")
    asked = [_asked(run.config) for run in runs if run.config]
    differ = sorted({key for one in asked for key in one if any(one[key] != other.get(key) for other in asked)})
    if differ:
        found.append(f"The runs were trained with different settings ({', '.join(differ)}): compare them with care")
    return found


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how a run's sites train, by a name that its user knows; data may lie elsewhere."""
    found = training_settings(config)
    of_sites = {f"{key} of {site}": value for site, given in found["sites"].items() for key, value in given.items()}
    return {**found["plain"], **found["files"], **found["overrides"], **of_sites}


def _structures(runs: Sequence[Run], shown: str) -> list[str]:
    """That some sites are scored on other structures than others: a mean over disc and cup is not one over the disc."""
    found: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        for site, models in ((run.end or {}).get("scores") or {}).items():
            score = (models.get("own") or {}).get(shown)
            if score is None:
                continue
            names = tuple(sorted(set(score) - {"mean", "value", "stderr", "n"})) if isinstance(score, Mapping) else ()
            found.setdefault(names, set()).add(site)
    if len(found) < 2:
        return []
    told = [
        f"{', '.join(sorted(sites))}: {', '.join(names) or 'one structure'}" for names, sites in sorted(found.items())
    ]
    return [f"A site's Dice is the mean over the structures that it labels, and these differ ({'; '.join(told)})"]


def _asdict(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else asdict(number)
