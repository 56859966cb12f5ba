# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One plain sentence per hospital: its gain over training alone, its contribution, whether it is
left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.comparison import MARGIN
from monai_fairfl.report.scores import MEASUREMENTS


def sentences(report: Mapping[str, Any], strategy: str | None = None) -> dict[str, str]:
    """What each hospital should know, in one sentence with its numbers.

    A gain within the 95 % interval of its cases is called noise. No sentence speaks of
    significance: the standard errors are over a site's few cases and say nothing of another seed or
    another split.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        strategy: whose result is told; by default the federated strategy with the best mean on
            validation cases.

    Returns:
        site -> sentence, plain text: names in it come from outside and must be escaped before they
        become HTML.

    Raises:
        ConfigError: when ``strategy`` is not in the report.
    """
    name = strategy or report["focus"]
    if name is not None and name not in report["strategies"]:
        raise ConfigError(
            f"the report has no strategy {name!r}; it has {sorted(report['strategies'])}"
        )
    return {site: _sentence(report, name, site) for site in report["sites"]}


def overview(report: Mapping[str, Any]) -> str:
    """How many hospitals are served well by the strategy that the sentences speak of; empty where
    it is not judged.

    >>> gain = {"value": 0.1, "stderr": 0.01, "within_noise": False}
    >>> sites = {"A": {"gain": gain, "left_behind": None}, "B": {"gain": gain | {"value": -0.1}, "left_behind": None}}
    >>> overview({"focus": "FedCE", "strategies": {"FedCE": {"sites": sites, "judged": True}}})
    'FedCE, 2 hospitals: 1 better off than alone, 1 worse off.'
    """
    name = report["focus"]
    if name is None or not report["strategies"][name]["judged"]:
        return ""
    found = report["strategies"][name]["sites"].values()
    gains = [site["gain"] for site in found if site["gain"]]
    told = [gain["value"] > 0 for gain in gains if gain["within_noise"] is False]
    verdicts = [site["left_behind"] for site in found if site["left_behind"]]
    counts = {
        "better off than alone": sum(told),
        "worse off": len(told) - sum(told),
        "within the noise of their cases": sum(gain["within_noise"] is True for gain in gains),
        "with too few cases to tell": sum(gain["within_noise"] is None for gain in gains),
        "left behind": sum(verdict["verdict"] for verdict in verdicts),
        "perhaps left behind": sum(verdict["doubtful"] for verdict in verdicts),
    }
    told_of = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{name}, {len(found)} hospitals: {', '.join(told_of)}." if told_of else ""


def dice_words(measurement: str) -> str:
    """How a measurement is called in a sentence.

    >>> dice_words("test_score"), dice_words("global_score")
    ('test Dice', 'validation Dice')
    """
    return f"{MEASUREMENTS[measurement]} Dice"


def cases_words(n: int, measurement: str) -> str:
    """A number of cases in words.

    >>> cases_words(1, "score")
    '1 validation case'
    """
    return f"{n} {MEASUREMENTS[measurement]} case{'' if n == 1 else 's'}"


def _sentence(report: Mapping[str, Any], name: str | None, site: str) -> str:
    if name is None or report["strategies"][name]["strategy"] == "Standalone":
        return _alone(report, name or report["standalone"], site)
    found = report["strategies"][name]
    mine = found["sites"].get(site)
    if mine is None:
        return f"{site} did not take part in {name}."
    clauses = [_score(report, name, site), _contribution(found, mine)]
    if found["judged"]:
        clauses.append(_left_behind(mine, found["measurement"]))
    unfinished = "" if found["finished"] else f"So far ({rounds_words(found)}), "
    return unfinished + "; ".join(clause for clause in clauses if clause) + "."


def rounds_words(found: Mapping[str, Any]) -> str:
    """How far a strategy's run went.

    >>> rounds_words({"finished": False, "rounds": 1, "planned_rounds": 4})
    'unfinished, 1 of 4 rounds'
    """
    if found["finished"]:
        return f"{found['rounds']} rounds" if found["rounds"] != 1 else "1 round"
    planned = found["planned_rounds"]
    done = found["rounds"]
    return (
        f"unfinished, {done} of {planned} rounds"
        if planned
        else f"unfinished, {done} round{'' if done == 1 else 's'}"
    )


def _alone(report: Mapping[str, Any], name: str | None, site: str) -> str:
    found = report["strategies"][name] if name else None
    score = found["sites"].get(site, {}).get("score") if found else None
    if found is None or score is None:
        return f"{site} has no score yet."
    unfinished = "" if found["finished"] else f"So far ({rounds_words(found)}), "
    reached = f"{site} reaches a {dice_words(found['measurement'])} of {_with_error(score, found['measurement'])}"
    nothing = "; no federation is in this report, so there is nothing to compare it with"
    return f"{unfinished}{reached} alone{'' if report['focus'] else nothing}."


def _score(report: Mapping[str, Any], name: str, site: str) -> str:
    found = report["strategies"][name]
    score, gain, measurement = (
        found["sites"][site]["score"],
        found["sites"][site]["gain"],
        found["measurement"],
    )
    if score is None:
        return f"{site} has no Dice with {name}"
    if gain is None:
        why = found["no_standalone"] or f"{found['standalone']} has no score of this site"
        return (
            f"{site} reaches a {dice_words(measurement)} of {_with_error(score, measurement)} with {name}; "
            f"what it gained over training alone is not known, because {why}"
        )
    reached = f"{site} reaches a {dice_words(measurement)} of {score['value']:.3f} with {name}"
    return f"{reached}, {_compared(gain, measurement)}"


def _compared(gain: Mapping[str, Any], measurement: str) -> str:
    cases = cases_words(gain["n"], measurement) if gain["n"] else "its cases"
    size = f"{abs(gain['value']):.3f}"
    details, noise = [f"{gain['alone']:.3f}"], ""
    if gain["stderr"] is None:
        details.append(f"from {cases}, standard error unknown")
    elif gain["within_noise"]:
        noise = f", which is within the noise of {cases}"
    else:
        details.append(f"standard error of the difference {gain['stderr']:.3f}, {cases}")
    compared = (
        "the same as"
        if float(size) == 0
        else f"{size} {'more' if gain['value'] > 0 else 'less'} than"
    )
    return f"{compared} alone ({'; '.join(details)}){noise}"


def _contribution(found: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    contribution, weight = mine["contribution"], mine["aggregation_weight"]
    if not found["estimates_contributions"]:
        average = (
            f"its weight in the average{_last(found, weight)} is {weight['value']:.2f} ("
            if weight
            else ""
        )
        return (
            f"{average}{found['strategy']} does not estimate contributions{')' if average else ''}"
        )
    if contribution is None:
        return "it has no contribution on record"
    values = [m["contribution"]["value"] for m in found["sites"].values() if m["contribution"]]
    whole = len(values) > 1 and abs(sum(values) - 1) < 0.02
    digits = 2 if whole or (found["estimates"] or "").startswith("share") else 3
    details = [found["estimates"]] if found["estimates"] else []
    details += (
        []
        if contribution["stderr"] is None
        else [f"standard error {contribution['stderr']:.{digits}f}"]
    )
    details += [f"an even share is {1 / len(values):.2f}"] if whole else []
    value = round(contribution["value"], digits) + 0.0  # -0.0 becomes 0.0
    return f"its contribution{_last(found, contribution)} is {value:.{digits}f}" + (
        f" ({', '.join(details)})" if details else ""
    )


def _last(found: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """The round of a site's last weight or contribution, where that is not the run's last."""
    return f" in round {point['round']}, its last," if point["round"] < found["rounds"] - 1 else ""


def _left_behind(mine: Mapping[str, Any], measurement: str) -> str:
    found = mine["left_behind"]
    if found is None:
        return "" if mine["score"] is None else "whether it is left behind cannot be told"
    reasons = []
    if found["below_mean"] is not None:
        deviations = (
            f" ({found['deviations']:.1f} standard deviations)" if found["deviations"] else ""
        )
        reasons.append(f"{found['below_mean']:.3f}{deviations} below the sites' mean")
    if found["below_alone"] is not None:
        reasons.append(f"more than {MARGIN} below what it reaches alone")
    if found["verdict"]:
        return f"it is left behind: its Dice is {' and '.join(reasons)}"
    if found["doubtful"]:
        cases = cases_words(mine["score"]["n"], measurement) if mine["score"]["n"] else "its cases"
        return f"it may be left behind: its Dice is {' and '.join(reasons)}, which {cases} cannot tell from chance"
    return "it is not left behind"


def _with_error(score: Mapping[str, Any], measurement: str) -> str:
    details = [] if score["stderr"] is None else [f"standard error {score['stderr']:.3f}"]
    details += [cases_words(score["n"], measurement)] if score["n"] else []
    return f"{score['value']:.3f}" + (f" ({', '.join(details)})" if details else "")
