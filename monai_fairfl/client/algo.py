# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers a federation's requests at a hospital, with any MONAI bundle."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from monai.fl.client.monai_algo import convert_global_weights
from monai.fl.utils.constants import ExtraItems, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.utils import ensure_tuple

from monai_fairfl.client.case_lists import overlap_of
from monai_fairfl.client.filters import filtered_update, received_weights
from monai_fairfl.client.judge import Judge
from monai_fairfl.client.last_mile import SiteModels, candidates
from monai_fairfl.client.measuring import Measuring, asked, needs_earlier_model
from monai_fairfl.client.mended_algo import MendedMonaiAlgo
from monai_fairfl.client.receipts import Receipts
from monai_fairfl.client.state import ClientState, Past, TrainedModel
from monai_fairfl.client.trainer_state import load_state, state_of, with_new_optimizer
from monai_fairfl.client.training import (
    chosen_handlers,
    one_round,
    train_personal,
)
from monai_fairfl.handlers import TrainLoss
from monai_fairfl.measurements.loading import device_of
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.messages import (
    ADAPTED_EPOCHS,
    CANDIDATES,
    Measurement,
    Reply,
    Request,
    Weights,
    chosen,
    gain_name,
    is_finite_or_unchanged,
)
from monai_fairfl.model_files.recipe import ModelRecipe, digests_of_files, save_model_file
from monai_fairfl.run.ledger import digest_of
from monai_fairfl.utils.case_files import image_files_of
from monai_fairfl.utils.tensors import CPU, moved, names_not_finite, on_cpu

logger = logging.getLogger(__name__)


class FairMonaiAlgo(MendedMonaiAlgo):
    """Runs any MONAI bundle as a site of a federation.

    The bundle needs ``configs/train.json``. If it has ``evaluate.json``, this adds the test data.
    For each request, the client loads the received weights, measures them as the request asks,
    trains them, measures them again, and returns the difference of the weights. Measuring changes
    neither the best checkpoint nor the random state. The bundle is the site's own: a request brings
    tensors and plain numbers, never configuration.

    An engine for ``MonaiAlgo`` can drive it too:
    :class:`~monai_fairfl.client.mended_algo.MendedMonaiAlgo` names what differs, and how a site's
    filters act. In :meth:`answer` the pre-filters act on the received weights, and the post-weight
    filters on the update alone: buffers, measurements and counts leave as they are.

    Args:
        bundle_root: folder of the bundle. A relative path begins at the engine's
            ``ExtraItems.APP_ROOT``, if the engine gives one.
        state_dir: private folder for the state of the last three rounds. With it, a restarted
            process, or a server that repeats a round, changes no result. Another run of the same
            name deletes the state.
        all_handlers: whether the bundle's ``ValidationHandler`` and ``StatsHandler`` stay on during
            federated training. They are off by default, because the client measures scores itself,
            and a federation has a log of its own. Without them, no best checkpoint is written.
        alone: file of a model that this site trained alone, a candidate of the last mile, see
            :mod:`~monai_fairfl.client.last_mile`. It need not exist before the run ends.
        arguments: of ``MonaiAlgo``, such as ``train_kwargs``, the overrides of ``train.json``.

    >>> import tempfile
    >>> from monai_fairfl.bundle import find_bundle
    >>> bundle = find_bundle("prostate_mri_segmentation")
    >>> algo = FairMonaiAlgo(str(bundle), tempfile.mkdtemp(), local_epochs=2)
    >>> algo.local_epochs  # algo.answer(request) trains
    2
    """

    _measuring: Measuring  # once initialised, of a client that trains

    def __init__(
        self,
        bundle_root: str,
        state_dir: str | Path,
        *,
        all_handlers: bool = False,
        alone: str | Path | None = None,
        **arguments: Any,
    ):
        super().__init__(bundle_root, state_dir, all_handlers=all_handlers, **arguments)
        self.alone = None if alone is None else Path(alone)
        self.states = ClientState(state_dir)
        self.receipts = Receipts(state_dir)
        # (run, round) whose state the trainer has; None: unknown.
        self._trainer_is_at: tuple[str, int] | None = None
        # What was trained last, from when on a measurement has asked for such a model.
        self._needs_trained_model = False
        self._trained_model: TrainedModel | None = None

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Build trainer and evaluator from the bundle, and find out what the evaluator scores.

        Args:
            extra: as of ``MonaiAlgo``: ``ExtraItems.CLIENT_NAME`` is the name of the site.
        """
        if self._built:
            return
        super().initialize(extra)
        if self.trainer is None:
            return
        test_overlap = overlap_of(
            str(self.client_name), self.evaluator, self.trainer, self._validator
        )
        self._measuring = Measuring(
            self.spec,
            self.states,
            self.train_workflow,
            self.trainer,
            self._validator,
            self.evaluator,
            test_overlap,
        )

    def answer(self, request: Request) -> Reply:
        """Carry out one request.

        The steps are, in this order: the site's pre-filters, measurements of the received weights,
        training (with ``train_loss``), measurements of the trained weights, Ditto's personal model
        and its measurements, the site's post-weight filters on the update, the state file and the
        receipt. For tensors that the request does not send, the client uses its own.

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
            return self._answer_end(request)
        self.initialize({ExtraItems.CLIENT_NAME: request.client})
        # An engine may have built the client without a name.
        self.client_name = request.client
        self._require_trainer()
        request = self._decoded(request)
        self._check(request)

        if self.states.begin(request.run, request.run_id):
            self._trainer_is_at = None
            self._trained_model = None
        if needs_earlier_model(request):
            self._needs_trained_model = True
        past = Past(self.states, request.run, request.round, self._trained_model)
        received = self._with_own(request, past)
        measurements = self._measuring.measure("received", request, received, past)
        if request.task == "measure":
            reply = self._answer_measuring(request, received, past, measurements)
        else:
            reply = self._answer_training(request, received, past, measurements)
        return self._with_receipt(request, reply)

    def local_epochs_of(self, request: Request) -> int:
        """Epochs of this request's training."""
        return int(request.context.get("local_epochs", self.local_epochs))

    def _answer_end(self, request: Request) -> Reply:
        """Store the head of the whole ledger; the run asks for nothing more."""
        self.receipts.add(request, "")
        return request.reply()

    def _with_receipt(self, request: Request, reply: Reply) -> Reply:
        """Store what was sent and received, and state the update's digest in the reply."""
        digest = ""
        if reply.update is not None:
            digest = digest_of({**reply.update, **(reply.buffers or {})})
        self.receipts.add(request, digest)
        return replace(reply, digest=digest)

    def _answer_measuring(
        self,
        request: Request,
        received: Weights,
        past: Past,
        measurements: dict[str, Measurement],
    ) -> Reply:
        """Measure the personal model, too, and write this client's own model when a run ends."""
        # The client has a model of its own when the server did not send all of one.
        own = None if received is request.weights else received
        if asked("personal", request) and past.personal is not None:
            own = past.personal["local"]
            measurements |= self._measuring.measure("personal", request, own, past)
        if "adapt_epochs" in request.context:
            would_use = received if own is None else own
            found, taken = self._last_mile(request, would_use, past)
            measurements |= found
            own = own if taken is None else taken
        if request.context.get("closing", 0) and own is not None:
            self._save_own_model(self.states.path(request.run, "own.pt"), own)
        return request.reply(measurements=measurements)

    def _last_mile(
        self, request: Request, own: Weights, past: Past
    ) -> tuple[dict[str, Measurement], Weights | None]:
        """Look for a model that serves this client better than the one that it would use.

        Args:
            request: with the settings of the last mile.
            own: the model that this client would use.
            past: the client's earlier models.

        Returns:
            What was measured of the candidates; and the weights of the one that the client takes.
        """
        probe = self._measuring.probe("validation")
        if not isinstance(probe, Probe):
            logger.warning(
                "client %s: no last mile: the bundle has no evaluator that could judge it",
                request.client,
            )
            return {}, None
        own = self.spec.with_aliases(own)
        models = SiteModels(own, self.alone)
        initial_state = {**self._initial, "local": own}
        found = candidates(models, Judge(probe, own), self.trainer, initial_state, request)

        measurements: dict[str, Measurement] = {}
        for name, candidate in found.items():
            measurements |= self._measuring.measure(name, request, candidate.weights, past)
            measurements[gain_name(name)] = candidate.gain
            if candidate.epochs is not None:
                measurements[ADAPTED_EPOCHS] = float(candidate.epochs)
        taken = chosen({name: candidate.gain for name, candidate in found.items()})
        return measurements, None if taken is None else found[taken].weights

    def _answer_training(
        self,
        request: Request,
        received: Weights,
        past: Past,
        measurements: dict[str, Measurement],
    ) -> Reply:
        """Train the received weights, measure the result and store the state for the next round."""
        self._restore(request, past)
        train_loss = self._train(request, received)
        trained = self.trainer.network.state_dict()
        self._require_finite(trained, received)
        update = self._update(request, trained)
        # Copies of the trained model and of everything else that the next round goes on from.
        state = state_of(self.trainer)

        if "train_loss" in request.measure and train_loss.value is not None:
            measurements["train_loss"] = train_loss.value
        measurements |= self._measuring.measure("trained", request, state["local"], past)

        # Ditto: a round of the personal model.
        if "ditto_lambda" in request.context:
            state["personal"] = self._train_personal(request, received, past)
            personal = state["personal"]["local"]
            measurements |= self._measuring.measure("personal", request, personal, past)

        reply = self._reply(request, update, state["local"], past, measurements, train_loss)
        state["local"] = self._as_sent(request, reply, state["local"])
        self._store(request, state)
        return reply

    # ---- a request and its weights

    def _decoded(self, request: Request) -> Request:
        """``request`` with its weights after the site's pre-filters."""
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
        """Refuse what this client cannot do, and weights that lack parameters."""
        gains = [gain_name(candidate) for candidate in CANDIDATES]
        known_measurements = {*MEASUREMENTS, *gains, "train_loss", ADAPTED_EPOCHS}
        unknown = [name for name in request.measure if name not in known_measurements]
        if unknown:
            raise ValueError(
                f"this client cannot do {unknown[0]!r}; it measures {sorted(known_measurements)}: "
                "update monai_fairfl at this site, or use another strategy"
            )
        for name in request.measure:
            if name in MEASUREMENTS:
                MEASUREMENTS[name].check_name(name)
        if "gsam_alpha" in request.context and "sam_rho" not in request.context:
            raise ValueError(
                "'gsam_alpha' needs 'sam_rho', the radius: GSAM is a refinement of SAM"
            )
        # With local_norm the normalisation layers stay at the site (FedBN).
        not_sent = self.spec.norms if request.context.get("local_norm", 0) else ()
        self._require_all(request.weights, self.spec.parameters, except_for=not_sent)
        self._require_shapes(request.weights)

    def _require_shapes(self, weights: Weights) -> None:
        """Refuse parameters of another shape: MONAI would fill the network's with their values."""
        for name in self.spec.parameters:
            own = self._initial["local"][name].shape
            if name in weights and weights[name].shape != own:
                raise ValueError(
                    f"client {self.client_name!r}: the received {name!r} has shape "
                    f"{tuple(weights[name].shape)}, and this site's network has {tuple(own)}: give "
                    "the site the overrides of the run that decide the network, such as channels"
                )

    def _with_own(self, request: Request, past: Past) -> Weights:
        """The received model, with this client's own tensors in place of those that were not sent.

        They are those that it trained last, or the initial ones.
        """
        if not self.spec.missing_from(request.weights):
            # No file of an earlier round is read.
            return request.weights
        return self.spec.completed(request.weights, past.local or self._initial["local"])

    def _require_finite(self, trained: Weights, received: Weights) -> None:
        """Refuse a training that diverged before it is stored.

        Adam's moments would spoil every later round. A constant buffer, such as a mask of -inf, may
        stay what it was.
        """
        received = self.spec.with_aliases(received)
        for name in names_not_finite(trained):
            tensor = trained[name]
            is_parameter = name in self.spec.parameters
            if is_parameter or not is_finite_or_unchanged(tensor, received[name].to(tensor)):
                raise ValueError(
                    f"client {self.client_name!r}: the training diverged, {name!r} is not finite. "
                    "Nothing of this round is stored, and the next goes on from the previous "
                    "state. If it comes again: lower learning_rate, or look for images with "
                    "extreme values"
                )

    # ---- training

    def _restore(self, request: Request, past: Past) -> None:
        """Bring the trainer to the state after the newest round, or to its initial one."""
        has_earlier_round = past.newest >= 0
        if not has_earlier_round and request.round > 0:
            logger.warning(
                "client %s has no state of an earlier round: its optimizer starts without moments",
                request.client,
            )
        if has_earlier_round and self._trainer_is_at is None:
            logger.info(
                "client %s goes on from its state after round %d", request.client, past.newest
            )

        reset = bool(request.context.get("reset_optimizer", 0))
        is_there = has_earlier_round and self._trainer_is_at == (request.run, past.newest)
        if reset or not is_there:
            state = past.state or self._initial
            if reset:
                state = with_new_optimizer(state)
            load_state(self.trainer, state)
        # Unknown until this round is done.
        self._trainer_is_at = None

    def _train(self, request: Request, weights: Weights) -> TrainLoss:
        """Train with the handlers that the request chooses; returns what was counted."""
        train_loss = TrainLoss(board=None)
        handlers = [train_loss, *chosen_handlers(request.context)]
        # MonaiAlgo reads its epochs from this attribute.
        usual_epochs = self.local_epochs
        self.local_epochs = self.local_epochs_of(request)
        try:
            with one_round(self.trainer, request.seed, handlers):
                self._train_from(self.spec.with_aliases(weights), {})
        finally:
            self.local_epochs = usual_epochs
        return train_loss

    def _train_from(self, weights: Mapping[str, Any], extra: dict[str, Any]) -> None:
        # An engine's own ``train`` comes here, too.
        self._trainer_is_at = None
        super()._train_from(weights, extra)

    def _train_personal(self, request: Request, weights: Weights, past: Past) -> dict[str, Any]:
        """The state of Ditto's personal model after this round.

        The first personal model begins with the received weights and a new optimizer.

        Raises:
            ValueError: when its training diverged.
        """
        initial_state = past.personal
        if initial_state is None:
            initial_state = {**self._initial, "local": self.spec.with_aliases(weights)}
        if request.context.get("reset_optimizer", 0):
            initial_state = with_new_optimizer(initial_state)
        personal = train_personal(
            self.trainer,
            initial_state,
            anchor=request.weights,
            strength=request.context["ditto_lambda"],
            epochs=self.local_epochs_of(request),
            seed=request.seed,
        )
        self._require_finite(personal["local"], weights)
        return personal

    # ---- what leaves the site, and what stays

    def _update(self, request: Request, trained: Weights) -> dict[str, torch.Tensor]:
        """The change of each parameter that was sent, on the CPU.

        It is computed where the network is: from a GPU the changes come by one transfer.
        """
        names = [name for name in self.spec.parameters if name in request.weights]
        sent = {name: request.weights[name] for name in names}
        received = moved(sent, device_of(self.trainer.network))
        changes = {}
        for name in names:
            # A network may lay its values out in another order (channels_last).
            changes[name] = (trained[name] - received[name]).contiguous()
        return dict(moved(changes, CPU))

    def _reply(
        self,
        request: Request,
        update: Weights,
        local: Weights,
        past: Past,
        measurements: dict[str, Measurement],
        train_loss: TrainLoss,
    ) -> Reply:
        """What leaves the site: the change of each parameter that was sent, and the buffers."""
        buffers = {}
        for name in self.spec.buffers:
            if name in request.weights:
                buffers[name] = local[name]

        dataset = getattr(self.trainer.data_loader, "dataset", ())
        cases = getattr(dataset, "data", dataset)
        # Empty: every channel is labelled, as at most sites.
        labelled = () if all(train_loss.labelled) else train_loss.labelled
        return request.reply(
            filtered_update(update, self.post_weight_filters, {}, self.client_name),
            num_samples=round(train_loss.images / self.local_epochs_of(request)),
            measurements=measurements,
            buffers=buffers,
            num_cases=_count_different(cases),
            num_steps=train_loss.steps,
            labelled=labelled,
            state_round=past.newest,
            precision=getattr(self.trainer.inferer, "precision", ""),
        )

    def _as_sent(self, request: Request, reply: Reply, local: Weights) -> Weights:
        """The trained model that enters the average: with the noise of the site's filters."""
        if not self.post_weight_filters or reply.update is None:
            return local
        sent = dict(local)
        for name, change in reply.update.items():
            sent[name] = request.weights[name] + change
        # A tensor of two names is the same under both.
        return self.spec.with_aliases(sent)

    def _store(self, request: Request, state: Mapping[str, Any]) -> None:
        """Store what the next round goes on from; the model in memory, too, where it is needed."""
        self.states.save(request.run, request.round, state)
        self._trainer_is_at = (request.run, request.round)
        if self._needs_trained_model:
            # Copies: the tensors of a reply are the server's.
            local = on_cpu(state["local"])
            self._trained_model = TrainedModel(request.run, request.round, local)

    def _save_own_model(self, path: Path, weights: Weights) -> None:
        """Write this client's own model, with the training's recipe where the bundle has one."""
        parser = self.train_workflow.parser
        recipe: ModelRecipe | None = None
        if "recipe" in parser:
            declared: ModelRecipe = parser.get_parsed_content("recipe")
            config = ensure_tuple(self.config_train_filename)
            recipe = replace(declared, files=digests_of_files(self.bundle_root, config))
        save_model_file(path, self.spec.with_aliases(weights), recipe)


def _count_different(cases: Any) -> int:
    """Number of cases, each counted once by its files.

    A bundle may list a case several times in an epoch, and a free rider does.
    """
    if not isinstance(cases, Sequence):
        return len(cases)
    files = [image_files_of(case) for case in cases]
    if None in files:
        return len(cases)
    return len(set(files))
