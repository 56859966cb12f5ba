# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A hospital's side: a ``MonaiAlgo`` that answers a federation's requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monai.fl.client.monai_algo import convert_global_weights
from monai.fl.utils.constants import ExtraItems, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.utils import ensure_tuple

from monai_fairfl.client.case_lists import Overlap, overlap_of
from monai_fairfl.client.filters import filtered_update, received_weights
from monai_fairfl.client.mended_algo import MendedMonaiAlgo
from monai_fairfl.client.state import ClientState, Past, load_state, state_of
from monai_fairfl.client.training import (
    TRAINING_HANDLERS,
    chosen_handlers,
    one_round,
    train_personal,
    with_new_optimizer,
)
from monai_fairfl.handlers import TrainLoss
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS, Memory
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.model_files.recipe import ModelRecipe, digests_of_files, save_model_file
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.values import Measurement, Weights

logger = logging.getLogger(__name__)


STATE_KEYS = frozenset(  # understood by the client itself or by its measurements
    {
        "previous_weight",
        "gsam_alpha",
        "ditto_lambda",
        "reset_optimizer",
        "local_epochs",
        "local_norm",
        "closing",
        "cka_training",
        "cka_unbiased",
    }
)


class FairMonaiAlgo(MendedMonaiAlgo):
    """Runs any MONAI bundle as a site of a federation: it needs ``configs/train.json``, and
    ``evaluate.json`` if there.

    A request's weights are loaded, what was asked is measured on them, then they are trained,
    measured again and returned as a difference. Probing touches neither the best checkpoint nor the
    random state. The bundle is the site's own: from a request come tensors and plain numbers, never
    configuration.

    An engine for ``MonaiAlgo`` can drive it too:
    :class:`~monai_fairfl.client.mended_algo.MendedMonaiAlgo` names what differs, and how a site's filters
    act. In :meth:`answer` the pre-filters act on the received weights, and the post-weight filters
    on the update alone: buffers, measurements and counts leave as they are.

    Args:
        bundle_root: folder of the bundle. A relative one begins at the engine's
            ``ExtraItems.APP_ROOT``, where it gives one.
        state_dir: private folder for the state between rounds; three rounds are kept, so a
            restarted process or a server that repeats a round changes nothing.
        all_handlers: leave the bundle's ``ValidationHandler`` and ``StatsHandler`` on during
            federated training; off by default, since scores come from probes, validating twice
            costs time, and a federation logs itself. Without them no best checkpoint is written.
        arguments: of ``MonaiAlgo``, for example ``train_kwargs``, the overrides of ``train.json``.
    """

    def __init__(
        self,
        bundle_root: str,
        state_dir: str | Path,
        *,
        all_handlers: bool = False,
        **arguments: Any,
    ):
        super().__init__(bundle_root, state_dir, all_handlers=all_handlers, **arguments)
        self.states = ClientState(state_dir)
        self._no_test: Overlap | None = (
            None  # why what the evaluator scores is no test; None: it is one
        )
        self._at: tuple[str, int] | None = (
            None  # (run, round) whose state the trainer holds; None: unknown
        )

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Build trainer and evaluator from the bundle, and find out what the evaluator scores."""
        if self._built:
            return
        super().initialize(extra)
        if self.trainer is not None:
            self._no_test = overlap_of(
                str(self.client_name), self.evaluator, self.trainer, self._validator
            )

    def _train_from(self, weights: Mapping[str, Any], extra: dict[str, Any]) -> None:
        self._at = None
        super()._train_from(weights, extra)

    # ---- a federation's requests
    # ------------------------------------------------------------------------------

    def answer(self, request: Request) -> Reply:
        """Carry out one request.

        Order: the site's pre-filters, measurements of the received weights, training (with
        ``train_loss``), measurements of the trained ones, Ditto's personal model and its
        measurements, the site's post-weight filters on the update, then the state file. Tensors
        that the request does not send are this client's own.

        Raises:
            ValueError: for what the client does not know, since an old client must not silently
                train plainly where a method asked for more; for weights of another network; for a
                training that diverged.
            ConfigError: when a filter of the site returns no whole update.
            TransportAborted: when ``abort`` ended the training or a measurement.
        """
        self.initialize({ExtraItems.CLIENT_NAME: request.client})
        self.client_name = request.client  # an engine may have built it without a name
        self._require_trainer()
        request = self._decoded(request)
        self._check(request)
        past = Past(self.states, request.run, request.round)
        received = self._with_own(request.weights, past, "local")
        measurements = self._measure("received", request, received, past)
        if request.task == "measure":
            own = received if received is not request.weights else None
            if _asks_for("personal", request) and past.personal is not None:
                own = past.personal["local"]
                measurements |= self._measure("personal", request, own, past)
            if request.context.get("closing", 0) and own is not None:
                self._save_own_model(self.states.path(request.run, "own.pt"), own)
            return Reply(
                request.client,
                None,
                0,
                measurements,
                id=request.id,
                run=request.run,
                round=request.round,
            )
        self._restore(request, past)
        counter = self._train(request, received)
        if "train_loss" in request.measure and counter.value is not None:
            measurements["train_loss"] = counter.value
        state = state_of(self.trainer)
        self._require_finite(state["local"], received)
        measurements |= self._measure("trained", request, state["local"], past)
        if "ditto_lambda" in request.context:
            state["personal"] = self._train_personal(request, received, past)
            self._require_finite(state["personal"]["local"], received)
            measurements |= self._measure("personal", request, state["personal"]["local"], past)
        reply = self._reply(request, state["local"], measurements, counter)
        if (
            self.post_weight_filters and reply.update is not None
        ):  # what left is what entered the average
            state["local"] |= {
                name: request.weights[name] + change for name, change in reply.update.items()
            }
        self.states.save(request.run, request.round, state)
        self._at = (request.run, request.round)
        return reply

    def local_epochs_of(self, request: Request) -> int:
        """Epochs of this request's training."""
        return int(request.context.get("local_epochs", self.local_epochs))

    def _decoded(self, request: Request) -> Request:
        """``request`` with weights that the site's pre-filters have seen; all that follows is of
        these.
        """
        if not self.pre_filters:
            return request
        data = ExchangeObject(weights=dict(request.weights), weight_type=WeightType.WEIGHTS)
        weights = received_weights(data, self.pre_filters, {}, self.client_name)
        # A difference needs tensors in the network's shapes; a filter may return flat arrays.
        shaped, _ = convert_global_weights(weights, dict(self._initial["local"]))
        for name in shaped:
            if name in weights:
                weights[name] = shaped[name]
        return replace(request, weights=weights)

    def _check(self, request: Request) -> None:
        known = {*MEASUREMENTS, "train_loss"}
        unknown = [name for name in request.measure if name not in known]
        unknown += [
            key for key in request.context if key not in STATE_KEYS and key not in TRAINING_HANDLERS
        ]
        if unknown:
            raise ValueError(
                f"this client cannot do {unknown[0]!r}; it measures {sorted(known)} and understands "
                f"{sorted({*STATE_KEYS, *TRAINING_HANDLERS})}: "
                "update monai_fairfl at this site, or use another strategy"
            )
        if "gsam_alpha" in request.context and "sam_rho" not in request.context:
            raise ValueError(
                "'gsam_alpha' needs 'sam_rho', the radius: GSAM is a refinement of SAM"
            )
        local = self.spec.norms if request.context.get("local_norm", 0) else ()
        self._require_all(request.weights, self.spec.parameters, except_for=local)

    def _require_finite(self, trained: Weights, received: Weights) -> None:
        """Refuse what diverged before it is kept: Adam's moments with it would spoil every later
        round.

        A constant buffer, such as a mask of -inf, may be what it was.
        """
        before = self.spec.with_aliases(received)
        for name, tensor in trained.items():
            constant = name not in self.spec.parameters and tensor.equal(before[name].to(tensor))
            if not (constant or tensor.isfinite().all()):
                raise ValueError(
                    f"client {self.client_name!r}: the training diverged, {name!r} is not finite. Nothing of this "
                    "round is kept, and the next goes on from the state before it. If it comes again: lower "
                    "learning_rate, or look for images with extreme values"
                )

    def _with_own(self, weights: Weights, past: Past, which: str) -> Weights:
        """``weights``, with the tensors that they lack from this client's own ``which`` model, else
        its initial one.
        """
        lacking = [
            name for name in (*self.spec.parameters, *self.spec.buffers) if name not in weights
        ]
        if not lacking:
            return weights
        own = getattr(past, which) or self._initial["local"]
        return {**weights, **{name: own[name] for name in lacking}}

    def _measure(
        self, of: str, request: Request, weights: Weights, past: Past
    ) -> dict[str, Measurement]:
        values: dict[str, Measurement] = {}
        for name in request.measure:
            entry = MEASUREMENTS.get(name)
            if (
                entry is None
                or entry.of != of
                or (entry.needs == "present" and request.task == "train")
            ):
                continue  # before training, a state of this round is one that an earlier try left
            if entry.data == "test" and self._no_test is not None:
                values.update(self._no_test.measurements())
                continue
            probe = self._probe(entry.data_for(request.context))
            if probe is None:
                logger.warning(
                    "client %s: the bundle has no evaluator for %r", request.client, name
                )
                continue
            memory = (
                Memory(**{entry.needs: getattr(past, entry.needs)}) if entry.needs else Memory()
            )
            # two models of this round share what the site keeps to itself
            model = (
                weights
                if memory.present is None
                else self._with_own(request.weights, past, "present")
            )
            value = entry.function(probe, self.spec.with_aliases(model), memory, request.context)
            if value is not None:
                values[name] = value
            if request.context.get("closing", 0) and isinstance(probe, Probe) and probe.cases:
                self.states.save_cases(
                    request.run, f"{name}-{request.round:d}-{request.id:d}", probe.cases
                )
        return values

    def _probe(self, data: str) -> Probe | TrainingProbe | None:
        if data == "training":
            return TrainingProbe(self.trainer)
        evaluator = self.evaluator if data == "test" else self.train_workflow.evaluator
        return None if evaluator is None else Probe(evaluator, self._class_names())

    def _save_own_model(self, path: Path, weights: Weights) -> None:
        """Write this client's own model, with the recipe of its own training where the bundle has
        one.
        """
        parser = self.train_workflow.parser
        recipe: ModelRecipe | None = None
        if "recipe" in parser:
            declared: ModelRecipe = parser.get_parsed_content("recipe")
            config = ensure_tuple(self.config_train_filename)
            recipe = replace(declared, files=digests_of_files(self.bundle_root, config))
        save_model_file(path, self.spec.with_aliases(weights), recipe)

    def _class_names(self) -> tuple[str, ...]:
        metadata = getattr(getattr(self.train_workflow, "parser", None), "config", {}).get(
            "_meta_", {}
        )
        outputs = metadata.get("network_data_format", {}).get("outputs", {}).get("pred", {})
        return tuple(str(label) for label in outputs.get("channel_def", {}).values())

    def _train(self, request: Request, weights: Weights) -> TrainLoss:
        counter = TrainLoss(board=request.client)
        usual, self.local_epochs = self.local_epochs, self.local_epochs_of(request)
        try:
            with one_round(
                self.trainer, request.seed, [counter, *chosen_handlers(request.context)]
            ):
                self._train_from(self.spec.with_aliases(weights), {})
        finally:
            self.local_epochs = usual
        return counter

    def _train_personal(self, request: Request, weights: Weights, past: Past) -> dict[str, Any]:
        """Ditto's personal model after this round; its first begins with the received weights and a
        new optimizer.
        """
        begin = past.personal or {**self._initial, "local": self.spec.with_aliases(weights)}
        if request.context.get("reset_optimizer", 0):
            begin = with_new_optimizer(begin)
        strength, epochs = request.context["ditto_lambda"], self.local_epochs_of(request)
        return train_personal(self.trainer, begin, request.weights, strength, epochs, request.seed)

    def _reply(
        self,
        request: Request,
        local: Weights,
        measurements: dict[str, Measurement],
        counter: TrainLoss,
    ) -> Reply:
        """What leaves the site: differences of the parameters that were sent, and the buffers that
        were.
        """
        update = {
            name: local[name] - request.weights[name]
            for name in self.spec.parameters
            if name in request.weights
        }
        buffers = {name: local[name] for name in self.spec.buffers if name in request.weights}
        dataset = getattr(self.trainer.data_loader, "dataset", ())
        cases = getattr(dataset, "data", dataset)
        return Reply(
            request.client,
            filtered_update(update, self.post_weight_filters, {}, self.client_name),
            num_samples=round(counter.images / self.local_epochs_of(request)),
            measurements=measurements,
            buffers=buffers,
            num_cases=_different(cases),
            num_steps=counter.steps,
            labelled=() if all(counter.labelled) else counter.labelled,
            id=request.id,
            run=request.run,
            round=request.round,
        )

    # ---- state between rounds
    # ---------------------------------------------------------------------------------

    def _restore(self, request: Request, past: Past) -> None:
        """Bring the trainer to the state after the newest round, or to its initial one."""
        if past.newest < 0 < request.round:
            logger.warning(
                "client %s has no state of an earlier round: its optimizer starts anew",
                request.client,
            )
        reset = bool(request.context.get("reset_optimizer", 0))
        if past.newest >= 0 and self._at is None:
            logger.info(
                "client %s goes on from its state after round %d", request.client, past.newest
            )
        if past.newest < 0 or reset or self._at != (request.run, past.newest):
            state = past.state or self._initial
            load_state(self.trainer, with_new_optimizer(state) if reset else state)
        self._at = None  # unknown until this round is done


def _different(cases: Any) -> int:
    """Number of cases, each counted once: a bundle may list one several times in an epoch, and a
    free rider does.
    """
    if isinstance(cases, Sequence) and all(
        isinstance(case, Mapping) and "image" in case for case in cases
    ):
        return len({str(case["image"]) for case in cases})
    return len(cases)


def _asks_for(of: str, request: Request) -> bool:
    return any(MEASUREMENTS[name].of == of for name in request.measure if name in MEASUREMENTS)
