# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures models on a site's own data: what a request asks for, and nothing else."""

from __future__ import annotations

import logging
import os
from typing import Any

from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.client.state import ClientState, Past
from monai_fairfl.measurements.entry import Memory
from monai_fairfl.measurements.forward import files_of_cases, has_no_batch
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.messages import (
    IN_TRAINING,
    IN_VALIDATION,
    Estimate,
    Measurement,
    ModelSpec,
    Request,
    Weights,
)

logger = logging.getLogger(__name__)


class Measuring:
    """Measures models on a site's validation, test and training data.

    Args:
        client: the site's name, for the log.
        spec: the model's tensors.
        states: the site's private files; each case's score is stored there when a run ends.
        workflow: of the training; its metadata may name the classes.
        trainer: of the training data.
        evaluators: ``"validation"`` and ``"test"`` -> the evaluator of these data; ``None``: the
            bundle has none.
    """

    def __init__(
        self,
        client: str,
        spec: ModelSpec,
        states: ClientState,
        workflow: Any,
        trainer: SupervisedTrainer,
        evaluators: dict[str, SupervisedEvaluator | None],
    ):
        self._spec = spec
        self._states = states
        self._trainer = trainer
        self._evaluators = evaluators
        self._no_test = overlap_of(client, trainer, evaluators)
        # The output channels' names, where the bundle's metadata names them.
        config = getattr(getattr(workflow, "parser", None), "config", {})
        formats = config.get("_meta_", {}).get("network_data_format", {})
        channels = formats.get("outputs", {}).get("pred", {}).get("channel_def", {})
        self._classes = tuple(str(label) for label in channels.values())
        for part, evaluator in evaluators.items():
            if evaluator is not None and has_no_batch(evaluator):
                logger.warning(
                    "client %s: its data list has no %s case, so nothing is measured on that part",
                    client,
                    part,
                )

    def measure(
        self, of: str, request: Request, weights: Weights, past: Past
    ) -> dict[str, Measurement]:
        """What the request asks to be measured of one model: name -> value.

        Args:
            of: which model it is, see :class:`~monai_fairfl.measurements.entry.Entry`.
            request: names the measurements.
            weights: the model.
            past: the site's earlier models.
        """
        values: dict[str, Measurement] = {}
        # Data -> what runs models on it: measurements of one model share its pass over the images.
        probes: dict[str, Probe | TrainingProbe | None] = {}
        for name in request.measure:
            entry = MEASUREMENTS.get(name)
            if entry is None or entry.of != of:
                continue
            # Before training, a model of this round is one that an earlier try left.
            if entry.needs == "present" and request.task == "train":
                continue
            if entry.data == "test" and self._no_test:
                values.update(self._no_test)
                continue

            data = "training" if request.context.get(entry.training_key, 0) else entry.data
            if data not in probes:
                probes[data] = self.probe(data)
            probe = probes[data]
            if probe is None:
                logger.warning(
                    "client %s: the bundle has no evaluator for %r", request.client, name
                )
                continue

            model = weights
            memory = Memory()
            if entry.needs == "previous":
                memory = Memory(previous=past.previous)
            elif entry.needs == "present" and past.present is not None:
                memory = Memory(present=past.present)
                # Two models of this round share the tensors that the site does not send.
                model = self._spec.completed(request.weights, past.present)
            model = self._spec.with_aliases(model)
            value = entry.function(probe, model, memory, request.context)
            if value is not None:
                values[name] = value
            if isinstance(probe, Probe):
                # Taken every time: the next measurement of the probe may score nothing.
                cases = probe.take_cases()
                if request.context.get("closing", 0) and cases:
                    file = f"{name}-{request.round:d}-{request.id:d}"
                    self._states.save_cases(request.run, file, cases)
        return values

    def probe(self, data: str) -> Probe | TrainingProbe | None:
        """What runs weights on this data; ``None`` where the bundle has no evaluator for it."""
        if data == "training":
            return TrainingProbe(self._trainer)
        evaluator = self._evaluators[data]
        return None if evaluator is None else Probe(evaluator, self._classes, remembers=True)


def overlap_of(
    client: str, trainer: SupervisedTrainer, evaluators: dict[str, SupervisedEvaluator | None]
) -> dict[str, Estimate]:
    """How many test cases of a client are validation or training cases, too; empty: none.

    A bundle's evaluator may score cases that the model was trained or chosen on. These counts, of
    the number of test cases, then take the place of every test score: no name of a case leaves the
    site. Cases are compared by the files of their images; the log says which lists cannot be
    compared, and which files are in two.
    """
    if evaluators["test"] is None:
        return {}
    files: dict[str, set[tuple[str, ...]]] = {}
    for use, engine in {"training": trainer, **evaluators}.items():
        listed = None if engine is None else files_of_cases(engine)
        if listed is not None:
            files[use] = {tuple(map(os.path.realpath, case)) for case in listed}
        elif engine is not None:
            logger.warning(
                "client %s: its %s cases are no list of files, so whether its test cases are used "
                "elsewhere is not checked",
                client,
                use,
            )

    test = files.get("test", set())
    counts = {}
    for use, name in (("validation", IN_VALIDATION), ("training", IN_TRAINING)):
        shared = sorted(test & files.get(use, set()))
        counts[name] = Estimate(float(len(shared)), None, len(test))
        if shared:
            logger.warning(
                "client %s: %d of its %d test cases are %s cases, too (%s): no test score is "
                "reported",
                client,
                len(shared),
                len(test),
                use,
                ", ".join(os.path.basename(case[0]) for case in shared),
            )
    return counts if any(count.value for count in counts.values()) else {}
