# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Measures models on a site's own data: what a request asks for, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

from monai.engines import SupervisedEvaluator, SupervisedTrainer

from monai_fairfl.client.case_lists import Overlap
from monai_fairfl.client.state import ClientState, Past
from monai_fairfl.measurements.entry import Entry, Memory
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.messages import Measurement, ModelSpec, Request, Weights

logger = logging.getLogger(__name__)


class Measuring:
    """Measures models on a site's validation, test and training data.

    Args:
        spec: the model's tensors.
        states: the site's private files; each case's score is stored there when a run ends.
        workflow: of the training; its metadata may name the classes.
        trainer: of the training data.
        validator: the evaluator of the validation data; ``None``: the bundle has none.
        tester: the evaluator of the test data; ``None``: the bundle has none.
        test_overlap: test cases that are used for something else besides; their counts are sent in
            place of every test score. ``None``: the test is one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        states: ClientState,
        workflow: Any,
        trainer: SupervisedTrainer,
        validator: SupervisedEvaluator | None,
        tester: SupervisedEvaluator | None,
        test_overlap: Overlap | None,
    ):
        self._spec = spec
        self._states = states
        self._workflow = workflow
        self._trainer = trainer
        self._evaluators = {"validation": validator, "test": tester}
        self._test_overlap = test_overlap

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
        for name, entry in asked(of, request).items():
            if entry.data == "test" and self._test_overlap is not None:
                values.update(self._test_overlap.measurements())
                continue

            data = entry.data_for(request.context)
            if data not in probes:
                probes[data] = self.probe(data)
            probe = probes[data]
            if probe is None:
                logger.warning(
                    "client %s: the bundle has no evaluator for %r", request.client, name
                )
                continue

            value = self._value(entry, probe, request, weights, past)
            if value is not None:
                values[name] = value
            if isinstance(probe, Probe):
                self._store_cases(name, request, probe)
        return values

    def probe(self, data: str) -> Probe | TrainingProbe | None:
        """What runs weights on this data; ``None`` where the bundle has no evaluator for it."""
        if data == "training":
            return TrainingProbe(self._trainer)
        evaluator = self._evaluators[data]
        if evaluator is None:
            return None
        return Probe(evaluator, self._class_names(), remembers=True)

    def _value(
        self,
        entry: Entry,
        probe: Probe | TrainingProbe,
        request: Request,
        weights: Weights,
        past: Past,
    ) -> Measurement | None:
        """One measurement of a model; ``None``: it could not be measured."""
        memory = _memory_for(entry, past)
        if memory.present is not None:
            # Two models of this round share the tensors that the site does not send.
            weights = self._spec.completed(request.weights, memory.present)
        return entry.function(probe, self._spec.with_aliases(weights), memory, request.context)

    def _store_cases(self, name: str, request: Request, probe: Probe) -> None:
        """When a run ends, store the cases' own scores of a measurement at the site."""
        # Taken every time: the next measurement of the probe may score nothing.
        cases = probe.take_cases()
        if request.context.get("closing", 0) and cases:
            file = f"{name}-{request.round:d}-{request.id:d}"
            self._states.save_cases(request.run, file, cases)

    def _class_names(self) -> tuple[str, ...]:
        """The output channels' names in the bundle's metadata; none where it names none."""
        parser = getattr(self._workflow, "parser", None)
        config = getattr(parser, "config", {})
        formats = config.get("_meta_", {}).get("network_data_format", {})
        channels = formats.get("outputs", {}).get("pred", {}).get("channel_def", {})
        return tuple(str(label) for label in channels.values())


def asked(of: str, request: Request) -> dict[str, Entry]:
    """Name -> entry of each measurement of one model that a request asks for.

    Args:
        of: which model it is, see :class:`~monai_fairfl.measurements.entry.Entry`.
        request: names the measurements.

    >>> list(asked("trained", Request("A", "train", {}, ("global_score", "local_score"))))
    ['local_score']
    """
    found = {}
    for name in request.measure:
        entry = MEASUREMENTS.get(name)
        if entry is None or entry.of != of:
            continue
        if entry.needs == "present" and request.task == "train":
            # Before training, a model of this round is one that an earlier try left.
            continue
        found[name] = entry
    return found


def needs_earlier_model(request: Request) -> bool:
    """Whether a request asks for a measurement that needs a model of an earlier training.

    >>> needs_earlier_model(Request("A", "train", {}, ("leave_one_out_error",)))
    True
    """
    entries = [MEASUREMENTS[name] for name in request.measure if name in MEASUREMENTS]
    return any(entry.needs for entry in entries)


def _memory_for(entry: Entry, past: Past) -> Memory:
    """The earlier model that a measurement needs."""
    if entry.needs == "previous":
        return Memory(previous=past.previous)
    if entry.needs == "present":
        return Memory(present=past.present)
    return Memory()
