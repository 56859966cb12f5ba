# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a hospital should do next, in words: what is wrong first, then what the verdict asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from monai_fairfl.report.comparison import MARGIN, half_width
from monai_fairfl.report.contribution import Contribution
from monai_fairfl.report.first_look import FEW_CASES
from monai_fairfl.report.last_mile import MODEL_WORDS, gain_words
from monai_fairfl.report.results import is_comparison, trainings_of
from monai_fairfl.report.scores import CASES_OF
from monai_fairfl.report.touched import OFTEN, directions, rounds_looked_at
from monai_fairfl.report.verdicts import better_model
from monai_fairfl.utils.words import count_words

MOST_CASES = 100
"""No hospital is asked for more cases than this."""

MANY_TIMES = 1.9
"""A hospital that carries so many times its share is worth a look at its images."""

OFTEN_MISSING = 0.25
"""A hospital that missed a larger part of the rounds than this should ask why."""

ARRIVED = ("quarantined: ", "shares one weight with ")
"""How the reasons begin for which a hospital's update is missing though it arrived."""


def advice_for(
    report: Mapping[str, Any],
    name: str | None,
    site: str,
    verdict: str,
    contribution: Contribution | None,
    contributor: str | None,
) -> list[str]:
    """What the hospital should do, most urgent first; sentences without a full stop.

    Args:
        report: what :func:`~monai_fairfl.report.write_report` returned.
        name: of the federated strategy; ``None`` without one.
        site: name of the hospital.
        verdict: on it, a key of :data:`~monai_fairfl.report.verdicts.VERDICTS`.
        contribution: of it; ``None`` where none is known.
        contributor: the strategy whose contribution it is.
    """
    if name is None:
        return ["Run a federation too, such as FedCE, to have something to compare"]
    strategy = report["strategies"][name]
    result = strategy["sites"].get(site)
    if result is None:
        return []
    lines = list(_about_its_updates(report, name, site))
    lines.extend(_by_verdict(report, name, site, verdict))
    if contribution is not None and contribution.ratio is not None and strategy["judged"]:
        estimated = contributor is not None
        estimated = estimated and report["strategies"][contributor]["estimates_contributions"]
        if estimated and contribution.ratio >= MANY_TIMES:
            lines.append(
                f"Look at {site}'s images and labels: {contributor} favours both unusual and wrong "
                "data"
            )
    return lines


def cases_to_tell(value: float, stderr: float, n: int) -> int | None:
    """How many cases would tell, if the difference and the spread of the cases stay as they are.

    It is the smallest number whose 95 % interval, by Student's t, either excludes 0 or lies within
    plus and minus :data:`~monai_fairfl.report.comparison.MARGIN`: both are verdicts.

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
        if width is None:
            continue
        if abs(value) > width or abs(value) + width < MARGIN:
            return number
    return None


def _about_its_updates(report: Mapping[str, Any], name: str, site: str) -> Iterator[str]:
    """What guards found, and whether the hospital was often missing."""
    strategy = report["strategies"][name]
    # Events name the trainings, of which a comparison's strategy has several.
    trainings = trainings_of(report, name)
    untrained: set[Any] = set()
    copied: set[Any] = set()
    for event in report["free_riding"]:
        if event["strategy"] in trainings and event["site"] == site:
            of_kind = copied if event["kind"] == "Copies" else untrained
            of_kind.add((event["strategy"], event["round"]))
    if untrained:
        rounds = count_words(len(untrained), "round")
        yield f"Ask {site} what it sent: in {rounds}, its update came from no training"
    if copied:
        # Either of them may be the one that trained.
        rounds = count_words(len(copied), "round")
        yield f"Ask {site} what it sent: in {rounds}, another hospital sent the same update"

    touched = strategy["touched"].get(site)
    rounds_in_all = rounds_looked_at(strategy)
    if touched is not None and len(touched["limited"]) > OFTEN * rounds_in_all:
        yield (
            f"Ask {site} how it validates: often {directions(touched)}. "
            "Its reports may be false, or honest because its images are unusual"
        )

    missed = set()
    for event in report["events"]:
        of_site = event["strategy"] in trainings and event["site"] == site
        # Whose update a guard refused, or counted as one with another's, was not missing.
        arrived = event["text"].startswith(ARRIVED)
        if of_site and event["kind"] == "missing" and event["round"] != "end" and not arrived:
            missed.add((event["strategy"], event["round"]))
    if rounds_in_all and len(missed) > OFTEN_MISSING * rounds_in_all:
        yield f"Find out why {site} was missing in {len(missed)} of {rounds_in_all} rounds"


def _by_verdict(report: Mapping[str, Any], name: str, site: str, verdict: str) -> Iterator[str]:
    """What the verdict asks for."""
    strategy = report["strategies"][name]
    result = strategy["sites"][site]
    cases = CASES_OF[strategy["measurement"]]
    if verdict == "not_judged":
        yield _after_a_first_look(report, name, site, cases)
        return
    if verdict == "no_score" and is_comparison(report):
        yield f"Look at the notes: no {cases} case of it was scored in every training"
        return
    if verdict == "no_score":
        yield _for_no_score(report, name, site, cases)
        return
    if verdict == "not_compared":
        yield "Run Standalone too, to know the gain over training alone"

    mile = result["last_mile"]
    takes_another = mile is not None and mile["taken"] is not None
    if takes_another:
        yield _about_its_choice(mile, result["score"]["value"], cases)
    if verdict == "better" and not takes_another:
        yield "Use the federation's model"
    if verdict == "as_good" and not takes_another:
        yield "Use either model: they are equally good"
    if verdict in ("left_behind", "worse") and not takes_another:
        yield _for_who_is_worse(report, name, site)
    if verdict == "hard":
        yield from _for_who_is_hard(report, name, site)
    if verdict == "too_few_cases":
        if (result["score"]["n"] or 0) < 2:
            yield f"Score at least two {cases} cases"
        else:
            yield "The spread of its cases is not recorded: score them with this package"
    if verdict in ("unclear", "perhaps_left_behind"):
        yield _more_cases(result, verdict, cases)


def _for_no_score(report: Mapping[str, Any], name: str, site: str, cases: str) -> str:
    """What to do where a site has no closing score: it may have cases, and have sent none."""
    for event in report["events"]:
        if (event["strategy"], event["site"], event["round"]) == (name, site, "end"):
            return f"Find out why its closing score is missing: {event['text']}"
    return f"Give it {cases} cases: it has none, so nothing was measured"


def _after_a_first_look(report: Mapping[str, Any], name: str, site: str, cases: str) -> str:
    """What to do after a first look: a full run tells, unless its cases are too few."""
    trainings = trainings_of(report, name)
    for entry in report["first_look"]:
        if entry["full_run"] is None and set(trainings) & set(entry["strategies"]):
            return "Read in the first lines of report.html why nothing is judged"
    n = report["strategies"][name]["sites"][site]["score"]["n"]
    if n is None or n >= FEW_CASES or is_comparison(report):
        return "This was a first look: train the full run, then decide"
    return f"This was a first look, and {count_words(n, f'{cases} case')} will hardly tell"


def _about_its_choice(mile: Mapping[str, Any], before: float, cases: str) -> str:
    """The model that the hospital took in its last mile, and whether other cases agree."""
    taken = mile["taken"]
    gain = gain_words(mile["candidates"][taken])
    loss = 0.0
    if mile["used"] is not None:
        loss = before - mile["used"]["value"]
    if loss > MARGIN:
        lower = f"its {cases} Dice is {loss:.3f} lower"
        return f"Doubt the model {MODEL_WORDS[taken]}: {gain}, but {lower}"
    return f"Use the model {MODEL_WORDS[taken]}: {gain}"


def _for_who_is_worse(report: Mapping[str, Any], name: str, site: str) -> str:
    """A strategy that serves the hospital better, or else the last mile, or else its own model."""
    better = better_model(report, name, site)
    if better is not None:
        other, dice = better
        found = report["strategies"][other]
        if found["strategy"] != "Standalone":
            score = found["sites"][site]["score"]
            mile = "" if score is not None and score["value"] == dice else " after its last mile"
            return f"Look at {other}: it reaches {dice:.3f} here{mile}"
    if report["strategies"][name]["sites"][site]["last_mile"] is None:
        return _try_the_last_mile(site)
    return f"{site} does better with the model that it trained alone"


def _for_who_is_hard(report: Mapping[str, Any], name: str, site: str) -> Iterator[str]:
    """What may help a hospital that no model here serves better."""
    if report["strategies"][name]["sites"][site]["last_mile"] is None:
        yield _try_the_last_mile(site)
    yield f"Add images of {site} to the training: no model here is more than {MARGIN} better for it"


def _try_the_last_mile(site: str) -> str:
    return f"Let {site} train the model further on its own images: monai-fairfl adapt"


def _more_cases(result: Mapping[str, Any], verdict: str, cases: str) -> str:
    """How many cases more would tell."""
    difference = result["gain"]
    left_behind = result["left_behind"]
    if verdict == "perhaps_left_behind" and left_behind["below_mean"] is not None:
        score = result["score"]
        difference = {"value": left_behind["below_mean"], "stderr": score["stderr"]}
        difference["n"] = score["n"]
    if difference is None or difference["stderr"] is None or (difference["n"] or 0) < 2:
        return f"Score more {cases} cases"
    needed = cases_to_tell(difference["value"], difference["stderr"], difference["n"])
    if needed is None:
        return f"Decide for other reasons: even {MOST_CASES} more {cases} cases would not tell"
    return f"{count_words(needed - difference['n'], f'more {cases} case')} would tell"
