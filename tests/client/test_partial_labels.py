# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Sites that label only some of the structures: their other outputs neither train nor count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import drive
from helpers.small_trainers import trainer_of
from hypothesis import given
from hypothesis import strategies as st
from monai.losses import DiceCELoss, DiceLoss
from monai.utils import CommonKeys
from torch import nn

from monai_fairfl.handlers import TrainLoss
from monai_fairfl.losses import LabelledLoss
from monai_fairfl.protocol.checks import refusal
from monai_fairfl.protocol.messages import Reply, Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.replies import Replies
from monai_fairfl.strategies import CGSV, FedCE, ShapFed

AXES = {0: (2, 3), 1: (3, 2)}  # shape of the output layer's weight by its class axis
LABELS = {"A": (True, True), "B": (True, False), "C": (True, True)}


def exchange(axis: int = 0, labels: dict[str, tuple[bool, ...]] = LABELS) -> Replies:
    """Replies for a model of a body and an output layer of two classes.

    A client that does not label the second class sends zeros there.
    """
    layers = {"body": "", "head.bias": "head", "head.weight": "head"}
    spec = ModelSpec(("body", "head.bias", "head.weight"), layers=layers, output=("head", axis))
    generator = torch.Generator().manual_seed(0)
    zero = {
        "body": torch.zeros(4),
        "head.weight": torch.zeros(AXES[axis]),
        "head.bias": torch.zeros(2),
    }
    requests = [Request(client, "train", zero, id=i) for i, client in enumerate(labels)]
    replies = []
    for request, labelled in zip(requests, labels.values(), strict=True):
        update = {
            name: torch.randn(tensor.shape, generator=generator) for name, tensor in zero.items()
        }
        for label, is_labelled in enumerate(labelled):
            if not is_labelled:
                update["head.weight"].movedim(axis, 0)[label] = 0
                update["head.bias"][label] = 0
        sent = () if all(labelled) else labelled
        replies.append(Reply(request.client, update, 1, labelled=sent, id=request.id))
    return Replies(replies, requests, spec)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_class_is_averaged_over_those_who_label_it(axis: int) -> None:
    replies, rho = exchange(axis), {"A": 0.2, "B": 0.5, "C": 0.3}
    averaged = replies.average(rho)
    rows = {
        reply.client: {
            n: t.movedim(axis if "weight" in n else 0, 0) for n, t in (reply.update or {}).items()
        }
        for reply in replies
    }
    for name in ("head.weight", "head.bias"):
        got = averaged[name].movedim(axis if "weight" in name else 0, 0)
        whole = sum(rho[c] * rows[c][name][0] for c in rho)
        torch.testing.assert_close(got[0], whole)
        torch.testing.assert_close(
            got[1], (0.2 * rows["A"][name][1] + 0.3 * rows["C"][name][1]) / 0.5
        )
    torch.testing.assert_close(averaged["body"], sum(rho[c] * rows[c]["body"] for c in rho))
    doubled = replies.average(rho, scale=dict.fromkeys(rho, 2.0))
    torch.testing.assert_close(doubled["head.weight"], 2 * averaged["head.weight"])


def test_a_class_that_nobody_labels_stays_where_it_was() -> None:
    replies = exchange(labels=dict.fromkeys("AB", (True, False)))
    averaged = replies.average()
    assert not averaged["head.weight"][1].any() and averaged["head.weight"][0].any()


def test_cosines_leave_out_the_rows_that_one_side_does_not_label() -> None:
    replies = exchange()
    vectors = {}
    for reply in replies:
        assert reply.update is not None
        parts = [reply.update[name].flatten() for name in replies.spec.parameters]
        vectors[reply.client] = torch.cat(parts).numpy()
    # The second class: of the bias after the body, of the weight after both.
    keep = np.ones(12, bool)
    keep[[4 + 1, *range(6 + 3, 12)]] = False
    both = vectors["A"] + vectors["C"]

    def direct(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert replies.geometry.cosine([0, 1, 0], [1, 0, 1]) == pytest.approx(
        direct(vectors["B"][keep], both[keep]), 1e-5
    )
    alone = direct(vectors["A"][keep], vectors["B"][keep])  # whichever side does not label it
    assert replies.geometry.cosine([1, 0, 0], [0, 1, 0]) == pytest.approx(alone, 1e-5)
    rest = vectors["B"] + vectors["C"]
    assert replies.geometry.cosine([1, 0, 0], [0, 1, 1]) == pytest.approx(
        direct(vectors["A"], rest), 1e-5
    )


def test_shapfed_compares_a_class_among_those_who_label_it() -> None:
    replies, strategy = exchange(), ShapFed()
    strategy.start(replies[0] and replies.start(replies[0]), list(LABELS), replies.spec)
    update = {name: tensor.clone() for name, tensor in (replies[1].update or {}).items()}
    update["head.weight"][1] = 5.0  # weight decay moves what is not trained, too: it does not count
    answers = {reply.client: reply for reply in replies} | {"B": replace(replies[1], update=update)}
    result, _ = drive(
        strategy,
        list(LABELS),
        lambda request: replace(answers[request.client], id=request.id),
        replies.spec,
    )
    values = result.details["class_value"]
    assert values["B"]["1"] is None and values["A"]["1"] is not None
    gram = replies.geometry.classes()[1]
    pair = np.array([1.0, 0.0, 1.0])
    expected = gram[0] @ pair / np.sqrt(gram[0, 0] * (pair @ gram @ pair))
    assert values["A"]["1"] == pytest.approx(expected)
    assert float(result.contributions["B"]) == pytest.approx((1 + values["B"]["0"]) / 2)
    strategy.weights = result.weights
    again, _ = drive(
        strategy,
        list(LABELS),
        lambda request: replace(answers[request.client], id=request.id),
        replies.spec,
    )
    assert again.details["class_value"]["B"]["1"] is None


@pytest.mark.parametrize("strategy", [FedCE("cos"), CGSV()])
def test_contributions_do_not_hold_a_missing_label_against_a_client(strategy: FedCE | CGSV) -> None:
    """B's update is A's but for the class that B does not label; with that, both agree with C."""
    base = exchange(labels=dict.fromkeys("ABC", (True, True)))
    a, c = base[0].update, base[2].update
    assert a is not None and c is not None
    b = {name: tensor.clone() for name, tensor in a.items()}
    b["head.weight"][1], b["head.bias"][1] = 0, 0
    updates = {"A": a, "B": b, "C": c}

    def contribution(labelled: bool) -> float:
        strategy.__init__(*(["cos"] if isinstance(strategy, FedCE) else []))  # type: ignore[misc]
        strategy.start(base.start(base[0]), list(updates), base.spec)
        labels = {"B": (True, False)} if labelled else {}
        result, _ = drive(
            strategy,
            list(updates),
            lambda r: Reply(r.client, updates[r.client], 1, labelled=labels.get(r.client, ())),
            base.spec,
        )
        return float(result.contributions["B"])

    assert contribution(True) != pytest.approx(contribution(False), abs=1e-6)


def test_an_exact_value_does_not_count_a_class_that_a_client_does_not_label() -> None:
    """All agree where they label the same, so that nobody is worth less than another."""
    layers = {"body": "", "head.weight": "head"}
    spec = ModelSpec(("body", "head.weight"), layers=layers, output=("head", 0))
    start = {"body": torch.zeros(2), "head.weight": torch.zeros(2, 2)}

    def answer(request: Request) -> Reply:
        labelled = (True, request.client != "C")
        rows = torch.ones(2, 2) * torch.tensor(labelled)[:, None]
        update = {"body": torch.ones(2), "head.weight": rows}
        return Reply(request.client, update, 1, labelled=labelled)

    values = {}
    for exact in (False, True):
        strategy = CGSV(exact=exact)
        strategy.start(start, "ABC", spec)
        result, _ = drive(strategy, "ABC", answer, spec)
        values[exact] = result.details["cosine"]
    assert values[False]["C"] == pytest.approx(1)
    assert sum(values[True].values()) == pytest.approx(1)
    assert values[True]["C"] >= values[True]["A"] == pytest.approx(values[True]["B"])


def test_who_alone_labels_a_class_is_not_worth_more_for_agreeing_with_itself() -> None:
    base = exchange(labels={"A": (True, True), "B": (True, False), "C": (True, False)})
    strategy = ShapFed()
    strategy.start(base.start(base[0]), ["A", "B", "C"], base.spec)
    sent = {reply.client: reply for reply in base}
    result, _ = drive(strategy, ["A", "B", "C"], lambda request: sent[request.client], base.spec)
    value = result.details["class_value"]["A"]
    assert value["1"] is None and result.contributions["A"] == pytest.approx((1 + value["0"]) / 2)


def test_a_reply_with_another_number_of_classes_is_refused() -> None:
    replies = exchange()
    request, reply = replies.requests[replies[1].id], replies[1]
    assert refusal(request, reply, replies.spec) is None
    assert "2 classes" in str(
        refusal(request, replace(reply, labelled=(True, False, True)), replies.spec)
    )


def test_the_loss_with_all_labels_is_the_loss_itself() -> None:
    generator = torch.Generator().manual_seed(1)
    prediction = torch.randn(3, 2, 8, 8, generator=generator)
    label = (torch.rand(3, 2, 8, 8, generator=generator) > 0.5).float()
    for usual in (DiceLoss(sigmoid=True, batch=True), nn.BCEWithLogitsLoss()):
        torch.testing.assert_close(LabelledLoss(usual)(prediction, label), usual(prediction, label))
    both = DiceLoss(sigmoid=True, batch=True)(prediction, label) + nn.BCEWithLogitsLoss()(
        prediction, label
    )
    torch.testing.assert_close(
        LabelledLoss(DiceCELoss(sigmoid=True, batch=True))(prediction, label), both
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_an_output_without_label_gets_no_gradient(labelled: list[tuple[bool, bool]]) -> None:
    prediction = torch.randn(len(labelled), 2, 4, 4, requires_grad=True)
    label = torch.ones(len(labelled), 2, 4, 4)
    for image, known in enumerate(labelled):
        for channel in (0, 1):
            if not known[channel]:
                label[image, channel] = -1
    loss = LabelledLoss(nn.BCEWithLogitsLoss())(prediction, label)
    loss.backward()
    assert prediction.grad is not None and torch.isfinite(loss)
    for image, known in enumerate(labelled):
        for channel in (0, 1):
            assert bool(prediction.grad[image, channel].any()) == known[channel]


@pytest.mark.parametrize("labelled_before", [False, True], ids=["never", "earlier"])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
def test_the_row_of_a_class_without_label_may_move_at_an_honest_site(
    labelled_before: bool, weight_decay: float
) -> None:
    """Adam's moments of an earlier round and weight decay move it, also where its gradient is 0.

    So a row that moved is no evidence that a site trained the class.
    """
    head = nn.Conv2d(3, 2, 1)
    optimizer = torch.optim.Adam(head.parameters(), 1e-3, weight_decay=weight_decay)
    loss = LabelledLoss(nn.BCEWithLogitsLoss())
    label = torch.ones(2, 2, 4, 4)

    def step() -> None:
        optimizer.zero_grad()
        loss(head(torch.ones(2, 3, 4, 4)), label).backward()
        optimizer.step()

    if labelled_before:
        step()
    label[:, 1] = -1
    before = head.weight.detach().clone()
    step()
    assert head.weight.grad is not None and not head.weight.grad[1].any()
    moved = bool((head.weight.detach() - before)[1].any())
    assert moved == (labelled_before or weight_decay > 0)


def test_the_handler_reports_which_classes_were_trained() -> None:
    from ignite.engine import Engine
    from monai.engines.utils import IterationEvents

    labels = [torch.stack([torch.ones(1, 4, 4), -torch.ones(1, 4, 4)], 1), torch.zeros(1, 2, 4, 4)]

    def step(engine: Engine, label: torch.Tensor) -> dict[str, torch.Tensor]:
        engine.state.output = dict.fromkeys(
            (CommonKeys.IMAGE, CommonKeys.LABEL, CommonKeys.PRED), label
        )
        engine.state.output[CommonKeys.LOSS] = torch.zeros(())
        engine.fire_event(IterationEvents.LOSS_COMPLETED)
        return engine.state.output  # type: ignore[return-value]

    engine, counter = Engine(step), TrainLoss()
    engine.register_events(*IterationEvents)
    counter.attach(engine)
    engine.run(labels[:1])
    assert counter.labelled == (True, False)
    engine.run(labels)
    assert counter.labelled == (True, True)


@pytest.mark.parametrize("stacked", [False, True], ids=["a list", "one tensor"])
def test_a_network_with_deep_supervision_tells_which_classes_were_trained(stacked: bool) -> None:
    """Else the site would count as one that labels everything, with rows that never move."""
    label = torch.stack([torch.ones(1, 8, 8), -torch.ones(1, 8, 8)], 1)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(1, 2, 1)

        def forward(self, images: torch.Tensor) -> Any:
            fine = self.head(images)
            if stacked:
                return torch.stack([fine, fine, fine], 1)
            return [fine, self.head(images[..., ::2, ::2])]

    def loss(predicted: Any, label: torch.Tensor) -> torch.Tensor:
        fine = predicted[:, 0] if stacked else predicted[0]
        return LabelledLoss(nn.BCEWithLogitsLoss())(fine, label)

    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    batches = [{"image": torch.ones(1, 1, 8, 8), "label": label}]
    trainer = trainer_of(network, batches, loss, optimizer)
    counter = TrainLoss()
    counter.attach(trainer)
    trainer.run()
    assert counter.labelled == (True, False)
