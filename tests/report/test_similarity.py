# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""How alike the sites' updates are, from the ledger's inner products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from monai_fairfl.report.collect import read_run
from monai_fairfl.report.similarity import similarity_of

WriteRun = Callable[..., Path]
SITES = ["ash", "elm", "oak", "yew"]


def gram_of(updates: np.ndarray, sites: list[str]) -> dict[str, Any]:
    """A round's record of these updates, one row a site."""
    products = (updates @ updates.T).tolist()
    return {"clients": sites, "gram": {"clients": sites, "whole": products}}


def test_the_cosines_are_those_of_the_updates_and_like_sites_are_neighbours(
    write_run: WriteRun,
) -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(size=(2, 30))
    # ash and oak train alike, and so do elm and yew.
    updates = np.repeat(common, 2, axis=0)[[0, 2, 1, 3]] + 0.3 * generator.normal(size=(4, 30))
    run = write_run("FedAvg", dict.fromkeys(SITES, 0.8), rounds=[gram_of(updates, SITES)])
    found = similarity_of(read_run(run))
    assert found is not None and found.rounds == 1
    assert {frozenset(found.sites[:2]), frozenset(found.sites[2:])} == {
        frozenset(("ash", "oak")),
        frozenset(("elm", "yew")),
    }
    order = [SITES.index(site) for site in found.sites]
    assert np.array(found.cosines) == pytest.approx(cosine_similarity(updates[order]))


def test_a_pair_is_averaged_over_the_rounds_that_it_shares(write_run: WriteRun) -> None:
    first = gram_of(np.array([[1.0, 0.0], [1.0, 0.0]]), ["ash", "elm"])
    second = gram_of(np.array([[1.0, 0.0], [0.0, 2.0]]), ["ash", "elm"])
    other = gram_of(np.array([[1.0, 0.0], [0.0, 0.0]]), ["ash", "oak"])  # oak sent nothing
    run = write_run("FedAvg", dict.fromkeys(SITES[:3], 0.8), rounds=[first, second, other])
    found = similarity_of(read_run(run))
    assert found is not None
    cosine = dict(zip(found.sites, found.cosines[found.sites.index("ash")]))
    assert cosine["elm"] == pytest.approx(0.5)
    assert np.isnan(cosine["oak"])


@pytest.mark.parametrize("strategy", ["Standalone", "FedAvg"])
def test_without_updates_from_one_model_there_is_no_map(strategy: str, write_run: WriteRun) -> None:
    record = gram_of(np.eye(4), SITES) if strategy == "Standalone" else {"gram": None}
    run = write_run(strategy, dict.fromkeys(SITES, 0.8), rounds=[record])
    assert similarity_of(read_run(run)) is None
