# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Who gets which cases: pooled cases dealt out to clients, a free rider's single case, and the
clients to corrupt.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from monai_fairfl.data.content import cup_to_disc_ratio as cup_to_disc_ratio
from monai_fairfl.data.content import structure_size
from monai_fairfl.data.datalist import PARTS, Case, site_datalist
from monai_fairfl.errors import ConfigError, DataError

EXPONENT = 1.65911332899  # of the power law in the authors' code of CGSV


def pick(names: Sequence[str], share: float, seed: int = 0) -> list[str]:
    """Pick floor(share n + 1/2) of n names, at least one if ``share`` is above 0.

    Taken are the names whose SHA-256 together with the seed is smallest. So neither their order nor
    the process matters, and a larger share picks the same names and more.

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
    ranked = sorted(
        set(names), key=lambda name: (hashlib.sha256(f"{seed}/{name}".encode()).digest(), name)
    )
    count = max(1, math.floor(share * len(ranked) + 0.5)) if share else 0
    return sorted(ranked[:count])


def chosen_clients(names: Sequence[str], share: float = 0.2, seed: int = 0) -> list[str]:
    """Choose the clients to corrupt, see :func:`pick`. FedISM corrupts 4 of 20 (Wu et al., IJCAI
    2024).

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
    datalist: Mapping[str, Sequence[Case]], times: int | None = None, seed: int = 0
) -> dict[str, list[Case]]:
    """Make a free rider of a site: one training case, repeated, is all it trains and validates
    with.

    It so claims cases that it does not have. This is how FedCE simulates a free rider (Jiang et
    al., CVPR 2023).

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
    training = sorted(datalist["training"], key=lambda case: case["image"])
    if not training:
        raise DataError(
            "the data list has no training case that could be repeated. Give the site at least one."
        )
    if times is not None and times < 1:
        raise ConfigError(f"times={times}: a free rider claims at least one case.")
    case = training[np.random.default_rng(seed).integers(len(training))]
    parts = {part: [dict(each) for each in cases] for part, cases in datalist.items()}
    parts["training"] = [dict(case) for _ in range(times or len(training))]
    parts["validation"] = [dict(case) for _ in datalist["validation"]]
    return parts


def _check_names(names: Sequence[str]) -> None:
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise ConfigError(f"clients {names!r}: give a list of one or more different names.")


def _sizes(shares: np.ndarray, count: int) -> np.ndarray:
    """Whole numbers in proportion to ``shares`` with sum ``count``, each at least 1 and as near as
    can be.
    """
    quota = count * shares / shares.sum()
    sizes = np.maximum(1, np.floor(quota).astype(int))
    while sizes.sum() < count:
        sizes[np.argmax(quota - sizes)] += 1
    while sizes.sum() > count:
        sizes[np.argmax(np.where(sizes > 1, sizes - quota, -np.inf))] -= 1
    return sizes


def _by_content(
    values: Sequence[float], sizes: np.ndarray, rng: np.random.Generator
) -> list[list[int]]:
    """Client i gets equal numbers of the i lowest classes; returns the indices of each client."""
    n = len(sizes)
    quotas = np.zeros((n, n), dtype=int)  # client x class
    for i, size in enumerate(sizes):
        quotas[i, : i + 1] = np.diff(np.round(np.linspace(0, size, i + 2)))
    ends = np.cumsum(quotas.sum(axis=0))[:-1]
    parts: list[list[int]] = [[] for _ in sizes]
    for members, quota in zip(np.split(np.argsort(values, kind="stable"), ends), quotas.T):
        for part, dealt in zip(parts, np.split(rng.permutation(members), np.cumsum(quota)[:-1])):
            part.extend(dealt.tolist())
    return parts


def partition(
    cases: Sequence[Case],
    clients: Sequence[str],
    kind: str = "uniform",
    seed: int = 0,
    *,
    content: Callable[[Mapping[str, Any]], float] = structure_size,
) -> dict[str, list[Case]]:
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
    >>> dealt = partition(pool, ["a", "b", "c", "d", "e"], "power_law")
    >>> [len(part) for part in dealt.values()]
    [1, 6, 10, 14, 19]
    >>> dealt = partition(pool, ["a", "b", "c", "d", "e"], "class_imbalance", content=lambda case: float(case["label"]))
    >>> [max(int(case["label"]) for case in part) for part in dealt.values()]
    [20, 31, 41, 47, 49]
    """
    _check_names(clients)
    if len(cases) < len(clients):
        raise DataError(
            f"{len(cases)} case(s) for {len(clients)} clients: each needs one. Pool more, or fewer clients."
        )
    pool = sorted(cases, key=lambda case: case["image"])
    rng, even = np.random.default_rng(seed), np.ones(len(clients))
    if kind == "class_imbalance":
        parts = _by_content([content(case) for case in pool], _sizes(even, len(pool)), rng)
    elif kind in ("uniform", "power_law"):
        grown = np.linspace(0.01 ** (1 / EXPONENT), 0.99 ** (1 / EXPONENT), len(clients))
        ends = np.cumsum(_sizes(even if kind == "uniform" else grown, len(pool)))[:-1]
        parts = [part.tolist() for part in np.split(rng.permutation(len(pool)), ends)]
    else:
        raise ConfigError(f"kind={kind!r}: give uniform, power_law or class_imbalance.")
    return {client: [pool[index] for index in sorted(part)] for client, part in zip(clients, parts)}


def partitioned_datalist(
    dataset_dirs: Sequence[str | os.PathLike[str]],
    client: str,
    clients: Sequence[str],
    kind: str = "uniform",
    seed: int = 0,
    *,
    content: Callable[[Mapping[str, Any]], float] = structure_size,
    **datalist: Any,
) -> dict[str, list[Case]]:
    """Data list of one client of a partitioned pool, for a bundle's config in place of
    :func:`site_datalist`.

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
            f"client {client!r} is not one of clients={list(clients)}. Name every client as it runs."
        )
    lists = [site_datalist(folder, seed=seed, **datalist) for folder in dataset_dirs]
    parts = {part: [case for each in lists for case in each[part]] for part in PARTS}
    for part in PARTS[:2]:
        try:
            parts[part] = partition(parts[part], clients, kind, seed, content=content)[client]
        except DataError as error:
            raise DataError(f"{part} cases of the pool: {error}") from error
    return parts
