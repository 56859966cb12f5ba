# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The first screen: a row for each hospital, what it should do, and sentences for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from monai_fairfl.report.contributions import contributions_of, worth_of
from monai_fairfl.report.events import OFTEN, touched_words
from monai_fairfl.report.scores import (
    CASES_OF,
    MARGIN,
    VERDICTS,
    Entry,
    better_model,
    half_width,
    verdict_of,
)
from monai_fairfl.utils.words import count_words

MOST_CASES = 100
"""No hospital is asked for more cases than this."""

ARRIVED = ("quarantined: ", "shares one weight with ")
"""How the reasons begin for which a hospital's update is missing though it arrived."""

LAST_MILE = {
    "adapted": "the model trained further",
    "alone": "the model trained alone",
    "fused": "the model fused with the one trained alone",
}
"""Candidate of the last mile -> what it is called."""


def decision_of(report: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The first screen: ``strategy``, ``fedavg``, ``why`` this one, and a row for each hospital."""
    name = report["focus"]
    strategies = report["strategies"]
    strategy = strategies[name] if name is not None else {"sites": {}, "fedavg": None}
    group: Sequence[str] = next((names for names in report["compared"] if name in names), [])
    # Who contributed is said by this strategy, else by the one of the others that validates best.
    means = {o: strategies[o]["validation_mean"] for o in group}
    ranked = sorted(
        group, key=lambda o: (o != name, -(-math.inf if means[o] is None else means[o]))
    )
    contributor, contributions = None, {}
    for other in ranked:
        contributions = contributions_of(entries[other])
        if contributions and not entries[other].run.is_standalone:
            contributor = other
            break
    valuation, worth = worth_of(entries[name].run) if name is not None else (None, {})
    hospitals = {}
    for site in report["sites"]:
        verdict = verdict_of(report, name, site)
        result = strategy["sites"].get(site, {})
        score = result.get("score") or {"value": None, "n": None}
        weight = result.get("aggregation_weight")
        earlier = weight is not None and weight["round"] < strategy["rounds"] - 1
        shares = strategy.get("credit") or {}
        gain = result.get("gain")
        own = contributions.get(site) if contributor is not None else None
        if gain is not None:
            gain = {**gain, "seeds": _gains_of_seeds(entries[name], site)}
        hospitals[site] = {
            "verdict": verdict,
            "alone": _dice_of(report, _standalone_of(report, name), site),
            "fedavg": _dice_of(report, strategy["fedavg"], site),
            "federation": score["value"],
            "n": score["n"],
            "difference": gain,
            "images_share": shares.get("Images", {}).get(site),
            "weight_share": shares.get("Weight", {}).get(site),
            "weight": weight["value"] if weight is not None else None,
            "weight_round": weight["round"] if weight is not None and earlier else None,
            "contribution": own,
            "worth": worth.get(site),
            "guards": [],
            "advice": list(_advice(report, name, site, verdict)),
        }
        if name is not None:
            touched = strategy["touched"].get(site)
            hospitals[site]["guards"] = touched_words(touched, strategy["rounds_of_runs"])
    return {
        "strategy": name,
        "fedavg": strategy["fedavg"],
        "why": _why(report, name, group),
        "contributor": contributor,
        "valuation": valuation,
        "hospitals": hospitals,
    }


def _standalone_of(report: Mapping[str, Any], name: str | None) -> str | None:
    """The run of training alone against which ``name`` is measured; without ``name`` the first."""
    strategies = report["strategies"]
    if name is not None:
        found: str | None = strategies[name]["standalone"]
        return found
    return next((o for o in strategies if strategies[o]["strategy"] == "Standalone"), None)


def _dice_of(report: Mapping[str, Any], name: str | None, site: str) -> float | None:
    if name is None:
        return None
    score = report["strategies"][name]["sites"].get(site, {}).get("score")
    return None if score is None else float(score["value"])


def _gains_of_seeds(entry: Entry, site: str) -> list[float] | None:
    """The least and the largest gain over the seeds of a comparison; ``None`` for one seed."""
    if len(entry.runs) == 1 or entry.alone is None:
        return None
    gains = []
    for case, mine in entry.cases[site].items():
        gains.append([one - alone for one, alone in zip(mine, entry.alone.cases[site][case])])
    of_seeds = [sum(of_seed) / len(of_seed) for of_seed in zip(*gains)]
    return [min(of_seeds), max(of_seeds)] if len(of_seeds) > 1 else None


def _why(report: Mapping[str, Any], name: str | None, group: Sequence[str]) -> str:
    """Why the report is about this strategy."""
    if name is None:
        return "No federation is in this report, so nothing is compared with training alone."
    found = report["strategies"]
    federated = [other for other in group if found[other]["strategy"] != "Standalone"]
    of_group = " of this data, split and seed" if len(report["compared"]) > 1 else ""
    if len(federated) < 2:
        return f"This is about {name}, the only federation{of_group}."
    means = []
    for other in federated:
        mean = found[other]["validation_mean"]
        if mean is not None and found[other]["finished"] == found[name]["finished"]:
            means.append(f"{other} {mean:.3f}")
    best = "which has the best mean Dice on validation cases" if means else "the first of them"
    if report["doubted"] and found[name]["guards"]:
        best = "which has guards, the best of those by mean Dice on validation cases"
    words = f"This is about {name}{of_group}, {best}"
    words += f" ({', '.join(means)})" if means else ""
    if report["doubted"]:
        words += f", without {', '.join(report['doubted'])}, whose own scores may be wrong"
    return f"{words}."


def headline(report: Mapping[str, Any]) -> list[str]:
    """Is the federation worth it? Sentences for the consortium; none where nothing is judged."""
    name = report["focus"]
    if name is None or not report["strategies"][name]["judged"]:
        return []
    strategy = report["strategies"][name]

    def clear(key: str, sign: int) -> str:
        """The hospitals whose interval is above 0, or below, with their differences."""
        words = []
        for site, result in strategy["sites"].items():
            found = result[key]
            if found is None or found["within_noise"] is not False or found["value"] * sign <= 0:
                continue
            words.append(f"{site} ({interval_words(found)})")
        return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)

    sentences = []
    if strategy["fedavg"] is not None:
        better, worse = clear("against_fedavg", 1), clear("against_fedavg", -1)
        words = [f"beats {strategy['fedavg']} at {better}"] if better else []
        words += (
            [f"loses to it at {worse}" if better else f"loses to {strategy['fedavg']} at {worse}"]
            if worse
            else []
        )
        none = f"differs clearly from {strategy['fedavg']} at no hospital"
        sentences.append(f"{name} {' and '.join(words) or none}.")
    if strategy["standalone"] is not None:
        better, worse = clear("gain", 1), clear("gain", -1)
        words = [f"Against training alone, {better or 'no hospital'} clearly gains"]
        words += [f"{worse} clearly loses"] if worse else []
        sentences.append(f"{', and '.join(words)}.")
    of_all = count_words(len(report["sites"]), "hospital")
    verdicts = [row["verdict"] for row in report["decision"]["hospitals"].values()]
    words = [f"{verdicts.count(v)} {t.lower()}" for v, (t, _) in VERDICTS.items() if v in verdicts]
    sentences.append(f"Of {of_all}: {', '.join(words)}.")
    methods = [found["method"] for found in report["strategies"].values()]
    if not isinstance(strategy["seed"], list) and methods.count(strategy["method"]) == 1:
        compared = " ".join(dict.fromkeys(["Standalone", "FedAvg", strategy["given"]]))
        line = f"monai-fairfl compare HOSPITALS --strategy {compared} --seeds 0 1 2"
        sentences.append(f"One seed: repeat with {line}.")
    return sentences


def shown_strategies(report: Mapping[str, Any]) -> list[str]:
    """The strategies of the first screen: training alone, FedAvg, and the one it is about."""
    focus = report["decision"]["strategy"]
    strategies = report["strategies"]
    if focus is None:
        return list(strategies)
    names = [strategies[focus]["standalone"], strategies[focus]["fedavg"], focus]
    return [name for name in names if name is not None]


def interval_words(found: Mapping[str, Any]) -> str:
    """A difference with the ends of its interval, where they are known.

    >>> interval_words({"value": 0.02, "low": -0.011, "high": 0.05})
    '+0.020, -0.011 to +0.050'
    >>> interval_words({"value": -0.0001, "low": None, "high": None})
    '+0.000'
    """
    # Adding 0.0 turns -0.0 into 0.0.
    known = [found[end] for end in ("low", "high") if found[end] is not None]
    value, *ends = (f"{round(number, 3) + 0.0:+.3f}" for number in (found["value"], *known))
    return f"{value}, {' to '.join(ends)}" if ends else value


def first_look_lines(report: Mapping[str, Any]) -> list[str]:
    """What is not judged, and why; empty where everything is."""
    lines = [f"{', '.join(e['strategies'])}: {e['why']}." for e in report["first_look"]]
    if lines:
        lines.insert(0, "This is a first look: no hospital is called better, worse or left behind.")
    if any(entry["full_run"] for entry in report["first_look"]):
        lines.append("For verdicts, train a full run in a new folder, without --quick.")
    return lines


def cases_to_tell(value: float, stderr: float, n: int) -> int | None:
    """How many cases would tell, if the difference and the spread of the cases stay as they are.

    It is the smallest number whose 95 % interval, by Student's t, either excludes 0 or lies within
    plus and minus :data:`~monai_fairfl.report.scores.MARGIN`: both are verdicts.

    Args:
        value: the difference.
        stderr: its standard error over the cases so far.
        n: cases so far, at least 2.

    Returns:
        A number above ``n``; ``None`` where ``n`` + :data:`MOST_CASES` are not enough.

    >>> cases_to_tell(0.03, 0.02, 8), cases_to_tell(0.001, 0.02, 8), cases_to_tell(0.02, 0.1, 8)
    (17, 37, None)
    """
    spread = stderr * math.sqrt(n)
    for number in range(n + 1, n + MOST_CASES + 1):
        width = half_width(spread / math.sqrt(number), number)
        if width is not None and (abs(value) > width or abs(value) + width < MARGIN):
            return number
    return None


def _advice(report: Mapping[str, Any], name: str | None, site: str, verdict: str) -> Iterator[str]:
    """What the hospital should do, most urgent first; sentences without a full stop."""
    if name is None:
        yield "Run a federation too, such as FedCE, to have something to compare"
        return
    strategy = report["strategies"][name]
    result = strategy["sites"].get(site)
    if result is None:
        return
    # What guards found in its updates, and whether it was often missing.
    sent: dict[bool, set[Any]] = {}
    missed = set()
    for event in report["free_riding"]:
        if event["strategy"] in strategy["runs"] and event["site"] == site:
            key = (event["strategy"], event["round"])
            sent.setdefault(event["kind"] == "Copies", set()).add(key)
    for event in report["events"]:
        of_site = event["strategy"] in strategy["runs"] and event["site"] == site
        # An update that a guard refused, or counted as one with another's, was not missing.
        is_missing = event["kind"] == "missing" and event["round"] != "end"
        if of_site and is_missing and not event["text"].startswith(ARRIVED):
            missed.add((event["strategy"], event["round"]))
    for copied, rounds in sorted(sent.items()):
        what = (
            "another hospital sent the same update"
            if copied
            else "its update came from no training"
        )
        yield f"Ask {site} what it sent: in {count_words(len(rounds), 'round')}, {what}"
    touched = strategy["touched"].get(site)
    if touched and len(touched["limited"]) > OFTEN * strategy["rounds_of_runs"]:
        yield f"Ask {site} how it validates: what it reported was often limited"
    if len(missed) > OFTEN * strategy["rounds_of_runs"]:
        of_rounds = f"{len(missed)} of {strategy['rounds_of_runs']} rounds"
        yield f"Find out why {site} was missing in {of_rounds}"

    # What the verdict asks for.
    cases = CASES_OF[strategy["measurement"]]
    mile = result["last_mile"]
    if verdict == "not_judged":
        return  # the first lines of the report say it once
    if verdict == "no_score":
        lost = [e for e in report["events"] if e["strategy"] in strategy["runs"]]
        lost = [e for e in lost if (e["site"], e["round"]) == (site, "end")]
        why = f": {lost[0]['text']}" if lost else ", or give it some"
        yield f"Find out why no {cases} case of {site} has a score in every run{why}"
    elif mile is not None and mile["taken"] is not None:
        yield _about_its_choice(mile, result["score"]["value"], cases)
    elif verdict == "better":
        yield "Use the federation's model"
    elif verdict == "as_good":
        yield "Use either model: they are equally good"
    elif verdict in ("left_behind", "worse"):
        better = better_model(report, name, site)
        if better is not None and report["strategies"][better[0]]["strategy"] != "Standalone":
            yield f"Look at {better[0]}: a model of it reaches {better[1]:.3f} here"
        else:
            yield "Use the model that it trained alone"
            if mile is None:
                yield "Or let it train this one further: monai-fairfl adapt"
    elif verdict == "hard":
        yield f"Add images of {site}: no model here is more than {MARGIN} better for it"
    elif verdict == "not_compared":
        yield "Run Standalone too, to know the gain over training alone"
    elif verdict == "cannot_tell":
        yield _more_cases(result["gain"], cases)


def _about_its_choice(mile: Mapping[str, Any], before: float, cases: str) -> str:
    """The model that the hospital took in its last mile, and whether other cases agree."""
    model = LAST_MILE[mile["taken"]]
    gain = mile["candidates"][mile["taken"]]["gain"]
    words = f"{gain['value']:+.3f} on {count_words(gain['n'], 'validation case')}"
    if mile["used"] is not None and before - mile["used"]["value"] > MARGIN:
        lower = f"its {cases} Dice is {before - mile['used']['value']:.3f} lower"
        return f"Doubt {model}: {words}, but {lower}"
    return f"Use {model}: {words}"


def _more_cases(gain: Mapping[str, Any], cases: str) -> str:
    """How many cases more would tell whether the federation or training alone is better."""
    if gain["stderr"] is None or (gain["n"] or 0) < 2:
        return f"Score at least two {cases} cases with this package"
    needed = cases_to_tell(gain["value"], gain["stderr"], gain["n"])
    if needed is None:
        return f"Decide for other reasons: even {MOST_CASES} more {cases} cases would not tell"
    more = count_words(needed - gain["n"], f"more {cases} case")
    return f"{more} would tell whether the federation helps"
