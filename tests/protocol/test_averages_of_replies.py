# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest
import torch
from helpers.driving import replies_of, vector

from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies

SPEC = ModelSpec(
    ("bn.weight", "fc.weight"),
    buffers=("bn.count", "bn.mean", "bn.var"),
    layers={
        "bn.weight": "bn",
        "bn.count": "bn",
        "bn.mean": "bn",
        "bn.var": "bn",
        "fc.weight": "fc",
    },
)


def batchnorm_replies() -> Replies:
    start = {"fc.weight": torch.zeros(2), "bn.weight": torch.ones(1)}
    requests = [Request(client, "train", start, id=i) for i, client in enumerate("AB")]

    def reply(
        client: str, id: int, change: float, samples: int, mean: float, var: float, count: int
    ) -> Reply:
        update = {"fc.weight": torch.full((2,), change), "bn.weight": torch.full((1,), change)}
        buffers = {
            "bn.mean": torch.tensor([mean]),
            "bn.var": torch.tensor([var]),
            "bn.count": torch.tensor(count),
        }
        return Reply(client, update, samples, buffers=buffers, id=id)

    replies = [
        reply("A", 0, change=1.0, samples=30, mean=2.0, var=4.0, count=7),
        reply("B", 1, change=-1.0, samples=10, mean=6.0, var=1.0, count=9),
    ]
    return Replies(replies, requests, SPEC)


def test_parameters_move_by_the_weighted_updates() -> None:
    averaged = batchnorm_replies().average({"A": 0.75, "B": 0.25})
    assert averaged["fc.weight"].tolist() == [0.5, 0.5] and averaged["bn.weight"].tolist() == [1.5]


def test_layerwise_weights_act_on_their_layer_and_its_buffers() -> None:
    averaged = batchnorm_replies().average({"fc": {"A": 1.0, "B": 0.0}, "bn": {"A": 0.0, "B": 1.0}})
    assert averaged["fc.weight"].tolist() == [1.0, 1.0] and averaged["bn.weight"].tolist() == [0.0]
    assert averaged["bn.mean"].tolist() == [6.0]


def test_a_layer_that_was_not_scored_is_averaged_uniformly() -> None:
    averaged = batchnorm_replies().average({"fc": {"A": 1.0, "B": 0.0}})
    assert averaged["bn.weight"].tolist() == [1.0] and averaged["bn.mean"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("policy", "mean", "var"),
    [("aggregation", 5.0, 1.75), ("samples", 3.0, 3.25), ("local", None, None)],
)
def test_buffer_policies(policy: str, mean: float | None, var: float | None) -> None:
    averaged = batchnorm_replies().average({"A": 0.25, "B": 0.75}, buffers=policy)
    if mean is None:
        assert set(averaged) == set(SPEC.parameters)
    else:
        assert averaged["bn.mean"].item() == mean and averaged["bn.var"].item() == var


def test_integer_buffers_take_the_maximum_and_keep_their_type() -> None:
    count = batchnorm_replies().average()["bn.count"]
    assert count.item() == 9 and count.dtype == torch.int64


def test_buffers_are_normalised_when_weights_do_not_sum_to_one() -> None:
    assert batchnorm_replies().average({"A": 1.0, "B": 1.0})["bn.mean"].item() == 4.0


def test_buffers_that_only_clients_of_weight_zero_sent_are_averaged_plainly() -> None:
    assert batchnorm_replies().average({"A": 0.0, "B": 0.0})["bn.mean"].item() == 4.0


def test_clients_that_started_from_own_models_average_these_models() -> None:
    starts = {"A": vector([1.0]), "B": vector([3.0])}
    requests = [Request(c, "train", {"w": w}, id=i) for i, (c, w) in enumerate(starts.items())]
    spec = ModelSpec(("w",), layers={"w": "w"})
    replies = Replies(
        [Reply(c, {"w": vector([0.5])}, 1, id=i) for i, c in enumerate("AB")], requests, spec
    )
    assert replies.average({"A": 0.25, "B": 0.75})["w"].tolist() == [3.0]


def test_average_is_bit_identical_in_whatever_order_replies_arrive() -> None:
    generator = torch.Generator().manual_seed(1)
    names = list("ABCDEFGH")
    start = {"w": torch.randn(1000, generator=generator)}
    spec = ModelSpec(("w",), layers={"w": "w"})
    requests = [Request(c, "train", start, id=i) for i, c in enumerate(names)]
    replies = [
        Reply(c, {"w": torch.randn(1000, generator=generator) * 10**i}, 1, id=i)
        for i, c in enumerate(names)
    ]
    expected = Replies(replies, requests, spec).average()["w"]
    for seed in range(20):
        random.Random(seed).shuffle(replies)
        assert torch.equal(Replies(replies, requests, spec).average()["w"], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_average_has_the_bits_of_one_product_added_to_the_start(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    start = {"w": torch.randn(7, 1001, generator=generator).to(dtype)}
    spec = ModelSpec(("w",), layers={"w": "w"})
    requests = [Request(client, "train", start, id=i) for i, client in enumerate("ABCDE")]
    replies = []
    for request in requests:
        update = torch.randn(7, 1001, generator=generator).to(dtype)
        replies.append(Reply(request.client, {"w": update}, 1, id=request.id))
    weights = dict(zip("ABCDE", (0.1, 0.2, 0.3, 0.15, 0.25)))
    exchange = Replies(replies, requests, spec)
    averaged = exchange.average(weights)["w"]

    rows = exchange.matrix.rows
    product = torch.tensor(list(weights.values()), dtype=torch.float64).to(rows.dtype) @ rows
    expected = start["w"].to(rows.dtype) + product.view(7, 1001)
    assert averaged.dtype == dtype and torch.equal(averaged, expected.to(dtype))


def test_an_average_changes_neither_the_start_nor_an_earlier_average() -> None:
    replies = replies_of({"A": [1.0], "B": [5.0]})
    first = replies.average()["w"]
    second = replies.average({"A": 1.0, "B": 0.0})["w"]
    assert (first.item(), second.item(), replies.start(replies[0])["w"].item()) == (3.0, 1.0, 0.0)
