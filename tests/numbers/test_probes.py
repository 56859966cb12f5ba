# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client measures: outputs and scores of a network, losses and sharpness of training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import GOLDEN
from helpers.random_loaders import KINDS, images_of, loaders
from helpers.small_evaluators import Scaled, cases_of, evaluator_of
from helpers.small_trainers import (
    ONE_BATCH,
    Point,
    conv_net,
    half_mean_square,
    image_batches,
    least_squares,
    trainer_of,
)
from ignite.engine import Events
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines.utils import IterationEvents
from monai.handlers import (
    ConfusionMatrix,
    HausdorffDistance,
    IgniteMetricHandler,
    MeanDice,
    PanopticQuality,
    from_engine,
)
from monai.inferers import SliceInferer
from monai.losses import DiceCELoss
from monai.metrics import compute_dice
from monai.networks.nets import DynUNet
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    RandGaussianNoised,
)
from torch import nn

from monai_fairfl import Estimate
from monai_fairfl.errors import ConfigError, DataError
from monai_fairfl.measurements import Memory, Probe, TrainingProbe
from monai_fairfl.messages import MEASUREMENTS
from monai_fairfl.metrics import SpacedHausdorff

PREDICTION_AND_LABEL = from_engine(["pred", "label"])
SIGMOID = Activationsd("pred", sigmoid=True)
SOFTMAX = Activationsd("pred", softmax=True)


def measured(name: str, probe: Any, model: Any, **context: float) -> Any:
    return MEASUREMENTS[name](probe, model, Memory(), context)


# ---- a network's outputs


class Affine(nn.Module):
    """Predicts two channels from an image; what it gives in training is another thing."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))
        self.dropout = nn.Dropout(0.9)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(images * self.gain[:, None, None])


def volumes(number: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, 4, 3, generator=generator) for _ in range(number)]


def probe_of(**arguments: Any) -> Probe:
    """Volumes that are predicted slice by slice."""
    inferer = SliceInferer(roi_size=(4, 4), sw_batch_size=2, spatial_dim=2)
    return Probe(evaluator_of(Affine(), cases_of(volumes()), inferer=inferer, **arguments))


def weights(first: float, second: float) -> dict[str, torch.Tensor]:
    return {"gain": torch.tensor([first, second])}


def test_outputs_are_those_that_the_evaluator_scores_whatever_the_batches() -> None:
    # MONAI shows its handlers the output before it decollates and postprocesses it.
    probe = probe_of(batch_size=2, postprocessing=SIGMOID)
    outputs = list(probe.outputs(weights(2.0, -3.0)))
    seen: list[torch.Tensor] = []
    evaluator = probe.engine
    evaluator.add_event_handler(
        IterationEvents.FORWARD_COMPLETED,
        lambda engine: seen.extend(engine.state.output["pred"].clone()),
    )
    evaluator.network.load_state_dict(weights(2.0, -3.0))
    evaluator.run()
    for image, output, expected in zip(volumes(), outputs, seen, strict=True):
        assert torch.equal(output, torch.cat([2 * image, -3 * image]))
        assert torch.equal(output, expected)
        assert not isinstance(output, MetaTensor) and not output.requires_grad


@pytest.mark.parametrize(("training", "read"), [(True, 1), (False, 3)])
def test_both_models_see_the_same_noise_and_all_is_as_before(training: bool, read: int) -> None:
    """Also when a measurement stops at the first case."""
    noise = RandGaussianNoised("image", prob=1.0)
    transform = Compose([noise])
    probe = probe_of(transform=transform)
    probe.engine.add_event_handler(Events.STARTED, lambda: pytest.fail("the evaluator has run"))
    network = probe.engine.network.train(training)
    random_state = torch.get_rng_state()
    noise_state = noise.R.get_state()[1].tolist()  # type: ignore[index]

    seen = []
    for factor in (1.0, 2.0):
        outputs = probe.outputs(weights(factor, -3.0))
        for _ in range(read):
            last = next(outputs)
            assert torch.is_grad_enabled()
        outputs.close()
        seen.append(last[:1] / factor)
    assert torch.equal(*seen) and not torch.equal(seen[0], volumes()[read - 1])

    assert network.training == training
    assert network.state_dict()["gain"].tolist() == [1, 1]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert probe.engine.data_loader.dataset.transform is transform
    assert noise.R.get_state()[1].tolist() == noise_state  # type: ignore[index]


def test_two_models_outputs_come_one_after_the_other() -> None:
    probe = probe_of()
    first, second = probe.outputs(weights(1.0, 1.0)), probe.outputs(weights(2.0, 2.0))
    next(first)
    with pytest.raises(RuntimeError, match="first"):
        next(second)
    # The refusal has not disturbed the first model, and afterwards there is room for another.
    assert torch.equal(next(first), volumes()[1].expand(2, -1, -1, -1))
    first.close()
    assert torch.equal(next(probe.outputs(weights(2.0, 2.0)))[:1], 2 * volumes()[0])
    assert list(Probe(evaluator_of(Affine(), [])).outputs({})) == []
    several = Probe(evaluator_of(nn.Identity(), cases_of(volumes())))
    several.engine.network.forward = lambda images: [images, images]
    with pytest.raises(ValueError, match="list"):
        list(several.outputs({}))


def test_the_activation_is_that_of_the_postprocessing() -> None:
    both = Activationsd(["label", "pred"], sigmoid=[True, False], softmax=[False, True])
    for postprocessing, activation in (
        (Compose([SOFTMAX, AsDiscreted("pred", argmax=True)]), "softmax"),
        (both, "softmax"),
        (Compose([Activationsd("pred", other=torch.tanh), SIGMOID]), "sigmoid"),
        (AsDiscreted("pred", threshold=0.5), None),
        (None, None),
    ):
        assert probe_of(postprocessing=postprocessing).activation() == activation
        alone = probe_of(postprocessing=postprocessing, decollate=False)
        assert alone.activation() == activation


# ---- scores


def test_nothing_is_measured_on_a_part_without_cases(caplog: pytest.LogCaptureFixture) -> None:
    model = {"scale": torch.ones(())}
    memory = Memory(previous=model, present=model)
    metrics = {"hd95": SpacedHausdorff(output_transform=PREDICTION_AND_LABEL)}
    dice = MeanDice(output_transform=PREDICTION_AND_LABEL)
    probe = Probe(
        evaluator_of(Scaled(), [], key_val_metric={"dice": dice}, additional_metrics=metrics)
    )
    for name, entry in MEASUREMENTS.items():
        if entry.data != "training":
            assert entry(probe, model, memory, {"previous_weight": 0.5}) is None, name
    assert sum("'validation'" in message for message in caplog.messages) <= 1
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and math.isnan(mean.value) and mean.n == 0
    assert probe.cases == {}


@pytest.mark.parametrize(
    ("images", "names"),
    [
        ([torch.ones(1, 4, 4), torch.zeros(1, 4, 4)], ["0", "1"]),
        ([["a/t1.nii", "a/t2.nii"], ["b/t1.nii", "b/t2.nii"]], ["a/t1.nii", "b/t1.nii"]),
        (["x/elm/Case1.nii", "x/oak/Case1.nii"], ["elm/Case1.nii", "oak/Case1.nii"]),
    ],
)
def test_a_case_has_the_name_of_its_first_file_or_its_number(
    images: list[Any], names: list[str]
) -> None:
    """Cases of one name in several folders all count."""
    items = [{"image": image, "number": number} for number, image in enumerate(images)]

    def read(item: dict[str, Any]) -> dict[str, Any]:
        return {"image": torch.full((1, 4, 4), item["number"]), "label": torch.ones(1, 4, 4)}

    metric = {"dice": MeanDice(output_transform=PREDICTION_AND_LABEL)}
    probe = Probe(evaluator_of(nn.Identity(), items, transform=read, key_val_metric=metric))
    assert probe.score({})["mean"] == Estimate(0.5, pytest.approx(0.5), 2)
    assert probe.cases == {names[0]: {"dice": 0.0}, names[1]: {"dice": 1.0}}


class Counting(MeanDice):
    """Mean Dice that counts its batches."""

    def __init__(self) -> None:
        super().__init__(output_transform=from_engine(["pred", "label"]))
        self.batches = 0

    def update(self, output: Any) -> None:
        self.batches += 1
        super().update(output)


def probe_with(key_metric: Any, further: Any) -> Probe:
    """A probe of two cases, whose evaluator has a further metric."""
    label = torch.zeros(1, 4, 4)
    label[:, 1:3] = 1
    items = [{"image": image, "label": label} for image in (label, torch.ones(1, 4, 4))]
    evaluator = evaluator_of(
        Scaled(),
        items,
        key_val_metric={"dice": key_metric},
        additional_metrics={"further": further},
    )
    return Probe(evaluator)


def test_a_score_computes_the_key_metric_alone_also_where_it_is_made_of_others() -> None:
    key_metric, further = Counting(), Counting()
    probe = probe_with(key_metric, further)
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 2)
    assert (key_metric.batches, further.batches) == (2, 0)
    # A model that may have changed is scored again.
    probe.score({})
    assert key_metric.batches == 4
    # The bundle's own evaluation computes both.
    probe.engine.run()
    assert further.batches == 2
    # Without such a metric there is no surface distance.
    assert measured("test_hd95", probe, {}) is None

    dice = Counting()
    mean = probe_with(dice * 0.5, dice).score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 4)
    assert dice.batches == 2


def test_a_surface_distance_is_the_evaluators_own_and_computes_nothing_else() -> None:
    key_metric = Counting()
    label = torch.zeros(1, 8, 8, 1)
    label[:, 2:5, 2:5] = 1
    affine = torch.diag(torch.tensor([3.0, 1, 1, 1]))
    spaced = [MetaTensor(mask, affine=affine) for mask in (label, torch.roll(label, 2, dims=1))]
    items = [{"image": image, "label": spaced[0]} for image in spaced]
    evaluator = evaluator_of(
        Scaled(),
        items,
        key_val_metric={"dice": key_metric},
        additional_metrics={"hd95": SpacedHausdorff(output_transform=PREDICTION_AND_LABEL)},
    )
    # Two voxels of 3 mm in one case, none in the other.
    assert measured("test_hd95", Probe(evaluator), {}) == Estimate(3.0, 3.0, 2)
    assert key_metric.batches == 0


def test_a_probe_of_one_request_scores_a_model_once() -> None:
    metric = Counting()
    probe = Probe(probe_with(metric, Counting()).engine, remembers=True)
    model = {"scale": torch.ones(())}
    score, cases = probe.score(model), probe.take_cases()
    assert probe.cases == {}
    assert probe.score(dict(model)) == score and probe.cases == cases != {}
    assert metric.batches == 2
    assert probe.score({"scale": torch.zeros(())}) != score
    assert metric.batches == 4


def test_a_distance_is_no_score() -> None:
    """Where lower is better, FedCE would take the worst client for the best."""
    label = torch.zeros(1, 8, 8)
    label[..., 2:4, 2:4] = 1
    items = [{"image": label, "label": each} for each in (label, torch.roll(label, 3, dims=1))]
    distance = HausdorffDistance(include_background=True, output_transform=PREDICTION_AND_LABEL)
    evaluator = evaluator_of(nn.Identity(), items, key_val_metric={"distance": distance})
    with pytest.raises(ValueError, match="'distance' is 3"):
        Probe(evaluator).score({})


def probe_of_metric(metric: IgniteMetricHandler, channels: int = 1) -> Probe:
    """A probe of two cases, whose evaluator's key metric is ``metric``."""
    generator = torch.Generator().manual_seed(0)
    items = []
    for _ in range(2):
        prediction, label = torch.randint(0, 2, (2, channels, 8, 8), generator=generator)
        items.append({"image": prediction.float(), "label": label.float()})
    return Probe(evaluator_of(Scaled(), items, key_val_metric={"own": metric}))


def test_counts_of_a_case_are_no_score_of_it() -> None:
    """Panoptic quality stores true and false positives: one of each has the mean 0.5."""
    quality = PanopticQuality(num_classes=1, output_transform=PREDICTION_AND_LABEL)
    arguments: dict[str, Any] = {
        "metric_name": "f1 score",
        "output_transform": PREDICTION_AND_LABEL,
    }
    for metric, channels in ((ConfusionMatrix(**arguments), 1), (quality, 2)):
        with pytest.raises(ConfigError, match="counts"):
            probe_of_metric(metric, channels).score({})
    # One that stores no details gives its own value.
    probe = probe_of_metric(ConfusionMatrix(**arguments, save_details=False))
    score = probe.score({})
    probe.engine.run()
    assert score == {"mean": Estimate(pytest.approx(probe.engine.state.metrics["own"]))}


def test_a_metric_that_gives_a_number_of_each_class_is_scored_by_its_cases() -> None:
    arguments: dict[str, Any] = {
        "reduction": "mean_batch",
        "output_transform": PREDICTION_AND_LABEL,
    }
    probe = probe_of_metric(MeanDice(**arguments), channels=2)
    score: Any = probe.score({})
    expected = []
    for case in probe.engine.data_loader.dataset.data:  # type: ignore[union-attr]
        expected.append(compute_dice(case["image"][None], case["label"][None])[0])
    dice = torch.stack(expected)
    assert score["mean"].value == pytest.approx(float(dice.mean()))
    for number in (0, 1):
        assert float(score[str(number)]) == pytest.approx(float(dice[:, number].mean()))
    with pytest.raises(ConfigError, match="2 numbers"):
        probe_of_metric(MeanDice(**arguments, save_details=False), channels=2).score({})


# ---- losses and sharpness of training


QUADRATIC = GOLDEN["fedism"]["quadratic"]


def quadratic(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.tensor(QUADRATIC["H_diag"], dtype=torch.float64) * predicted.square()).sum()


def noisy_trainer() -> Any:
    """A net with BatchNorm and dropout on shuffled images with random noise."""
    network = conv_net()
    data = [
        {"image": image, "label": (image > 0).float()} for image in image_batches(2)[0]["image"]
    ]
    transform = Compose([RandGaussianNoised("image", prob=1.0, std=0.5)])
    transform.set_random_state(11)
    batches = DataLoader(Dataset(data, transform), batch_size=2, shuffle=True)
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    return trainer_of(network, batches, DiceCELoss(sigmoid=True), optimizer)  # type: ignore[arg-type]


def test_sharpness_and_loss_of_the_golden_quadratic_are_the_worked_ones() -> None:
    network = Point([0.0, 0.0])
    trainer = trainer_of(network, ONE_BATCH, quadratic, torch.optim.SGD(network.parameters(), 1.0))
    probe = TrainingProbe(trainer)
    model = {"w": torch.tensor(QUADRATIC["w"], dtype=torch.float64)}
    # 0.05 where the server sends no radius.
    assert measured("sharpness", probe, model) == pytest.approx(QUADRATIC["sharpness"], abs=1e-6)
    assert measured("global_loss", probe, model).value == pytest.approx(QUADRATIC["loss"])
    first_order = 1e-4 * float(np.linalg.norm(QUADRATIC["grad"]))
    small = measured("sharpness", probe, model, sam_rho=1e-4)
    assert small == pytest.approx(first_order, rel=1e-3)
    # Of a model without gradient, the perturbation is nothing.
    flat = {"w": torch.zeros(2, dtype=torch.float64)}
    assert measured("sharpness", probe, flat) == 0
    assert network.w.tolist() == [0.0, 0.0] and network.w.grad is None


def test_loss_and_sharpness_are_of_the_whole_data_set_whatever_its_batches() -> None:
    x, y = least_squares()
    weights = {"weight": torch.ones(1, 3, dtype=torch.float64)}

    def probe_of(size: int) -> TrainingProbe:
        network = nn.Linear(3, 1, bias=False, dtype=torch.float64)
        loader = [{"image": a, "label": b} for a, b in zip(x.split(size), y.split(size))]
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        return TrainingProbe(trainer_of(network, loader, half_mean_square, optimizer))

    losses = 0.5 * (x.sum(1, keepdim=True) - y).square()
    whole, parts = probe_of(12), probe_of(5)
    assert whole.loss(weights) == Estimate(pytest.approx(float(losses.mean())), None, 1)
    assert parts.loss(weights).value == pytest.approx(float(losses.mean()))
    assert parts.sharpness(weights, 0.3) == pytest.approx(whole.sharpness(weights, 0.3))
    even = probe_of(4).loss(weights)
    of_batches = [float(batch.mean()) for batch in losses.split(4)]
    assert even.n == 3 and even.stderr == pytest.approx(np.std(of_batches, ddof=1) / 3**0.5)


def test_without_any_batch_there_is_no_loss() -> None:
    network = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    probe = TrainingProbe(trainer_of(network, [], half_mean_square, optimizer))
    for name in ("global_loss", "sharpness"):
        with pytest.raises(DataError, match="'training'"):
            measured(name, probe, network.state_dict())


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


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_random_state_is_measurements_are_alike_and_do_not_show(kind: str) -> None:
    after = []
    for is_measured in (False, True):
        torch.manual_seed(5)
        loader = loaders(kind)

        def level(images: torch.Tensor, target: Any) -> torch.Tensor:
            return images.square().mean()

        network = nn.Conv2d(1, 1, 1)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        trainer = trainer_of(network, loader, level, optimizer)
        trainer.prepare_batch = lambda batch, *_, **__: (batch["image"], batch["image"])
        if is_measured:
            probe, model = TrainingProbe(trainer), network.state_dict()
            assert probe.loss(model) == probe.loss(model)
        torch.manual_seed(6)
        after.append(images_of(loader))
    assert torch.equal(*after)
