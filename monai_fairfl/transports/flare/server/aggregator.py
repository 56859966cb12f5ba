# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy as the aggregator of NVFlare's own FedAvg workflow."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.fedce import FedCEConstants

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import BatchStatistics, Replayed
from monai_fairfl.guards.registry import Given
from monai_fairfl.messages import ModelSpec, Reply, Request
from monai_fairfl.replies import Replies
from monai_fairfl.run.records import dropped_of
from monai_fairfl.server.exchange import Exchange
from monai_fairfl.server.facts import Facts
from monai_fairfl.server.guarding import guarded
from monai_fairfl.server.round import require_finite
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.strategies import Average, RoundResult, Strategy, Weighting, compose
from monai_fairfl.transports.engines.job_guards import config_of_shipped, shipped_guards
from monai_fairfl.transports.engines.wire import unreadable
from monai_fairfl.transports.flare.server.aggregator_state import AggregatorState
from monai_fairfl.transports.flare.server.one_exchange import one_exchange, try_round
from monai_fairfl.transports.flare.server.script_messages import (
    measurements_of,
    reply_from,
    settings_for_scripts,
    usable_weight,
)
from monai_fairfl.transports.flare.wire import Arriving, waits_on_disk

logger = logging.getLogger(__name__)

BATCH_NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

COMPUTED_IN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating-point types in which PyTorch computes; it only stores the others."""

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Name -> shape and type of each tensor of a result."""


class FairFLAggregator(ModelAggregator):
    """Weighs the results of a round of NVFlare's FedAvg as a strategy does.

    >>> import torch
    >>> from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    >>> from monai_fairfl.strategies import FedAvg, FedCE
    >>> aggregator = FairFLAggregator(FedCE("sum", variant="revised"))  # for FedAvgRecipe
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
    that is malformed is left out, and the guards judge the others as in any federation; the log
    reports both. Where the server does not know the model that it sent, statistics of batches and
    repeated steps are not judged, and the log says so. The first number of steps that a client
    reports counts for the whole job; a later one that differs is noted. What strategy and guards
    remember is in the file ``fairfl_aggregator.json`` of the job's run directory, for a server that
    is started again, and for you; clients do not receive it.

    Args:
        strategy: one of ``monai_fairfl.strategies``, or your own.
        trainable_param_names: tensors that make contributions; all others are buffers: averaged,
            counters take the maximum. ``None``: every floating-point tensor but BatchNorm's
            statistics.
        key_metric: the entry of ``metrics`` that scores the received model, ``global_score`` for
            strategies.
        weighting: in place of the strategy's own, see :func:`~monai_fairfl.strategies.compose`.
        guards: checks of the results, in order: guards of this package, their names or
            configurations; ``None``: the default ones.
        average: in place of the weighted mean.
        cap: most weight of any client, and ``clip_reports`` the band of what clients measured; see
            :func:`~monai_fairfl.strategies.compose`.
        clip_reports: see ``cap``.
        ranges: measurement -> (least, most), in place of its range in
            :data:`monai_fairfl.messages.RANGES`: for a loss that is negative or above 100.

    Raises:
        ConfigError: when the strategy needs more than this workflow has, or a guard is unknown; it
            is named.
    """

    def __init__(
        self,
        strategy: Strategy,
        trainable_param_names: list[str] | None = None,
        key_metric: str = "accuracy",
        weighting: Weighting | None = None,
        ranges: Mapping[str, Sequence[float]] | None = None,
        guards: Given = None,
        average: Average | None = None,
        cap: float | None = None,
        clip_reports: float | None = None,
    ):
        super().__init__()
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategy must be a monai_fairfl Strategy, got {strategy!r}")
        # NVFlare writes a job's configuration from attributes that are named as the arguments.
        self.strategy = strategy
        self.trainable_param_names = trainable_param_names
        self.key_metric = key_metric
        compose(strategy, weighting=weighting, average=average, cap=cap, clip_reports=clip_reports)
        parts = strategy.parts
        self.weighting = parts.weighting
        self.average = parts.average
        self.cap = parts.cap
        self.clip_reports = parts.clip_reports
        self.guards = config_of_shipped(guards)
        # Copies of its own, as some remember earlier rounds.
        self._guards = copy.deepcopy(shipped_guards(guards))
        self.ranges = ranges

        trial = try_round(strategy)
        gives_own_models = trial is not None and trial.rewards is not None
        if gives_own_models or strategy.parts.reward is not None:
            _refuse_own_models(strategy)

        settings = RunSettings.of(
            "FairFLAggregator", {"rounds": 1, **settings_for_scripts({"ranges": ranges or {}})}
        )
        self._expected = settings.expected(strategy.ranges)
        self._sent: Mapping[str, torch.Tensor] | None = None
        self._results: dict[str, FLModel] = {}
        self._refused: dict[str, str] = {}
        self._notes: Mapping[str, str] = {}
        self._facts = Facts()
        self._warned = False
        # All updates are differences from the sent model, which is therefore 0 for the strategy.
        self._origin: dict[str, torch.Tensor] = {}

    # ---- what NVFlare calls ----

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the model that is sent: whole results are compared with it."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK and self._sent is None:
            task = FLModelUtils.from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
            self._sent = Arriving(task.params or {})

    def reset_stats(self) -> None:
        """Begin a round."""
        self._sent = None
        self._results = {}
        self._refused = {}

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
        except Exception as error:
            # Whatever reading one client's result raises is an error of this client.
            self._refused[client] = str(error)
            raise FederationError(f"client {client}: {error}") from error

    def aggregate_model(self) -> FLModel:
        """Return the step of the global model.

        Raises:
            FederationError: when no result of the round can be used, or their average is not
                finite; it names the reason for each.
        """
        if not self._results:
            self._fail(self._refused)
        if not self._origin:
            self._start_strategy()

        known_clients = self.strategy.clients
        self.strategy.clients = sorted({*known_clients, *self._results})
        try:
            result = self._played_round()
        except FederationError:
            # A round that is not recorded makes nothing known.
            self._facts.undo()
            self.strategy.clients = known_clients
            raise

        number = self._round_number()
        missing = {**self._replies.missing, **self._refused}
        new_facts = self._facts.settled()
        self._state.write(number, result, missing, self._verdicts, self._notes, new_facts)
        meta = {"nr_aggregated": len(self._replies), **self._weights_for_clients()}
        return FLModel(
            ParamsType.DIFF,
            self._like_results(result.weights),
            metrics=self._mean_metrics(result.aggregation),
            current_round=number,
            meta=meta,
        )

    # ---- one round ----

    def _played_round(self) -> RoundResult:
        """Return the strategy's result of the round."""
        result = one_exchange(self.strategy, sorted(self._results), self._replies_to)
        if result.rewards is not None:
            _refuse_own_models(self.strategy)
        require_finite(result, self._origin, self._replies)

        for guard in self._guards:
            guard.remember(self._with_sent(self._replies))
        return result

    def _as_difference(self, model: FLModel) -> FLModel:
        """Return a result whose tensors are differences from the sent model."""
        if not model.params:
            raise FederationError("it sent no parameters")
        _check_tensors(model.params)
        if model.params_type == ParamsType.DIFF:
            return model
        if self._sent is None:
            raise FederationError(
                "it sent whole parameters, and the model that it was sent is not known here: let "
                "it send differences, with params_transfer_type=TransferType.DIFF in FedAvgRecipe"
            )

        local = Arriving(model.params)
        params: dict[str, Any] = {}
        for name in local:
            value = local[name]
            # A tensor that does not fit stays as it is, for the check of the reply to refuse.
            if name in self._sent and self._sent[name].shape == value.shape:
                value = value - self._sent[name]
            params[name] = value.numpy() if _has_arrays(model) else value
        return FLModel(
            ParamsType.DIFF,
            params,
            metrics=model.metrics,
            current_round=model.current_round,
            meta=model.meta,
        )

    def _start_strategy(self) -> None:
        """Start the strategy on a model of zeros, with the tensors that most clients sent."""
        self._origin = self._zeros()
        trainable = self._trainable_names()
        buffers = tuple(name for name in self._origin if name not in trainable)
        layers = {name: name.rpartition(".")[0] for name in self._origin}
        spec = ModelSpec(tuple(sorted(trainable)), buffers=buffers, layers=layers)

        self.strategy.start(self._origin, self._known_clients(), spec)
        self._state = AggregatorState(self.strategy, self._guards, self.fl_ctx)
        self._state.resume(self._round_number())
        self._facts = Facts(records=self._state.rounds)

    def _zeros(self) -> dict[str, torch.Tensor]:
        """Return zeros with the names, shapes and types of the model, sorted by name.

        No single client decides them, as the model has them for the whole job. The check of replies
        then refuses results with other names, shapes or kinds of numbers. Another floating-point
        type is converted, as everywhere.
        """
        layouts = [_layout(self._results[client].params) for client in sorted(self._results)]
        # Empty where the sent model is not known here.
        sent = _layout(self._sent or {})
        agreeing = _agreeing(layouts, sent)
        zeros = {}
        for name in sorted(agreeing[0]):
            shape, _ = agreeing[0][name]
            dtype = _common_type([layout[name][1] for layout in agreeing])
            if name in sent:
                sent_shape, sent_dtype = sent[name]
                if sent_shape == shape and _kind(sent_dtype) == _kind(dtype):
                    dtype = sent_dtype
            zeros[name] = torch.zeros(shape, dtype=dtype)
        return zeros

    def _trainable_names(self) -> list[str]:
        floating = [name for name, tensor in self._origin.items() if tensor.is_floating_point()]
        names = self.trainable_param_names
        if not names:
            names = [name for name in floating if not _is_statistic(name)]
        unknown = sorted(set(names) - set(floating))
        if unknown or not names:
            raise ConfigError(
                f"trainable_param_names {unknown[:3] or names} must be floating-point tensors that "
                f"the clients send, such as {floating[:3]}"
            )
        return names

    def _replies_to(self, requests: list[Request]) -> Replies:
        """Return the results as replies, checked and guarded as everywhere."""
        stamped = []
        for number, request in enumerate(requests):
            stamped.append(replace(request, id=number, weights=self._origin))
        spec = self.strategy.spec
        exchange = Exchange(stamped, spec, self._origin, self._expected, answered=_log_refusal)
        for request in stamped:
            exchange.take(self._reply(request))

        arrived = exchange.replies()
        for client, dropped in dropped_of([arrived]).items():
            logger.warning("client %s: measurements are left out: %s", client, dropped)
        self._notes = self._facts.fix(arrived)
        for client, note in self._notes.items():
            logger.warning("client %s: %s", client, note)
        guards = self._guards
        if not self._knows_sent():
            self._warn_that_sent_is_unknown()
            # Of statistics, differences alone say nothing: those of a variance may be negative.
            guards = tuple(one for one in guards if not isinstance(one, BatchStatistics))
        passed, self._verdicts = guarded(self._with_sent(arrived), guards)
        if not passed:
            self._fail({**passed.missing, **self._refused})

        # The strategy sees differences again, also of the buffers.
        differences = {reply.id: reply.buffers for reply in arrived}
        replies = [replace(reply, buffers=differences[reply.id]) for reply in passed]
        self._replies = _same_exchange(passed, replies, list(arrived.requests.values()))
        return self._replies

    def _knows_sent(self) -> bool:
        """Whether the sent model is known here, with all tensors that the clients sent."""
        sent: Mapping[str, torch.Tensor] = self._sent or {}
        for name, tensor in self._origin.items():
            if name not in sent or sent[name].shape != tensor.shape:
                return False
        return True

    def _warn_that_sent_is_unknown(self) -> None:
        """Name, once a job, the guards that judge nothing without the sent model."""
        idle = [one for one in self._guards if isinstance(one, BatchStatistics | Replayed)]
        if not idle or self._warned:
            return
        self._warned = True
        names = " and ".join(type(one).__name__ for one in idle)
        logger.warning(
            "the model that the clients were sent is not known here, or lacks a tensor that they "
            "sent. Without it %s can judge nothing: use this aggregator in NVFlare's FedAvgRecipe, "
            "whose workflow shows it the model",
            names,
        )

    def _with_sent(self, replies: Replies) -> Replies:
        """The replies as guards see them: to the sent model, with buffers and not differences.

        They stay as they are where the sent model is not known here.
        """
        if not self._knows_sent():
            return replies
        assert self._sent is not None
        sent = {name: self._sent[name] for name in self._origin}
        requests = [replace(request, weights=sent) for request in replies.requests.values()]
        absolute = []
        for reply in replies:
            buffers = {name: sent[name] + change for name, change in (reply.buffers or {}).items()}
            absolute.append(replace(reply, buffers=buffers))
        return _same_exchange(replies, absolute, requests)

    def _reply(self, request: Request) -> Reply:
        """One client's result as a reply; one that cannot be read is an error of its client."""
        model = self._results[request.client]
        try:
            measurements = measurements_of(model, request.client, self.strategy, self.key_metric)
            return reply_from(model, request, self.strategy.spec, measurements)
        except Exception as error:
            return unreadable(request, error)

    def _like_results(self, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return arrays where most clients sent arrays, else tensors."""
        with_arrays = sum(_has_arrays(self._results[client]) for client in self._replies.clients)
        if 2 * with_arrays <= len(self._replies):
            return dict(weights)
        return {name: tensor.numpy() for name, tensor in weights.items()}

    def _mean_metrics(self, aggregation: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the clients' metrics, averaged with the weights of the round.

        Only numbers that passed the check of measurements count. Weights by layer average no
        metrics: then each client counts the same. ``None`` when a client has no metrics.
        """
        weights: Mapping[str, Any] = aggregation
        if not all(isinstance(weight, (int, float)) for weight in aggregation.values()):
            weights = dict.fromkeys(self._replies.clients, 1.0)
        helper = WeightedAggregationHelper()
        for reply in self._replies:
            metrics = self._results[reply.client].metrics
            if metrics is None:
                return None
            checked = {}
            for name in map(str, metrics):
                if name in reply.measurements:
                    checked[name] = reply.measurements[name]
            # NVFlare divides by the sum of the weights, which must not be 0.
            weight = max(weights[reply.client], 1e-12)
            helper.add(checked, weight, reply.client, self._round_number())
        return helper.get_result() or None

    def _weights_for_clients(self) -> dict[str, Any]:
        """Return each client's weight in the next model, where its next request would carry it."""
        # The requests of the next round, which are not sent from here.
        asking = self.strategy.round(self.strategy.clients)
        weights = {}
        for request in next(asking):
            weight = usable_weight(request.context)
            if weight is not None:
                weights[request.client] = weight
        asking.close()
        if not weights:
            return {}
        return {FedCEConstants.CONTRIBUTION_WEIGHTS: weights}

    def _known_clients(self) -> list[str]:
        """Return the clients of this round and, in a job, all that are connected."""
        names = set(self._results)
        engine = self.fl_ctx.get_engine() if self.fl_ctx is not None else None
        if engine is not None:
            names.update(client.name for client in engine.get_clients())
        return sorted(names)

    def _round_number(self) -> int | None:
        """Return the round, as NVFlare counts; ``None`` where nothing tells it.

        NVFlare's FedAvg tells the aggregator. Elsewhere it is the number that most results have,
        and the lowest of equally common ones.
        """
        if self.fl_ctx is not None:
            number: int | None = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
            if number is not None:
                return number
        counted: Counter[int] = Counter()
        for model in self._results.values():
            if model.current_round is not None:
                counted[model.current_round] += 1
        return min(counted, key=lambda number: (-counted[number], number), default=None)

    def _fail(self, reasons: Mapping[str, str]) -> NoReturn:
        raise FederationError(
            f"no client's result of this round can be used: {dict(reasons) or 'none came'}"
        )


def _same_exchange(
    before: Replies, replies: Sequence[Reply], requests: Sequence[Request]
) -> Replies:
    """An exchange with changed replies and requests, which have the same ids and updates."""
    return before.rebuilt(replies, before.missing, requests)


def _refuse_own_models(strategy: Strategy) -> NoReturn:
    raise ConfigError(
        f"{strategy.name} sends every client a model of its own, and NVFlare's FedAvg workflow "
        "sends one to all: use FairFLRecipe, with your train_script or a bundle"
    )


def _check_tensors(params: Mapping[str, Any]) -> None:
    """Refuse what is no tensor; one that NVFlare left on disk stays there."""
    arrived = Arriving(params)
    for name, value in params.items():
        if not waits_on_disk(value):
            arrived[name]


def _has_arrays(model: FLModel) -> bool:
    """Return whether a result's first tensor is a NumPy array."""
    first = next(iter(model.params.values()))
    return isinstance(first, np.ndarray)


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in BATCH_NORM_STATISTICS


def _layout(params: Mapping[str, Any]) -> Layout:
    """Shape and type of each tensor of a model, one of which is read at a time."""
    arrived = Arriving(params)
    layout = {}
    for name in arrived:
        tensor = arrived[name]
        layout[name] = (tuple(tensor.shape), tensor.dtype)
    return layout


def _agreeing(layouts: Sequence[Layout], sent: Layout) -> list[Layout]:
    """Return the layouts of most clients, which agree in names, shapes and kinds of numbers.

    Where as many clients sent one model as another, the one that differs less from the sent model
    counts; then the one with fewer tensors that are no floating-point numbers, which cannot be
    trained; then the first one.

    Args:
        layouts: of the clients' results, in the order of their names.
        sent: of the model that was sent; empty where it is not known.
    """
    groups: dict[frozenset[tuple[str, tuple[int, ...], str]], list[Layout]] = {}
    for layout in layouts:
        groups.setdefault(_without_types(layout), []).append(layout)
    of_sent = _without_types(sent)

    ranks = {}
    for tensors, group in groups.items():
        differences = len(tensors ^ of_sent) if sent else 0
        not_floating = sum(kind != "floating-point" for _, _, kind in tensors)
        ranks[tensors] = (len(group), -differences, -not_floating)
    return groups[max(ranks, key=ranks.__getitem__)]


def _without_types(layout: Layout) -> frozenset[tuple[str, tuple[int, ...], str]]:
    """Name, shape and kind of numbers of each tensor: single and half precision are alike."""
    return frozenset((name, shape, _kind(dtype)) for name, (shape, dtype) in layout.items())


def _kind(dtype: torch.dtype) -> str:
    """The kind of numbers that a type holds.

    >>> _kind(torch.float16), _kind(torch.int64), _kind(torch.complex64)
    ('floating-point', 'whole', 'complex')
    """
    if dtype.is_floating_point:
        return "floating-point"
    return "complex" if dtype.is_complex else "whole"


def _common_type(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """The most common type of one kind; of equally common ones, that of the most bytes.

    >>> _common_type([torch.float16, torch.float32]), _common_type([torch.float8_e5m2])
    (torch.float32, torch.float32)
    """
    counted = Counter(dtypes)
    common = max(counted, key=lambda dtype: (counted[dtype], dtype.itemsize))
    if common.is_floating_point and common not in COMPUTED_IN:
        return torch.float32
    return common


def _log_refusal(client: str, reason: str | None) -> None:
    if reason is not None:
        logger.warning("client %s: its result is left out: %s", client, reason)
