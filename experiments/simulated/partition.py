# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Which client gets which cases.

Pooled cases are dealt out to clients, a free rider gets a single case, and the clients to corrupt
are chosen.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.data.datalist import site_datalist
from monai_fairfl.data.layouts import BY_IMAGE, PARTS, CaseFiles
from monai_fairfl.errors import ConfigError, DataError

from .content import structure_size

# Of the power law in the authors' code of CGSV.
EXPONENT = 1.65911332899


def pick(names: Sequence[str], share: float, seed: int = 0) -> list[str]:
    """Pick floor(share n + 1/2) of n names, at least one if ``share`` is above 0.

    The names are picked whose SHA-256 together with the seed is smallest. So neither their order
    nor the process matters, and a larger share picks the same names and more.

    Args:
        names: any strings; those that occur twice count once.
        share: from 0 to 1.
        seed: another one picks others.

    Returns:
        The picked names, sorted.

    Raises:
        ConfigError: ``share`` is out of range.

    >>> pick(["Case00", "Case01", "Case02", "Case03", "Case04"], share=0.4)
    ['Case00', 'Case01']
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share={share}: give a share from 0 to 1, as 0.2 for 20 %.")
    if not share:
        return []

    def rank(name: str) -> tuple[bytes, str]:
        return hashlib.sha256(f"{seed}/{name}".encode()).digest(), name

    ranked = sorted(set(names), key=rank)
    count = max(1, math.floor(share * len(ranked) + 0.5))
    return sorted(ranked[:count])


def chosen_clients(names: Sequence[str], share: float = 0.2, seed: int = 0) -> list[str]:
    """Choose the clients to corrupt, see :func:`pick`.

    FedISM corrupts 4 of 20 (Wu et al., IJCAI 2024).

    Args:
        names: all clients.
        share: of them, from 0 to 1.
        seed: of the choice.

    Returns:
        The chosen ones, sorted; at least one if ``share`` is above 0.

    Raises:
        ConfigError: ``share`` is out of range, or a name occurs twice.

    >>> chosen_clients(["HK", "UCL", "BIDMC", "RUNMC"], seed=3)
    ['HK']
    """
    _check_names(names)
    return pick(names, share, seed)


def repeat_case(
    datalist: Mapping[str, Sequence[CaseFiles]], times: int | None = None, seed: int = 0
) -> dict[str, list[CaseFiles]]:
    """Make a free rider of a site, which trains and validates with one training case, repeated.

    It claims cases that it does not have. This is how FedCE simulates a free rider (Jiang et al.,
    CVPR 2023).

    Args:
        datalist: ``training``, ``validation`` and ``testing``.
        times: number of training cases it claims; ``None``: as many as ``datalist`` has.
        seed: decides which case.

    Returns:
        The data list: ``training`` is the case ``times`` times, ``validation`` the same case as
        often as there were validation cases, ``testing`` unchanged.

    Raises:
        DataError: there is no training case.
        ConfigError: ``times`` is below 1.

    >>> cases = [{"image": f"Case{n:02d}.nii.gz"} for n in range(6)]
    >>> rider = repeat_case({"training": cases[:4], "validation": cases[4:5], "testing": cases[5:]})
    >>> [case["image"] for case in rider["training"] + rider["validation"]]
    ['Case03.nii.gz', 'Case03.nii.gz', 'Case03.nii.gz', 'Case03.nii.gz', 'Case03.nii.gz']
    """
    training = sorted(datalist["training"], key=BY_IMAGE)
    if not training:
        raise DataError(
            "the data list has no training case that could be repeated. Give the site at least one."
        )
    if times is not None and times < 1:
        raise ConfigError(f"times={times}: a free rider claims at least one case.")
    if times is None:
        times = len(training)
    case = training[np.random.default_rng(seed).integers(len(training))]
    parts: dict[str, list[CaseFiles]] = {}
    for part, cases in datalist.items():
        parts[part] = [dict(each) for each in cases]
    parts["training"] = [dict(case) for _ in range(times)]
    parts["validation"] = [dict(case) for _ in datalist["validation"]]
    return parts


def partition(
    cases: Sequence[CaseFiles],
    clients: Sequence[str],
    kind: str = "uniform",
    seed: int = 0,
    *,
    content: Callable[[Mapping[str, Any]], float] = structure_size,
) -> dict[str, list[CaseFiles]]:
    """Deal a pool of cases out to N clients, as in CGSV's experiments (Xu et al., NeurIPS 2021).

    Every case goes to exactly one client and every client gets at least one, whatever the order of
    ``cases``.

    ``uniform`` (UNI): at random; sizes differ by one at most.

    ``power_law`` (POW): at random; sizes grow from the first client to the last in proportion to
    b_i, N numbers evenly spaced from the 1 % to the 99 % quantile of the density a x^(a-1) on [0,
    1], x_p = p^(1/a), as in the authors' code; a = 1.65911332899. For five clients: 2.4, 11.2,
    20.0, 28.8 and 37.6 %.

    ``class_imbalance`` (CLA): equal sizes, and client i has equal numbers of the i lowest of N
    classes only: the first client one class, the last all. CGSV's classes are digits; images to
    segment have none, so classes are here ranges of ``content``, class 1 the smallest structures.
    CGSV draws with replacement; so that each case is used once, class j is (1/N) sum_{i=j..N} 1/i
    of the pool: for five clients 45.7, 25.7, 15.7, 9.0 and 4.0 %.

    Args:
        cases: the pool.
        clients: names; the order matters to ``power_law`` and ``class_imbalance``.
        kind: ``"uniform"``, ``"power_law"`` or ``"class_imbalance"``.
        seed: of the random part.
        content: number that ``class_imbalance`` ranks cases by.

    Returns:
        Client to cases, sorted by image.

    Raises:
        ConfigError: an argument is out of range.
        DataError: fewer cases than clients.

    >>> pool = [{"image": f"Case{n:02d}.nii.gz", "label": f"{n}"} for n in range(50)]
    >>> clients = ["a", "b", "c", "d", "e"]
    >>> dealt = partition(pool, clients, "power_law")
    >>> [len(cases) for cases in dealt.values()]
    [1, 6, 10, 14, 19]
    >>> def content(case):
    ...     return float(case["label"])
    >>> dealt = partition(pool, clients, "class_imbalance", content=content)
    >>> [int(max(content(case) for case in cases)) for cases in dealt.values()]
    [20, 31, 41, 47, 49]
    """
    _check_names(clients)
    if len(cases) < len(clients):
        raise DataError(
            f"{len(cases)} case(s) for {len(clients)} clients: each needs one. Pool more"
            " cases, or name fewer clients."
        )
    pool = sorted(cases, key=BY_IMAGE)
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        indices = _at_random(_sizes(np.ones(len(clients)), len(pool)), rng)
    elif kind == "power_law":
        indices = _at_random(_sizes(_power_law_shares(len(clients)), len(pool)), rng)
    elif kind == "class_imbalance":
        values = [content(case) for case in pool]
        indices = _by_content(values, _sizes(np.ones(len(clients)), len(pool)), rng)
    else:
        raise ConfigError(f"kind={kind!r}: give uniform, power_law or class_imbalance.")
    dealt = {}
    for client, client_indices in zip(clients, indices):
        dealt[client] = [pool[index] for index in sorted(client_indices)]
    return dealt


def _check_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise ConfigError(f"clients {names!r}: give a list of one or more different names.")


def _power_law_shares(num_clients: int) -> np.ndarray:
    """Numbers evenly spaced from the 1 % to the 99 % quantile, x_p = p^(1/a), of the power law."""
    lowest = 0.01 ** (1 / EXPONENT)
    highest = 0.99 ** (1 / EXPONENT)
    return np.linspace(lowest, highest, num_clients)


def _sizes(shares: np.ndarray, count: int) -> np.ndarray:
    """Whole numbers with sum ``count``, each at least 1 and as near to ``shares`` as can be."""
    quota = count * shares / shares.sum()
    sizes = np.maximum(1, np.floor(quota).astype(int))
    # What rounding left over goes to the client that lacks most.
    while sizes.sum() < count:
        sizes[np.argmax(quota - sizes)] += 1
    # One case each may be too many: the client with the largest excess gives a case away.
    while sizes.sum() > count:
        excess = np.where(sizes > 1, sizes - quota, -np.inf)
        sizes[np.argmax(excess)] -= 1
    return sizes


def _at_random(sizes: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
    """Deal indices out at random; returns the indices of each client."""
    shuffled = rng.permutation(int(sizes.sum()))
    last_ends = np.cumsum(sizes)[:-1]
    return [dealt.tolist() for dealt in np.split(shuffled, last_ends)]


def _by_content(
    values: Sequence[float], sizes: np.ndarray, rng: np.random.Generator
) -> list[list[int]]:
    """Deal indices out so that client i gets equal numbers of the i lowest classes.

    Args:
        values: of the cases, by which they are ranked.
        sizes: number of cases of each client.
        rng: deals the cases of a class out.

    Returns:
        The indices of each client.
    """
    num_clients = len(sizes)
    # quotas[i, j]: how many cases of class j client i gets.
    quotas = np.zeros((num_clients, num_clients), dtype=int)
    for client, size in enumerate(sizes):
        num_classes = client + 1
        ends = np.round(np.linspace(0, size, num_classes + 1))
        quotas[client, :num_classes] = np.diff(ends)

    # The classes are ranges of the ranking, as large as all clients together need them.
    ranking = np.argsort(values, kind="stable")
    class_ends = np.cumsum(quotas.sum(axis=0))[:-1]
    indices: list[list[int]] = [[] for _ in sizes]
    for members, class_quotas in zip(np.split(ranking, class_ends), quotas.T):
        shuffled = rng.permutation(members)
        shares = np.split(shuffled, np.cumsum(class_quotas)[:-1])
        for client_indices, share in zip(indices, shares):
            client_indices.extend(share.tolist())
    return indices


def partitioned_datalist(
    dataset_dirs: Sequence[str | os.PathLike[str]],
    client: str,
    clients: Sequence[str],
    kind: str = "uniform",
    seed: int = 0,
    *,
    content: Callable[[Mapping[str, Any]], float] = structure_size,
    **datalist: Any,
) -> dict[str, list[CaseFiles]]:
    """Make the data list of one client of a partitioned pool.

    It takes the place of :func:`site_datalist` in a bundle's config.

    Every folder is split by :func:`site_datalist`. The training cases of all are dealt out by
    :func:`partition`, and the validation cases likewise. The test cases are common to all clients,
    as in CGSV: a partition makes clients unequal in what they learn from, not in what they are
    judged by.

    Args:
        dataset_dirs: the folders to pool.
        client: whose list it is.
        clients: all of them, in the same order at every client.
        kind: see :func:`partition`.
        seed: of the splits and the partition; the same at every client.
        content: see :func:`partition`.
        datalist: further arguments of :func:`site_datalist` except ``file``, as ``fractions``.

    Returns:
        ``training``, ``validation`` and ``testing`` with absolute paths.

    Raises:
        ConfigError: ``client`` is not one of ``clients``, or an argument is out of range.
        DataError: too few training or validation cases for that many clients.

    >>> import tempfile
    >>> from monai_fairfl.data import SITES, write_sites
    >>> root = tempfile.mkdtemp()
    >>> names = write_sites(root, sites=SITES[:2], size=(24, 24, 6), cases=6)
    >>> pooled = [f"{root}/{name}" for name in names]
    >>> parts = partitioned_datalist(pooled, "c2", ["c1", "c2", "c3"], "power_law")
    >>> [len(parts[part]) for part in ("training", "validation", "testing")]
    [2, 1, 2]
    """
    if client not in clients:
        raise ConfigError(
            f"client {client!r} is not one of clients={list(clients)}. Name every client as it"
            " runs."
        )
    pool: dict[str, list[CaseFiles]] = {part: [] for part in PARTS}
    for folder in dataset_dirs:
        site_parts = site_datalist(folder, seed=seed, **datalist)
        for part in PARTS:
            pool[part].extend(site_parts[part])
    parts = {}
    for part in ("training", "validation"):
        try:
            dealt = partition(pool[part], clients, kind, seed, content=content)
        except DataError as error:
            raise DataError(f"{part} cases of the pool: {error}") from error
        parts[part] = dealt[client]
    # The test cases are common to all clients.
    parts["testing"] = pool["testing"]
    return parts
