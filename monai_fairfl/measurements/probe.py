# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs given weights on a client's validation or test data and disturbs nothing.

No checkpoint is written, no best metric is updated, no random number of the training is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator
from monai.handlers import IgniteMetricHandler
from monai.networks.utils import eval_mode
from monai.transforms import Activationsd, Compose
from monai.utils import convert_to_tensor
from monai.utils.enums import CommonKeys
from torch.utils.data import SequentialSampler

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.forward import (
    files_of_cases,
    has_no_batch,
    inferred,
    loaded,
    same_epoch,
)
from monai_fairfl.messages import Estimate, Weights
from monai_fairfl.model_files.fused import network_for
from monai_fairfl.utils.engine_internals import (
    Handler,
    forget_unfinished_run,
    handler_owner,
    is_monai_output_step,
    metric_named,
    only_handlers,
    postprocessing_of,
    require_whole_run,
)
from monai_fairfl.utils.names import distinct_names
from monai_fairfl.utils.random_state import own_random_state

MEAN_COLUMN = "dice"
"""Name of a case's mean over classes, beside the classes' own names."""

FLOAT32_ERROR = 1e-6

Scores = dict[str, float | Estimate]
"""``"mean"`` and the names of classes -> score."""

Cases = dict[str, dict[str, float]]
"""Case -> ``"dice"`` and the names of classes -> score."""


class Probe:
    """Runs weights with a bundle's own evaluator: its data, inferer, postprocessing, key metric.

    :meth:`score` gives the key metric of weights, :meth:`outputs` what the network predicts with
    them, and :meth:`activation` how these outputs become probabilities.

    Args:
        evaluator: built by the bundle; its savers, loggers and best-metric bookkeeping are left out
            while probing.
        classes: names of the scored classes; used when their number fits the metric's.
        remembers: whether the model that was scored last is not scored again; for a probe that
            lives as long as one request, in which nobody changes a model's tensors.

    >>> import torch
    >>> from monai.engines import SupervisedEvaluator
    >>> from monai.handlers import MeanDice, from_engine
    >>> image = torch.tensor([[[[0.0, 1.0, 1.0, 1.0]]]])
    >>> batches = [{"image": image, "label": torch.tensor([[[[0.0, 0.0, 1.0, 1.0]]]])}]
    >>> dice = {"dice": MeanDice(output_transform=from_engine(["pred", "label"]))}
    >>> network = torch.nn.Conv2d(1, 1, 1, bias=False)
    >>> evaluator = SupervisedEvaluator("cpu", batches, network, key_val_metric=dice)
    >>> models = [{"weight": torch.full((1, 1, 1, 1), gain)} for gain in (0.0, 1.0)]
    >>> [round(Probe(evaluator).score(weights)["mean"].value, 6) for weights in models]
    [0.0, 0.8]
    """

    def __init__(
        self, evaluator: SupervisedEvaluator, classes: Sequence[str] = (), remembers: bool = False
    ):
        self.engine = evaluator
        self.classes = tuple(classes)
        self.remembers = remembers
        self.cases: Cases = {}
        self._yields_outputs = False
        # The model that was scored last, its score and its cases' own.
        self._last: tuple[Weights, Scores, Cases] | None = None

    def score(self, weights: Weights) -> Scores:
        """The evaluator's key metric (mean Dice): ``"mean"`` over cases, and one value per class.

        Each value has its standard error. Cases whose score is NaN do not count, nor does a class
        that no case labels. MONAI's Dice is NaN where the reference is empty, whatever was
        predicted: a false alarm there lowers no score. The cases' own scores, case -> ``"dice"``
        and classes -> value, stay in :attr:`cases`, at the client.

        The mean is NaN, of 0 cases, where no case has a score or the evaluator has no case.

        Args:
            weights: the model to score; the network's own weights are put back afterwards.

        Raises:
            ValueError: there is no key metric, or it is none that lies between 0 and 1, the higher
                the better.
            ConfigError: the key metric stores counts of each case in place of its score, or gives
                several numbers and stores nothing of single cases.
            TransportAborted: when the evaluator was interrupted.
        """
        known = self._last
        if known is None or not self.remembers or not _same_tensors(known[0], weights):
            known = self._last = (weights, *self._score(weights))
        _, scores, self.cases = known
        return dict(scores)

    def _score(self, weights: Weights) -> tuple[Scores, Cases]:
        name = self.engine.state.key_metric_name
        if name is None:
            raise ValueError("no score without a key_val_metric of the bundle's evaluator")
        if has_no_batch(self.engine):
            return {"mean": Estimate(math.nan, None, 0)}, {}

        details, value = self._run(weights, name)
        # A metric that stores no details gives only its mean.
        table = torch.as_tensor(value).double().reshape(1, -1) if details is None else details
        if table.ndim > 2 or (details is None and table.numel() > 1):
            raise ConfigError(
                f"the key metric {name!r} gives {table.shape[-1]} numbers, such as counts, where a "
                "score is one: use MeanDice, or change its reduction or save_details"
            )
        outside = table[(table - 0.5).abs() > 0.5 + FLOAT32_ERROR]
        if len(outside):
            # A distance, a loss or percent: methods would take the worse client for the better.
            raise ValueError(
                f"the key metric {name!r} is {float(outside[0]):.4g} for a case, and a score is "
                "from 0 to 1, the higher the better: make MeanDice the key_val_metric"
            )
        if details is None:
            return {"mean": Estimate(float(table))}, {}

        columns = self._columns(details)
        scores: Scores = {}
        for column, values in columns.items():
            scores["mean" if column == MEAN_COLUMN else column] = estimate(values)
        cases = {}
        rows = torch.stack(list(columns.values()), 1).tolist()
        for case, row in zip(self._case_names(len(rows)), rows, strict=True):
            cases[case] = dict(zip(columns, row, strict=True))
        return scores, cases

    def take_cases(self) -> Cases:
        """The cases' own scores of the model that was scored last; once only.

        Returns:
            case -> ``"dice"`` and classes -> score; nothing where no model was scored since the
            scores were taken before, or the metric stores nothing of single cases.
        """
        cases = self.cases
        self.cases = {}
        return cases

    def further(self, name: str, weights: Weights) -> Estimate | None:
        """A metric of the evaluator that is not its key metric, such as a surface distance.

        Args:
            name: under which it stands in the evaluator's ``additional_metrics``.
            weights: the model to score; the network's own weights are put back afterwards.

        Returns:
            Mean over the cases, of each the mean over its classes, with its standard error.
            ``None`` where the evaluator has no such metric or no case, the metric stores nothing of
            single cases, or no case has a number.

        Raises:
            TransportAborted: when the evaluator was interrupted.
        """
        if metric_named(self.engine, name) is None or has_no_batch(self.engine):
            return None
        details, _ = self._run(weights, name)
        found = None if details is None else estimate(details.flatten(1).nanmean(1))
        return found if found is not None and found.n else None

    def _run(self, weights: Weights, name: str) -> tuple[torch.Tensor | None, Any]:
        """One metric's details (cases, classes) and its value, by a run over all cases.

        The evaluator has only the handlers that make the metric; its network and its state are put
        back. A fused model runs in a network of its own, made of copies of the evaluator's. Further
        metrics are left out: nobody reads them here. Only a metric that is not MONAI's, such as
        ignite's ``MetricsLambda``, may be computed from others.
        """
        metric = metric_named(self.engine, name)
        depends_on_none = isinstance(metric, IgniteMetricHandler)

        def makes_the_metric(handler: Handler) -> bool:
            owner = handler_owner(handler)
            is_wanted = owner is metric if depends_on_none else isinstance(owner, Metric)
            return is_wanted or is_monai_output_step(handler)

        engine: Any = self.engine
        usual_state = engine.state
        usual_network = engine.network
        network = network_for(usual_network, weights)
        engine.state = copy.copy(usual_state)
        engine.state.metrics = {}
        engine.state.metric_details = {}
        engine.network = network
        try:
            with only_handlers(engine, makes_the_metric), loaded(network, weights):
                with own_random_state(0):
                    forget_unfinished_run(engine)
                    engine.run()
                    require_whole_run(engine)
            details = engine.state.metric_details.get(name)
            if details is not None:
                details = torch.as_tensor(details).detach().cpu().double()
            return details, engine.state.metrics[name]
        finally:
            engine.state = usual_state
            engine.network = usual_network

    def outputs(self, weights: Weights) -> Iterator[torch.Tensor]:
        """Yields the network's output for each case, before any postprocessing.

        The evaluator's loader, ``prepare_batch``, inferer and precision are used, in evaluation
        mode and without gradients. The batches are the same every time, random transforms
        included. An ``iteration_update`` of the evaluator is not called.

        While the generator runs, the network has ``weights`` and the random numbers are the
        measurement's: run it to its end. Afterwards weights, mode and random state are as before.

        Args:
            weights: the model; the network's own weights are put back afterwards.

        Yields:
            (C, H, W) or (C, H, W, D), on the evaluator's device: as a rule logits, see
            :meth:`activation`.

        Raises:
            RuntimeError: when the outputs of another model are still being yielded.
            ValueError: when the network gives anything but one tensor.
        """
        if self._yields_outputs:
            raise RuntimeError(
                "the network has one model's weights at a time: run the first outputs(...) to its "
                "end before the second"
            )
        self._yields_outputs = True
        evaluator = self.engine
        try:
            with loaded(evaluator.network, weights):
                for batch in same_epoch(evaluator):
                    with torch.no_grad(), eval_mode(evaluator.network), _precision(evaluator):
                        output, _, _ = inferred(evaluator, batch)
                    if not isinstance(output, torch.Tensor):
                        raise ValueError(
                            f"the network gives a {type(output).__name__} and no tensor (B, C, "
                            "...): let the evaluator's inferer return that"
                        )
                    yield from convert_to_tensor(output, track_meta=False)
        finally:
            self._yields_outputs = False

    def activation(self) -> str | None:
        """How a case's output becomes probabilities: ``"softmax"``, ``"sigmoid"`` or ``None``.

        It is what the evaluator's postprocessing does to ``"pred"`` in its first ``Activationsd``
        that names one of both: by softmax over the channels, which are classes that exclude each
        other, or by a sigmoid of each channel, which is a structure of its own. ``None``: no
        transform names either.
        """
        # A single transform is a composition of one.
        for transform in Compose(postprocessing_of(self.engine)).flatten().transforms:
            if not isinstance(transform, Activationsd) or CommonKeys.PRED not in transform.keys:
                continue
            position = transform.keys.index(CommonKeys.PRED)
            if transform.softmax[position]:
                return "softmax"
            if transform.sigmoid[position]:
                return "sigmoid"
        return None

    def _columns(self, per_case: torch.Tensor) -> dict[str, torch.Tensor]:
        """The mean over classes, and each labelled class: name -> values (cases,).

        Args:
            per_case: scores (cases, classes).
        """
        columns = {MEAN_COLUMN: per_case.nanmean(1)}
        number = per_case.shape[1]
        if number == 1:
            return columns
        # A background class in front is not scored.
        is_named = len(self.classes) >= number
        labels = self.classes[-number:] if is_named else [str(i) for i in range(number)]
        for label, values in zip(labels, per_case.T, strict=True):
            if not values.isnan().all():
                columns[label] = values
        return columns

    def _case_names(self, count: int) -> list[str]:
        """The cases' files where the loader gives the cases in their order; else numbers."""
        batch_sampler = getattr(self.engine.data_loader, "batch_sampler", None)
        # Any other loader, or a shuffled one, does not give its cases in the order of a list.
        is_in_order = isinstance(getattr(batch_sampler, "sampler", None), SequentialSampler)
        first = [files[0] for files in files_of_cases(self.engine) if files is not None]
        if is_in_order and len(first) == count:
            return distinct_names(first)
        return [str(number) for number in range(count)]


def _same_tensors(first: Weights, second: Weights) -> bool:
    """Whether both models are made of the very same tensors."""
    if first.keys() != second.keys():
        return False
    return all(first[name] is second[name] for name in first)


def estimate(values: torch.Tensor) -> Estimate:
    """Mean of the values that are not NaN, its standard error (ddof 1) and their number.

    >>> import torch
    >>> estimate(torch.tensor([0.8, 0.6, float("nan")], dtype=torch.float64))
    Estimate(value=0.7, stderr=0.1, n=2)
    """
    known = values[~values.isnan()]
    n = len(known)
    if n == 0:
        return Estimate(math.nan, None, 0)
    mean = round(float(known.mean()), 12)
    stderr = round(float(known.std()) / math.sqrt(n), 12) if n > 1 else None
    return Estimate(mean, stderr, n)


def _precision(engine: SupervisedEvaluator) -> Any:
    return torch.autocast("cuda", **engine.amp_kwargs) if engine.amp else nullcontext()
