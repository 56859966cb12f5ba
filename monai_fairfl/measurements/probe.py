# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Runs given weights on an engine's own data, as the engine does, and leaves no trace in it.

:class:`Probe` scores weights on validation or test data: no checkpoint is written, no best metric
is updated. :class:`TrainingProbe` computes their losses and gradients on the training data. Neither
uses a random number of the training.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import IgniteMetricHandler
from monai.networks.utils import eval_mode
from monai.transforms import Activationsd, Compose, Randomizable
from monai.utils import convert_to_tensor, ensure_tuple
from monai.utils.enums import CommonKeys
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.measurements.sharpness import perturbation
from monai_fairfl.messages import Estimate, Weights
from monai_fairfl.model_files.recipe import network_for
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
from monai_fairfl.utils.files import distinct_names
from monai_fairfl.utils.tensors import own_random_state

TRANSFORM_ATTRIBUTES = ("transform", "patch_func", "patch_transform")
"""Where MONAI's datasets hold the transforms that they apply."""

INNER_DATASETS = ("dataset", "datasets", "data")
"""Where datasets hold others: torch's Subset, torch's ConcatDataset, MONAI's datasets."""


# ---- weights


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Load ``weights`` into ``network``; tensors that ``weights`` lacks stay as they are.

    Raises:
        KeyError: when ``weights`` holds a name that the network does not have.
    """
    unexpected = network.load_state_dict(dict(weights), strict=False).unexpected_keys
    if unexpected:
        raise KeyError(f"the network has no tensor {unexpected[0]!r}")


@contextmanager
def loaded(network: nn.Module, weights: Weights) -> Iterator[None]:
    """Inside, ``network`` has ``weights``; afterwards it has its own again, to the bit."""
    own_weights = {}
    for name, tensor in network.state_dict().items():
        own_weights[name] = tensor.detach().clone()
    try:
        load_weights(network, weights)
        yield
    finally:
        network.load_state_dict(own_weights)


@contextmanager
def layers_in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, every layer is in evaluation mode, and the network's outputs are those of training.

    A network with deep supervision, such as MONAI's ``DynUNet`` and ``SegResNetDS``, gives its
    further outputs where its own ``training`` is true, and a loss of them needs all. Dropout and
    normalisation are layers below it.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> with layers_in_eval_mode(network):
    ...     network.training, network[1].training
    (True, False)
    """
    with eval_mode(network):
        network.training = True
        try:
            yield
        finally:
            network.training = False


# ---- batches


def inferred(
    engine: SupervisedEvaluator | SupervisedTrainer,
    batch: Any,
    network: Callable[..., Any] | None = None,
    images: torch.Tensor | None = None,
) -> tuple[Any, Any, int]:
    """What the engine's inferer makes of a batch, as the engine itself calls it.

    Args:
        engine: whose ``prepare_batch`` splits the batch into images, labels, and what the network
            takes besides.
        batch: of the engine's loader.
        network: that predicts; ``None``: the engine's own.
        images: that take the place of the batch's own.

    Returns:
        The prediction; the labels, on the engine's device; and the number of images.
    """
    own_images, labels, *further = engine.prepare_batch(
        batch, engine.state.device, engine.non_blocking, **engine.to_kwargs
    )
    arguments, named = further or ((), {})
    images = own_images if images is None else images
    network = engine.network if network is None else network
    predicted = engine.inferer(images, network, *arguments, **named)
    return predicted, labels, len(images)


def same_epoch(engine: SupervisedEvaluator | SupervisedTrainer) -> Iterator[Any]:
    """Yields one epoch of the engine's batches: the same order and random crops every time.

    The transforms are copied, so that the datasets' own go on afterwards as if nothing had
    happened, and so does the loader's generator. Workers that outlive an epoch
    (``persistent_workers``) have a random state of their own and cannot be repeated.
    """
    with own_random_state(0), ExitStack() as undo:
        seed_loader(engine, 0, undo)
        yield from islice(engine.data_loader, engine.state.epoch_length)


def seed_loader(
    engine: SupervisedEvaluator | SupervisedTrainer, seed: int, undo: ExitStack | None = None
) -> None:
    """Seed every part of the engine's loader that has a random state of its own.

    These are the transforms of its datasets, its generator and that of its sampler.

    Args:
        engine: of the loader.
        seed: of each part.
        undo: is closed when all of it is to be as before: transforms are copied until then.
    """
    loader = engine.data_loader
    for dataset, attribute, transform in list(_transforms_in(getattr(loader, "dataset", None))):
        if undo is not None:
            undo.callback(setattr, dataset, attribute, transform)
            transform = copy.deepcopy(transform)
            setattr(dataset, attribute, transform)
        if isinstance(transform, Randomizable):
            transform.set_random_state(seed)
    for holder in (loader, getattr(loader, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if generator is not None:
            if undo is not None:
                undo.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)


def files_of_cases(engine: Any) -> list[tuple[str, ...] | None]:
    """The image files of each of the engine's cases, of which one may have several (channels).

    ``None`` for a case that names none: its image may be in memory.

    >>> cases = [{"image": "a.nii.gz"}, {"image": ["t1.nii.gz", "t2.nii.gz"]}, {"image": [0.5]}]
    >>> engine = SupervisedEvaluator("cpu", torch.utils.data.DataLoader(cases), nn.Identity())
    >>> files_of_cases(engine)
    [('a.nii.gz',), ('t1.nii.gz', 't2.nii.gz'), None]
    """
    dataset = getattr(engine.data_loader, "dataset", None)
    cases = getattr(dataset, "data", dataset)
    if not isinstance(cases, Sequence):
        return [None] * len(cases) if isinstance(cases, Sized) else []
    found: list[tuple[str, ...] | None] = []
    for case in cases:
        image = case.get("image") if isinstance(case, Mapping) else None
        files = ensure_tuple(image)
        are_files = files and all(isinstance(file, (str, os.PathLike)) for file in files)
        found.append(tuple(map(str, files)) if are_files else None)
    return found


def _transforms_in(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields (dataset, attribute, transform) of a loader's ``dataset`` and of those inside it.

    Of anything else, such as a case, nothing.
    """
    if not isinstance(dataset, Dataset):
        return
    for attribute in TRANSFORM_ATTRIBUTES:
        if hasattr(dataset, attribute):
            yield dataset, attribute, getattr(dataset, attribute)
    for attribute in INNER_DATASETS:
        inner = getattr(dataset, attribute, None)
        for one in inner if isinstance(inner, (list, tuple)) else [inner]:
            yield from _transforms_in(one)


# ---- scores

MEAN_COLUMN = "dice"
"""Name of a case's mean over classes, beside the classes' own names."""

FLOAT32_ERROR = 1e-6

Scores = dict[str, Estimate]
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

    def __init__(self, evaluator: SupervisedEvaluator, classes: Sequence[str] = ()):
        self.engine = evaluator
        self.classes = tuple(classes)
        self.watches: Sequence[object] = ()  # owners of further handlers that see each run
        self._yields_outputs = False
        # Of the model that was scored last: ``"dice"`` and classes -> the cases' scores.
        self._columns: dict[str, torch.Tensor] = {}

    def score(self, weights: Weights) -> Scores:
        """The evaluator's key metric (mean Dice): ``"mean"`` over cases, and one value per class.

        Each value has its standard error. Cases whose score is NaN do not count, nor does a class
        that no case labels. MONAI's Dice is NaN where the reference is empty, whatever was
        predicted: a false alarm there lowers no score. The cases' own scores, case -> ``"dice"``
        and classes -> value, stay at the client, see :meth:`cases`.

        The mean is NaN, of 0 cases, where no case has a score or the evaluator has no case.

        Args:
            weights: the model to score; the network's own weights are put back afterwards.

        Raises:
            ValueError: there is no key metric.
            ConfigError: it is no number between 0 and 1, the higher the better.
            TransportAborted: when the evaluator was interrupted.
        """
        name = self.engine.state.key_metric_name
        if name is None:
            raise ValueError("no score without a key_val_metric of the bundle's evaluator")
        self._columns = {}
        # MONAI skips the run of an engine without a batch.
        if self.engine.state.epoch_length == 0:
            return {"mean": Estimate(math.nan, None, 0)}
        details, value = self._run(weights, name)
        # A metric that stores no details gives only its mean.
        table = torch.as_tensor(value).double().reshape(1, -1) if details is None else details
        is_one_number = table.ndim < 3 and (details is not None or table.numel() == 1)
        # Counts; or a distance, a loss or percent, by which the worse client would be the better.
        if not is_one_number or ((table - 0.5).abs() > 0.5 + FLOAT32_ERROR).any():
            raise ConfigError(
                f"the key metric {name!r} gives {table.flatten()[:3].tolist()}, and a score is a "
                "number from 0 to 1, the higher the better: make MeanDice the key_val_metric"
            )
        if details is None:
            return {"mean": Estimate(float(table))}
        means = details.nanmean(1)
        scores = {"mean": estimate(means)}
        self._columns = {MEAN_COLUMN: means}
        number = details.shape[1]
        if number > 1:
            # A background class in front is not scored.
            is_named = len(self.classes) >= number
            labels = self.classes[-number:] if is_named else map(str, range(number))
            for label, values in zip(labels, details.T, strict=True):
                if not values.isnan().all():
                    self._columns[label] = values
                    scores[label] = estimate(values)
        return scores

    def cases(self) -> Cases:
        """The cases' own scores of the model that was scored last.

        Returns:
            case -> ``"dice"`` and classes -> score; nothing where no model was scored, or the
            metric stores nothing of single cases.
        """
        if not self._columns:
            return {}
        # Cases are called by their files where the loader gives them in the order of its list. Any
        # other loader, or a shuffled one, does not.
        rows = torch.stack(list(self._columns.values()), 1).tolist()
        names = [str(row) for row in range(len(rows))]
        batch_sampler = getattr(self.engine.data_loader, "batch_sampler", None)
        if isinstance(getattr(batch_sampler, "sampler", None), SequentialSampler):
            files = [of_case[0] for of_case in files_of_cases(self.engine) if of_case is not None]
            names = distinct_names(files) if len(files) == len(rows) else names
        cases = {}
        for name, row in zip(names, rows, strict=True):
            cases[name] = dict(zip(self._columns, row, strict=True))
        return cases

    def further(self, name: str, weights: Weights) -> Estimate | None:
        """A metric of the evaluator that is not its key metric, such as a surface distance.

        Args:
            name: under which it stands in the evaluator's ``additional_metrics``.
            weights: the model to score; the network's own weights are put back afterwards.

        Returns:
            Mean over the cases, of each the mean over its classes, with its standard error.
            ``None`` where the evaluator has no such metric, the metric stores nothing of single
            cases, or no case has a number.

        Raises:
            TransportAborted: when the evaluator was interrupted.
        """
        if metric_named(self.engine, name) is None:
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
            is_watching = any(owner is one for one in self.watches)
            return is_wanted or is_monai_output_step(handler) or is_watching

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
            RuntimeError: when those of another model are still being yielded.
        """
        if self._yields_outputs:
            raise RuntimeError("one network: run the first outputs(...) to its end first")
        self._yields_outputs = True
        evaluator = self.engine
        try:
            with loaded(evaluator.network, weights):
                for batch in same_epoch(evaluator):
                    precision: Any = nullcontext()
                    if evaluator.amp:
                        precision = torch.autocast("cuda", **evaluator.amp_kwargs)
                    with torch.no_grad(), eval_mode(evaluator.network), precision:
                        output, _, _ = inferred(evaluator, batch)
                    # Several outputs in a list have no detach: they are no cases.
                    yield from convert_to_tensor(output.detach(), track_meta=False)
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


# ---- losses and gradients


class BatchGradients(NamedTuple):
    """The gradient of one batch's mean loss.

    Args:
        loss: of the batch, the mean over its images; where the network is, since a GPU would be
            waited for after every batch.
        images: number of images in the batch.
        gradients: one tensor per trainable parameter, in the order of ``network.parameters()``;
            zeros for a parameter that the batch did not use.
    """

    loss: torch.Tensor
    images: int
    gradients: list[torch.Tensor]


class TrainingProbe:
    """Losses and gradients of weights, made with a bundle's own trainer.

    Its loader, transforms, inferer and loss pass over the training data once, with all layers in
    evaluation mode (running statistics, no dropout) and in full precision. A network with deep
    supervision gives all its outputs, as the loss expects them. Random transforms stay, since a
    random crop may be what makes an image fit the network, but under a fixed seed: the same crops
    in every measurement, so that losses of two models can be compared. The trainer, its gradients,
    its random state and that of its transforms are left as they were.

    Args:
        trainer: built by the bundle.

    >>> import torch
    >>> from monai.engines import SupervisedTrainer
    >>> batches = [{"image": torch.ones(2, 1), "label": torch.full((2, 1), 3.0)}]
    >>> network, loss = torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss()
    >>> optimizer = None  # a probe takes no step
    >>> probe = TrainingProbe(SupervisedTrainer("cpu", 1, batches, network, optimizer, loss))
    >>> [probe.loss({"weight": torch.tensor([[w]])}).value for w in (1.0, 2.0)]
    [4.0, 1.0]
    """

    def __init__(self, trainer: SupervisedTrainer):
        self.engine = trainer

    def loss(self, weights: Weights) -> Estimate:
        r"""The mean loss over images, :math:`\sum_b n_b L_b / \sum_b n_b`.

        Standard error and n are of the batches.

        Raises:
            DataError: when the trainer has no batch of training images.
        """
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            losses = self._losses()
        mean = _mean(losses)
        n = len(losses)
        squares = [((loss - mean) ** 2, images) for loss, images in losses]
        stderr = math.sqrt(_mean(squares) / (n - 1)) if n > 1 else None
        return Estimate(mean, stderr, n)

    def sharpness(self, weights: Weights, rho: float) -> float:
        r"""FedISM's sharpness: how far the loss rises within ``rho``, along the gradient.

        .. math::

            s = L(w + \epsilon) - L(w), \qquad
            \epsilon = \rho\, \nabla L(w) / \lVert \nabla L(w) \rVert

        Loss and gradient are those of the whole training set; to first order s is rho times the
        gradient's norm.

        Args:
            weights: w.
            rho: radius, in the unit of the weights.

        Raises:
            DataError: when the trainer has no batch of training images.
        """
        parameters = self._parameters()
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            # Gradient of the mean loss over all images.
            losses = []
            sums = [torch.zeros_like(parameter) for parameter in parameters]
            for batch in self._batches(parameters):
                losses.append((batch.loss, batch.images))
                for total, gradient in zip(sums, batch.gradients, strict=True):
                    total += batch.images * gradient
            all_images = sum(images for _, images in losses)

            # Loss at w + epsilon. ``loaded`` puts the weights back.
            with torch.no_grad():
                steps = perturbation([total / all_images for total in sums], rho)
                for parameter, step in zip(parameters, steps, strict=True):
                    parameter.add_(step)
            perturbed_losses = self._losses()
        clean_losses = [(loss.item(), images) for loss, images in losses]
        return _mean(perturbed_losses) - _mean(clean_losses)

    def batch_gradients(self, weights: Weights) -> Iterator[BatchGradients]:
        """Yields loss and gradient of each training batch at ``weights``, one batch in memory.

        While the generator runs, the network has ``weights``: run it to its end.
        """
        with loaded(self.engine.network, weights), layers_in_eval_mode(self.engine.network):
            yield from self._batches(self._parameters())

    def _parameters(self) -> list[torch.nn.Parameter]:
        parameters = self.engine.network.parameters()
        return [parameter for parameter in parameters if parameter.requires_grad]

    def _losses(self) -> list[tuple[float, int]]:
        """Each batch's (loss, images), at the network's present weights."""
        # Read at the end: a GPU would be waited for after every batch.
        batches = list(self._batches([]))
        return [(batch.loss.item(), batch.images) for batch in batches]

    def _batches(self, parameters: Sequence[torch.nn.Parameter]) -> Iterator[BatchGradients]:
        """Loss and gradients of each batch, at the network's present weights."""
        if self.engine.state.epoch_length == 0:
            raise DataError(
                "no loss without a batch of training images: add cases to 'training' in the site's "
                "data list (datalist_file), or lower batch_size"
            )
        for batch in same_epoch(self.engine):
            gradients = []
            with torch.set_grad_enabled(bool(parameters)):
                predicted, labels, images = inferred(self.engine, batch)
                loss = self.engine.loss_function(predicted, labels).mean()
            if parameters:
                # torch.autograd.grad leaves the parameters' own ``grad`` alone: zeros in the place
                # of ``None`` would make an optimizer move what the training never touches.
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, found, strict=True):
                    gradients.append(torch.zeros_like(parameter) if gradient is None else gradient)
            yield BatchGradients(loss.detach(), images, gradients)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    """The mean of (value, images) over images."""
    all_images = sum(images for _, images in values)
    return sum(value * images for value, images in values) / all_images
