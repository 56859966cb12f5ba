# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    conv_net,
    half_mean_square,
    image_batches,
    least_squares,
    trainer_of,
)
from monai.data import DataLoader, Dataset, PatchDataset, ZipDataset, list_data_collate
from monai.losses import DiceCELoss
from monai.networks.nets import DynUNet
from monai.transforms import Compose, RandGaussianNoised, RandSpatialCropSamplesd
from torch import nn
from torch.utils.data import ConcatDataset, Subset, WeightedRandomSampler

from monai_fairfl.client.training import one_round
from monai_fairfl.errors import DataError
from monai_fairfl.measurements.batches import same_batches
from monai_fairfl.measurements.training_probe import TrainingProbe

QUADRATIC = GOLDEN["fedism"]["quadratic"]


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64) * predicted.square()).sum()


def noisy_trainer(**loader: Any):  # type: ignore[no-untyped-def]
    """A net with BatchNorm and dropout on shuffled images with random noise."""
    network = conv_net()
    data = [
        {"image": image, "label": (image > 0).float()} for image in image_batches(2)[0]["image"]
    ]
    transform = Compose([RandGaussianNoised("image", prob=1.0, std=0.5)])
    transform.set_random_state(11)
    batches = DataLoader(Dataset(data, transform), batch_size=2, shuffle=True, **loader)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return trainer_of(network, batches, DiceCELoss(sigmoid=True), optimizer)  # type: ignore[arg-type]


def test_sharpness_of_the_golden_quadratic_is_exact_and_near_rho_times_the_gradients_norm() -> None:
    network = Point([0.0, 0.0])
    probe = TrainingProbe(
        trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    )
    weights = {"w": torch.tensor(QUADRATIC["w"], dtype=torch.float64)}
    assert probe.sharpness(weights, QUADRATIC["rho"]) == pytest.approx(
        QUADRATIC["sharpness"], abs=1e-6
    )
    small = 1e-4
    first_order = small * float(np.linalg.norm(QUADRATIC["grad"]))
    assert probe.sharpness(weights, small) == pytest.approx(first_order, rel=1e-3)
    assert probe.loss(weights).value == pytest.approx(QUADRATIC["loss"])
    assert network.w.tolist() == [0.0, 0.0] and network.w.grad is None


def test_loss_and_sharpness_are_of_the_whole_data_set_whatever_its_batches() -> None:
    x, y = least_squares()
    weights = {"weight": torch.ones(1, 3, dtype=torch.float64)}

    def probe_of(*sizes: int) -> TrainingProbe:
        network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
        loader = [
            {"image": a, "label": b} for a, b in zip(x.split(sizes), y.split(sizes), strict=True)
        ]
        return TrainingProbe(
            trainer_of(
                network, loader, half_mean_square, torch.optim.SGD(network.parameters(), 0.1)
            )
        )

    whole, parts = probe_of(12), probe_of(5, 5, 2)
    assert parts.loss(weights).value == pytest.approx(whole.loss(weights).value)
    assert whole.loss(weights).value == pytest.approx(
        float(0.5 * (x.sum(1, keepdim=True) - y).square().mean())
    )
    assert parts.sharpness(weights, 0.3) == pytest.approx(whole.sharpness(weights, 0.3))
    assert (whole.loss(weights).stderr, whole.loss(weights).n) == (None, 1)
    even = probe_of(4, 4, 4).loss(weights)
    losses = [
        float(0.5 * (x[i : i + 4].sum(1, keepdim=True) - y[i : i + 4]).square().mean())
        for i in (0, 4, 8)
    ]
    assert even.n == 3 and even.stderr == pytest.approx(np.std(losses, ddof=1) / 3**0.5)


def test_without_any_batch_there_is_no_loss() -> None:
    network = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    probe = TrainingProbe(trainer_of(network, [], half_mean_square, optimizer))
    weights = network.state_dict()
    with pytest.raises(DataError, match="no batch of training images.*'training'.*drop_last"):
        probe.loss(weights)
    with pytest.raises(DataError, match="no batch of training images"):
        probe.sharpness(weights, 0.05)


def test_the_loss_is_made_with_running_statistics_and_without_dropout() -> None:
    network, batches, loss = conv_net(), image_batches(), DiceCELoss(sigmoid=True)
    trainer = trainer_of(network, batches, loss, torch.optim.SGD(network.parameters(), 0.1))
    trainer.run()
    weights = {k: v.clone() for k, v in network.state_dict().items()}
    with torch.no_grad():
        network.eval()
        expected = [float(loss(network(batch["image"]), batch["label"])) for batch in batches]
        network.train()
    assert TrainingProbe(trainer).loss(weights).value == pytest.approx(np.mean(expected))
    assert network.training and all(
        torch.equal(weights[k], v) for k, v in network.state_dict().items()
    )


def test_the_loss_of_a_network_with_deep_supervision_is_of_all_its_outputs() -> None:
    torch.manual_seed(0)
    # Its normalisation is the same in both modes, and it has no dropout.
    network = DynUNet(
        2, 1, 1, [3, 3, 3], [1, 2, 2], [2, 2], [4, 4, 4], deep_supervision=True, deep_supr_num=1
    )
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def of_both(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert predicted.ndim == target.ndim + 1
        return torch.stack([half_mean_square(one, target) for one in predicted.unbind(1)]).mean()

    batches = image_batches(1)
    trainer = trainer_of(network, batches, of_both, optimizer)
    probe = TrainingProbe(trainer)
    network.train()
    expected = float(of_both(network(batches[0]["image"]), batches[0]["label"]))
    network.eval()
    assert probe.loss(network.state_dict()).value == pytest.approx(expected, rel=1e-5)
    assert probe.sharpness(network.state_dict(), 0.05) > 0
    assert not any(module.training for module in network.modules())


def test_random_transforms_and_order_are_the_same_in_every_measurement() -> None:
    trainer = noisy_trainer()
    probe, weights = TrainingProbe(trainer), trainer.network.state_dict()
    first = probe.loss(weights)
    torch.manual_seed(99)
    trainer.data_loader.dataset.transform.set_random_state(5)
    assert probe.loss(weights) == first
    assert probe.sharpness(weights, 0.05) == probe.sharpness(weights, 0.05)
    with same_batches(trainer.data_loader, seed=1) as loader:
        one = [batch["image"] for batch in loader]
    with same_batches(trainer.data_loader, seed=2) as loader:
        assert not torch.equal(one[0], next(iter(loader))["image"])


def test_a_training_that_was_probed_is_bit_equal_to_one_that_was_not() -> None:
    states = []
    for probed in (False, True):
        trainer = noisy_trainer()
        weights = {k: v.clone() for k, v in trainer.network.state_dict().items()}
        torch.manual_seed(3)
        for _ in range(2):
            if probed:
                TrainingProbe(trainer).loss(weights)
                TrainingProbe(trainer).sharpness(weights, 0.05)
            trainer.state.max_epochs = trainer.state.epoch + 1
            trainer.run()
        states.append({**trainer.network.state_dict(), "random": torch.random.get_rng_state()})
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


def test_workers_see_the_same_crops_too() -> None:
    trainer = noisy_trainer(num_workers=1)
    weights = trainer.network.state_dict()
    assert TrainingProbe(trainer).loss(weights) == TrainingProbe(trainer).loss(weights)


def loaders(kind: str) -> Any:
    """A loader whose random state is where ``kind`` names it.

    It is not only in its dataset's own transform.
    """
    data = [{"image": image} for image in image_batches(2)[0]["image"]]
    noise = Compose([RandGaussianNoised("image", prob=1.0, std=0.5)])
    noisy: Any = Dataset(data, noise)
    if kind == "subset":
        return DataLoader(Subset(noisy, [0, 1, 2]), batch_size=2)
    if kind == "nested":
        return DataLoader(
            Dataset(noisy, Compose([RandGaussianNoised("image", prob=1.0)])), batch_size=2
        )
    if kind == "patches":
        crops = RandSpatialCropSamplesd("image", (4, 4), num_samples=2, random_size=False)
        return DataLoader(
            PatchDataset(data, crops, samples_per_image=2, transform=noise), batch_size=2
        )
    if kind == "concatenated":
        return DataLoader(ConcatDataset([noisy, noisy]), batch_size=2)
    if kind == "zipped":
        return DataLoader(ZipDataset([noisy, data]), batch_size=2, collate_fn=_first_of_pairs)
    generator = torch.Generator().manual_seed(3)
    if kind == "sampler":
        return DataLoader(
            noisy, batch_size=2, sampler=WeightedRandomSampler([1.0] * 4, 4, generator=generator)
        )
    return DataLoader(noisy, batch_size=2, shuffle=True, generator=generator)


def _first_of_pairs(pairs: Any) -> Any:
    return list_data_collate([first for first, _ in pairs])


KINDS = ("subset", "nested", "patches", "concatenated", "zipped", "generator", "sampler")


def images_of(loader: Any) -> torch.Tensor:
    return torch.cat([batch["image"].as_tensor() for batch in loader])


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_random_state_is_measurements_are_alike_and_do_not_show(kind: str) -> None:
    after = []
    for measured in (False, True):
        loader = loaders(kind)
        trainer = trainer_of(
            conv_net(), loader, nn.L1Loss(), torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
        )
        with one_round(trainer, 5, []):
            passes = []
            for _ in range(2 if measured else 0):
                with same_batches(loader) as same:
                    passes.append(images_of(same))
            assert not measured or torch.equal(*passes)
            after.append(images_of(loader))
    assert torch.equal(*after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_begins_the_same_after_others_and_in_a_new_process(kind: str) -> None:
    lasting, new = loaders(kind), loaders(kind)
    rounds = []
    for loader, seeds in ((lasting, (1, 2)), (new, (2,))):
        for seed in seeds:
            trainer = trainer_of(
                conv_net(), loader, nn.L1Loss(), torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
            )
            with one_round(trainer, seed, []):
                rounds.append(images_of(loader))
    assert torch.equal(rounds[1], rounds[2]) and not torch.equal(rounds[0], rounds[1])
