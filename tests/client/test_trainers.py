# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Labels that a site lacks, and what a training computes, reads and waits for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import same, train
from helpers.random_loaders import images_of, loaders
from helpers.refusals import refused
from helpers.small_trainers import conv_net, image_batches, trainer_of
from helpers.toy_client import toy_client
from hypothesis import given
from hypothesis import strategies as st
from ignite.engine import Events
from ignite.metrics import Average
from monai.engines import SupervisedTrainer
from monai.handlers import LrScheduleHandler, StatsHandler
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from monai_fairfl.handlers import Proximal, SharpnessAware, TrainLoss
from monai_fairfl.losses import LabelledLoss
from monai_fairfl.measurements import leave_one_out_model

META = torch.device("meta")
"""Tensors there have no values: code that asks for one fails, as it would wait for a GPU."""


# ---- structures that a site does not label


def test_the_loss_with_all_labels_is_the_loss_itself() -> None:
    generator = torch.Generator().manual_seed(1)
    prediction = torch.randn(3, 2, 8, 8, generator=generator)
    label = (torch.rand(3, 2, 8, 8, generator=generator) > 0.5).float()
    dice, entropy = DiceLoss(sigmoid=True, batch=True), nn.BCEWithLogitsLoss()
    for usual in (dice, entropy):
        torch.testing.assert_close(LabelledLoss(usual)(prediction, label), usual(prediction, label))
    found = LabelledLoss(DiceCELoss(sigmoid=True, batch=True))(prediction, label)
    torch.testing.assert_close(found, dice(prediction, label) + entropy(prediction, label))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_an_output_without_label_gets_no_gradient(labelled: list[tuple[bool, bool]]) -> None:
    prediction = torch.randn(len(labelled), 2, 4, 4, requires_grad=True)
    known = torch.tensor(labelled)
    label = torch.where(known[:, :, None, None], 1.0, -1.0).expand(-1, -1, 4, 4)
    loss = LabelledLoss(nn.BCEWithLogitsLoss())(prediction, label)
    loss.backward()
    assert prediction.grad is not None and torch.isfinite(loss)
    assert torch.equal(prediction.grad.flatten(2).any(2), known)


class Deep(nn.Module):
    """Two structures; beside the fine output there may be coarse ones (deep supervision)."""

    def __init__(self, outputs: str):
        super().__init__()
        self.outputs = outputs
        self.head = nn.Conv2d(1, 2, 1)

    def forward(self, images: torch.Tensor) -> Any:
        fine = self.head(images)
        if self.outputs == "list" and self.training:
            return [fine, self.head(images[..., ::2, ::2])]
        if self.outputs == "stacked" and self.training:
            return torch.stack([fine, fine], 1)
        return fine


@pytest.mark.parametrize("outputs", ["one", "list", "stacked"])
def test_a_site_tells_which_structures_it_trained(outputs: str, tmp_path: Path) -> None:
    def loss(predicted: Any, label: torch.Tensor) -> torch.Tensor:
        fine = predicted[0] if outputs == "list" else predicted
        fine = predicted[:, 0] if outputs == "stacked" else fine
        return LabelledLoss(nn.BCEWithLogitsLoss())(fine, label)

    image = torch.ones(1, 1, 8, 8)
    unknown = torch.cat([image, -image], 1)
    for batches, expected in (
        ([unknown], (True, False)),
        # All are labelled in some case.
        ([unknown, 0 * unknown], ()),
    ):
        data = [{"image": image, "label": label} for label in batches]
        client, weights = toy_client(tmp_path / str(len(data)), Deep(outputs), data, loss)
        reply = train(client, weights)
        assert reply.labelled == expected
        assert reply.update is not None
        moved = reply.update["head.weight"].flatten(1).any(1).tolist()
        assert moved == list(expected or (True, True))


# ---- what is computed beside the training, and what it goes on from


class Watched(Average):
    """A training metric that counts for how many batches it was computed."""

    def __init__(self) -> None:
        self.batches = 0
        super().__init__(output_transform=lambda output: 1.0)

    def update(self, output: Any) -> None:
        self.batches += 1
        super().update(output)


def test_a_metric_that_nobody_reads_is_not_made_and_the_training_is_the_same(
    tmp_path: Path,
) -> None:
    read: list[float] = []
    updates = []
    for number, step in enumerate((None, lambda engine: read.append(engine.state.metrics["ones"]))):
        metric = Watched()
        network = conv_net()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 9)
        schedule = LrScheduleHandler(steps, print_lr=False)
        if step is not None:
            loss = lambda engine: step(engine) or engine.state.metrics["ones"]  # noqa: E731
            schedule = LrScheduleHandler(plateau, print_lr=False, step_transform=loss)
        client, weights = toy_client(
            tmp_path / str(number),
            network,
            image_batches(2),
            nn.BCEWithLogitsLoss(),
            optimizer=optimizer,
            key_train_metric={"ones": metric},
            train_handlers=[schedule],
        )
        updates.append(train(client, weights).update)
        assert metric.batches == (0 if step is None else 2)
        if step is None:
            # A training outside of a federation has it again.
            client.trainer.state.max_epochs += 1
            client.trainer.run()
            assert metric.batches == 2
    assert read[-1] == 1.0 and same(*updates)


def test_a_round_begins_with_the_same_images_after_others_and_in_a_new_process(
    tmp_path: Path,
) -> None:
    seen: list[torch.Tensor] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images.as_tensor().clone())  # type: ignore[attr-defined]
            return self.scale * images

    for rounds in ((0, 1), (1,)):
        loader = loaders("sampler")
        for batch in (trainer for trainer in ()):
            del batch
        client, weights = toy_client(
            tmp_path / str(len(rounds)), Looking(), loader, lambda predicted, _: predicted.mean()
        )
        for number in rounds:
            train(client, weights, number)
    first, second, again = (torch.cat(seen[n : n + 2]) for n in (0, 2, 4))
    assert torch.equal(second, again) and not torch.equal(first, second)


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
    """A network with a constant buffer that is not finite, and maybe another one that changes."""

    def __init__(self, changes: bool):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)
        self.changes = changes
        self.register_buffer("mask", torch.tensor([-math.inf, math.nan, 1.0]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and self.changes:
            self.mask[2] = math.inf
        return self.layer(images)


def test_a_constant_buffer_that_is_not_finite_is_no_divergence_and_one_that_became_so_is(
    tmp_path: Path,
) -> None:
    loss = nn.BCEWithLogitsLoss()
    client, weights = toy_client(tmp_path / "constant", Masked(False), image_batches(1), loss)
    buffers = train(client, weights).buffers or {}
    assert torch.equal(buffers["mask"].nan_to_num(), weights["mask"].nan_to_num())
    client, weights = toy_client(tmp_path / "changes", Masked(True), image_batches(1), loss)
    with refused("mask", "diverged", by=ValueError):
        train(client, weights)


# ---- the processor does not wait for a GPU after each step


def meta_trainer() -> SupervisedTrainer:
    """A trainer of three batches whose values nobody knows."""
    network = conv_net().to(META)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return SupervisedTrainer(
        META,
        1,
        image_batches(3),  # type: ignore[arg-type]
        network,
        optimizer,
        DiceCELoss(sigmoid=True),
        decollate=False,
        optim_set_to_none=True,
    )


def test_no_handler_reads_a_value_while_the_training_runs() -> None:
    train_loss = TrainLoss(board=None)
    for handler in (
        train_loss,
        SharpnessAware(0.05, alpha=0.1),
        Proximal(0.1),
        Proximal(0.1, anchor=conv_net().state_dict()),
    ):
        trainer = meta_trainer()
        handler.attach(trainer)
        trainer.run()
        assert trainer.state.iteration == 3
    assert (train_loss.steps, train_loss.images) == (3, 12)
    # This device cannot answer.
    with pytest.raises((RuntimeError, NotImplementedError)):
        print(train_loss.total)
    # A scaler that is off is not asked, either.
    trainer = meta_trainer()
    trainer.amp = True
    off = torch.amp.GradScaler(enabled=False)
    trainer.add_event_handler(Events.STARTED, lambda engine: setattr(engine, "scaler", off))
    SharpnessAware(0.05).attach(trainer)
    trainer.run()
    weights = {name: tensor.to(META) for name, tensor in conv_net().state_dict().items()}
    without = leave_one_out_model(weights, weights, 0.25)
    assert {tensor.device for tensor in without.values()} == {META}
