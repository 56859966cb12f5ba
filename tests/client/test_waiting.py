# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The processor does not wait for a GPU after each step.

Tensors of the meta device have no values: code that asks for one fails, as it would wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers.small_trainers import conv_net, image_batches
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.fl.utils.constants import ExtraItems
from monai.losses import DiceCELoss
from torch import nn

from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.client.trainer_state import state_of
from monai_fairfl.client.training import one_round
from monai_fairfl.handlers import Proximal, SharpnessAware, TrainLoss
from monai_fairfl.losses import LabelledLoss
from monai_fairfl.measurements.cka import centred_gram
from monai_fairfl.measurements.features import features_of, scored_layers
from monai_fairfl.measurements.leave_one_out import leave_one_out_model
from monai_fairfl.measurements.loading import load_weights
from monai_fairfl.protocol.messages import Request
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.utils import tensors
from monai_fairfl.utils.tensors import names_not_finite

META = torch.device("meta")
HANDLERS = [
    TrainLoss(board=None),
    SharpnessAware(0.05),
    SharpnessAware(0.05, alpha=0.1),
    Proximal(0.1),
    Proximal(0.1, anchor=conv_net().state_dict()),
]


def meta_trainer(loss: Any, **arguments: Any) -> SupervisedTrainer:
    """A trainer of three batches whose values nobody knows."""
    network = conv_net().to(META)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return SupervisedTrainer(
        META,
        1,
        image_batches(3),  # type: ignore[arg-type]
        network,
        optimizer,
        loss,
        decollate=False,
        optim_set_to_none=True,
        **arguments,
    )


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: type(handler).__name__)
def test_a_round_is_trained_without_reading_a_value(handler: Any) -> None:
    trainer = meta_trainer(DiceCELoss(sigmoid=True))
    with one_round(trainer, 0, [handler]):
        trainer.run()
    assert trainer.state.iteration == 3


def test_the_losses_are_read_when_somebody_asks_for_their_sum() -> None:
    trainer = meta_trainer(nn.BCEWithLogitsLoss())
    train_loss = TrainLoss(board=None)
    with one_round(trainer, 0, [train_loss]):
        trainer.run()
    assert (train_loss.steps, train_loss.images) == (3, 12)
    # This device cannot answer.
    with pytest.raises((RuntimeError, NotImplementedError)):
        print(train_loss.total)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("dtype", "is_on"), [(torch.bfloat16, False), (torch.float16, True)])
def test_bfloat16_has_no_loss_scaler_that_would_ask_after_each_step(
    dtype: torch.dtype, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda: torch.amp.GradScaler("cpu"))
    network = conv_net()
    trainer = SupervisedTrainer(
        torch.device("cpu"),
        1,
        image_batches(1),  # type: ignore[arg-type]
        network,
        torch.optim.SGD(network.parameters(), 0.1),
        nn.BCEWithLogitsLoss(),
        decollate=False,
        amp=True,
        amp_kwargs={"dtype": dtype},
    )
    seen = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.scaler.is_enabled())
    )
    for _ in range(2):
        trainer.state.max_epochs = trainer.state.epoch + 1
        with one_round(trainer, 0, []):
            trainer.run()
    assert seen == [is_on, is_on]


def test_a_scaler_that_is_off_leaves_sharpness_aware_training_without_a_question() -> None:
    trainer = meta_trainer(nn.BCEWithLogitsLoss())
    trainer.amp = True
    off = torch.amp.GradScaler(enabled=False)
    trainer.add_event_handler(Events.STARTED, lambda engine: setattr(engine, "scaler", off))
    with one_round(trainer, 0, [SharpnessAware(0.05), Proximal(0.1)]):
        trainer.run()
    assert trainer.state.iteration == 3


def test_a_loss_of_labelled_structures_asks_once_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions = []
    usual = torch.Tensor.cpu

    def counted(tensor: torch.Tensor, *arguments: Any) -> torch.Tensor:
        questions.append(tuple(tensor.shape))
        return usual(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    prediction = torch.randn(4, 3, 8, 8)
    label = (torch.randn(4, 3, 8, 8) > 0).float()
    label[1:, 2] = -1
    found = LabelledLoss(nn.BCEWithLogitsLoss())(prediction, label)
    losses = []
    for channel, images in ((0, slice(4)), (1, slice(4)), (2, slice(1))):
        losses.append(nn.BCEWithLogitsLoss()(prediction[images, channel], label[images, channel]))
    torch.testing.assert_close(found, torch.stack(losses).mean())
    assert questions == [(4, 3)]


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each transfer between devices, the number of its tensors; their values are lost."""
    numbers: list[int] = []

    def counted(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        if tensors:
            numbers.append(len(tensors))
        return [torch.zeros_like(tensor, device=device) for tensor in tensors]

    monkeypatch.setattr(tensors, "copied_together", counted)
    return numbers


def test_weights_reach_a_network_by_one_transfer(transfers: list[int]) -> None:
    network = conv_net()
    weights = network.state_dict()
    load_weights(network, weights)
    assert transfers == []
    load_weights(network.to(META), weights)
    assert transfers == [len(weights)]


def test_all_that_a_trainer_goes_on_from_comes_by_one_transfer(transfers: list[int]) -> None:
    trainer = meta_trainer(nn.BCEWithLogitsLoss())
    trainer.run()
    state = state_of(trainer)
    moments = 2 * len(list(trainer.network.parameters()))
    assert transfers == [len(trainer.network.state_dict()) + moments]
    found = [*state["local"].values()]
    for of_parameter in state["optimizer"]["state"].values():
        found += of_parameter.values()
    assert all(tensor.is_cpu for tensor in found)


@pytest.mark.slow
def test_an_update_is_computed_where_the_network_is_and_comes_by_one_transfer(
    prostate_client: Callable[..., FairMonaiAlgo],
    weights: dict[str, torch.Tensor],
    spec: ModelSpec,
    transfers: list[int],
) -> None:
    client = prostate_client()
    client.initialize({ExtraItems.CLIENT_NAME: "alder"})
    network = client.trainer.network.to(META)
    # On a GPU, those of the start.
    transfers.clear()
    update = client._update(Request("alder", "train", weights), network.state_dict())
    # The received weights go there, and the changes come back.
    assert transfers == [len(spec.parameters)] * 2
    assert set(update) == set(spec.parameters)
    for name, change in update.items():
        assert change.is_cpu and change.shape == weights[name].shape


def test_weights_reach_a_network_elsewhere_and_its_features_stay_there() -> None:
    network = conv_net()
    weights = network.state_dict()
    network.to(META)
    load_weights(network, weights)
    images = torch.randn(6, 1, 8, 8)
    features = dict(features_of(network, weights, images, scored_layers(network)))
    assert set(features) == {"0", "1", "4"}
    for layer in features.values():
        assert layer.device == META
        # Not one question until the Gram matrix is there.
        gram = centred_gram(layer)
        assert (gram.device, gram.shape) == (META, (6, 6))


def test_the_model_without_a_client_is_computed_where_its_parts_lie() -> None:
    weights = {name: tensor.to(META) for name, tensor in conv_net().state_dict().items()}
    without = leave_one_out_model(weights, weights, 0.25)
    assert {tensor.device for tensor in without.values()} == {META}


def test_whether_a_model_is_finite_is_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {name: tensor.to(META) for name, tensor in conv_net().state_dict().items()}
    questions = []

    def answered(numbers: list[torch.Tensor]) -> list[float]:
        questions.append(len(numbers))
        return [1.0] * len(numbers)

    monkeypatch.setattr("monai_fairfl.utils.tensors.values_of", answered)
    assert names_not_finite(weights) == [] and questions == [len(weights)]
