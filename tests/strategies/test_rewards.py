# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN, replies_of, vector
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies.rewards import Mixed, Sparsified, keep_largest

finite = st.floats(-1e3, 1e3, allow_nan=False, width=32)


@pytest.mark.slow
@given(
    arrays(np.float32, st.integers(1, 40), elements=finite),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_one_partition_keeps_what_a_sort_for_each_client_keeps(
    numbers: np.ndarray, counts: list[int]
) -> None:
    counts = [min(count, len(numbers)) for count in counts]
    order = np.argsort(-np.abs(numbers), kind="stable")  # ties go to the lower index
    for count, mask in zip(counts, keep_largest(torch.from_numpy(numbers), counts), strict=True):
        assert int(mask.sum()) == count
        assert set(np.flatnonzero(mask.numpy())) == set(order[:count])


def test_a_share_of_one_is_the_whole_step_even_of_a_single_bias() -> None:
    replies = replies_of({"A": [1.0], "B": [0.5]})
    models, details = Sparsified().share_out(
        replies, {"w": vector([0.0])}, {"w": vector([3.0])}, {"A": 1.0, "B": 0.0}
    )
    assert models["A"]["w"].item() == 3.0 and models["B"]["w"].item() == 0.0
    assert details["kept"] == {"A": 1.0, "B": 0.0}


def test_infinite_altruism_gives_everybody_everything() -> None:
    assert Sparsified(beta=math.inf).ratios({"A": 0.9, "B": 0.01}) == {"A": 1.0, "B": 1.0}


@given(st.dictionaries(st.sampled_from("ABCDE"), st.floats(0, 1), min_size=1), st.floats(0.1, 5))
def test_who_contributes_more_is_never_given_less(
    contributions: dict[str, float], beta: float
) -> None:
    ratios = Sparsified(beta).ratios(contributions)
    assert max(ratios.values()) == 1.0 and min(ratios.values()) >= 0
    ordered = sorted(contributions, key=lambda c: contributions[c])
    assert all(ratios[a] <= ratios[b] + 1e-12 for a, b in zip(ordered, ordered[1:], strict=False))


def test_mixed_at_one_is_the_global_model_and_at_zero_the_clients_own() -> None:
    replies = replies_of({"A": [1.0, 2.0], "B": [3.0, 4.0]})
    models, _ = Mixed()(replies, {}, {"w": vector([9.0, 9.0])}, {"A": 1.0, "B": 0.0})
    assert models["A"]["w"].tolist() == [9.0, 9.0] and models["B"]["w"].tolist() == [3.0, 4.0]
    scaled, details = Mixed("max")(replies, {}, {"w": vector([9.0, 9.0])}, {"A": 0.4, "B": 0.1})
    assert scaled["A"]["w"].tolist() == [9.0, 9.0] and details["mixing"]["B"] == pytest.approx(0.25)


def test_a_mask_of_minus_infinity_stays_one_in_every_mixture() -> None:
    mask = torch.tensor([0.0, -math.inf])
    spec = ModelSpec(("w",), buffers=("mask",), layers={"w": "fc", "mask": "fc"})
    requests, replies = [], []
    for number, client in enumerate("AB"):
        start = {"w": torch.zeros(2), "mask": mask.clone()}
        requests.append(Request(client, "train", start, id=number))
        sent = {"mask": mask.clone()}
        replies.append(Reply(client, {"w": torch.ones(2)}, 1, buffers=sent, id=number))
    new = {"w": torch.full((2,), 3.0), "mask": mask}
    models, _ = Mixed()(Replies(replies, requests, spec), {}, new, {"A": 0.5, "B": 0.0})
    assert models["A"]["w"].tolist() == [2.0, 2.0]
    for model in models.values():
        assert torch.equal(model["mask"], mask)


def test_the_worked_personal_models() -> None:
    worked, common = GOLDEN["shapfed"], GOLDEN["common"]
    replies = replies_of(
        dict(zip("123", np.array(common["w0"]) + np.array(common["updates"]), strict=True))
    )
    gamma = dict(zip("123", worked["gamma_paper"], strict=True))
    models, _ = Mixed()(replies, {}, {"w": vector(worked["w_s_paper"])}, gamma)
    for client, expected in zip("123", worked["personalised_paper"], strict=True):
        np.testing.assert_allclose(models[client]["w"], expected, atol=3e-6)
