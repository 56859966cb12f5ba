# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers a federation's requests at a hospital, with any MONAI bundle."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.handlers import StatsHandler, ValidationHandler
from monai.networks.utils import get_state_dict
from monai.utils import ensure_tuple

from monai_fairfl.client import training
from monai_fairfl.client.state import ClientState, Task
from monai_fairfl.errors import ConfigError
from monai_fairfl.handlers.training import Detachable, Proximal, TrainLoss
from monai_fairfl.measurements.probe import Probe, TrainingProbe, files_of_cases
from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    MEASUREMENTS,
    OWN_MODEL_PREFIXES,
    TRAINING,
    Reply,
    Request,
    Weights,
    all_finite,
    chosen,
    gain_name,
    is_of_own_model,
    read_spec,
)
from monai_fairfl.model_files.recipe import digests_of_files, save_model_file
from monai_fairfl.run import digest_of
from monai_fairfl.utils.devices import reuse_freed_memory
from monai_fairfl.utils.engine_internals import (
    handler_owner,
    remove_handlers,
    require_whole_run,
)
from monai_fairfl.utils.files import private_folder
from monai_fairfl.utils.tensors import CPU

logger = logging.getLogger(__name__)

CHANNELS = "_meta_#network_data_format#outputs#pred#channel_def"
"""Where a bundle's metadata names the channels of the network's output."""


class FairMonaiAlgo(MonaiAlgo):
    """Runs any MONAI bundle as a site of a federation.

    The bundle needs ``configs/train.json``. If it has ``evaluate.json``, this adds the test data.
    For each request, the client loads the received weights, measures them as the request asks,
    trains them, measures them again, and returns the difference of the weights. Measuring changes
    neither the best checkpoint nor the random state. The bundle is the site's own: a request brings
    tensors and plain numbers, never configuration. In :meth:`answer` the post-weight filters act on
    the update alone: buffers, measurements and counts leave as they are.

    An engine for ``MonaiAlgo`` can drive it too. The interface is the same, and so are the numbers
    where those are right. It differs in these points:

    - Weights and metrics that it returns share no memory with the network, nor with what a filter
      changes.
    - A tensor that the server did not send is not reported as unchanged. ``evaluate`` takes it
      from the trained model.
    - A model that lacks parameters is an error, in training and in evaluation.
    - ``abort`` reaches the evaluators. An aborted evaluation is an error: its metrics would be
      those of the model before.
    - The bundle's ``ValidationHandler`` and ``StatsHandler`` are off: the client measures scores
      itself. So no best checkpoint is written.
    - After an abort or a failure the next training or evaluation is a whole one.
    - ``initialize`` acts once, and can be repeated after a failure.
    - ``abort`` and ``finalize`` are safe at any time.

    There a site's ``pre_filters`` see all weights as they came in, before their names are checked.
    Its ``post_weight_filters`` and ``post_evaluate_filters`` act on what ``get_weights`` and
    ``evaluate`` return.

    Args:
        bundle_root: folder of the bundle. A relative path begins at the engine's
            ``ExtraItems.APP_ROOT``, if the engine gives one.
        state_dir: private folder for the state of the last three rounds. Each training begins with
            it, so a restarted process, or a server that repeats a round, changes no result. Another
            run of the same name deletes the state.
        alone: file of a model that this site trained alone, a candidate of the last mile, see
            :func:`~monai_fairfl.client.training.candidates`. It need not exist before the run ends.
        arguments: of ``MonaiAlgo``, such as ``train_kwargs``, the overrides of ``train.json``.
            Without ``config_evaluate_filename`` the bundle's ``evaluate.json``, where there is one,
            is added to the files of the training.

    >>> import tempfile
    >>> from monai_fairfl.bundle import find_bundle
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> algo = FairMonaiAlgo(str(bundle), tempfile.mkdtemp(), local_epochs=2)
    >>> algo.local_epochs  # algo.answer(request) trains
    2
    """

    trainer: Any  # a SupervisedTrainer once initialised; MonaiAlgo declares these as optional
    evaluator: Any
    train_workflow: Any
    pre_filters: Any
    post_weight_filters: Any
    post_evaluate_filters: Any
    config_evaluate_filename: Any

    def __init__(
        self,
        bundle_root: str,
        state_dir: str | Path,
        *,
        alone: str | Path | None = None,
        **arguments: Any,
    ):
        self._looks_for_evaluate = "config_evaluate_filename" not in arguments
        for name in ("train_kwargs", "eval_kwargs"):
            # MonaiAlgo writes into them.
            arguments[name] = dict(arguments.get(name) or {})
        super().__init__(bundle_root, **arguments)
        self.states = ClientState(state_dir)
        self.alone = alone
        self._built = False
        # The evaluators of validation and test data, once they are built.
        self._evaluators: training.Evaluators = {}
        # State of the trainer as the bundle makes it.
        self._initial: dict[str, Any] = {}
        # When the first training by an engine began.
        self._begun = 0.0

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Build trainer and evaluator from the bundle, once.

        Args:
            extra: as of ``MonaiAlgo``: ``ExtraItems.CLIENT_NAME`` is the name of the site.

        Raises:
            ConfigError: when the configurations make no trainer.
        """
        if self._built:
            return
        reuse_freed_memory()
        # Its models and its cases' scores are for the site's own account only.
        private_folder(self.states.folder)
        extra = dict(extra or {})
        # An absolute path stays what it is when a second try joins it with the app root again.
        root = Path(extra.get(ExtraItems.APP_ROOT, ""), self.bundle_root).absolute()
        self.bundle_root = str(root)
        self._choose_evaluation(root)
        super().initialize(extra)
        if self.trainer is None:
            raise ConfigError(f"client {self.client_name!r} has no trainer: give it a train.json")
        self.spec = read_spec(self.trainer.network)
        self._prepare_training()
        self._built = True

    def _choose_evaluation(self, root: Path) -> None:
        """Add ``evaluate.json`` to the training's files, unless the site chose files of its own.

        It takes the values that decide the training from a model file. A client has none, since its
        weights come from the server, and gives it those of the training.
        """
        train_files = list(ensure_tuple(self.config_train_filename or ()))
        if self._looks_for_evaluate:
            files = ("configs/evaluate.json", "configs/federated_evaluate.json")
            present = [file for file in files if (root / file).exists()]
            self.config_evaluate_filename = [*train_files, *present] if present else None
        if self.train_workflow is not None or not self.config_evaluate_filename:
            return
        parser = ConfigParser()
        parser.read_config([str(root / name) for name in train_files])
        parser.update(self.train_kwargs)
        if "deciding" in parser:
            deciding: dict[str, Any] = parser.get_parsed_content("deciding")
            self.eval_kwargs = {**deciding, **self.eval_kwargs}

    def _prepare_training(self) -> None:
        validator = getattr(self.train_workflow, "evaluator", None)
        evaluators = {"validation": validator, "test": self.evaluator}
        self._evaluators = {data: one for data, one in evaluators.items() if one is not None}
        # A federated training does without what validates or logs.
        central = (ValidationHandler, StatsHandler)
        remove_handlers(self.trainer, lambda one: isinstance(handler_owner(one), central))
        training.drop_unread_output(self.trainer)
        # A bundle may list a case several times in an epoch, and a free rider does.
        files = files_of_cases(self.trainer)
        self._num_cases = len(files if None in files else set(files))
        self._initial = training.state_of(self.trainer)
        # Takes the place of every test score.
        self._overlap = training.overlap_of(str(self.client_name), self.trainer, self._evaluators)
        channels = getattr(self.train_workflow, "parser", {}).get(CHANNELS) or {}
        self._classes = [*map(str, channels.values())]

    # ---- a federation's requests

    def answer(self, request: Request) -> Reply:
        """Carry out one request.

        The steps are, in this order: measurements of the received weights, training (with
        ``train_loss``), measurements of the trained weights, Ditto's personal model and its
        measurements, the site's post-weight filters on the update, the state file and the receipt.
        For tensors that the request does not send, the client uses its own.

        Args:
            request: what the client is asked to do.

        Returns:
            The reply. If the client trained, ``update`` has the trained minus the received
            parameters, on the CPU.

        Raises:
            ValueError: if the request has a measurement or a context key that the client does not
                know (it must not train plainly if a method asked for more), if the weights are of
                another network, or if the training diverged.
            ConfigError: if a filter of the site does not return a complete update.
            TransportAborted: if ``abort`` ended the training or a measurement.
        """
        if request.context.get("ended", 0):
            # The run asks for nothing more: the receipt has the head of the whole ledger.
            self.states.add_receipt(request, "")
            return request.reply()
        if not self._built:
            self.initialize({ExtraItems.CLIENT_NAME: request.client})
        # An engine may have built the client without a name.
        self.client_name = request.client
        self._check(request)
        self.states.begin(request.run, request.run_id)
        epochs = int(request.context.get("local_epochs", self.local_epochs))
        task = Task(request, self.states, epochs, self._initial)
        received = request.weights
        if self.spec.missing_from(received):
            # Its own tensors in place of those that were not sent: trained last, or initial ones.
            received = self.spec.completed(received, task.state["local"])
        self._measure("received", task, received)
        if request.task == "measure":
            self._measure_own(task, received)
            reply = request.reply(measurements=task.measurements)
        else:
            reply = self._train(task, received)
        self.states.add_receipt(request, reply.digest)
        return reply

    def _check(self, request: Request) -> None:
        """Refuse what this client cannot do, and weights of another network."""
        for name in request.measure:
            if name not in MEASUREMENTS:
                raise ValueError(
                    f"this client cannot do {name!r}: update monai_fairfl at this site, or add a "
                    "measurement of your own to messages.MEASUREMENTS"
                )
            # By a name's beginning the server knows which round's model a value is of.
            of = MEASUREMENTS[name].of
            if of and (of != "received") != is_of_own_model(name):
                raise ConfigError(
                    f"measurement {name!r} is of the {of} model: names of all models' but the "
                    f"received one's begin with one of {OWN_MODEL_PREFIXES}, and only these"
                )
        if "gsam_alpha" in request.context and "sam_rho" not in request.context:
            raise ValueError("'gsam_alpha' needs 'sam_rho': GSAM is a refinement of SAM")

        # With local_norm the normalisation layers stay at the site (FedBN).
        not_sent = self.spec.norms if request.context.get("local_norm", 0) else ()
        for name in self.spec.parameters:
            shape = tuple(self._initial["local"][name].shape)
            here = request.weights.get(name)
            found = None if here is None else tuple(here.shape)
            if found != shape and (found is not None or name not in not_sent):
                raise ValueError(
                    f"client {request.client!r}: the received {name!r} has the shape {found}, not "
                    f"{shape}: give the site the config and overrides of the run"
                )

    def _measure(self, of: str, task: Task, weights: Weights) -> None:
        """Add to the task what it asks to be measured of one model.

        Args:
            of: which model it is, see :class:`~monai_fairfl.messages.Entry`.
            task: names the measurements.
            weights: the model.
        """
        request = task.request
        for name in request.measure:
            entry = MEASUREMENTS[name]
            if entry.of != of:
                continue
            # Before training, a model of this round is one that an earlier try left.
            if entry.needs_present and request.task == "train":
                continue
            if entry.data == "test" and self._overlap:
                task.measurements.update(self._overlap)
                continue

            data = "training" if request.context.get(entry.training_key, 0) else entry.data
            probe: Probe | TrainingProbe = TrainingProbe(self.trainer)
            if data != "training":
                if data not in self._evaluators:
                    logger.warning("client %s: no evaluator for %r", request.client, name)
                    continue
                probe = Probe(self._evaluators[data], self._classes)

            model = weights
            if entry.needs_present and task.present is not None:
                # Two models of this round share the tensors that the site does not send.
                model = self.spec.completed(request.weights, task.present)
            closing = request.context.get("closing", 0)
            # Of the model that the site would use; candidates of the last mile have none.
            is_drawn = closing and name.removeprefix("personal_") == "test_score"
            if is_drawn and isinstance(probe, Probe):
                probe.watches = training.pictures_into(probe.engine, task)
            value = entry(probe, self.spec.with_aliases(model), task, request.context)
            if value is not None:
                task.measurements[name] = value
            if closing and isinstance(probe, Probe) and (cases := probe.cases()):
                file = f"{name}-{request.round:d}-{request.id:d}"
                task.states.save_cases(request.run, file, cases)

    def _measure_own(self, task: Task, received: Weights) -> None:
        """Measure the personal model, too, and write this client's own model when a run ends."""
        request = task.request
        # The client has a model of its own when the server did not send all of one.
        own = None if received is request.weights else received
        asks_personal = any(MEASUREMENTS[name].of == "personal" for name in request.measure)
        if asks_personal and task.personal is not None:
            own = task.personal["local"]
            self._measure("personal", task, own)
        if "adapt_epochs" in request.context:
            own = self._last_mile(task, own or received) or own
        if request.context.get("closing", 0) and own is not None:
            # With the training's recipe, where the bundle has one.
            recipe = self.train_workflow.parser.get_parsed_content("recipe", default=None)
            if recipe is not None:
                files = ensure_tuple(self.config_train_filename)
                recipe = replace(recipe, files=digests_of_files(self.bundle_root, files))
            file = self.states.path(request.run, "own.pt")
            save_model_file(file, self.spec.with_aliases(own), recipe)

    def _last_mile(self, task: Task, own: Weights) -> Weights | None:
        """A model that serves this client better than ``own``, which it would use; ``None``: none.

        The candidates are measured, too.
        """
        if "validation" not in self._evaluators:
            logger.warning("client %s: no last mile without an evaluator", self.client_name)
            return None
        probe = Probe(self._evaluators["validation"])
        begin = {**self._initial, "local": self.spec.with_aliases(own)}
        found = training.candidates(self.trainer, probe, begin, self.alone, task.request)
        for name, candidate in found.items():
            self._measure(name, task, candidate.weights)
            task.measurements[gain_name(name)] = candidate.gain
        task.measurements[ADAPTED_EPOCHS] = float(found["adapted"].epochs)
        taken = chosen({name: candidate.gain for name, candidate in found.items()})
        return None if taken is None else found[taken].weights

    def _train(self, task: Task, received: Weights) -> Reply:
        """Train the received weights, measure the result and store the state for the next round."""
        request = task.request
        if task.state is self._initial and request.round > 0:
            logger.warning("client %s begins without an earlier state", request.client)
        counts = TrainLoss(board=None)
        # Handler -> its arguments, each under a key.
        arguments: dict[str, list[float]] = {}
        for key, (_, handler) in TRAINING.items():
            if handler and key in request.context:
                arguments.setdefault(handler, []).append(request.context[key])
        handlers = [resolve_name(handler)(*given) for handler, given in arguments.items()]
        received = self.spec.with_aliases(received)
        begin = {**task.state, "local": received}
        state = self._trained(task, begin, [counts, *handlers])
        if "train_loss" in request.measure and (loss := counts.value) is not None:
            task.measurements["train_loss"] = loss
        self._measure("trained", task, state["local"])

        # A round of Ditto's personal model v (Li et al., ICML 2021, Algorithm 1), which begins with
        # the received weights: min_v L(v) + lambda / 2 ||v - w||^2. It sees the same batches.
        if "ditto_lambda" in request.context:
            begin = task.personal or {**self._initial, "local": received}
            pull = Proximal(request.context["ditto_lambda"], request.weights)
            state["personal"] = self._trained(task, begin, [pull])
            self._measure("personal", task, state["personal"]["local"])

        # What leaves the site: the change of each parameter that was sent, and the buffers.
        local, sent = state["local"], request.weights
        trained = [name for name in self.spec.parameters if name in sent]
        # A network may lay its values out in another order (channels_last).
        update: Weights = {
            name: (local[name] - sent[name].to(CPU)).contiguous() for name in trained
        }
        buffers = {name: local[name] for name in self.spec.buffers if name in sent}
        if self.post_weight_filters:
            update = self._filtered_update(update)
            # What enters the average has the noise of the site's filters. A tensor of two names is
            # the same under both.
            entering = {name: sent[name] + change for name, change in update.items()}
            state["local"] = self.spec.with_aliases({**local, **entering})
        self.states.save(request.run, request.round, state)
        return request.reply(
            update,
            num_samples=round(counts.images / task.epochs),
            measurements=task.measurements,
            buffers=buffers,
            digest=digest_of({**update, **buffers}),
            num_cases=self._num_cases,
            num_steps=counts.steps,
            # Empty: every channel is labelled, as at most sites.
            labelled=() if all(counts.labelled) else counts.labelled,
            precision=getattr(self.trainer.inferer, "precision", ""),
        )

    def _trained(
        self, task: Task, state: Mapping[str, Any], handlers: Sequence[Detachable]
    ) -> dict[str, Any]:
        """Train on from a state; returns copies of everything that the next round goes on from.

        All random numbers follow from the request's seed.
        """
        if task.request.context.get("reset_optimizer", 0):
            # Without moments; the learning rate stays the schedule's.
            state = {**state, "optimizer": {**state["optimizer"], "state": {}}}
        training.load_state(self.trainer, state)
        self.trainer.state.max_epochs = self.trainer.state.epoch + task.epochs
        with training.one_round(self.trainer, task.request.seed, handlers):
            self.trainer.run()
        trained = training.state_of(self.trainer)

        # A training that diverged is not stored: Adam's moments would spoil every later round.
        for name, tensor in trained["local"].items():
            if not all_finite(tensor):
                raise ValueError(
                    f"client {self.client_name!r}: the training diverged, {name!r} is not finite, "
                    "and not stored: lower learning_rate, or look for extreme images or constants"
                )
        return trained

    # ---- MONAI's calls

    def train(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> None:
        """Train from ``data.weights``; after the pre-filters they must hold every parameter.

        As with ``MonaiAlgo`` an aborted training returns. The statistics of ``get_weights`` count
        the steps that were done.

        Raises:
            ValueError: when ``data`` holds no weights, or those of another network.
        """
        extra = extra or {}
        weights = self._received(data, extra)
        self._begun = self._begun or time.time()
        for engine in (self.trainer, *self._evaluators.values()):
            training.discard_interrupted_run(engine)
        with self._without_filters():
            super().train(ExchangeObject(weights=weights), extra)
        # MonaiAlgo would report a change of zero for a tensor that the server never sent.
        begin = self.global_weights or {}
        self.global_weights = {name: begin[name] for name in weights if name in begin}

    def get_weights(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Copies of the weights, or the differences of the tensors that were received.

        Raises:
            ConfigError: when a filter returns nothing, or the requested file is older than the
                training.
        """
        extra = extra or {}
        wanted: Any = extra.get(ExtraItems.MODEL_TYPE)
        file = Path(self.bundle_root, self.model_filepaths.get(wanted) or "")
        if file.is_file() and file.stat().st_mtime < self._begun:
            raise ConfigError(
                f"client {self.client_name!r}: {file} is older than this training: let the trainer "
                "save it there (CheckpointSaver)"
            )
        with self._without_filters():
            sent = copy.deepcopy(super().get_weights(extra))
        return self._filtered(self.post_weight_filters, sent, extra)

    def evaluate(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Evaluate with the bundle's own evaluator; the metrics are a copy.

        Buffers that ``data.weights`` lacks, such as BatchNorm's, are those of the trained model.

        Raises:
            ConfigError: when the client has no evaluator.
            ValueError: when ``data`` holds no weights, or those of another network.
            TransportAborted: when ``abort`` ended the evaluation.
        """
        extra = extra or {}
        weights = self._received(data, extra)
        if self.evaluator is None:
            raise ConfigError(
                f"client {self.client_name!r} has no evaluator: give {self.bundle_root} a "
                "configs/evaluate.json"
            )
        own = get_state_dict(self.trainer.network)
        weights = {**{name: own[name] for name in self.spec.buffers}, **weights}
        training.discard_interrupted_run(self.evaluator)
        with self._without_filters():
            result = super().evaluate(ExchangeObject(weights=weights), extra)
        require_whole_run(self.evaluator)
        result.metrics = dict(result.metrics)
        return self._filtered(self.post_evaluate_filters, result, extra)

    def abort(self, extra: dict[str, Any] | None = None) -> None:
        """Stop training and evaluation; safe at any time."""
        super().abort(extra)
        for evaluator in self._evaluators.values():
            evaluator.interrupt()

    def finalize(self, extra: dict[str, Any] | None = None) -> None:
        """End training and evaluation; safe at any time."""
        for evaluator in self._evaluators.values():
            evaluator.terminate()
        if self._built:
            super().finalize(extra)

    @contextmanager
    def _without_filters(self) -> Iterator[None]:
        """Inside, ``MonaiAlgo`` finds no filters: they act outside, on copies."""
        own = (self.pre_filters, self.post_weight_filters, self.post_evaluate_filters)
        self.pre_filters = self.post_weight_filters = self.post_evaluate_filters = None
        try:
            yield
        finally:
            self.pre_filters, self.post_weight_filters, self.post_evaluate_filters = own

    def _filtered(self, site_filters: Any, data: Any, extra: dict[str, Any]) -> ExchangeObject:
        """``data`` after the site's own filters of one kind, in their order.

        A filter is a ``monai.fl.utils.filters.Filter``, or any function
        ``(ExchangeObject, extra) -> ExchangeObject``. A pre-filter may decode or rename weights, a
        post-weight filter may add noise to them.

        Raises:
            ConfigError: when a filter does not return an ``ExchangeObject``.
        """
        for site_filter in site_filters or ():
            data = site_filter(data, extra)
            if not isinstance(data, ExchangeObject):
                raise ConfigError(
                    f"client {self.client_name!r}: the filter {_name(site_filter)!r} returned "
                    f"{type(data).__name__}: end it with 'return data'"
                )
        return data

    def _filtered_update(self, update: Weights) -> Weights:
        """``update`` after the post-weight filters, with the same tensor names and shapes.

        Raises:
            ConfigError: naming the filter after which a tensor is missing, new, of another shape,
                or no tensor. A training whose update is lost must not go unnoticed.
        """
        data: Any = ExchangeObject(dict(update), weight_type=WeightType.WEIGHT_DIFF, statistics={})
        expected = _shapes(update)
        for site_filter in self.post_weight_filters:
            data = self._filtered([site_filter], data, {})
            found = _shapes(data.weights or {})
            for name in {**expected, **found}:
                if expected.get(name) != found.get(name):
                    raise ConfigError(
                        f"client {self.client_name!r}: the post-weight filter "
                        f"{_name(site_filter)!r} made {found.get(name)} of the tensor {name!r}, "
                        f"which was {expected.get(name)}: return every tensor under its name and "
                        "in its shape"
                    )
        return {name: torch.as_tensor(change) for name, change in data.weights.items()}

    def _received(self, data: ExchangeObject, extra: dict[str, Any]) -> dict[str, Any]:
        """What the engine sent, after the pre-filters: it must have every parameter."""
        if not self._built:
            raise ConfigError(f"client {self.client_name!r} is not built: call initialize() first")
        # A filter cannot change the sender's own.
        received = self._filtered(self.pre_filters, copy.deepcopy(data), extra)
        weights = getattr(received, "weights", None)
        if not isinstance(weights, Mapping):
            found = type(data if weights is None else weights).__name__
            raise ValueError(f"client {self.client_name!r}: received {found} and no weights")
        missing = [name for name in self.spec.parameters if name not in weights]
        if missing:
            raise ValueError(
                f"client {self.client_name!r}: the received weights are of another network: they "
                f"lack {len(missing)} parameters, such as {missing[0]!r}"
            )
        return dict(weights)


def _shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> shape of a tensor or array, or the class of anything else."""
    return {name: getattr(value, "shape", type(value)) for name, value in weights.items()}


def _name(site_filter: Any) -> str:
    """A function's own name, or the name of an object's class."""
    return getattr(site_filter, "__name__", type(site_filter).__name__)
