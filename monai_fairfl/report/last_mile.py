# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the last mile brought each site: its candidates, and the one that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    CANDIDATES,
    Estimate,
    chosen,
    gain_name,
)
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.run import Run
from monai_fairfl.utils.words import count_words

MODEL_WORDS = {
    "adapted": "trained further",
    "alone": "trained alone",
    "fused": "fused with the one trained alone",
}
"""Candidate -> what it is called in the report."""


@dataclass(frozen=True)
class CandidateResult:
    """A candidate of one site.

    Args:
        gain: mean over the site's validation cases of its Dice less that of the model that the
            site would use.
        score: its Dice; ``None`` where it was not measured.
        epochs: of further training until the best one; ``None``: there was none.
    """

    gain: Number
    score: Number | None
    epochs: int | None


@dataclass(frozen=True)
class LastMile:
    """The last mile of one site.

    Args:
        candidates: name -> what it reached.
        taken: the candidate that the site takes; ``None``: none.
        used: Dice of the model that the site uses, that one or the one before; ``None`` where it
            was not measured.
    """

    candidates: Mapping[str, CandidateResult]
    taken: str | None
    used: Number | None


def last_mile_of(run: Run, site: str, measurement: str, score: Number | None) -> LastMile | None:
    """The last mile of a site; ``None`` where there was none.

    Args:
        run: in question.
        site: name of the site.
        measurement: the closing measurement that is shown.
        score: what the site reached without it.
    """
    found = {}
    for name in CANDIDATES:
        gain = run.closing(site, gain_name(name), model=name)
        if gain is None:
            continue
        epochs = run.closing(site, ADAPTED_EPOCHS, model=name)
        found[name] = CandidateResult(
            gain=gain,
            score=run.closing(site, measurement, model=name),
            epochs=None if epochs is None else round(epochs.value),
        )
    if not found:
        return None
    taken = chosen({name: _estimate_of(result.gain) for name, result in found.items()})
    used = score if taken is None else found[taken].score
    return LastMile(candidates=found, taken=taken, used=used)


def _estimate_of(gain: Number) -> Estimate:
    return Estimate(gain.value, gain.stderr, gain.n or 0)


def has_last_mile(strategy: Mapping[str, Any]) -> bool:
    """Whether any site of a run had a last mile.

    Args:
        strategy: its results, as ``report.json`` has them.

    >>> has_last_mile({"sites": {"elm": {"last_mile": None}}})
    False
    """
    return any(site["last_mile"] is not None for site in strategy["sites"].values())


def gain_words(candidate: Mapping[str, Any]) -> str:
    """The gain of a candidate on validation cases, with its error.

    >>> gain = {"value": 0.03, "stderr": 0.011, "n": 4}
    >>> gain_words({"gain": gain, "epochs": 7})
    '+0.030 ± 0.011 on 4 validation cases'
    >>> gain_words({"gain": {"value": 0.03, "stderr": None, "n": 1}, "epochs": 7})
    '+0.030 on 1 validation case, which has no standard error'
    >>> gain_words({"gain": {**gain, "value": 0.0}, "epochs": 0})
    'nothing on 4 validation cases'
    """
    gain = candidate["gain"]
    cases = count_words(gain["n"], "validation case")
    if candidate["epochs"] == 0:
        return f"nothing on {cases}"
    if gain["stderr"] is None:
        return f"{gain['value']:+.3f} on {cases}, which has no standard error"
    return f"{gain['value']:+.3f} ± {gain['stderr']:.3f} on {cases}"
