# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs given weights on a client's validation or test data and disturbs nothing.

No checkpoint is written, no best metric is updated, no random number of the training is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator
from monai.handlers import IgniteMetricHandler
from monai.metrics import ConfusionMatrixMetric, FBetaScore, PanopticQualityMetric
from monai.networks.utils import eval_mode
from monai.transforms import Activationsd, Compose
from monai.utils import convert_to_tensor
from monai.utils.enums import CommonKeys
from torch.utils.data import SequentialSampler

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.forward import has_no_batch, inferred, prepared, same_epoch
from monai_fairfl.measurements.loading import loaded, runs_with
from monai_fairfl.messages import Estimate, Weights
from monai_fairfl.utils.case_files import image_files_of
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

COUNTING_METRICS = (ConfusionMatrixMetric, FBetaScore, PanopticQualityMetric)
"""MONAI's metrics that store counts of each case, such as its true positives, and no score."""


class _Scored(NamedTuple):
    """A model, its score and the scores of the cases."""

    weights: Weights
    estimates: dict[str, float | Estimate]
    cases: dict[str, dict[str, float]]


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
        self.cases: dict[str, dict[str, float]] = {}
        self._yields_outputs = False
        # The model that was scored last, its score and its cases' own.
        self._last: _Scored | None = None

    def score(self, weights: Weights) -> dict[str, float | Estimate]:
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
        last = self._last
        if last is None or not self.remembers or not _same_tensors(last.weights, weights):
            estimates = self._score(weights)
            last = self._last = _Scored(weights, estimates, self.cases)
        self.cases = last.cases
        return dict(last.estimates)

    def _score(self, weights: Weights) -> dict[str, float | Estimate]:
        """The evaluator's key metric of ``weights``, by a run over all cases."""
        name = self.engine.state.key_metric_name
        if name is None:
            raise ValueError(
                "the bundle's evaluator has no key_val_metric, so no score can be measured"
            )
        _refuse_counts(name, metric_named(self.engine, name))
        # Those of the model that was scored before.
        self.cases = {}
        if has_no_batch(self.engine):
            return {"mean": Estimate(math.nan, None, 0)}

        makers = _makers_of_the_score(self.engine)
        with (
            self._bare(makers) as evaluator,
            runs_with(evaluator, weights),
            own_random_state(0),
        ):
            evaluator.run()
            require_whole_run(evaluator)
            details = evaluator.state.metric_details.get(name)
            metric_value = evaluator.state.metrics[name]

        # A metric that stores no details gives only its mean.
        if details is None:
            mean_over_cases = _one_number(name, metric_value)
            _check_range(name, torch.as_tensor([mean_over_cases]).double())
            return {"mean": Estimate(mean_over_cases)}

        scores = torch.as_tensor(details).detach().cpu().double()
        _check_range(name, scores)
        columns = self._columns(scores.flatten(1))
        self.cases = self._by_case(columns)
        estimates: dict[str, float | Estimate] = {}
        for column, values in columns.items():
            label = "mean" if column == MEAN_COLUMN else column
            estimates[label] = estimate(values)
        return estimates

    def take_cases(self) -> dict[str, dict[str, float]]:
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
        metric = metric_named(self.engine, name)
        if metric is None or has_no_batch(self.engine):
            return None

        def makes_it(handler: Handler) -> bool:
            return is_monai_output_step(handler) or handler_owner(handler) is metric

        with self._bare(makes_it) as evaluator, runs_with(evaluator, weights):
            with own_random_state(0):
                evaluator.run()
            require_whole_run(evaluator)
            details = evaluator.state.metric_details.get(name)
        if details is None:
            return None
        per_case = torch.as_tensor(details).detach().cpu().double().flatten(1)
        found = estimate(per_case.nanmean(1))
        return found if found.n else None

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
                "the network can have only one model's weights at a time: run outputs(...) of the "
                "first model to its end before you ask for those of the second"
            )
        self._yields_outputs = True
        try:
            with loaded(self.engine.network, weights):
                for batch in same_epoch(self.engine):
                    yield from self._outputs_of(batch)
        finally:
            self._yields_outputs = False

    def _outputs_of(self, batch: Any) -> torch.Tensor:
        """The network's output (B, C, ...) for one batch, at its present weights."""
        evaluator = self.engine
        precision: Any = nullcontext()
        if evaluator.amp:
            precision = torch.autocast("cuda", **evaluator.amp_kwargs)
        with torch.no_grad(), eval_mode(evaluator.network), precision:
            output = inferred(evaluator, prepared(evaluator, batch), evaluator.network)
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f"the network gives a {type(output).__name__}, and outputs of cases are read from "
                "one tensor (B, C, ...): let the evaluator's inferer return that tensor"
            )
        return convert_to_tensor(output, track_meta=False)

    def activation(self) -> str | None:
        """How a case's output becomes probabilities: ``"softmax"``, ``"sigmoid"`` or ``None``.

        It is what the evaluator's postprocessing does to ``"pred"`` in its first ``Activationsd``
        that names one of both: by softmax over the channels, which are classes that exclude each
        other, or by a sigmoid of each channel, which is a structure of its own. ``None``: no
        transform names either.
        """
        for transform in _flattened(postprocessing_of(self.engine)):
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
        number_of_classes = per_case.shape[1]
        if number_of_classes == 1:
            return columns
        labels = [str(i) for i in range(number_of_classes)]
        if len(self.classes) >= number_of_classes:
            # A background class in front is not scored.
            labels = list(self.classes[-number_of_classes:])
        for label, values in zip(labels, per_case.T, strict=True):
            if not values.isnan().all():
                columns[label] = values
        return columns

    def _by_case(self, columns: Mapping[str, torch.Tensor]) -> dict[str, dict[str, float]]:
        """case -> column -> score."""
        rows = torch.stack(list(columns.values()), 1).tolist()
        by_case = {}
        for case, row in zip(self._case_names(len(rows)), rows, strict=True):
            by_case[case] = dict(zip(columns, row, strict=True))
        return by_case

    def _case_names(self, count: int) -> list[str]:
        """The cases' files where the loader gives the cases in their order; else numbers."""
        numbers = [str(number) for number in range(count)]
        loader = self.engine.data_loader

        # Any other loader, or a shuffled one, does not give its cases in the order of a list.
        batch_sampler = getattr(loader, "batch_sampler", None)
        sampler = getattr(batch_sampler, "sampler", None)
        dataset = getattr(loader, "dataset", None)
        cases = getattr(dataset, "data", None)
        if not isinstance(sampler, SequentialSampler) or not isinstance(cases, Sequence):
            return numbers
        if len(cases) != count:
            return numbers

        files = []
        for case in cases:
            of_case = image_files_of(case)
            if of_case is None:
                return numbers
            files.append(of_case[0])
        return distinct_names(files)

    @contextmanager
    def _bare(self, wanted: Callable[[Handler], bool]) -> Iterator[SupervisedEvaluator]:
        """The evaluator with only the handlers that are wanted; its state is put back after."""
        engine: Any = self.engine
        usual_state = engine.state
        engine.state = copy.copy(usual_state)
        engine.state.metrics = {}
        engine.state.metric_details = {}
        try:
            with only_handlers(engine, wanted):
                forget_unfinished_run(engine)
                yield engine
        finally:
            engine.state = usual_state


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


def _flattened(transform: Any) -> list[Any]:
    """The single transforms of ``transform``, in their order."""
    if isinstance(transform, Compose):
        return list(transform.flatten().transforms)
    return [transform]


def _refuse_counts(name: str, metric: Metric | None) -> None:
    """Refuse a key metric whose details are counts: their mean would pass for a score.

    Raises:
        ConfigError: naming the metric, and the fix.
    """
    if not isinstance(metric, IgniteMetricHandler) or not metric.save_details:
        return
    if isinstance(metric.metric_fn, COUNTING_METRICS):
        raise ConfigError(
            f"the evaluator's key metric {name!r} is a {type(metric.metric_fn).__name__}, which "
            "stores counts of each case, such as its true positives, and no score of it: make a "
            "metric with a score of each case, such as MeanDice, the key_val_metric, and this one "
            "an entry of additional_metrics. Or set its save_details to false: then only its value "
            "of all cases counts, without a standard error"
        )


def _one_number(name: str, value: Any) -> float:
    """The value of a key metric that stores nothing of single cases.

    Raises:
        ConfigError: when it is several numbers.
    """
    numbers = torch.as_tensor(value)
    if numbers.numel() != 1:
        raise ConfigError(
            f"the evaluator's key metric {name!r} gives {numbers.numel()} numbers, and a score is "
            "one: set its reduction to 'mean', or its save_details to true"
        )
    return float(numbers)


def _check_range(name: str, scores: torch.Tensor) -> None:
    """Refuse a distance, a loss or percent.

    Methods read a score as Dice, and would take the worse client for the better one.
    """
    outside = scores[(scores - 0.5).abs() > 0.5 + FLOAT32_ERROR]
    if len(outside):
        example = float(outside.flatten()[0])
        raise ValueError(
            f"the evaluator's key metric {name!r} is {example:.4g} for a case, and a score must be "
            "between 0 and 1, the higher the better, as Dice is: make such a metric the "
            "key_val_metric, and this one an entry of additional_metrics"
        )


def _makers_of_the_score(engine: Any) -> Callable[[Handler], bool]:
    """Tells the handlers that make the key metric from the others.

    Further metrics of the evaluator are left out: nobody reads them here. Only a key metric that
    is not MONAI's, such as ignite's ``MetricsLambda``, may be computed from others.
    """
    key_metric = metric_named(engine, engine.state.key_metric_name)
    depends_on_none = isinstance(key_metric, IgniteMetricHandler)

    def makes_the_score(handler: Handler) -> bool:
        if is_monai_output_step(handler):
            return True
        owner = handler_owner(handler)
        if depends_on_none:
            return owner is key_metric
        return isinstance(owner, Metric)

    return makes_the_score
