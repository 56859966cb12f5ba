# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""One plain sentence per hospital.

It says what the hospital gains over training alone, what it contributes, and whether it is left
behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.report.comparison import MARGIN
from monai_fairfl.report.last_mile import last_mile_words
from monai_fairfl.report.own_contributions import earlier_round, is_weight, values_of_round
from monai_fairfl.report.scores import CASES_OF
from monai_fairfl.report.verdicts import verdict_of
from monai_fairfl.utils.words import count_words

SHARE_TOLERANCE = 0.02
"""By how much the sum of contributions may differ from 1 where they are shares of a whole."""


def sentences(report: Mapping[str, Any], strategy: str | None = None) -> dict[str, str]:
    """What each hospital should know, in one sentence with its numbers.

    The last clause follows the site's verdict. A gain within the 95 % interval of its cases is
    called noise. No sentence speaks of significance: the standard errors are over a site's few
    cases and say nothing of another seed or another split.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        strategy: whose result the sentences are about; by default the one that the report is about.

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


def dice_words(measurement: str) -> str:
    """How a measurement is called in a sentence.

    >>> dice_words("test_score"), dice_words("global_score")
    ('test Dice', 'validation Dice')
    """
    return f"{CASES_OF[measurement]} Dice"


def cases_words(n: int | None, measurement: str) -> str:
    """A number of cases in words.

    >>> cases_words(1, "score"), cases_words(5, "test_score"), cases_words(None, "score")
    ('1 validation case', '5 test cases', 'its cases')
    """
    if not n:
        return "its cases"
    return count_words(n, f"{CASES_OF[measurement]} case")


def rounds_words(strategy: Mapping[str, Any]) -> str:
    """How far a strategy's run went.

    Args:
        strategy: one of ``report["strategies"]``.

    >>> rounds_words({"finished": False, "rounds": 1, "planned_rounds": 4})
    'unfinished, 1 of 4 rounds'
    """
    done = strategy["rounds"]
    rounds = count_words(done, "round")
    if strategy["finished"]:
        return rounds
    if strategy["planned_rounds"]:
        return f"unfinished, {done} of {strategy['planned_rounds']} rounds"
    return f"unfinished, {rounds}"


def _sentence(report: Mapping[str, Any], name: str | None, site: str) -> str:
    """The sentence of ``site`` about the strategy ``name``; about training alone without one."""
    if name is None or report["strategies"][name]["strategy"] == "Standalone":
        return _sentence_alone(report, name or report["standalone"], site)

    strategy = report["strategies"][name]
    result = strategy["sites"].get(site)
    if result is None:
        return f"{site} did not take part in {name}."

    clauses = [
        _score_clause(name, strategy, site),
        _last_mile_clause(strategy, result),
        _contribution_clause(strategy, result),
    ]
    if strategy["judged"]:
        verdict = verdict_of(report, name, site)
        clauses.append(_verdict_clause(verdict, result, strategy["measurement"]))
    known_clauses = "; ".join(clause for clause in clauses if clause)
    return f"{_so_far(strategy)}{known_clauses}."


def _sentence_alone(report: Mapping[str, Any], name: str | None, site: str) -> str:
    """What a site reaches when it trains alone, in the run ``name``."""
    if name is None:
        return f"{site} has no score yet."
    strategy = report["strategies"][name]
    score = strategy["sites"].get(site, {}).get("score")
    if score is None:
        return f"{site} has no score yet."

    measurement = strategy["measurement"]
    reached = f"{site} reaches a {dice_words(measurement)} of {_with_error(score, measurement)}"
    nothing_to_compare = ""
    if report["focus"] is None:
        nothing_to_compare = (
            "; no federation is in this report, so there is nothing to compare it with"
        )
    return f"{_so_far(strategy)}{reached} alone{nothing_to_compare}."


def _so_far(strategy: Mapping[str, Any]) -> str:
    """How the sentence about an unfinished run begins."""
    return "" if strategy["finished"] else f"So far ({rounds_words(strategy)}), "


def _score_clause(name: str, strategy: Mapping[str, Any], site: str) -> str:
    """What a site reaches with the strategy, and what it gains by it."""
    measurement = strategy["measurement"]
    score = strategy["sites"][site]["score"]
    gain = strategy["sites"][site]["gain"]
    if score is None:
        return f"{site} has no Dice with {name}"
    if gain is None:
        why = strategy["no_standalone"] or f"{strategy['standalone']} has no score of this site"
        return (
            f"{site} reaches a {dice_words(measurement)} of {_with_error(score, measurement)} with "
            f"{name}; what it gained over training alone is not known, because {why}"
        )
    return (
        f"{site} reaches a {dice_words(measurement)} of {score['value']:.3f} with {name}, "
        f"{_compared_with_alone(gain, measurement)}"
    )


def _compared_with_alone(gain: Mapping[str, Any], measurement: str) -> str:
    """How much more or less it is than alone, and whether that is noise."""
    difference = f"{abs(gain['value']):.3f}"
    if float(difference) == 0:
        compared = "the same as alone"
    elif gain["value"] > 0:
        compared = f"{difference} more than alone"
    else:
        compared = f"{difference} less than alone"

    alone = f"{gain['alone']:.3f}"
    cases = cases_words(gain["n"], measurement)
    if gain["stderr"] is None:
        return f"{compared} ({alone}; from {cases}, standard error unknown)"
    if gain["within_noise"]:
        return f"{compared} ({alone}), which is within the noise of {cases}"
    stderr = f"standard error of the difference {gain['stderr']:.3f}"
    return f"{compared} ({alone}; {stderr}, {cases})"


def _last_mile_clause(strategy: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """What the site does after its last mile; empty where there was none."""
    last_mile = result["last_mile"]
    if last_mile is None:
        return ""
    return last_mile_words(last_mile, dice_words(strategy["measurement"]))


def _contribution_clause(strategy: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """What the strategy credits a site with; its weight where the strategy credits nobody."""
    if not strategy["estimates_contributions"]:
        no_estimate = f"{strategy['strategy']} does not estimate contributions"
        weight = result["aggregation_weight"]
        if weight is None:
            return no_estimate
        average = f"its weight in the average{_last_round(strategy, weight)}"
        return f"{average} is {weight['value']:.2f} ({no_estimate})"

    contribution = result["contribution"]
    if contribution is None:
        return "it has no recorded contribution"

    values = values_of_round(strategy, contribution["round"]).values()
    are_shares = len(values) > 1 and abs(sum(values) - 1) < SHARE_TOLERANCE
    unit = strategy["estimates"] or ""
    digits = 2 if are_shares or unit.startswith("share") else 3

    if is_weight(strategy):
        value = contribution["value"]
        even = f" (an even share is {1 / len(values):.2f})" if len(values) > 1 else ""
        when = _last_round(strategy, contribution)
        return f"{strategy['method']} gives it a weight{when} of {value:.2f}{even}"

    details = []
    if unit:
        details.append(unit)
    if contribution["stderr"] is not None:
        details.append(f"standard error {contribution['stderr']:.{digits}f}")
    if are_shares:
        details.append(f"an even share is {1 / len(values):.2f}")

    # Adding 0.0 turns -0.0 into 0.0.
    value = round(contribution["value"], digits) + 0.0
    clause = f"its contribution{_last_round(strategy, contribution)} is {value:.{digits}f}"
    if details:
        clause += f" ({', '.join(details)})"
    return clause


def _last_round(strategy: Mapping[str, Any], point: Mapping[str, Any]) -> str:
    """The round of a site's last weight or contribution, where that is not the run's last."""
    number = earlier_round(strategy, point)
    return "" if number is None else f" in round {number}, its last,"


def _verdict_clause(verdict: str, result: Mapping[str, Any], measurement: str) -> str:
    """Whether a site is better off or left behind, and why; empty where it has no score."""
    found = result["left_behind"]
    if found is None:
        if result["score"] is None:
            return ""
        return "it is not known whether it is left behind"

    reasons = []
    if found["below_mean"] is not None:
        deviations = ""
        if found["deviations"]:
            deviations = f" ({found['deviations']:.1f} standard deviations)"
        reasons.append(f"{found['below_mean']:.3f}{deviations} below the sites' mean")
    if found["below_alone"] is not None:
        reasons.append(f"more than {MARGIN} below what it reaches alone")
    if not reasons:
        return "it is not left behind"

    chance = ""
    if found["doubtful"]:
        cases = cases_words(result["score"]["n"], measurement)
        chance = f", which {cases} cannot distinguish from chance"
    words = {
        "better": "it is better off than alone, and ",
        "left_behind": "it is left behind: ",
        "hard": "it is hard for every model: ",
        "perhaps_left_behind": "it may be left behind: ",
    }
    return f"{words.get(verdict, '')}its Dice is {' and '.join(reasons)}{chance}"


def _with_error(score: Mapping[str, Any], measurement: str) -> str:
    """A score with its standard error and its number of cases, as far as they are known."""
    details = []
    if score["stderr"] is not None:
        details.append(f"standard error {score['stderr']:.3f}")
    if score["n"]:
        details.append(cases_words(score["n"], measurement))
    if not details:
        return f"{score['value']:.3f}"
    return f"{score['value']:.3f} ({', '.join(details)})"
