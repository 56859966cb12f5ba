# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy as the aggregator of NVFlare's own FedAvg workflow, for those who keep it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.fedce import FedCEConstants

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import DEFAULT
from monai_fairfl.protocol.averages import Aggregation, uniform
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.server.exchange import Inbox, guarded
from monai_fairfl.strategies import Strategy, Weighting, compose
from monai_fairfl.transports.flare.server.aggregator_state import AggregatorState
from monai_fairfl.transports.flare.server.foreign import coefficient, measurements_of, reply_from
from monai_fairfl.transports.flare.server.one_exchange import one_exchange, try_round
from monai_fairfl.transports.flare.wire import Arriving

logger = logging.getLogger(__name__)

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class FairFLAggregator(ModelAggregator):
    """Weighs the results of a round of NVFlare's FedAvg as a strategy does.

    >>> from monai_fairfl.strategies import FedAvg, FedCE
    >>> aggregator = FairFLAggregator(FedCE("sum", variant="revised"))  # for FedAvgRecipe(aggregator=aggregator, ...)
    >>> client = {"client_name": "elm", "NUM_STEPS_CURRENT_ROUND": 4}
    >>> averaging = FairFLAggregator(FedAvg())
    >>> averaging.accept_model(FLModel(ParamsType.DIFF, {"w": torch.ones(2)}, meta=client))
    >>> averaging.aggregate_model().params["w"].tolist()
    [1.0, 1.0]

    That workflow sends one model, and one ``meta``, to all, and asks once a round; so strategies of
    one model and one exchange work: FedAvg, FedCE, and, where scripts send what they need among
    their ``metrics``, QFedAvg and AFL (``global_loss``) and FairFed (the key metric). With FedCE
    every client receives the weights of **all** under ``meta["fedce_coef"]``, as with NVFlare's own
    aggregator; :class:`~monai_fairfl.transports.flare.FairFLRecipe` sends each its own only.

    Results may come in any order, as ``DIFF`` or ``FULL``; the same results give the same bits. One
    that is malformed or not finite is left out, which the log says. What the strategy remembers is
    in the file :data:`STATE` of the job's run directory, for a server that is started again, and
    for you; clients do not receive it.

    Args:
        strategy: one of ``monai_fairfl.strategies``, or your own.
        trainable_param_names: tensors that make contributions; all others are buffers: averaged,
            counters take the maximum. ``None``: every floating-point tensor but BatchNorm's
            statistics.
        key_metric: the entry of ``metrics`` that scores the received model, ``global_score`` for
            strategies.
        weighting: in place of the strategy's own, see :func:`~monai_fairfl.strategies.compose`.

    Raises:
        ConfigError: when the strategy needs more than this workflow has; it is named.
    """

    def __init__(
        self,
        strategy: Strategy,
        trainable_param_names: list[str] | None = None,
        key_metric: str = "accuracy",
        weighting: Weighting | None = None,
    ):
        super().__init__()
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategy must be a monai_fairfl Strategy, got {strategy!r}")
        # NVFlare writes a job's configuration from attributes that are named as the arguments
        self.strategy, self.trainable_param_names, self.key_metric = (
            strategy,
            trainable_param_names,
            key_metric,
        )
        self.weighting = weighting or strategy.parts.weighting
        compose(strategy, self.weighting, strategy.parts.reward, strategy.parts.training)
        tried = try_round(strategy)
        if strategy.parts.reward is not None or (tried is not None and tried.rewards is not None):
            _refuse_models(strategy)
        self._sent: Mapping[str, torch.Tensor] | None = None
        self._results: dict[str, FLModel] = {}
        self._refused: dict[str, str] = {}
        self._origin: dict[str, torch.Tensor] = (
            {}
        )  # the sent model, from which all differences are told

    # ---- what NVFlare calls
    # -----------------------------------------------------------------------------------

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the model that goes out: results in full are compared with it."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK and self._sent is None:
            task = FLModelUtils.from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
            self._sent = Arriving(task.params or {})

    def reset_stats(self) -> None:
        """Begin a round."""
        self._sent, self._results, self._refused = None, {}, {}

    def accept_model(self, model: FLModel) -> None:
        """Take in one client's result.

        Raises:
            FederationError: when it cannot take part in the round; NVFlare logs that and goes on
                without it.
        """
        client = str((model.meta or {}).get("client_name") or "")
        if not client:
            raise FederationError(
                "a result lacks meta['client_name'], which NVFlare's server writes: whose is it?"
            )
        if client in self._results:
            raise FederationError(
                f"client {client} sent a second result in this round: the first one counts"
            )
        try:
            self._results[client] = self._as_difference(model)
        except (FederationError, TypeError) as error:
            self._refused[client] = str(error)
            raise FederationError(f"client {client}: {error}") from error

    def aggregate_model(self) -> FLModel:
        """The step of the global model.

        Raises:
            FederationError: when no result of the round can be used; it says why each cannot.
        """
        if not self._results:
            raise FederationError(
                f"no client's result of this round can be used: {self._refused or 'none came'}"
            )
        if not self._origin:
            self._start()
        self.strategy.clients = sorted({*self.strategy.clients, *self._results})
        result = one_exchange(self.strategy, sorted(self._results), self._answer)
        if result.rewards is not None:
            _refuse_models(self.strategy)
        self._state.keep(self._number(), result, {**self._replies.missing, **self._refused})
        arrays = isinstance(
            next(iter(self._results[self._replies.clients[0]].params.values())), np.ndarray
        )
        return FLModel(
            ParamsType.DIFF,
            {name: tensor.numpy() if arrays else tensor for name, tensor in result.weights.items()},
            metrics=self._metrics(result.aggregation),
            current_round=self._number(),
            meta=self._meta() | {"nr_aggregated": len(self._replies)},
        )

    # ---- one round --------------------------------------------------------------------------------------------

    def _as_difference(self, model: FLModel) -> FLModel:
        if not model.params:
            raise FederationError("it sent no parameters")
        _check_tensors(model.params)
        if model.params_type == ParamsType.DIFF:
            return model
        if self._sent is None:
            raise FederationError(
                "it sent whole parameters, and the model that it was sent is not known here: let it send differences, "
                "with params_transfer_type=TransferType.DIFF in FedAvgRecipe"
            )
        sent, local = self._sent, Arriving(model.params)
        arrays = isinstance(next(iter(model.params.values())), np.ndarray)
        fits = {name: name in sent and sent[name].shape == local[name].shape for name in local}
        changes = {name: local[name] - sent[name] if fits[name] else local[name] for name in local}
        params = {name: change.numpy() if arrays else change for name, change in changes.items()}
        return FLModel(
            ParamsType.DIFF,
            params,
            None,
            model.metrics,
            None,
            model.current_round,
            None,
            model.meta,
        )

    def _start(self) -> None:
        """The tensors of the first results are the model's: those that most clients sent."""
        shapes = {client: _shapes(model) for client, model in sorted(self._results.items())}
        common = Counter(shapes.values()).most_common(1)[0][0]
        example = Arriving(
            next(self._results[client].params for client in shapes if shapes[client] == common)
        )
        self._origin = {name: torch.zeros_like(example[name]) for name in sorted(example)}
        floating = [name for name, tensor in self._origin.items() if tensor.is_floating_point()]
        names = self.trainable_param_names or [
            n for n in floating if n.rpartition(".")[2] not in STATISTICS
        ]
        unknown = sorted(set(names) - set(floating))
        if unknown or not names:
            raise ConfigError(
                f"trainable_param_names {unknown[:3] or names} must be floating-point tensors that the clients send, "
                f"such as {floating[:3]}"
            )
        spec = ModelSpec(
            tuple(sorted(names)),
            buffers=tuple(name for name in self._origin if name not in names),
            layers={name: name.rpartition(".")[0] for name in self._origin},
        )
        self.strategy.start(self._origin, self._known_clients(), spec)
        self._state = AggregatorState(self.strategy, self.fl_ctx)
        self._state.resume(self._number())

    def _answer(self, requests: list[Request]) -> Replies:
        """The results as replies, checked and guarded as everywhere."""
        asked = [
            replace(request, id=id, weights=self._origin) for id, request in enumerate(requests)
        ]
        inbox = Inbox(asked, self.strategy.spec, self._origin, _log_refusal)
        for request in asked:
            model = self._results[request.client]
            measured = measurements_of(model, request.client, self.strategy, self.key_metric)
            inbox.arrived(reply_from(model, request, self.strategy.spec, measured))
        self._replies, _ = guarded(inbox.replies(), DEFAULT)
        if not self._replies:
            raise FederationError(
                f"no client's result of this round can be used: {self._replies.missing | self._refused}"
            )
        return self._replies

    def _metrics(self, aggregation: Aggregation) -> dict[str, Any] | None:
        """The clients' metrics, averaged with the weights of the round; ``None`` when one of them
        has none.
        """
        plain = all(isinstance(weight, (int, float)) for weight in aggregation.values())
        weights: Mapping[str, Any] = aggregation if plain else uniform(self._replies.clients)
        helper = WeightedAggregationHelper()
        for client in self._replies.clients:
            metrics = self._results[client].metrics
            if metrics is None:
                return None
            helper.add(
                filter_aggregatable_metrics(metrics),
                max(weights[client], 1e-12),
                client,
                self._number(),
            )
        return helper.get_result() or None

    def _meta(self) -> dict[str, Any]:
        """Each client's weight in the model that is sent next, where the method's clients need to
        know it.
        """
        playing = self.strategy.round(self.strategy.clients)
        coefficients = {request.client: coefficient(request) for request in next(playing)}
        playing.close()
        known = {client: weight for client, weight in coefficients.items() if weight is not None}
        return {FedCEConstants.CONTRIBUTION_WEIGHTS: known} if known else {}

    def _known_clients(self) -> list[str]:
        engine = self.fl_ctx.get_engine() if self.fl_ctx is not None else None
        return sorted(
            {*self._results, *(client.name for client in (engine.get_clients() if engine else ()))}
        )

    def _number(self) -> int | None:
        """The round, as NVFlare counts; ``None`` when it does not say."""
        return next(
            (
                model.current_round
                for model in self._results.values()
                if model.current_round is not None
            ),
            None,
        )


def _refuse_models(strategy: Strategy) -> None:
    raise ConfigError(
        f"{strategy.name} sends every client a model of its own, and NVFlare's FedAvg workflow sends one to all: use "
        "FairFLRecipe, with your train_script or a bundle"
    )


def _check_tensors(params: Mapping[str, Any]) -> None:
    """Refuse what is no tensor; those that NVFlare left on disk stay there."""
    for name in [name for name, value in params.items() if not hasattr(value, "materialize")]:
        Arriving(params)[name]


def _shapes(model: FLModel) -> tuple[tuple[str, tuple[int, ...]], ...]:
    arrived = Arriving(model.params)
    return tuple((name, tuple(arrived[name].shape)) for name in sorted(arrived))


def _log_refusal(client: str, reason: str | None) -> None:
    if reason is not None:
        logger.warning("client %s: its result is left out: %s", client, reason)
