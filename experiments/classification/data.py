# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Small real data that scikit-learn ships, and the ways in which the papers deal them out.

Nothing is downloaded. Every function is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from simulated.partition import partition
from sklearn.datasets import load_breast_cancer, load_digits


class Samples(NamedTuple):
    """Points, shape (n, features), and their labels, whole numbers of shape (n,)."""

    points: torch.Tensor
    labels: torch.Tensor

    def take(self, indices: Sequence[int] | np.ndarray) -> Samples:
        """Return the samples with these indices, in this order."""
        chosen = torch.as_tensor(np.asarray(indices, dtype=np.int64))
        return Samples(self.points[chosen], self.labels[chosen])


class Split(NamedTuple):
    """A training pool, and the rest, which tests."""

    pool: Samples
    test: Samples


def digits(seed: int, pool: int) -> Split:
    """Split the 1,797 digits of 8 x 8 grey values, in [0, 1], at random.

    Args:
        seed: of the split.
        pool: digits for training; the others test.

    >>> split = digits(0, pool=800)
    >>> len(split.test.labels), split.pool.points.shape
    (997, torch.Size([800, 64]))
    """
    shipped = load_digits()
    return _split(shipped.data / 16, shipped.target, seed, pool)


def breast_cancer(seed: int, pool: int) -> Split:
    """Split the 569 tumours of 30 features at random; the pool has mean 0 and deviation 1.

    >>> split = breast_cancer(0, pool=300)
    >>> split.pool.points.shape, len(split.test.labels)
    (torch.Size([300, 30]), 269)
    """
    shipped = load_breast_cancer()
    split = _split(shipped.data, shipped.target, seed, pool)
    mean = split.pool.points.mean(dim=0)
    deviation = split.pool.points.std(dim=0)
    scaled = []
    for part in split:
        scaled.append(Samples((part.points - mean) / deviation, part.labels))
    return Split(*scaled)


def stripes(seed: int, each: int) -> Split:
    """Draw the plane of ShapFed's own example: four classes, two of them above the other two.

    In each quadrant lie four clusters in a row, which belong by turns to the one or the other class
    of their half. A sample is (x, y, x^2, y^2, x y), every feature with mean 0 and deviation 1.
    This is the only data here that is drawn and not measured.

    Args:
        seed: of the draw.
        each: points of every cluster for training, and as many for the test.

    >>> split = stripes(0, each=50)
    >>> split.pool.points.shape, split.pool.labels.bincount().tolist()
    (torch.Size([800, 5]), [200, 200, 200, 200])
    """
    rng = np.random.default_rng(seed)
    spread = np.array([[0.25, 0.15], [0.15, 0.25]])
    points = []
    labels = []
    for x, y in ((-4, 4), (4, 4), (-4, -4), (4, -4)):
        for place in range(4):
            drawn = rng.standard_normal((2 * each, 2)) @ spread
            points.append(drawn + (x + place, y - place))
            label = place % 2
            if y < 0:
                label += 2
            labels.append(np.full(2 * each, label))
    plane = np.concatenate(points)
    across, up = plane.T
    features = np.stack([across, up, across**2, up**2, across * up], axis=1)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    everything = Samples(
        torch.tensor(features, dtype=torch.float32), torch.from_numpy(np.concatenate(labels))
    )
    indices = np.arange(len(plane))
    return Split(everything.take(indices[::2]), everything.take(indices[1::2]))


def _split(points: np.ndarray, labels: np.ndarray, seed: int, pool: int) -> Split:
    if not 0 < pool < len(labels):
        raise ValueError(f"pool must be 1 to {len(labels) - 1}, so that some test, got {pool}")
    everything = Samples(torch.tensor(points, dtype=torch.float32), torch.from_numpy(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    return Split(everything.take(order[:pool]), everything.take(order[pool:]))


def client_names(number: int) -> list[str]:
    """Return names whose order is that of their numbers.

    >>> client_names(3)
    ['client01', 'client02', 'client03']
    """
    return [f"client{index + 1:02d}" for index in range(number)]


def dealt(pool: Samples, clients: int, kind: str, seed: int) -> dict[str, Samples]:
    """Deal a pool out as in CGSV's experiments (Xu et al., NeurIPS 2021).

    Args:
        pool: all samples.
        clients: their number N.
        kind: ``"UNI"``: at random, in equal parts. ``"POW"``: at random, the sizes grow from the
            first client to the last by a power law (:func:`simulated.partition.partition`).
            ``"CLA"``: in equal sizes, the number of classes grows evenly from one at the first
            client to all at the last. Clients draw from a class independently, so that two may
            have the same sample, as in the authors' code.
        seed: of the dealing.

    >>> pool = digits(0, pool=800).pool
    >>> [len(samples.labels) for samples in dealt(pool, 4, "POW", seed=0).values()]
    [24, 141, 259, 376]
    >>> [len(set(samples.labels.tolist())) for samples in dealt(pool, 4, "CLA", seed=0).values()]
    [1, 4, 7, 10]
    """
    names = client_names(clients)
    if kind == "CLA":
        return _by_number_of_classes(pool, names, seed)
    kinds = {"UNI": "uniform", "POW": "power_law"}
    if kind not in kinds:
        raise ValueError(f"kind must be UNI, POW or CLA, got {kind!r}")
    cases = [{"image": f"{index:05d}"} for index in range(len(pool.labels))]
    found = {}
    for name, of_client in partition(cases, names, kinds[kind], seed).items():
        found[name] = pool.take([int(str(case["image"])) for case in of_client])
    return found


def _by_number_of_classes(pool: Samples, names: Sequence[str], seed: int) -> dict[str, Samples]:
    rng = np.random.default_rng(seed)
    classes = int(pool.labels.max()) + 1
    numbers = np.round(np.linspace(1, classes, len(names))).astype(int)
    size = len(pool.labels) // len(names)
    found = {}
    for name, number in zip(names, numbers, strict=True):
        counts = [0] * classes
        for sample in range(size):
            counts[sample % number] += 1
        found[name] = pool.take(_drawn(pool, counts, rng))
    return found


def _drawn(pool: Samples, counts: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Draw so many samples of every class; no sample twice, where the class has enough."""
    labels = pool.labels.numpy()
    indices: list[int] = []
    for label, count in enumerate(counts):
        members = np.flatnonzero(labels == label)
        indices += rng.choice(members, count, replace=count > len(members)).tolist()
    return indices


def by_shares(pool: Samples, shares: ArrayLike, seed: int) -> dict[str, Samples]:
    """Deal every class out by the clients' shares of it.

    Args:
        pool: all samples.
        shares: client x class; the shares of a class sum to at most 1.
        seed: of the dealing.

    >>> pool = digits(0, pool=800).pool
    >>> owners = [[1] * 5 + [0] * 5, [0] * 5 + [1] * 5]
    >>> [sorted(set(samples.labels.tolist())) for samples in by_shares(pool, owners, 0).values()]
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    """
    table = np.asarray(shares, dtype=float)
    if (table < 0).any() or (table.sum(axis=0) > 1 + 1e-9).any():
        raise ValueError("the shares of a class must be at least 0 and sum to at most 1")
    rng = np.random.default_rng(seed)
    labels = pool.labels.numpy()
    indices: list[list[int]] = [[] for _ in table]
    for label, of_class in enumerate(table.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(of_class) * len(members)).astype(int)
        begin = 0
        for of_client, end in zip(indices, ends, strict=True):
            of_client.extend(members[begin:end].tolist())
            begin = end
    names = client_names(len(table))
    return {name: pool.take(own) for name, own in zip(names, indices, strict=True)}


def dirichlet_shares(clients: int, classes: int, alpha: float, seed: int) -> np.ndarray:
    """Draw the clients' shares of every class from a Dirichlet distribution: client x class.

    >>> shares = dirichlet_shares(20, 10, alpha=1.0, seed=0)
    >>> shares.shape, bool(abs(shares.sum(axis=0) - 1).max() < 1e-12)
    ((20, 10), True)
    """
    rng = np.random.default_rng(seed)
    return rng.dirichlet([alpha] * clients, size=classes).T


def noisy(samples: Samples, deviation: float, seed: int) -> Samples:
    """Add normally distributed noise to every value, and cut to [0, 1] as a camera does."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(samples.points.shape, generator=generator)
    return Samples((samples.points + deviation * noise).clamp(0, 1), samples.labels)


def class_shares(samples: Samples, classes: int) -> np.ndarray:
    """Compute the share of every class among the samples."""
    counts = np.bincount(samples.labels.numpy(), minlength=classes)
    return counts / counts.sum()
