# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A strategy as the aggregator of NVFlare's own FedAvg workflow, for the user's own scripts.

NVFlare sends the model and collects the results; each of its rounds is one round of a
:class:`~monai_fairfl.server.federation.Federation`, which stops after it and is resumed for the
next. So its guards, ledger and checkpoints are those of any federation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.fedce import FedCEConstants

from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards.registry import guards_of
from monai_fairfl.messages import UNDECLARED, ModelSpec, Reply, Request
from monai_fairfl.replies import weights_of_model
from monai_fairfl.server import Federation, History
from monai_fairfl.strategies import FedCE, Parts, Strategy, compose
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.job import Start, config_of_shipped
from monai_fairfl.transports.engines.wire import unreadable
from monai_fairfl.transports.flare.wire import tensors_of

OF_SCRIPTS: Mapping[str, Any] = {
    # The workflow asks again in its next round only, and no script measures beside its training.
    **{"min_clients": 1, "retries": 0, "evaluate": (), "final": (), "unasked": True},
    # A script's key metric has the unit that the script gives it.
    "ranges": {"global_score": [UNDECLARED.least, UNDECLARED.most]},
}
"""Settings of a federation whose clients are scripts."""


class FairFLAggregator(ModelAggregator):
    """Weighs the results of a round of NVFlare's FedAvg as a strategy does.

    >>> from monai_fairfl.strategies import FedCE
    >>> aggregator = FairFLAggregator(FedCE("sum", variant="revised"), ["head.weight"], "dice")
    >>> aggregator.strategy.name  # for FedAvgRecipe(aggregator=aggregator, ...)
    'FedCE-sum-revised'

    That workflow sends one model, and one ``meta``, to all, and asks once a round. So strategies of
    one model and one exchange work: FedAvg, FedCE, and, where scripts send what they need among
    their ``metrics``, QFedAvg and AFL (``global_loss``), FedGA (``global_loss``, ``local_loss``),
    CFFL (``local_score``) and FairFed (the key metric). A script may use NVFlare's Client API alone
    or drive MONAI's ``MonaiAlgo`` with the handlers of this package, whose measurements it then
    sends as metrics. With FedCE every client receives the weights of **all** under
    ``meta["fedce_coef"]``, as with NVFlare's own aggregator.

    Results may come in any order, as ``DIFF`` or ``FULL``; the same results give the same bits. One
    that is malformed is left out, and guards judge the others. ``NUM_STEPS_CURRENT_ROUND`` stands
    for the number of images, since no such number is on that wire; without one it is 1.

    ``fairfl`` in the job's run directory has the ledger, and at the end models and report. Clients
    do not receive it. A server that is started again in that directory goes on after the last
    round.

    Args:
        strategy: one of ``monai_fairfl.strategies``, or its call as a text, or your own.
        trainable_param_names: tensors that make contributions; all others are buffers: averaged,
            counters take the maximum. Name tied weights, which a model has under two names, by one.
        key_metric: the entry of ``metrics`` that scores the received model, ``global_score`` for
            strategies.
        federation: fields of :class:`~monai_fairfl.server.settings.RunSettings`, plain values, such
            as ``{"ranges": {"global_loss": [0, 5000]}}``; and ``guards``, guards of this package.
        parts: of the strategy; NVFlare writes them into a job.

    Raises:
        ConfigError: when a guard is unknown; and in the first round, when the strategy needs more
            than this workflow has. It is named.
    """

    def __init__(
        self,
        strategy: Strategy | str,
        trainable_param_names: Sequence[str],
        key_metric: str = "accuracy",
        federation: Mapping[str, Any] | None = None,
        parts: Parts | None = None,
    ):
        super().__init__()
        strategy = strategy_of(strategy)
        if parts is not None:
            compose(strategy, **vars(parts))
        # NVFlare writes a job's configuration from attributes that are named as the arguments.
        self.strategy = strategy
        self.trainable_param_names = trainable_param_names
        self.key_metric = key_metric
        self.federation = {**OF_SCRIPTS, **(federation or {})}
        self.federation["ranges"] = {**OF_SCRIPTS["ranges"], **self.federation["ranges"]}
        self.federation["guards"] = config_of_shipped(self.federation.get("guards"))
        self.parts = strategy.exchanged

        # What the clients were sent, and its tensors; their results.
        self._task: Any = None
        self._sent: dict[str, torch.Tensor] = {}
        self._models: dict[str, FLModel] = {}
        self._federation: Federation | None = None

    # ---- what the workflow calls

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the model that is sent, and close the run when the job ends."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK and not self._sent:
            self._task = FLModelUtils.from_shareable(fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE))
            self._sent = tensors_of(self._task.params or {})
        if event_type == EventType.END_RUN and self._federation is not None:
            run_dir = self._run(conclude=True).run_dir
            # It loads scipy and jinja2, which nothing needs before the end.
            from monai_fairfl.report import write_report_if_possible

            write_report_if_possible([run_dir], run_dir)

    def reset_stats(self) -> None:
        """Begin a round."""
        self._sent, self._models = {}, {}

    def accept_model(self, model: FLModel) -> None:
        """Take in the result of the client that NVFlare's server names; its first one counts."""
        self._models.setdefault(model.meta["client_name"], model)

    def aggregate_model(self) -> FLModel:
        """Return the next global model.

        Raises:
            FederationError: when no result of the round can be used, or their average is not
                finite; it names the reason for each.
        """
        history = self._run()
        if self.strategy.rewards:
            raise self._needs_more("a model of its own for every client")
        model: dict[str, Any] = dict(self.strategy.weights)
        if any(isinstance(value, np.ndarray) for value in self._task.params.values()):
            model = {name: tensor.numpy() for name, tensor in model.items()}
        metrics = self._mean_metrics(history.rounds[-1])
        return FLModel(ParamsType.FULL, model, metrics=metrics, meta=self._meta())

    # ---- what the federation calls: this is its transport

    @property
    def clients(self) -> Sequence[str]:
        """The clients that answered in this round."""
        return sorted(self._models)

    def ask(self, requests: Sequence[Request], timeout: float | None = None) -> Iterator[Reply]:
        """Yield what the clients sent, as replies to the requests."""
        if "ended" in requests[0].context:
            # No script takes the last head of the ledger.
            return
        tasks = {request.task for request in requests}
        own = {key for request in requests for key in request.context} - {"previous_weight"}
        # Ids go on over the exchanges of a round.
        if requests[0].id or own or tasks != {"train"}:
            raise self._needs_more("another training, or more than one in a round")
        assert self._federation is not None
        # The next round is of the workflow's next model.
        self._federation.stop()
        for name, tensor in requests[0].weights.items():
            if name not in self._sent or not torch.equal(self._sent[name], tensor):
                raise FederationError(
                    f"the clients were sent another {name!r} than the run's last round made: to "
                    "begin without a memory, delete the folder fairfl of the job's run directory"
                )
        for request in requests:
            try:
                yield self._reply(request)
            except Exception as error:  # whatever reading somebody's result raises
                yield unreadable(request, error)

    def close(self) -> None:
        """Do nothing: the workflow goes on."""

    def _needs_more(self, what: str) -> ConfigError:
        """The error of a strategy that this workflow cannot play."""
        return ConfigError(
            f"{self.strategy.name} needs {what}, and NVFlare's FedAvg workflow sends one model to "
            "all and asks once a round: use FairFLRecipe(bundle=...)"
        )

    def _run(self, conclude: bool = False) -> History:
        """Play one round, of the results that have come; or conclude the run."""
        assert self.fl_ctx is not None, "NVFlare sends START_RUN before the first task"
        job = self.fl_ctx.get_job_id()
        folder = Path(self.fl_ctx.get_engine().get_workspace().get_run_dir(job)) / "fairfl"
        start = self._start(folder / "initial")
        given = {**self.federation, "guards": guards_of(self.federation["guards"])}
        self._federation = Federation(
            self.strategy, self, self._task.total_rounds, start.initial, run_dir=folder, **given
        )
        if conclude:
            self._federation.conclude()
        return self._federation.run(resume=True)

    def _start(self, folder: Path) -> Start:
        """Return the model that the workflow sent first, which a run that goes on began with."""
        if folder.exists():
            return Start.read(folder)
        sent = self._sent
        floating = [name for name in sent if sent[name].is_floating_point()]
        trainable = set(self.trainable_param_names)
        unknown = sorted(trainable.difference(floating))
        if unknown:
            raise ConfigError(
                f"trainable_param_names {unknown[:3]} must be floating-point tensors of the model, "
                f"such as {floating[:3]}"
            )
        parameters = tuple(sorted(trainable))
        buffers = tuple(sorted(set(sent) - trainable))
        layers = {name: name.rpartition(".")[0] for name in (*parameters, *buffers)}
        weights = {name: sent[name].clone() for name in layers}
        start = Start(weights, ModelSpec(parameters, buffers=buffers, layers=layers))
        start.write(folder)
        return start

    def _meta(self) -> dict[str, Any]:
        """Return each client's weight in the model, where its next request would carry it.

        NVFlare's ``PTFedCEHelper`` takes the client out of the model by it; without a weight it
        assumes 0, and the model without the client is the model itself.
        """
        weights = {}
        # The requests of the next round, which are not sent from here.
        for request in next(self.strategy.round(self.strategy.clients)):
            weight = request.context.get("previous_weight", math.nan)
            if 0 <= weight <= 1 - 1e-6:
                weights[request.client] = weight
        return {FedCEConstants.CONTRIBUTION_WEIGHTS: weights} if weights else {}

    def _mean_metrics(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Return the clients' metrics, averaged with the weights of the round.

        Only numbers that passed the check of measurements count.

        Args:
            record: of the round.
        """
        means = {}
        weights = weights_of_model(record["aggregation"])
        sent = {str(name) for model in self._models.values() for name in model.metrics or {}}
        measured = record["measurements"]
        for name in sorted(sent):
            clients = [client for client in weights if name in measured.get(client, ())]
            if clients:
                numbers = [measured[client][name] for client in clients]
                of_clients = [max(weights[client], 1e-12) for client in clients]
                means[name] = float(np.average(numbers, weights=of_clients))
        return means

    def _reply(self, request: Request) -> Reply:
        """Return one client's result: differences of parameters, absolute buffers, numbers.

        A tensor that fits nowhere stays as it is: the check of the reply refuses it by its name.
        """
        model = self._models[request.client]
        is_difference = model.params_type == ParamsType.DIFF
        update: dict[str, torch.Tensor] = {}
        buffers: dict[str, torch.Tensor] = {}
        for name, value in tensors_of(model.params or {}).items():
            start = request.weights.get(name)
            is_buffer = name in self.strategy.spec.buffers
            if start is not None and start.shape == value.shape:
                if is_buffer:
                    value = (start + value if is_difference else value).to(start.dtype)
                elif not is_difference:
                    value = value - start
            (buffers if is_buffer else update)[name] = value
        steps = _number(model.meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND))
        count = max(round(steps), 1) if math.isfinite(steps) else 1
        measurements = self._measurements(model, request.client)
        return request.reply(
            update, count, num_steps=count, measurements=measurements, buffers=buffers
        )

    def _measurements(self, model: FLModel, client: str) -> dict[str, float]:
        """Return the numbers of a result. The key metric is also ``global_score``."""
        numbers = {}
        for name, value in (model.metrics or {}).items():
            # The prefix is of MeasurementsFilter, in the statistics of a MonaiAlgo.
            numbers[str(name).removeprefix("fairfl/")] = _number(value)
        if self.key_metric in numbers:
            numbers["global_score"] = numbers[self.key_metric]
        mean = model.meta.get(FedCEConstants.MINUS_MODEL_SCORE)
        if mean is not None:
            numbers["leave_one_out_error"] = self._error_of_round(float(mean), client)
        return {name: number for name, number in numbers.items() if math.isfinite(number)}

    def _error_of_round(self, mean: float, client: str) -> float:
        """Return the error of this round, which leads to the ``mean`` that a script sent.

        NVFlare's scripts send the mean of their errors so far, and FedCE's variants of NVFlare
        average the errors themselves: the strategy knows which error of this round leads to that
        mean. It may be impossible though the mean is possible: the script was started again, an
        earlier reply was lost, a guard acted, or the script lies. The nearest possible error then
        counts, and the means of script and server come together in later rounds.
        """
        strategy = self.strategy
        is_possible = 0 <= mean <= 1
        if not isinstance(strategy, FedCE) or strategy.variant == "paper" or not is_possible:
            return mean
        rounds = strategy.seen.get(client, 0)
        error = (rounds + 1) * mean - (rounds - strategy.second.get(client, 0.0))
        return min(max(error, 0.0), 1.0)


def _number(value: Any) -> float:
    """Return a metric as a number, NaN where it is none."""
    try:
        return float(value)
    except Exception:  # whatever a class of its own raises
        return math.nan
