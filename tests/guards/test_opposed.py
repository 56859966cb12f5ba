# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.updates import at_cosine, clients_judged, directions, honest, replies_with

from monai_fairfl.guards import Opposed

NAMES = "ABCDE"


def with_one_at(cosine: float, names: str = NAMES, agreement: float = 0.5) -> dict[str, np.ndarray]:
    """All but the last agree; the last is at a cosine to their mean."""
    updates = honest(names, agreement)
    others = sum(updates[client] for client in names[:-1])
    mean = others / np.linalg.norm(others)
    apart = directions(len(names) + 2)[-1]
    apart = apart - (apart @ mean) * mean
    return {**updates, names[-1]: at_cosine(cosine, mean, apart / np.linalg.norm(apart))}


def test_an_update_against_all_others_is_found_with_both_cosines() -> None:
    replies = replies_with(with_one_at(-0.51))
    verdicts = Opposed().check(replies)
    assert clients_judged(verdicts, replies) == ["E"]
    assert verdicts[4].action == "quarantine"
    assert "cosine -0.51 with their mean), which agree (median cosine 0.50)" in verdicts[4].reason


@pytest.mark.parametrize("cosine", [-0.39, -0.1, 0.0])
def test_the_honest_outlier_passes(cosine: float) -> None:
    assert Opposed().check(replies_with(with_one_at(cosine))) == {}


def test_beside_fewer_than_four_others_nobody_is_judged() -> None:
    assert Opposed().check(replies_with(with_one_at(-1.0, "ABCD"))) == {}


def test_beside_others_that_disagree_nobody_is_judged() -> None:
    assert Opposed().check(replies_with(with_one_at(-1.0, NAMES, agreement=0.29))) == {}
