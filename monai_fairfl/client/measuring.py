# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures models on a site's own data: what a request asks for, and nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.client.state import ClientState
from monai_fairfl.measurements.entry import Memory
from monai_fairfl.measurements.probe import Probe, TrainingProbe, files_of_cases
from monai_fairfl.measurements.table import MEASUREMENTS
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


Evaluators = Mapping[str, SupervisedEvaluator | None]
"""``"validation"`` and ``"test"`` -> the evaluator of these data; ``None``: the bundle has none."""


class Task:
    """One request: what was measured for it, and the earlier models that it may use.

    Each file is read when it is first needed.

    Args:
        request: to the client.
        states: the client's files.
        epochs: that it asks for, if it trains.
    """

    def __init__(self, request: Request, states: ClientState, epochs: int):
        self.request = request
        self.states = states
        self.epochs = epochs
        self.measurements: dict[str, Measurement] = {}
        # Number of a round -> its state, once it is read.
        self._states: dict[int, dict[str, Any]] = {}
        # Rounds up to this one, newest first.
        stored = states.before(request.run, request.round + 1)
        self._has_present = request.round in stored
        self._earlier = [number for number in stored if number < request.round]
        self.newest = self._earlier[0] if self._earlier else -1

    @property
    def state(self) -> dict[str, Any] | None:
        """The newest state of an earlier round."""
        return self._after(self.newest) if self._earlier else None

    @property
    def previous(self) -> Weights | None:
        """The model trained in the previous round, exactly that one."""
        is_previous = self._earlier and self.newest == self.request.round - 1
        return self._after(self.newest)["local"] if is_previous else None

    @property
    def present(self) -> Weights | None:
        """The model trained in this round."""
        return self._after(self.request.round)["local"] if self._has_present else None

    @property
    def personal(self) -> dict[str, Any] | None:
        """The newest state of the personal model; a round without one does not end it."""
        states = (self._after(number) for number in self._earlier)
        return next((state["personal"] for state in states if "personal" in state), None)

    def _after(self, number: int) -> dict[str, Any]:
        if number not in self._states:
            self._states[number] = self.states.load(self.request.run, number)
        return self._states[number]


@dataclass(frozen=True)
class Measuring:
    """Measures models on a site's validation, test and training data.

    Args:
        spec: the model's tensors.
        trainer: of the training data.
        evaluators: of the other data.
        classes: the output channels' names, where the bundle names them.
        overlap: takes the place of every test score, see :func:`overlap_of`.
    """

    spec: ModelSpec
    trainer: SupervisedTrainer
    evaluators: Evaluators
    classes: Sequence[str]
    overlap: Mapping[str, Estimate]

    def measure(self, of: str, task: Task, weights: Weights) -> None:
        """Add to the task what it asks to be measured of one model.

        Args:
            of: which model it is, see :class:`~monai_fairfl.measurements.entry.Entry`.
            task: names the measurements.
            weights: the model.
        """
        request = task.request
        # Data -> what runs models on it: measurements of one model share its pass over the images.
        probes: dict[str, Probe | TrainingProbe | None] = {}
        for name in request.measure:
            entry = MEASUREMENTS.get(name)
            if entry is None or entry.of != of:
                continue
            # Before training, a model of this round is one that an earlier try left.
            if entry.needs == "present" and request.task == "train":
                continue
            if entry.data == "test" and self.overlap:
                task.measurements.update(self.overlap)
                continue

            data = "training" if request.context.get(entry.training_key, 0) else entry.data
            if data not in probes:
                probes[data] = self.probe(data)
            probe = probes[data]
            if probe is None:
                logger.warning("client %s: no evaluator for %r", request.client, name)
                continue

            model = weights
            memory = Memory()
            if entry.needs == "previous":
                memory = Memory(previous=task.previous)
            elif entry.needs == "present" and task.present is not None:
                memory = Memory(present=task.present)
                # Two models of this round share the tensors that the site does not send.
                model = self.spec.completed(request.weights, task.present)
            model = self.spec.with_aliases(model)
            value = entry.function(probe, model, memory, request.context)
            if value is not None:
                task.measurements[name] = value
            if isinstance(probe, Probe):
                # Taken every time: the next measurement of the probe may score nothing.
                cases = probe.take_cases()
                if request.context.get("closing", 0) and cases:
                    file = f"{name}-{request.round:d}-{request.id:d}"
                    task.states.save_cases(request.run, file, cases)

    def probe(self, data: str) -> Probe | TrainingProbe | None:
        """What runs weights on this data; ``None`` where the bundle has no evaluator for it."""
        if data == "training":
            return TrainingProbe(self.trainer)
        evaluator = self.evaluators[data]
        return None if evaluator is None else Probe(evaluator, self.classes, remembers=True)


def overlap_of(
    client: str, trainer: SupervisedTrainer, evaluators: Evaluators
) -> dict[str, Estimate]:
    """How many test cases of a client are validation or training cases, too; empty: none.

    A bundle's evaluator may score cases that the model was trained or chosen on. These counts, of
    the number of test cases, then take the place of every test score: no name of a case leaves the
    site. Cases are compared by the files of their images. The log says which files are in two
    lists, and which lists are empty or cannot be compared.
    """
    files = {}
    for use, engine in {"training": trainer, **evaluators}.items():
        cases = [] if engine is None else files_of_cases(engine)
        if engine is not None and (not cases or None in cases):
            logger.warning("client %s: its %s cases are none, or no list of files", client, use)
            cases = []
        files[use] = {tuple(map(os.path.realpath, case)) for case in cases if case is not None}

    counts = {}
    for use, name in (("validation", IN_VALIDATION), ("training", IN_TRAINING)):
        shared = sorted(os.path.basename(case[0]) for case in files["test"] & files[use])
        counts[name] = Estimate(float(len(shared)), None, len(files["test"]))
        if shared:
            logger.warning("client %s: no test score, %s cases are in it: %s", client, use, shared)
    return counts if any(count.value for count in counts.values()) else {}
