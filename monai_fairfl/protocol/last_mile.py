# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What server, sites and report agree on about the last mile, each site's choice of its model.

See :mod:`monai_fairfl.client.last_mile`.
"""

from __future__ import annotations

from collections.abc import Mapping

from monai_fairfl.protocol.values import Estimate

CANDIDATES = ("adapted", "alone", "fused")
"""The models that a site may use in place of the one that it would use:

- ``"adapted"``: that one, trained a little further on the site's own images;
- ``"alone"``: the one that the site trained alone, where it did;
- ``"fused"``: the one that it would take of these and the one that it trained alone, with the mean
  of both outputs (``adapt_fuse``).
"""

FUSED_LOSS = 0.02
"""By so much may the score of ``"fused"`` be below that of the model that the site would use. Two
models that were trained apart seldom fail on the same case, so this one need not gain; it must not
lose. It is not compared with the best candidate, whose gain a single case may have made."""

ADAPTED_EPOCHS = "adapted_epochs"
"""Epochs of the further training until its best one; 0: none was better."""


def gain_name(candidate: str) -> str:
    """The measurement that decides whether a candidate is taken.

    It is the mean over the site's validation cases of the candidate's score less that of the model
    that the site would use.

    >>> gain_name("adapted")
    'adapted_gain'
    """
    return f"{candidate}_gain"


def score_names(candidate: str) -> dict[str, str]:
    """Closing measurement -> the same of a candidate, whether or not the site takes it.

    >>> score_names("alone")
    {'score': 'alone_score', 'test_score': 'alone_test_score'}
    """
    return {name: f"{candidate}_{name}" for name in ("score", "test_score")}


def candidates_asked(context: Mapping[str, float]) -> tuple[str, ...]:
    """The candidates that a run asks for.

    Args:
        context: of its closing requests.

    >>> candidates_asked({"adapt_epochs": 10.0})
    ('adapted', 'alone')
    """
    if context.get("adapt_fuse", 0):
        return CANDIDATES
    return tuple(name for name in CANDIDATES if name != "fused")


def is_taken(gain: Estimate) -> bool:
    """Whether a gain counts: it is larger than its standard error.

    One validation case has no standard error, and no gain is taken by it.

    Args:
        gain: of a candidate, with its standard error.

    >>> is_taken(Estimate(0.03, 0.01, 5)), is_taken(Estimate(0.03, 0.04, 5))
    (True, False)
    >>> is_taken(Estimate(0.03, None, 1))
    False
    """
    return gain.stderr is not None and gain.value > gain.stderr


def chosen(gains: Mapping[str, Estimate]) -> str | None:
    """The candidate that a site takes: of those whose gain counts, the one with the largest.

    The exception is ``"fused"``, which a site takes if it does not lose, see :data:`FUSED_LOSS`.

    Args:
        gains: candidate -> its gain.

    Returns:
        Its name; ``None``: the site stays with the model that it would use.

    >>> chosen({"adapted": Estimate(0.03, 0.01, 5), "alone": Estimate(0.05, 0.06, 5)})
    'adapted'
    >>> chosen({"adapted": Estimate(0.03, 0.04, 5)}) is None
    True
    >>> chosen({"adapted": Estimate(0.03, 0.01, 5), "fused": Estimate(-0.01, 0.04, 5)})
    'fused'
    """
    fused = gains.get("fused")
    if fused is not None and fused.n and fused.value >= -FUSED_LOSS:
        return "fused"
    best = None
    for name in CANDIDATES:
        if name not in gains or name == "fused" or not is_taken(gains[name]):
            continue
        if best is None or gains[name].value > gains[best].value:
            best = name
    return best
