# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A hospital's side: a ``MonaiAlgo`` that answers a federation's requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from ignite.engine import Engine
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.handlers import StatsHandler, ValidationHandler
from monai.transforms import Randomizable

from monai_fairfl.client_state import ClientState, handler_owner, load_training_state, on_cpu, training_state
from monai_fairfl.handlers import TrainLoss
from monai_fairfl.measurements import MEASUREMENTS, Memory
from monai_fairfl.messages import Measurement, Reply, Request, Weights
from monai_fairfl.probe import Probe, load_weights
from monai_fairfl.random_state import own_random_state
from monai_fairfl.spec import read_spec

__all__ = ["TRAINING_HANDLERS", "FairMonaiAlgo"]

logger = logging.getLogger(__name__)


class TrainingHandler(Protocol):
    """What acts during a round's training: an ignite handler that can be taken off again."""

    def attach(self, engine: Engine) -> None:
        """Add its callbacks."""

    def detach(self) -> None:
        """Take them off."""


TRAINING_HANDLERS: dict[str, Callable[[float], TrainingHandler]] = {}
"""context key -> maker of the handler that it chooses, from the key's value. A new client half is one entry."""

STATE_KEYS = frozenset({"previous_weight", "reset_optimizer", "local_epochs"})  # understood by the client itself


class FairMonaiAlgo(MonaiAlgo):
    """Runs any MONAI bundle as a site of a federation: it needs ``configs/train.json``, and ``evaluate.json`` if there.

    A request's weights are loaded, what was asked is measured on them, then they are trained, measured again and
    returned as a difference. It also mends ``MonaiAlgo``: weights never alias the live network, a partial state is an
    error, metrics are copies, probing touches neither the best checkpoint nor the random state, ``abort`` reaches the
    evaluator. The bundle is the site's own: from a request come tensors and plain numbers, never configuration.

    Args:
        bundle_root: folder of the bundle.
        state_dir: private folder for the state between rounds; three rounds are kept, so a restarted process or a
            server that repeats a round changes nothing.
        all_handlers: leave the bundle's ``ValidationHandler`` and ``StatsHandler`` on during federated training; off
            by default, since scores come from probes, validating twice costs time, and a federation logs itself.
        arguments: of ``MonaiAlgo``, for example ``train_kwargs``, the overrides of ``train.json``.
    """

    trainer: Any  # a SupervisedTrainer once initialised; MonaiAlgo declares these as optional
    train_workflow: Any
    post_weight_filters: Any

    def __init__(self, bundle_root: str, state_dir: str | Path, *, all_handlers: bool = False, **arguments: Any):
        if "config_evaluate_filename" not in arguments:
            has_evaluate = (Path(bundle_root) / "configs" / "evaluate.json").exists()
            arguments["config_evaluate_filename"] = "default" if has_evaluate else None
        for name in ("train_kwargs", "eval_kwargs"):
            arguments[name] = dict(arguments.get(name) or {})  # MonaiAlgo writes into them
        super().__init__(bundle_root, **arguments)
        self.states = ClientState(state_dir)
        self.all_handlers = all_handlers
        self._received: set[str] = set()  # names of the weights that training began from
        self._at: tuple[str, int] | None = None  # (run, round) whose state the trainer holds; None: unknown

    # ---- ClientAlgo: what any engine may drive ----------------------------------------------------------------

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Build trainer and evaluator from the bundle; once only."""
        if self.trainer is not None:
            return
        super().initialize(extra)
        trainer: Any = self.trainer
        self.spec = read_spec(trainer.network)
        if not self.all_handlers:
            _remove_handlers(trainer, (ValidationHandler, StatsHandler))
        self._initial = training_state(trainer)

    def train(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> None:
        """Train from ``data.weights``, which must hold every parameter of the network."""
        missing = sorted(set(self.spec.parameters) - set(data.weights or {}))
        if missing:
            raise ValueError(
                f"client {self.client_name!r}: the received weights lack {len(missing)} of "
                f"{len(self.spec.parameters)} parameters, for example {missing[0]!r}; they are of another network"
            )
        self._received = set(data.weights or {})
        super().train(data, extra)

    def get_weights(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Weights, or differences of the tensors that were received, that share no memory with the network.

        ``MonaiAlgo`` would report a change of zero for a tensor that the server never sent.
        """
        sent = super().get_weights(extra)
        names = self._received if sent.weight_type == WeightType.WEIGHT_DIFF else sent.weights
        sent.weights = {name: tensor.clone() for name, tensor in sent.weights.items() if name in names}
        return sent

    def evaluate(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Evaluate with the bundle's own evaluator; the metrics are a copy."""
        result = super().evaluate(data, extra)
        result.metrics = dict(result.metrics)
        return result

    def abort(self, extra: dict[str, Any] | None = None) -> None:
        """Stop training and evaluation."""
        super().abort(extra)
        for evaluator in self._evaluators():
            evaluator.interrupt()

    def finalize(self, extra: dict[str, Any] | None = None) -> None:
        """End training and evaluation."""
        super().finalize(extra)
        for evaluator in self._evaluators():
            evaluator.terminate()

    def _evaluators(self) -> list[Any]:
        own = getattr(self.train_workflow, "evaluator", None) if self.train_workflow is not None else None
        return [evaluator for evaluator in (self.evaluator, own) if evaluator is not None]

    # ---- a federation's requests ------------------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """Carry out one request.

        Order: measurements of the received weights, training (with ``train_loss``), measurements of the trained
        ones, then the state file. Raises for what the client does not know: an old client must not silently train
        plainly where a method asked for more.
        """
        self.initialize({ExtraItems.CLIENT_NAME: request.client})
        self._check(request)
        newest = self.states.newest_before(request.run, request.round)
        measurements = self._measure("received", request, request.weights, self._memory(request, newest))
        if request.task == "measure":
            return Reply(request.client, None, 0, measurements, id=request.id, run=request.run, round=request.round)
        self._restore(request, newest)
        counter = self._train(request)
        if "train_loss" in request.measure and counter.value is not None:
            measurements["train_loss"] = counter.value
        local = on_cpu(self.trainer.network.state_dict())
        measurements |= self._measure("trained", request, local, Memory())
        self.states.save(request.run, request.round, training_state(self.trainer) | {"local": local})
        self._at = (request.run, request.round)
        update = {name: local[name] - request.weights[name] for name in self.spec.parameters}
        dataset = getattr(self.trainer.data_loader, "dataset", ())
        return Reply(
            request.client,
            self._filtered(update),
            num_samples=round(counter.images / self.local_epochs_of(request)),
            measurements=measurements,
            buffers={name: local[name] for name in self.spec.buffers},
            num_cases=len(getattr(dataset, "data", dataset)),
            num_steps=counter.steps,
            id=request.id,
            run=request.run,
            round=request.round,
        )

    def local_epochs_of(self, request: Request) -> int:
        """Epochs of this request's training."""
        return int(request.context.get("local_epochs", self.local_epochs))

    def _check(self, request: Request) -> None:
        known = {*MEASUREMENTS, "train_loss"}
        unknown = [name for name in request.measure if name not in known]
        unknown += [key for key in request.context if key not in STATE_KEYS and key not in TRAINING_HANDLERS]
        if unknown:
            raise ValueError(
                f"this client cannot do {unknown[0]!r}; it measures {sorted(known)} and understands "
                f"{sorted({*STATE_KEYS, *TRAINING_HANDLERS})}: "
                "update monai_fairfl at this site, or use another strategy"
            )

    def _memory(self, request: Request, newest: int) -> Memory:
        if newest < 0 or newest != request.round - 1 or "leave_one_out_error" not in request.measure:
            return Memory()
        return Memory(local=self.states.load(request.run, newest)["local"])

    def _measure(self, of: str, request: Request, weights: Weights, memory: Memory) -> dict[str, Measurement]:
        values: dict[str, Measurement] = {}
        for name in request.measure:
            entry = MEASUREMENTS.get(name)
            if entry is None or entry.of != of:
                continue
            evaluator = self.evaluator if entry.data == "test" else self.train_workflow.evaluator
            if evaluator is None:
                logger.warning("client %s: the bundle has no evaluator for %r", request.client, name)
                continue
            probe = Probe(evaluator, self._class_names())
            value = entry.function(probe, self.spec.with_aliases(weights), memory, request.context)
            if value is not None:
                values[name] = value
            self._keep_cases(name, request, probe)
        return values

    def _keep_cases(self, name: str, request: Request, probe: Probe) -> None:
        """The cases' own scores of a closing measurement stay at this site, in its private folder."""
        if request.task == "measure" and probe.cases:
            lines = [f"{case},{value:.6f}" for case, value in probe.cases.items()]
            path = self.states.folder / f"{request.run}-{name}-{request.round}-{request.id}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["case,dice", *lines]) + "\n")

    def _class_names(self) -> tuple[str, ...]:
        metadata = getattr(getattr(self.train_workflow, "parser", None), "config", {}).get("_meta_", {})
        outputs = metadata.get("network_data_format", {}).get("outputs", {}).get("pred", {})
        return tuple(str(label) for label in outputs.get("channel_def", {}).values())

    def _train(self, request: Request) -> TrainLoss:
        counter = TrainLoss(board=request.client)
        handlers: list[TrainingHandler] = [counter]
        handlers += [
            TRAINING_HANDLERS[key](value) for key, value in request.context.items() if key in TRAINING_HANDLERS
        ]
        usual, self.local_epochs = self.local_epochs, self.local_epochs_of(request)
        with ExitStack() as stack:
            stack.callback(setattr, self, "local_epochs", usual)
            stack.enter_context(own_random_state(request.seed))
            for handler in handlers:
                handler.attach(self.trainer)
                stack.callback(handler.detach)
            _seed_transforms(self.trainer.data_loader, request.seed)
            self.train(ExchangeObject(weights=self.spec.with_aliases(request.weights)))
        return counter

    def _filtered(self, update: Weights) -> Weights:
        """``update`` through the site's own post-weight filters (privacy)."""
        data: Any = ExchangeObject(weights=dict(update), weight_type=WeightType.WEIGHT_DIFF, statistics={})
        for post_filter in self.post_weight_filters or ():
            data = post_filter(data, {})
        filtered: Weights = data.weights
        return filtered

    # ---- state between rounds ---------------------------------------------------------------------------------

    def _restore(self, request: Request, newest: int) -> None:
        """Bring the trainer to the state after round ``newest``, or to its initial one."""
        if newest < 0 < request.round:
            logger.warning("client %s has no state of an earlier round: its optimizer starts anew", request.client)
        fresh = newest < 0 or bool(request.context.get("reset_optimizer", 0))
        if fresh or self._at != (request.run, newest):
            state = self._initial if newest < 0 else self.states.load(request.run, newest)
            if newest >= 0 and fresh:
                state = {**state, "optimizer": self._initial["optimizer"], "schedulers": self._initial["schedulers"]}
            load_training_state(self.trainer, state)
            local = state.get("local")
            load_weights(self.trainer.network, local if local is not None else {})
        self._at = None  # unknown until this round is done


def _remove_handlers(engine: Engine, kinds: tuple[type, ...]) -> None:
    for event, entries in engine._event_handlers.items():
        engine._event_handlers[event] = [entry for entry in entries if not isinstance(handler_owner(entry[0]), kinds)]


def _seed_transforms(loader: Any, seed: int) -> None:
    transform = getattr(getattr(loader, "dataset", None), "transform", None)
    if isinstance(transform, Randomizable):
        transform.set_random_state(seed)
