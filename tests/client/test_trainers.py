# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Labels that a site lacks, and what a training computes, reads and waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.client_requests import train
from helpers.small_trainers import image_batches
from helpers.toy_client import toy_client
from monai.losses import DiceCELoss, DiceLoss
from torch import nn

from monai_fairfl.losses import LabelledLoss

# ---- structures that a site does not label


def test_the_loss_with_all_labels_is_the_loss_itself_and_without_one_there_is_no_gradient() -> None:
    prediction = torch.randn(3, 2, 8, 8, requires_grad=True)
    label = (torch.rand(3, 2, 8, 8) > 0.5).float()
    dice, entropy = DiceLoss(sigmoid=True, batch=True), nn.BCEWithLogitsLoss()
    both = LabelledLoss(DiceCELoss(sigmoid=True, batch=True))
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


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_loss_scale_goes_on_in_the_next_round_and_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def growing() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", growth_interval=2)

    # Without a GPU, PyTorch's own would be off.
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", growing)

    def client() -> Any:
        arguments = {"amp": True, "amp_kwargs": {"dtype": torch.float16}}
        network, loss = nn.Conv2d(1, 1, 1), nn.BCEWithLogitsLoss()
        return toy_client(tmp_path, network, image_batches(2), loss, **arguments)[0]

    weights = nn.Conv2d(1, 1, 1).state_dict()
    lasting = client()
    for number in range(3):
        train(lasting, weights, number)
        scale = lasting.trainer.scaler.get_scale()
        assert scale == 2.0 ** (17 + number)
    restarted = client()
    train(restarted, weights, 2)
    assert restarted.trainer.scaler.get_scale() == scale
