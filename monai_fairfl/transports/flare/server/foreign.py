# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that know nothing of this package: what those of NVFlare's FedAvg and FedCE recipes are
sent, and send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants

from monai_fairfl.protocol.messages import Reply, Request, failed
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.values import Measurement, Weights
from monai_fairfl.strategies import FedCE, Strategy
from monai_fairfl.transports.flare import wire


class Scripts:
    """Requests and replies for scripts of NVFlare's Client API, in place of the functions of
    ``wire``.

    A script is sent the model as a ``state_dict`` and, where the method has one, its own last
    weight under ``meta["fedce_coef"]``, nobody else's. It sends ``DIFF`` or ``FULL`` parameters,
    ``metrics`` and ``meta["fedce_minus_val"]``; see :func:`reply_from`. One that answers with this
    package's own ``meta`` is understood, too.

    Args:
        strategy: of the federation, which starts it.
        key_metric: the entry of ``metrics`` that scores the received model.
        key_metric_mode: ``"min"`` where a low one is good: its negative is then the score.
    """

    def __init__(
        self, strategy: Strategy, key_metric: str = "accuracy", key_metric_mode: str = "max"
    ):
        self.strategy, self.key_metric, self.sign = (
            strategy,
            key_metric,
            -1.0 if key_metric_mode == "min" else 1.0,
        )

    def request_model(self, request: Request, rounds: int) -> FLModel:
        """A request on its way to a script."""
        model = wire.request_model(request, rounds)
        model.params = self.strategy.spec.with_aliases(request.weights)
        if (weight := coefficient(request)) is not None:
            model.meta[FedCEConstants.CONTRIBUTION_WEIGHTS] = {request.client: weight}
        return model

    def reply_of(self, model: FLModel, request: Request) -> Reply:
        """What came back from the script that was sent ``request``; what cannot be read is a reply
        with an error.
        """
        told = (model.meta or {}).get(wire.META)
        if isinstance(told, Mapping) and "measurements" in told:
            return wire.reply_of(model, request)
        try:
            measured = measurements_of(
                model, request.client, self.strategy, self.key_metric, self.sign
            )
            return reply_from(model, request, self.strategy.spec, measured)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            return failed(request, f"its answer cannot be read ({type(error).__name__}: {error})")


def coefficient(request: Request) -> float | None:
    """The weight with which NVFlare's ``PTFedCEHelper`` can take the client out of the model;
    ``None``: there is none.

    Without one the helper answers 0, and its model without the client is the model itself.
    """
    weight = request.context.get("previous_weight")
    return weight if weight is not None and 0 <= weight <= 1 - 1e-6 else None


def reply_from(
    model: FLModel, request: Request, spec: ModelSpec, measurements: Mapping[str, Measurement]
) -> Reply:
    """A script's answer as a reply: differences of the parameters, absolute buffers, and what it
    measured.

    ``NUM_STEPS_CURRENT_ROUND`` stands for the number of steps and of samples, since no sample count
    is on that wire: it weighs in FedAvg's average as in NVFlare's own. Without one it is 1.
    """
    steps = _steps((model.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND))
    update, buffers = _changes(model, request.weights, spec) if model.params else (None, None)
    return Reply(
        request.client, update, steps, measurements, buffers, num_steps=steps,
        id=request.id, run=request.run, round=request.round,
    )  # fmt: skip


def measurements_of(
    model: FLModel, client: str, strategy: Strategy, key_metric: str = "accuracy", sign: float = 1.0
) -> dict[str, Measurement]:
    """What a script measured: its ``metrics``, the key metric also as ``global_score``, and FedCE's
    error.

    NVFlare takes ``fedce_minus_val`` as it comes, and its scripts send the mean of their rounds so
    far. FedCE's variants ``"revised"`` and ``"released"`` make that mean themselves, so they are
    told the error of this round that leads to it; ``"paper"`` is told the number itself. Numbers
    that are not finite are left out.
    """
    numbers = {str(name): _number(value) for name, value in (model.metrics or {}).items()}
    if key_metric in numbers:
        numbers["global_score"] = sign * numbers[key_metric]
    if (score := (model.meta or {}).get(FedCEConstants.MINUS_MODEL_SCORE)) is not None:
        mean = float(score)
        past = (
            strategy.history.get(client)
            if isinstance(strategy, FedCE) and strategy.variant != "paper"
            else None
        )
        errors = past["rounds"] - past["dice"] if past else 0.0
        numbers["leave_one_out_error"] = (past["rounds"] + 1) * mean - errors if past else mean
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _changes(
    model: FLModel, sent: Weights, spec: ModelSpec
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Update and buffers; what fits nowhere is left as it is, for the check of the reply to refuse
    by name.
    """
    arrived, full = wire.Arriving(model.params or {}), model.params_type != ParamsType.DIFF
    update: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for name in arrived:
        value, start = arrived[name], sent.get(name)
        fits = start is not None and start.shape == value.shape
        if name in spec.aliases:
            continue  # the same tensor again
        if name in spec.buffers:
            buffers[name] = (
                (value if full else start + value).to(start.dtype)
                if fits and start is not None
                else value
            )
        else:
            update[name] = value - start if full and fits and start is not None else value
    return update, buffers


def _steps(value: Any) -> int:
    number = _number(value)
    return max(round(number), 1) if math.isfinite(number) else 1


def _number(value: Any) -> float:
    """A metric as a number; NaN where it is none."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return float(value) if math.prod(value.shape) == 1 else math.nan
    return float(value) if isinstance(value, (int, float, np.number)) else math.nan
