# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each site's own training at the end of a run brought, and whether the site takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fairfl.protocol.last_mile import ADAPTED_EPOCHS, GAIN, is_taken
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.report.numbers import Number
from monai_fairfl.report.run import Run


@dataclass(frozen=True)
class LastMile:
    """The last mile of one site.

    Args:
        gain: mean over its validation cases of the Dice after it less that before.
        taken: whether the site uses the model: it gains more than its standard error.
        epochs: of training until the best one; 0: none was better.
        adapted: Dice of the model after it; ``None`` where it was not measured.
        used: Dice of the model that the site uses, that or the one before; likewise.
    """

    gain: Number
    taken: bool
    epochs: int
    adapted: Number | None
    used: Number | None


def last_mile_of(run: Run, site: str, measurement: str, score: Number | None) -> LastMile | None:
    """The last mile of a site; ``None`` where there was none.

    Args:
        run: in question.
        site: name of the site.
        measurement: the closing measurement that is shown.
        score: what the site reached without it.
    """
    gain = run.closing(site, GAIN, model="adapted")
    if gain is None:
        return None
    taken = is_taken(Estimate(gain.value, gain.stderr, gain.n or 0))
    epochs = run.closing(site, ADAPTED_EPOCHS, model="adapted")
    adapted = run.closing(site, measurement, model="adapted")
    if epochs is None:
        # A ledger that does not say: no epoch is known to be better.
        best_epoch = 0
    else:
        best_epoch = round(epochs.value)
    used = adapted if taken else score
    return LastMile(gain=gain, taken=taken, epochs=best_epoch, adapted=adapted, used=used)


def gain_words(last_mile: Mapping[str, Any]) -> str:
    """The gain on validation cases, with its error and what the site does.

    >>> gain = {"value": 0.03, "stderr": 0.011, "n": 4}
    >>> gain_words({"gain": gain, "taken": True, "epochs": 7})
    '+0.030 ± 0.011 on 4 validation cases, taken'
    >>> gain = {"value": 0.03, "stderr": None, "n": 1}
    >>> gain_words({"gain": gain, "taken": False, "epochs": 7})
    '+0.030 on 1 validation case, not taken: no standard error'
    >>> gain_words({"gain": {**gain, "value": 0.0}, "taken": False, "epochs": 0})
    'nothing on 1 validation case, not taken'
    """
    gain = last_mile["gain"]
    plural = "" if gain["n"] == 1 else "s"
    cases = f"{gain['n']} validation case{plural}"
    if last_mile["epochs"] == 0:
        return f"nothing on {cases}, not taken"
    if gain["stderr"] is None:
        return f"{gain['value']:+.3f} on {cases}, not taken: no standard error"
    decision = "taken" if last_mile["taken"] else "not taken"
    return f"{gain['value']:+.3f} ± {gain['stderr']:.3f} on {cases}, {decision}"
