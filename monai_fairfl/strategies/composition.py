# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy with parts of other methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from monai_fairfl.errors import did_you_mean
from monai_fairfl.strategies.arguments import check_numbers
from monai_fairfl.strategies.base import Strategy
from monai_fairfl.strategies.parts import Average, Parts, Reward, Weighting
from monai_fairfl.utils.settings import is_number


def compose(
    strategy: Strategy,
    weighting: Weighting | None = None,
    reward: Reward | None = None,
    training: Mapping[str, float] | None = None,
    average: Average | None = None,
    cap: float | None = None,
    clip_reports: float | None = None,
) -> Strategy:
    """Replace parts of a strategy, such as its weights or its rewards, by those of other methods.

    If the strategy has parts from an earlier call, those for which ``None`` is given here stay.

    Args:
        strategy: measures, and estimates contributions.
        weighting: makes the weights of the average from the contributions; ``None``: the
            strategy's own weights.
        reward: makes the model from which each client continues from the contributions; ``None``:
            the strategy's own reward, if it has one.
        training: numbers that go with every training request, and switch on training handlers of
            the clients: ``prox_mu`` (FedProx), ``sam_rho`` and ``gsam_alpha`` (FedISM),
            ``reset_optimizer``, ``local_epochs``.
        average: makes the next global model from updates and weights; ``None``: the weighted mean.
        cap: the largest weight of any client; if a method has weights for each layer, in each
            layer. A value of 1 or more counts equal shares, 1/N; a value below 1 is a share of the
            total. The weight above the cap goes to the others in proportion to their weights.
            ``None``: no limit.
        clip_reports: k, at least 0. A number that clients report, and from which the strategy
            computes weights, is moved to the limit median +- k MAD of the present clients if it is
            beyond it, and the ledger notes this. MAD is the median distance to the median. If the
            strategy says which side brings weight
            (:attr:`~monai_fairfl.strategies.Strategy.gains_when`), only that side is limited.
            Scores of coalitions and similarities of features are not. ``None``: no limit. Honest
            hospitals differ: at k = 3, 5 to 28 % of the errors that honest sites of FedCE reported
            in real trainings would be beyond the limit of either side. If more than half of the
            clients report the same number, this number is the limit.

    Returns:
        The same strategy, with the new parts.

    Raises:
        TypeError: if the strategy or a part is of another class, or ``training`` is no mapping.
        ValueError: if ``cap`` or ``clip_reports`` is out of range, or ``training`` has an unknown
            key or a value out of the key's range.
        ConfigError: if the strategy's contributions have no meaning with such a part.

    ShapFed with FedISM's training, as config::

        {"_target_": "monai_fairfl.strategies.compose",
         "strategy": {"_target_": "monai_fairfl.strategies.ShapFed"},
         "training": {"sam_rho": 0.05, "gsam_alpha": 0.1}}

    >>> from monai_fairfl.strategies import FedAvg
    >>> compose(FedAvg(), training={"prox_mu": 0.01}).name
    'FedAvg-prox_mu_0.01'
    """
    kinds = {Strategy: strategy, Weighting: weighting, Reward: reward, Average: average}
    for kind, part in kinds.items():
        if part is not None and not isinstance(part, kind):
            # It would fail only after a round of training.
            name = kind.__name__
            raise TypeError(
                f"compose: {name.lower()} must be of the class {name}, got {part!r}"
                f"{_where_it_belongs(part, kinds)}"
            )
    if training is not None and not isinstance(training, Mapping):
        raise TypeError(
            f"compose: training must be a mapping, such as {{'prox_mu': 0.01}}, got {training!r}"
        )
    if cap is not None:
        check_numbers("compose", cap=cap)
        if not (math.isfinite(cap) and cap > 0):
            raise ValueError(f"compose: cap must be a finite number above 0, got {cap!r}")
    if clip_reports is not None:
        check_numbers("compose", clip_reports=clip_reports)
        if not (math.isfinite(clip_reports) and clip_reports >= 0):
            raise ValueError(
                f"compose: clip_reports must be a finite number of at least 0, got {clip_reports!r}"
            )
    had = strategy.parts
    together = {**had.training, **(training or {})}
    _check_training(together)
    # A limit of 0 is one, too.
    if cap is None:
        cap = had.cap
    if clip_reports is None:
        clip_reports = had.clip_reports
    parts = Parts(
        weighting=weighting or had.weighting,
        reward=reward or had.reward,
        training=together,
        average=average or had.average,
        cap=cap,
        clip_reports=clip_reports,
    )
    strategy.check_parts(parts)
    strategy.parts = parts
    return strategy


def _where_it_belongs(part: object, kinds: Iterable[type]) -> str:
    """The end of an error about a part that was given as another one: Krum, say, is a weighting."""
    for kind in kinds:
        if isinstance(part, kind):
            name = kind.__name__.lower()
            return f"; {type(part).__name__} is a {name}: give it as {name}"
    return ""


def _is_at_least_0(value: Any) -> bool:
    return is_number(value) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return _is_at_least_0(value) and value >= 1 and value == int(value)


def _is_0_or_1(value: Any) -> bool:
    return isinstance(value, (int, float)) and value in (0, 1)


TRAINING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "sam_rho": (_is_at_least_0, "a finite number of at least 0"),
    "gsam_alpha": (_is_at_least_0, "a finite number of at least 0"),
    "prox_mu": (_is_at_least_0, "a finite number of at least 0"),
    "reset_optimizer": (_is_0_or_1, "0 or 1"),
    "local_epochs": (_is_count, "a whole number from 1"),
}
"""Context key that ``training`` may have -> whether a value is one of its own, and these in words.
All other keys of a context are those of a strategy or of the run.
"""


def _check_training(training: Mapping[str, Any]) -> None:
    """Refuse what is no training, and what the first request to a client would fail by or round."""
    for key, value in training.items():
        if key not in TRAINING:
            hint = did_you_mean(key, TRAINING)
            raise ValueError(f"compose: training has no key {key!r}{hint}")
        is_one, words = TRAINING[key]
        if not is_one(value):
            raise ValueError(f"compose: {key} in training must be {words}, got {value!r}")
    if "gsam_alpha" in training and "sam_rho" not in training:
        raise ValueError(
            "compose: gsam_alpha in training needs sam_rho, the radius: GSAM is a refinement of SAM"
        )
