# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests and replies as scripts of NVFlare's FedAvg and FedCE recipes read and write them.

Such a script uses NVFlare's Client API and knows nothing of this package.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants

from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import (
    RANGES,
    UNDECLARED,
    Expected,
    Measurement,
    ModelSpec,
    Reply,
    Request,
    Weights,
)
from monai_fairfl.strategies import FedCE, Strategy
from monai_fairfl.transports.engines.wire import unreadable
from monai_fairfl.transports.flare import wire

logger = logging.getLogger(__name__)


SCRIPT_RANGES = {
    # A script's key metric has the unit that the script gives it, and the sign of its mode.
    "global_score": [UNDECLARED.least, UNDECLARED.most],
}
"""Measurement -> least and largest value, where these differ from those of the package's sites."""

SENT_OTHERWISE = {
    "global_score": "the metric that key_metric names",
    "leave_one_out_error": f"meta[{FedCEConstants.MINUS_MODEL_SCORE!r}]",
}
"""Measurement -> how a script sends it. Among its ``metrics``, this name does not count."""


def settings_for_scripts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a federation whose clients are scripts.

    They choose the names of their metrics, and the unit of the key metric.

    Args:
        given: settings of the user's, which count before these.

    Raises:
        ConfigError: for a last mile.

    >>> settings_for_scripts({"ranges": {"global_score": [0, 100]}})["ranges"]["global_score"]
    [0, 100]
    """
    if given.get("adapt_epochs"):
        raise ConfigError(
            "adapt_epochs needs clients of this package: a script decides itself what it trains. "
            "Leave it out, or train a bundle"
        )
    ranges = {**SCRIPT_RANGES, **(given.get("ranges") or {})}
    return {"unasked": True, **given, "ranges": ranges}


class ScriptMessages:
    """Writes requests for scripts and reads their replies, in place of the functions of ``wire``.

    A script receives the model as a ``state_dict`` and, where the method has one, its own previous
    weight under ``meta["fedce_coef"]``, nobody else's. It sends ``DIFF`` or ``FULL`` parameters,
    ``metrics`` and ``meta["fedce_minus_val"]``; see :func:`reply_from`. A reply with this package's
    own ``meta`` is understood, too.

    Args:
        strategy: of the federation, which starts it.
        key_metric: the entry of ``metrics`` that scores the received model.
        key_metric_mode: ``"min"`` where a low one is good: its negative is then the score.
    """

    def __init__(
        self, strategy: Strategy, key_metric: str = "accuracy", key_metric_mode: str = "max"
    ):
        self.strategy = strategy
        self.key_metric = key_metric
        self.sign = -1.0 if key_metric_mode == "min" else 1.0

    def request_model(self, request: Request, rounds: int) -> FLModel:
        """Return a request as it goes to a script."""
        model = wire.request_model(request, rounds)
        model.params = self.strategy.spec.with_aliases(request.weights)
        weight = usable_weight(request.context)
        if weight is not None:
            model.meta[FedCEConstants.CONTRIBUTION_WEIGHTS] = {request.client: weight}
        return model

    def reply_of(self, model: FLModel, request: Request) -> Reply:
        """Return a script's reply to ``request``; one that cannot be read has an error."""
        own = (model.meta or {}).get(wire.META)
        if isinstance(own, Mapping) and "measurements" in own:
            return _without_impossible_score(wire.reply_of(model, request), request)
        try:
            measurements = measurements_of(
                model, request.client, self.strategy, self.key_metric, self.sign
            )
            return reply_from(model, request, self.strategy.spec, measurements)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            return unreadable(request, error)


def usable_weight(context: Mapping[str, float]) -> float | None:
    """Return the weight by which NVFlare's ``PTFedCEHelper`` can take a client out of the model.

    Args:
        context: of a request to the client.

    Returns:
        ``None`` where there is no such weight. The helper then assumes 0, and its model without the
        client is the model itself.
    """
    weight = context.get("previous_weight")
    if weight is None or not 0 <= weight <= 1 - 1e-6:
        return None
    return weight


def reply_from(
    model: FLModel, request: Request, spec: ModelSpec, measurements: Mapping[str, Measurement]
) -> Reply:
    """Return a script's answer as a reply: differences of parameters, absolute buffers, numbers.

    ``NUM_STEPS_CURRENT_ROUND`` stands for the number of steps and of samples, since no sample count
    is on that wire: it weighs in FedAvg's average as in NVFlare's own. Without one it is 1.
    """
    steps = _steps((model.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND))
    update, buffers = None, None
    if model.params:
        update, buffers = _changes(model, request.weights, spec)
    return request.reply(update, steps, measurements=measurements, buffers=buffers, num_steps=steps)


def measurements_of(
    model: FLModel, client: str, strategy: Strategy, key_metric: str = "accuracy", sign: float = 1.0
) -> dict[str, float]:
    """Return what a script measured, without numbers that are not finite, or impossible.

    Its ``metrics`` keep their names, except for those in :data:`SENT_OTHERWISE`. The key metric is
    also ``global_score``, and ``fedce_minus_val`` is ``leave_one_out_error``.

    Args:
        model: the script's answer.
        client: that sent it.
        strategy: of the federation.
        key_metric: the entry of ``metrics`` that scores the received model.
        sign: -1 where a low key metric is good.
    """
    metrics = {str(name): _number(value) for name, value in (model.metrics or {}).items()}
    numbers = {}
    for name, number in metrics.items():
        if name not in SENT_OTHERWISE:
            numbers[name] = number
        elif name != key_metric:
            logger.warning(
                "client %s: metrics[%r] does not count: its script must send this number as %s",
                client,
                name,
                SENT_OTHERWISE[name],
            )
    if key_metric in metrics:
        numbers["global_score"] = sign * metrics[key_metric]

    mean_error = (model.meta or {}).get(FedCEConstants.MINUS_MODEL_SCORE)
    if mean_error is not None:
        error = _error_of_round(float(mean_error), client, strategy)
        if error is not None:
            numbers["leave_one_out_error"] = error
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _error_of_round(mean: float, client: str, strategy: Strategy) -> float | None:
    """Return the error of this round, which leads to the ``mean`` that a script sent.

    NVFlare's scripts send the mean of their errors so far. The strategy knows which error of this
    round leads to it. That error may be impossible, also if the mean is possible: the script was
    started again, an earlier reply was lost, a guard acted, or the script lies. The nearest
    possible error then counts. The means of script and server come together in later rounds, which
    they would not if the number were refused.

    Returns:
        ``None`` where the mean itself is impossible.
    """
    name = "leave_one_out_error"
    allowed = RANGES[name]
    if not allowed.holds(mean):
        logger.warning(
            "client %s: %s is %g, outside of %s, and does not count",
            client,
            FedCEConstants.MINUS_MODEL_SCORE,
            mean,
            allowed,
        )
        return None

    error = mean
    if isinstance(strategy, FedCE) and strategy.variant != "paper" and client in strategy.seen:
        # These variants average the errors of all rounds themselves.
        rounds = strategy.seen[client]
        error = (rounds + 1) * mean - (rounds - strategy.second[client])
    nearest = min(max(error, allowed.least), allowed.most)
    if not allowed.holds(error):
        logger.warning(
            "client %s: %s is %g, which needs an error of %g in this round; %g counts. The script "
            "must send the mean of its errors in all rounds of the run",
            client,
            FedCEConstants.MINUS_MODEL_SCORE,
            mean,
            error,
            nearest,
        )
    return nearest


def _without_impossible_score(reply: Reply, request: Request) -> Reply:
    """Return the reply of a client of this package without a score that is no Dice.

    The wide range of ``global_score`` is for scripts, which choose the unit of their key metric.
    """
    usable, _ = Expected(unasked=True).checked(reply, request, ModelSpec(()))
    if "global_score" not in reply.measurements or "global_score" in usable:
        return reply
    logger.warning(
        "client %s: global_score does not count: a client of monai_fairfl must send one of %s",
        request.client,
        RANGES["global_score"],
    )
    measurements = dict(reply.measurements)
    del measurements["global_score"]
    return replace(reply, measurements=measurements)


def _changes(
    model: FLModel, sent: Weights, spec: ModelSpec
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return update and buffers of a script's answer.

    A tensor that fits nowhere stays as it is: the check of the reply refuses it by its name.
    """
    arrived = wire.Arriving(model.params or {})
    is_difference = model.params_type == ParamsType.DIFF
    update: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for name in arrived:
        value = arrived[name]
        # An alias is the same tensor again.
        if name in spec.aliases:
            continue
        start = sent.get(name)
        if start is not None and start.shape != value.shape:
            start = None
        if name in spec.buffers:
            buffers[name] = _absolute(value, start, is_difference)
        elif start is None or is_difference:
            update[name] = value
        else:
            update[name] = value - start
    return update, buffers


def _absolute(value: torch.Tensor, start: torch.Tensor | None, is_difference: bool) -> torch.Tensor:
    """Return a buffer's new value in its own type, where the sent value ``start`` is known."""
    if start is None:
        return value
    if is_difference:
        value = start + value
    return value.to(start.dtype)


def _steps(value: Any) -> int:
    """Return a number of steps, at least 1; 1 where the script sends none."""
    number = _number(value)
    if not math.isfinite(number):
        return 1
    return max(round(number), 1)


def _number(value: Any) -> float:
    """Return a metric as a number, NaN where it is none."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        has_one_element = math.prod(value.shape) == 1
        return float(value) if has_one_element else math.nan
    if not isinstance(value, (int, float, np.number)):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer too large for a float
        return math.nan
