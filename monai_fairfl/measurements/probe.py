# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates given weights on a client's data and disturbs nothing: no savers, no best metric, no
random state.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator
from torch import nn
from torch.utils.data import SequentialSampler

from monai_fairfl.errors import TransportAborted
from monai_fairfl.protocol.values import Estimate, Weights
from monai_fairfl.utils.files import distinct_names
from monai_fairfl.utils.random_state import own_random_state

KEPT = ("Workflow._register_decollate", "Workflow._register_postprocessing")


class Probe:
    """Scores weights with a bundle's own evaluator: its data, inferer, postprocessing and key
    metric, nothing else.

    Args:
        evaluator: built by the bundle; its savers, loggers and best-metric bookkeeping are left out
            while probing.
        classes: names of the scored classes; used when their number fits the metric's.
    """

    def __init__(self, evaluator: SupervisedEvaluator, classes: Sequence[str] = ()):
        self.engine, self.classes = evaluator, tuple(classes)
        self.cases: dict[str, dict[str, float]] = {}

    def score(self, weights: Weights) -> dict[str, float | Estimate]:
        """The evaluator's key metric (mean Dice): ``"mean"`` over cases with its standard error,
        and per class.

        Cases whose score is NaN do not count, nor does a class that none labels. MONAI's Dice is
        NaN where the reference is empty, whatever was predicted: no score tells of a false alarm
        there. The cases' own scores, case -> ``"dice"`` and classes -> value, stay in
        :attr:`cases`, at the client.

        Args:
            weights: the model to score; the network's own weights are put back afterwards.

        Raises:
            ValueError: there is no key metric, or it is none that lies between 0 and 1, the higher
                the better.
            TransportAborted: when the evaluator was interrupted.
        """
        with self._bare() as evaluator, loaded(evaluator.network, weights), own_random_state(0):
            evaluator.run()
            check_whole(evaluator)
            name = evaluator.state.key_metric_name
            if name is None:
                raise ValueError(
                    "the bundle's evaluator has no key_val_metric, so no score can be measured"
                )
            details = evaluator.state.metric_details.get(name)
            value = float(evaluator.state.metrics[name])
        scores = torch.as_tensor([value] if details is None else details).detach().cpu().double()
        _check_range(name, scores)
        if details is None:
            return {"mean": Estimate(value)}
        per_case = scores.flatten(1)  # cases x classes
        columns = {"dice": per_case.nanmean(1)}
        if per_case.shape[1] > 1:
            names = [str(i) for i in range(per_case.shape[1])]
            if len(self.classes) >= len(names):  # a background class in front is not scored
                names = list(self.classes[-len(names) :])
            told = [not column.isnan().all() for column in per_case.T]
            columns |= {
                label: column
                for label, column, known in zip(names, per_case.T, told, strict=True)
                if known
            }
        rows = torch.stack(list(columns.values()), 1).tolist()
        cases = self._case_names(len(per_case))
        self.cases = {case: dict(zip(columns, row)) for case, row in zip(cases, rows, strict=True)}
        return {
            "mean" if label == "dice" else label: estimate(column)
            for label, column in columns.items()
        }

    def _case_names(self, count: int) -> list[str]:
        """Of the files, where the cases came in their order; else numbers."""
        loader = self.engine.data_loader
        data = getattr(getattr(loader, "dataset", None), "data", None)
        if (
            isinstance(
                getattr(getattr(loader, "batch_sampler", None), "sampler", None), SequentialSampler
            )
            and isinstance(data, Sequence)
            and len(data) == count
            and all(isinstance(d, dict) and "image" in d for d in data)
        ):
            return distinct_names([str(d["image"]) for d in data])
        return [str(i) for i in range(count)]

    @contextlib.contextmanager
    def _bare(self) -> Iterator[SupervisedEvaluator]:
        """The evaluator with only what makes the score, and its state put back afterwards."""
        engine: Any = self.engine
        handlers, state = engine._event_handlers, engine.state
        engine._event_handlers = handlers_that(_makes_the_score, engine)
        engine._internal_run_generator = (
            None  # after a failure ignite would go on with what is left of that run
        )
        engine.state = copy.copy(state)
        engine.state.metrics, engine.state.metric_details = {}, {}
        try:
            yield engine
        finally:
            engine._event_handlers, engine.state = handlers, state


def _check_range(name: str, scores: torch.Tensor) -> None:
    """Refuse a distance, a loss or percent: methods read a score as Dice, and would take the worse
    for the better.
    """
    outside = scores[(scores - 0.5).abs() > 0.5 + 1e-6]  # of float32
    if len(outside):
        raise ValueError(
            f"the evaluator's key metric {name!r} is {float(outside.flatten()[0]):.4g} for a case, and a score must "
            "be between 0 and 1, the higher the better, as Dice is: make such a metric the key_val_metric, and this "
            "one an entry of additional_metrics"
        )


def estimate(values: torch.Tensor) -> Estimate:
    """Mean of the values that are not NaN, its standard error (ddof 1) and their number.

    >>> estimate(torch.tensor([0.8, 0.6, float("nan")], dtype=torch.float64))
    Estimate(value=0.7, stderr=0.1, n=2)
    """
    known = values[~values.isnan()]
    n = len(known)
    stderr = round(float(known.std()) / math.sqrt(n), 12) if n > 1 else None
    return Estimate(round(float(known.mean()), 12) if n else float("nan"), stderr, n)


def handlers_that(
    fit: Callable[[Callable[..., Any]], bool], engine: Engine
) -> defaultdict[Any, list[Any]]:
    """The engine's handlers that ``fit``, by event: what its ``_event_handlers`` shall be.

    An event without any is left out: while ``EXCEPTION_RAISED`` is there, ignite takes exceptions
    for handled.
    """
    kept = {
        event: [entry for entry in entries if fit(entry[0])]
        for event, entries in engine._event_handlers.items()
    }
    return defaultdict(list, {event: entries for event, entries in kept.items() if entries})


def _makes_the_score(handler: Callable[..., Any]) -> bool:
    owner = getattr(handler, "__self__", None) or getattr(
        getattr(handler, "__wrapped__", None), "__self__", None
    )
    return isinstance(owner, Metric) or getattr(handler, "__qualname__", "").startswith(KEPT)


def check_whole(engine: Engine) -> None:
    """Refuse a run that ``abort`` interrupted: what it made is of some of the cases only.

    Raises:
        TransportAborted: when it did; the next run begins anew.
    """
    if engine._internal_run_generator is not None:
        engine._internal_run_generator = None
        raise TransportAborted(
            "aborted before the end of the data: nothing of this round is kept; start the run again to go on"
        )


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Load ``weights`` into ``network``; what it does not name keeps its value.

    Raises:
        KeyError: when ``weights`` holds a name that the network does not have.
    """
    unexpected = network.load_state_dict(dict(weights), strict=False).unexpected_keys
    if unexpected:
        raise KeyError(
            f"the network has no tensor {unexpected[0]!r} ({len(unexpected)} unknown names)"
        )


@contextlib.contextmanager
def loaded(network: nn.Module, weights: Weights) -> Iterator[None]:
    """``network`` with ``weights`` inside, with its own weights after."""
    before = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    try:
        load_weights(network, weights)
        yield
    finally:
        network.load_state_dict(before)
