# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Labels that a site lacks, and what a training computes, reads and waits for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import train
from helpers.refusals import refused
from helpers.small_trainers import conv_net, image_batches
from helpers.toy_client import toy_client
from ignite.metrics import Average
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from monai_fairfl.handlers import Proximal, SharpnessAware, TrainLoss
from monai_fairfl.losses import LabelledLoss

META = torch.device("meta")
"""Tensors there have no values: code that asks for one fails, as it would wait for a GPU."""


# ---- structures that a site does not label


def test_the_loss_with_all_labels_is_the_loss_itself_and_without_one_there_is_no_gradient() -> None:
    prediction = torch.randn(3, 2, 8, 8, requires_grad=True)
    label = (torch.rand(3, 2, 8, 8) > 0.5).float()
    dice, entropy = DiceLoss(sigmoid=True, batch=True), nn.BCEWithLogitsLoss()
    both = LabelledLoss(DiceCELoss(sigmoid=True, batch=True))
    torch.testing.assert_close(LabelledLoss(dice)(prediction, label), dice(prediction, label))
    expected = dice(prediction, label) + entropy(prediction, label)
    torch.testing.assert_close(both(prediction, label), expected)

    known = torch.tensor([[True, False], [True, True], [False, False]])
    for labelled in (known, torch.zeros_like(known)):
        unknown = torch.where(labelled[:, :, None, None], label, -1.0)
        loss = both(prediction, unknown)
        [gradient] = torch.autograd.grad(loss, prediction)
        assert torch.isfinite(loss)
        assert torch.equal(gradient.flatten(2).any(2), labelled)


class Deep(nn.Module):
    """Two structures; in training beside the fine output a coarse one, in a list or stacked."""

    def __init__(self, stacked: bool):
        super().__init__()
        self.stacked = stacked
        self.head = nn.Conv2d(1, 2, 1)

    def forward(self, images: torch.Tensor) -> Any:
        fine = self.head(images)
        if not self.training:
            return fine
        return torch.stack([fine, fine], 1) if self.stacked else [fine, fine[..., ::2, ::2]]


@pytest.mark.parametrize("stacked", [False, True])
def test_a_site_tells_which_structures_it_trained(stacked: bool, tmp_path: Path) -> None:
    """Also where there is deep supervision: else a row that never moves would count."""

    def loss(predicted: Any, label: torch.Tensor) -> torch.Tensor:
        fine = predicted[:, 0] if stacked else predicted[0]
        return LabelledLoss(nn.BCEWithLogitsLoss())(fine, label)

    image = torch.ones(1, 1, 8, 8)
    partly = {"image": image, "label": torch.cat([image, -image], 1)}
    fully = {"image": image, "label": torch.zeros(1, 2, 8, 8)}
    # All are labelled where some case labels them.
    for batches, labelled, moved in (
        ([partly], (True, False), [True, False]),
        ([partly, fully], (), [True, True]),
    ):
        folder = tmp_path / str(len(batches))
        reply = train(*toy_client(folder, Deep(stacked), batches, loss))
        assert reply.labelled == labelled and reply.update is not None
        assert reply.update["head.weight"].flatten(1).any(1).tolist() == moved


# ---- what is computed beside the training, and what it goes on from


@pytest.mark.parametrize("is_read", [False, True])
def test_a_metric_that_nobody_reads_is_not_made(is_read: bool, tmp_path: Path) -> None:
    made = []
    metric = Average(output_transform=lambda output: made.append(1) or 1.0)
    network = conv_net()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    settings = {}
    if is_read:
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        settings["step_transform"] = lambda engine: engine.state.metrics["ones"]
    client, weights = toy_client(
        tmp_path,
        network,
        image_batches(2),
        nn.BCEWithLogitsLoss(),
        optimizer=optimizer,
        key_train_metric={"ones": metric},
        train_handlers=[LrScheduleHandler(schedule, print_lr=False, **settings)],
    )
    train(client, weights)
    assert len(made) == (2 if is_read else 0)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_loss_scale_goes_on_in_the_next_round_and_in_a_new_process_and_bfloat16_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", growth_interval=2)

    # Without a GPU, PyTorch's own would be off.
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", growing)

    def client(dtype: torch.dtype, state: str) -> Any:
        arguments = {"amp": True, "amp_kwargs": {"dtype": dtype}}
        folder = tmp_path / state
        network = nn.Conv2d(1, 1, 1)
        made, _ = toy_client(folder, network, image_batches(2), nn.BCEWithLogitsLoss(), **arguments)
        return made

    weights = nn.Conv2d(1, 1, 1).state_dict()
    lasting = client(torch.float16, "half")
    for number in range(3):
        train(lasting, weights, number)
        scale = lasting.trainer.scaler.get_scale()
        assert scale == 2.0 ** (17 + number)
    restarted = client(torch.float16, "half")
    train(restarted, weights, 2)
    assert restarted.trainer.scaler.get_scale() == scale

    # Nothing overflows there, and a scaler would ask after every step.
    other = client(torch.bfloat16, "bfloat16")
    for number in range(2):
        train(other, weights, number)
        assert not other.trainer.scaler.is_enabled()


class Masked(nn.Module):
    """A network with a buffer that is not finite, and stays what it is or does not."""

    def __init__(self, trained: float):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)
        self.trained = trained
        self.register_buffer("mask", torch.tensor([-math.inf, math.nan, 1.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mask[2] = self.trained
        return self.layer(images)


def test_a_constant_buffer_that_is_not_finite_is_no_divergence_and_one_that_became_so_is(
    tmp_path: Path,
) -> None:
    loss = nn.BCEWithLogitsLoss()
    # What is finite may change.
    buffers = train(*toy_client(tmp_path, Masked(2.0), image_batches(1), loss)).buffers or {}
    assert buffers["mask"][2] == 2
    with refused("mask", "diverged", by=ValueError):
        train(*toy_client(tmp_path, Masked(math.inf), image_batches(1), loss))


# ---- the processor does not wait for a GPU after each step


def test_no_handler_reads_a_value_while_the_training_runs() -> None:
    train_loss = TrainLoss(board=None)
    for handlers in (
        [train_loss, SharpnessAware(0.05, alpha=0.1), Proximal(0.1)],
        [Proximal(0.1, anchor=conv_net().state_dict())],
    ):
        network = conv_net().to(META)
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        batches: Any = image_batches(3)
        loss = DiceCELoss(sigmoid=True)
        trainer = SupervisedTrainer(META, 1, batches, network, optimizer, loss, decollate=False)
        for handler in handlers:
            handler.attach(trainer)
        trainer.run()
        assert trainer.state.iteration == 3
    assert (train_loss.steps, train_loss.images) == (3, 12)
    # This device cannot answer.
    with pytest.raises((RuntimeError, NotImplementedError)):
        print(train_loss.total)
