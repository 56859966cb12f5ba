# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Closes the traps of MONAI's ``MonaiAlgo``, for any engine of ``monai.fl``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems, ModelType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.handlers import StatsHandler, ValidationHandler
from monai.networks.utils import get_state_dict
from monai.utils import ensure_tuple

from monai_fairfl.client.filters import apply_filters, own_tensors, received_weights
from monai_fairfl.client.trainer_state import state_of
from monai_fairfl.client.training import check_schedules, discard_interrupted_run
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.messages import read_spec
from monai_fairfl.utils.engine_internals import (
    Handler,
    handler_owner,
    remove_handlers,
    require_whole_run,
)
from monai_fairfl.utils.machine import reuse_freed_memory
from monai_fairfl.utils.private import private_folder

logger = logging.getLogger(__name__)


class MendedMonaiAlgo(MonaiAlgo):
    """A ``MonaiAlgo`` with the same interface, and the same numbers where those are right.

    It differs in these points:

    - Weights and metrics that it returns share no memory with the network, nor with what a filter
      changes.
    - A tensor that the server did not send is not reported as unchanged. ``evaluate`` takes it
      from the trained model.
    - A model that lacks parameters is an error, in training and in evaluation.
    - ``abort`` reaches the evaluators. An aborted evaluation is an error: its metrics would be
      those of the model before.
    - After an abort or a failure the next training or evaluation is a whole one.
    - A best or final model on disk that is older than the training is an error.
    - ``initialize`` acts once, and can be repeated after a failure.
    - ``abort`` and ``finalize`` are safe at any time.

    A site's ``pre_filters`` see all weights as they came in, before their names are checked. Its
    ``post_weight_filters`` and ``post_evaluate_filters`` act on what ``get_weights`` and
    ``evaluate`` return.

    Args:
        bundle_root: folder of the bundle. A relative one begins at the engine's
            ``ExtraItems.APP_ROOT``, where it gives one.
        state_dir: private folder of this client.
        all_handlers: leave the bundle's ``ValidationHandler`` and ``StatsHandler`` on during
            training. Without them no best checkpoint is written.
        arguments: of ``MonaiAlgo``, for example ``train_kwargs``, the overrides of ``train.json``.
            Without ``config_evaluate_filename`` the bundle's ``evaluate.json``, where there is
            one, is added to the files of the training.
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
        all_handlers: bool = False,
        **arguments: Any,
    ):
        self._looks_for_evaluate = "config_evaluate_filename" not in arguments
        for name in ("train_kwargs", "eval_kwargs"):
            # MonaiAlgo writes into them.
            arguments[name] = dict(arguments.get(name) or {})
        super().__init__(bundle_root, **arguments)
        self.state_dir = Path(state_dir)
        self.all_handlers = all_handlers
        self._built = False
        # The training's own evaluator.
        self._validator: Any = None
        # State of the trainer as the bundle makes it.
        self._initial: dict[str, Any] = {}
        # Names of the weights that training began from.
        self._received: set[str] = set()
        # When each checkpoint on disk was written, before the first training; None: not trained
        # yet.
        self._old_checkpoints: dict[ModelType, int] | None = None

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Build trainer and evaluator from the bundle; once only.

        Raises:
            ConfigError: when the configurations make neither a trainer nor an evaluator, or a
                schedule reads a validation score that nobody makes.
        """
        if self._built:
            return
        reuse_freed_memory()
        # Its models and its cases' scores are for the site's own account only.
        private_folder(self.state_dir)
        extra = dict(extra or {})
        # MonaiAlgo would attach it to an evaluator that is None.
        stats_sender = extra.pop(ExtraItems.STATS_SENDER, None)
        given_root = self.bundle_root
        try:
            root = Path(extra.get(ExtraItems.APP_ROOT, ""), given_root)
            self._find_evaluate(root)
            self._evaluate_as_trained(root)
            super().initialize(extra)
            self._prepare_engines()
        except Exception:
            # The next try joins it with the app root again.
            self.bundle_root = given_root
            raise
        if stats_sender is not None:
            self.stats_sender = stats_sender
            for engine in (self.trainer, self.evaluator):
                if engine is not None:
                    stats_sender.attach(engine)
        self._built = True

    def _find_evaluate(self, root: Path) -> None:
        """Add ``evaluate.json`` to the training's files, unless the site chose files of its own."""
        if not self._looks_for_evaluate:
            return
        files = ("configs/evaluate.json", "configs/federated_evaluate.json")
        present = [file for file in files if (root / file).exists()]
        if not present:
            self.config_evaluate_filename = None
            return
        train_files = self.config_train_filename or "configs/train.json"
        if isinstance(train_files, str):
            train_files = [train_files]
        self.config_evaluate_filename = [*train_files, *present]

    def _evaluate_as_trained(self, root: Path) -> None:
        """Give the evaluation the values that decide the training.

        ``evaluate.json`` takes them from a model file. A client has none: its weights come from the
        server.
        """
        if self.train_workflow is not None or not self.config_evaluate_filename:
            return
        names = ensure_tuple(self.config_train_filename or ())
        files = [root / name for name in names]
        if not files or not all(file.exists() for file in files):
            return  # nothing is trained, or MonaiAlgo names the missing file
        parser = ConfigParser()
        parser.read_config([str(file) for file in files])
        parser.update(self.train_kwargs)
        if "deciding" in parser:
            deciding: dict[str, Any] = parser.get_parsed_content("deciding")
            self.eval_kwargs = {**deciding, **self.eval_kwargs}

    def _prepare_engines(self) -> None:
        engine = self.trainer or self.evaluator
        if engine is None:
            raise ConfigError(
                f"client {self.client_name!r}: neither a training nor an evaluation is configured. "
                "Give config_train_filename or config_evaluate_filename"
            )
        self.spec = read_spec(engine.network)
        self._validator = getattr(self.train_workflow, "evaluator", None)
        if self.trainer is None:
            return
        if not self.all_handlers:
            remove_handlers(self.trainer, _is_of_central_training)
            check_schedules(self.trainer, self._evaluators(), self.client_name)
        self._initial = state_of(self.trainer)

    def train(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> None:
        """Train from ``data.weights``; after the pre-filters they must hold every parameter.

        As with ``MonaiAlgo`` an aborted training returns. The statistics of ``get_weights`` count
        the steps that were done.

        Raises:
            ValueError: when ``data`` holds no weights, or those of another network.
        """
        extra = {} if extra is None else extra
        self._require_trainer()
        weights = received_weights(data, self.pre_filters, extra, self.client_name)
        self._require_all(weights, self.spec.parameters)
        self._train_from(weights, extra)

    def _train_from(self, weights: Mapping[str, Any], extra: dict[str, Any]) -> None:
        """Train from weights that the pre-filters have seen."""
        if self._old_checkpoints is None:
            self._old_checkpoints = self._checkpoint_times()
        self._received = set(weights)
        for engine in (self.trainer, *self._evaluators()):
            discard_interrupted_run(engine)
        with self._without_filters("pre_filters"):
            super().train(ExchangeObject(weights=dict(weights)), extra)

    def get_weights(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Copies of the weights, or the differences of the tensors that were received.

        ``MonaiAlgo`` would report a change of zero for a tensor that the server never sent.

        Raises:
            ConfigError: when the requested checkpoint is older than the training, or a filter
                returns nothing.
        """
        extra = {} if extra is None else extra
        if self.global_weights is not None:
            received = {}
            for name, value in self.global_weights.items():
                if name in self._received:
                    received[name] = value
            self.global_weights = received
        if ExtraItems.MODEL_TYPE in extra:
            self._require_new_checkpoint(extra[ExtraItems.MODEL_TYPE])
        with self._without_filters("post_weight_filters"):
            sent = super().get_weights(extra)
        sent.weights = own_tensors(sent.weights)
        if self.post_weight_filters:
            sent = apply_filters(self.post_weight_filters, sent, extra, self.client_name)
            # A filter may return NumPy's arrays.
            sent.weights = own_tensors(sent.weights)
        return sent

    def evaluate(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Evaluate with the bundle's own evaluator; the metrics are a copy.

        Buffers that ``data.weights`` lacks, such as BatchNorm's, are those of the trained model.

        Raises:
            ConfigError: when the client has no evaluator.
            ValueError: when ``data`` holds no weights, or those of another network.
            TransportAborted: when ``abort`` ended the evaluation.
        """
        extra = {} if extra is None else extra
        self._require_built()
        if self.evaluator is None:
            raise ConfigError(
                f"client {self.client_name!r} has no evaluator: give {self.bundle_root} a "
                "configs/evaluate.json, or name the files in config_evaluate_filename"
            )
        weights = received_weights(data, self.pre_filters, extra, self.client_name)
        spec = read_spec(self.evaluator.network)
        self._require_all(weights, spec.parameters)
        if self.trainer is not None:
            own = get_state_dict(self.trainer.network)
            for name in spec.buffers:
                if name not in weights and name in own:
                    weights[name] = own[name]
        discard_interrupted_run(self.evaluator)
        with self._without_filters("pre_filters", "post_evaluate_filters"):
            result = super().evaluate(ExchangeObject(weights=weights), extra)
        require_whole_run(self.evaluator)
        result.metrics = dict(result.metrics)
        return apply_filters(self.post_evaluate_filters, result, extra, self.client_name)

    def abort(self, extra: dict[str, Any] | None = None) -> None:
        """Stop training and evaluation; safe at any time."""
        super().abort(extra)
        for evaluator in self._evaluators():
            evaluator.interrupt()

    def finalize(self, extra: dict[str, Any] | None = None) -> None:
        """End training and evaluation; safe at any time.

        When the client was never built, the bundle's own ``finalize`` may fail on what is missing.
        That is logged, so that the error of :meth:`initialize` stays the one that is seen.
        """
        for evaluator in self._evaluators():
            evaluator.terminate()
        try:
            super().finalize(extra)
        except Exception as error:
            if self._built:
                raise
            logger.warning("finalize of a client that was not built: %s", in_words(error))

    def _evaluators(self) -> list[Any]:
        """The evaluator of the test data and that of the training, once they are built."""
        known = (self.evaluator, self._validator)
        return [evaluator for evaluator in known if evaluator is not None]

    @contextmanager
    def _without_filters(self, *kinds: str) -> Iterator[None]:
        """Inside, ``MonaiAlgo`` finds no filters of these kinds: they act outside, on copies."""
        filters = {kind: getattr(self, kind) for kind in kinds}
        for kind in kinds:
            setattr(self, kind, None)
        try:
            yield
        finally:
            for kind, own in filters.items():
                setattr(self, kind, own)

    def _require_built(self) -> None:
        if not self._built:
            raise ConfigError(f"client {self.client_name!r} is not built: call initialize() first")

    def _require_trainer(self) -> None:
        self._require_built()
        if self.trainer is None:
            raise ConfigError(
                f"client {self.client_name!r} only evaluates: "
                "give it a config_train_filename to train"
            )

    def _require_all(
        self, weights: Mapping[str, Any], parameters: Sequence[str], except_for: Sequence[str] = ()
    ) -> None:
        missing = sorted(set(parameters) - set(weights) - set(except_for))
        if missing:
            raise ValueError(
                f"client {self.client_name!r}: the received weights lack {len(missing)} of "
                f"{len(parameters)} parameters, for example {missing[0]!r}; they are of another "
                "network"
            )

    def _checkpoint_times(self) -> dict[ModelType, int]:
        """When each best or final model was written that is on disk, in ns."""
        times = {}
        for model_type, file in self.model_filepaths.items():
            path = Path(self.bundle_root, file or "")
            if path.is_file():
                times[model_type] = path.stat().st_mtime_ns
        return times

    def _require_new_checkpoint(self, model_type: Any) -> None:
        """Refuse a model that an earlier training left: the engine would take it for this one's."""
        if self._old_checkpoints is None:
            return
        old = self._old_checkpoints.get(model_type)
        if old is not None and old == self._checkpoint_times().get(model_type):
            raise ConfigError(
                f"client {self.client_name!r}: {self.model_filepaths[model_type]} in "
                f"{self.bundle_root} is older than this training, which saved no model there. "
                "The bundle's ValidationHandler saves the best: turn it on with all_handlers=True, "
                "and let ckpt_dir be the folder of best_model_filepath"
            )


def _is_of_central_training(handler: Handler) -> bool:
    """Whether a federated training does without ``handler``: it validates or logs."""
    return isinstance(handler_owner(handler), (ValidationHandler, StatsHandler))
