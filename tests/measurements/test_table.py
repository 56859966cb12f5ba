# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.small_evaluators import Scaled, evaluator_of
from monai.data import MetaTensor
from monai.handlers import (
    ConfusionMatrix,
    HausdorffDistance,
    IgniteMetricHandler,
    MeanDice,
    PanopticQuality,
    from_engine,
)
from monai.metrics import FBetaScore, compute_dice
from torch import nn

from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements.cka import centred_gram, cka_of_grams
from monai_fairfl.measurements.entry import Memory
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.table import MEASUREMENTS
from monai_fairfl.metrics import SpacedHausdorff
from monai_fairfl.protocol.measured import RANGES
from monai_fairfl.protocol.values import Estimate, value_of


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_the_name_of_every_measurement_shows_whose_model_it_is_of(name: str) -> None:
    MEASUREMENTS[name].check_name(name)


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_measurement_without_a_range_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RANGES, name)
    with pytest.raises(ConfigError, match=f"measurement '{name}' has no range.*Range"):
        MEASUREMENTS[name].check_name(name)


class Two(nn.Module):
    """Two layers whose features are plain products of the image and the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5, bias=False)
        self.second = nn.Linear(5, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images))


@pytest.fixture
def probe() -> Probe:
    torch.manual_seed(0)
    images = [{"image": torch.randn(4), "label": torch.zeros(1)} for _ in range(10)]
    return Probe(evaluator_of(Two(), images, batch_size=5))


def weights(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Two().state_dict()


def measured(name: str, probe: Probe, anchor: Any, local: Any, **context: float) -> Any:
    return MEASUREMENTS[name].function(probe, anchor, Memory(present=local), context)


def features(probe: Probe, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    images = torch.stack([item["image"] for item in probe.engine.data_loader.dataset.data])  # type: ignore[union-attr]
    first = images @ state["first.weight"].T
    return {"first": first, "second": first @ state["second.weight"].T + state["second.bias"]}


@pytest.mark.slow
def test_cka_and_cosine_of_each_layer_are_those_of_its_features(probe: Probe) -> None:
    local, anchor = weights(1), weights(2)
    ours, theirs = features(probe, local), features(probe, anchor)
    values = measured("cka", probe, anchor, local)
    assert set(values) == {"first", "second", "mean"}
    for layer in ours:
        expected = cka_of_grams(centred_gram(ours[layer]), centred_gram(theirs[layer]))
        assert values[layer] == pytest.approx(expected, abs=1e-5)
    cosine = measured("feature_cosine", probe, anchor, local)
    for layer in ours:
        expected = torch.nn.functional.cosine_similarity(ours[layer], theirs[layer]).mean()
        assert cosine[layer] == pytest.approx(float(expected), abs=1e-5)
    assert value_of(cosine) == pytest.approx((cosine["first"] + cosine["second"]) / 2)


@pytest.mark.slow
def test_layers_without_variation_follow_the_rule_and_diverged_ones_are_left_out(
    probe: Probe,
) -> None:
    local, silent, broken = weights(1), weights(2), weights(2)
    silent["first.weight"].zero_()
    for name in ("cka", "feature_cosine"):
        assert measured(name, probe, silent, silent)["first"] == 1
        assert measured(name, probe, silent, local)["first"] == 0
    broken["second.bias"].fill_(torch.nan)
    values = measured("cka", probe, broken, local)
    assert set(values) == {"first", "mean"} and value_of(values) == values["first"]
    broken["first.weight"].fill_(torch.nan)
    assert measured("cka", probe, broken, local) is None


def test_without_a_model_of_this_round_there_is_nothing_to_compare(probe: Probe) -> None:
    assert measured("cka", probe, weights(1), None) is None
    assert measured("feature_cosine", probe, weights(1), None) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "unbiased", "is_measured"),
    [(1, 0, False), (2, 0, False), (3, 0, False), (4, 0, True), (3, 1, False), (4, 1, True)],
)
def test_too_few_images_are_not_measured(
    probe: Probe, images: int, unbiased: int, is_measured: bool
) -> None:
    probe.engine.data_loader.dataset.data = probe.engine.data_loader.dataset.data[:images]  # type: ignore[union-attr]
    probe.engine.state.epoch_length = None
    values = measured("cka", probe, weights(1), weights(2), cka_unbiased=float(unbiased))
    assert (values is not None) == is_measured


@pytest.mark.slow
def test_cka_counts_different_images(probe: Probe) -> None:
    data = probe.engine.data_loader.dataset.data  # type: ignore[union-attr]
    data[:] = [*data[:3], *data[:3], *data[:3], data[0]]
    assert measured("cka", probe, weights(1), weights(2)) is None
    assert measured("feature_cosine", probe, weights(1), weights(2)) is not None


@pytest.mark.slow
def test_the_networks_weights_are_as_before(probe: Probe) -> None:
    before = {k: v.clone() for k, v in probe.engine.network.state_dict().items()}
    measured("cka", probe, weights(1), weights(2))
    assert all(torch.equal(before[k], v) for k, v in probe.engine.network.state_dict().items())


def test_cases_of_one_name_in_several_folders_all_count() -> None:
    files = [
        {"image": f"data/{site}/Case{case}.nii.gz"} for site in ("elm", "oak") for case in range(3)
    ]

    def read(item: dict[str, str]) -> dict[str, Any]:
        shown = torch.full((1, 4, 4), float("oak" in item["image"]))
        return {"image": shown, "label": torch.ones(1, 4, 4)}

    metric = MeanDice(output_transform=from_engine(["pred", "label"]))
    probe = Probe(
        evaluator_of(nn.Identity(), files, transform=read, key_val_metric={"dice": metric})
    )

    assert probe.score({})["mean"] == Estimate(0.5, pytest.approx(0.3**0.5 / 6**0.5), 6)
    assert {name: scores["dice"] for name, scores in probe.cases.items()} == {
        f"{site}/Case{case}.nii.gz": float(site == "oak")
        for site in ("elm", "oak")
        for case in range(3)
    }


@pytest.mark.parametrize(
    ("images", "names"),
    [
        ([torch.ones(1, 4, 4), torch.zeros(1, 4, 4)], ["0", "1"]),
        ([["a/t1.nii", "a/t2.nii"], ["b/t1.nii", "b/t2.nii"]], ["a/t1.nii", "b/t1.nii"]),
    ],
)
def test_a_case_has_the_name_of_its_first_file_or_its_number(
    images: list[Any], names: list[str]
) -> None:
    items = [{"image": image} for image in images]

    def read(item: dict[str, Any]) -> dict[str, Any]:
        return {"image": torch.ones(1, 4, 4), "label": torch.ones(1, 4, 4)}

    metric = MeanDice(output_transform=from_engine(["pred", "label"]))
    evaluator = evaluator_of(nn.Identity(), items, transform=read, key_val_metric={"dice": metric})
    probe = Probe(evaluator)
    probe.score({})
    assert list(probe.cases) == names


def test_a_distance_is_no_score() -> None:
    """Where lower is better, FedCE would take the worst client for the best."""
    labels = {"near": torch.zeros(1, 1, 8, 8), "far": torch.zeros(1, 1, 8, 8)}
    labels["near"][..., 2:4, 2:4] = labels["far"][..., 5:7, 2:4] = 1
    items = [{"image": labels["near"][0], "label": label[0]} for label in labels.values()]
    distance = HausdorffDistance(
        include_background=True, output_transform=from_engine(["pred", "label"])
    )
    evaluator = evaluator_of(nn.Identity(), items, key_val_metric={"distance": distance})
    with pytest.raises(
        ValueError, match=r"key metric 'distance' is 3 for a case.*make such a metric the key_val"
    ):
        Probe(evaluator).score({})


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


def test_a_score_computes_the_key_metric_alone() -> None:
    key_metric, further = Counting(), Counting()
    probe = probe_with(key_metric, further)
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 2)
    assert (key_metric.batches, further.batches) == (2, 0)
    # The bundle's own evaluation computes both.
    probe.engine.run()
    assert further.batches == 2


def test_a_surface_distance_is_the_evaluators_own_and_computes_nothing_else() -> None:
    key_metric = Counting()
    label = torch.zeros(1, 8, 8, 1)
    label[:, 2:5, 2:5] = 1
    moved = torch.roll(label, 2, dims=1)
    spaced = [
        MetaTensor(mask, affine=torch.diag(torch.tensor([3.0, 1, 1, 1]))) for mask in (label, moved)
    ]
    items = [{"image": image, "label": spaced[0]} for image in spaced]
    evaluator = evaluator_of(
        Scaled(),
        items,
        key_val_metric={"dice": key_metric},
        additional_metrics={
            "hd95": SpacedHausdorff(output_transform=from_engine(["pred", "label"]))
        },
    )
    found = measured("test_hd95", Probe(evaluator), {}, None)
    # Two voxels of 3 mm in one case, none in the other.
    assert found == Estimate(3.0, 3.0, 2)
    assert key_metric.batches == 0


def test_without_that_metric_there_is_no_surface_distance() -> None:
    assert measured("test_hd95", probe_with(Counting(), Counting()), {}, None) is None


def test_a_key_metric_made_of_other_metrics_has_them() -> None:
    dice = Counting()
    doubled = dice * 0.5
    mean = probe_with(doubled, dice).score({})["mean"]
    assert isinstance(mean, Estimate) and mean.value == pytest.approx((1 + 2 / 3) / 4)
    assert dice.batches == 2


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


def test_a_probe_of_ones_own_scores_a_model_again_that_may_have_changed() -> None:
    metric = Counting()
    probe = probe_with(metric, Counting())
    probe.score({})
    probe.score({})
    assert metric.batches == 4


# ---- parts of a data list without any case

PREDICTION_AND_LABEL = from_engine(["pred", "label"])


def probe_without_cases() -> Probe:
    return Probe(
        evaluator_of(
            Scaled(),
            [],
            key_val_metric={"dice": MeanDice(output_transform=PREDICTION_AND_LABEL)},
            additional_metrics={"hd95": SpacedHausdorff(output_transform=PREDICTION_AND_LABEL)},
        )
    )


@pytest.mark.parametrize(
    "name", [name for name, entry in MEASUREMENTS.items() if entry.data != "training"]
)
def test_nothing_is_measured_on_a_part_without_cases(name: str) -> None:
    model = {"scale": torch.ones(())}
    memory = Memory(previous=model, present=model)
    found = MEASUREMENTS[name].function(
        probe_without_cases(), model, memory, {"previous_weight": 0.5}
    )
    assert found is None


@pytest.mark.parametrize(
    ("names", "part"),
    [
        (["global_score", "leave_one_out_error", "local_score"], "validation"),
        (["test_score", "test_hd95", "personal_test_score"], "testing"),
    ],
)
def test_one_line_of_the_log_names_the_part_without_cases(
    names: list[str], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = probe_without_cases().engine
    for name in names:
        # A client makes a probe for each request.
        measured(name, Probe(evaluator), {}, None)
    [line] = caplog.messages
    assert f"no case under '{part}'" in line
    assert f"add cases to '{part}' in the file of its data list" in line


def test_a_probe_without_cases_gives_a_score_of_no_case() -> None:
    probe = probe_without_cases()
    probe.cases = {"of_another_model": {"dice": 0.5}}
    mean = probe.score({})["mean"]
    assert isinstance(mean, Estimate) and math.isnan(mean.value) and mean.n == 0
    assert probe.cases == {}


# ---- key metrics whose details are no scores


def probe_of_metric(metric: IgniteMetricHandler, channels: int = 1) -> Probe:
    """A probe of two cases, whose evaluator's key metric is ``metric``."""
    generator = torch.Generator().manual_seed(0)
    items = []
    for _ in range(2):
        prediction, label = torch.randint(0, 2, (2, channels, 8, 8), generator=generator)
        items.append({"image": prediction.float(), "label": label.float()})
    return Probe(evaluator_of(Scaled(), items, key_val_metric={"own": metric}))


@pytest.mark.parametrize(
    ("metric", "name", "channels"),
    [
        (
            ConfusionMatrix(metric_name="f1 score", output_transform=PREDICTION_AND_LABEL),
            "ConfusionMatrixMetric",
            1,
        ),
        (
            IgniteMetricHandler(FBetaScore(), output_transform=PREDICTION_AND_LABEL),
            "FBetaScore",
            1,
        ),
        (
            PanopticQuality(num_classes=1, output_transform=PREDICTION_AND_LABEL),
            "PanopticQualityMetric",
            2,
        ),
    ],
)
def test_counts_of_a_case_are_no_score_of_it(
    metric: IgniteMetricHandler, name: str, channels: int
) -> None:
    """Panoptic quality stores true and false positives: one of each has the mean 0.5."""
    with pytest.raises(ConfigError, match=f"'own' is a {name}, which stores counts.*MeanDice"):
        probe_of_metric(metric, channels).score({})


def test_a_counting_metric_that_stores_no_details_gives_its_own_value() -> None:
    metric = ConfusionMatrix(
        metric_name="f1 score", output_transform=PREDICTION_AND_LABEL, save_details=False
    )
    probe = probe_of_metric(metric)
    score = probe.score({})
    probe.engine.run()
    assert score == {"mean": Estimate(pytest.approx(probe.engine.state.metrics["own"]))}


def test_a_metric_that_gives_a_number_of_each_class_is_scored_by_its_cases() -> None:
    metric = MeanDice(reduction="mean_batch", output_transform=PREDICTION_AND_LABEL)
    probe = probe_of_metric(metric, channels=2)
    score = probe.score({})
    expected = []
    for case in probe.engine.data_loader.dataset.data:  # type: ignore[union-attr]
        expected.append(compute_dice(case["image"][None], case["label"][None])[0])
    dice = torch.stack(expected)
    assert value_of(score) == pytest.approx(float(dice.mean()))
    assert float(score["0"]) == pytest.approx(float(dice[:, 0].mean()))
    assert float(score["1"]) == pytest.approx(float(dice[:, 1].mean()))


def test_numbers_of_classes_without_those_of_cases_are_refused() -> None:
    metric = MeanDice(
        reduction="mean_batch", output_transform=PREDICTION_AND_LABEL, save_details=False
    )
    with pytest.raises(ConfigError, match="'own' gives 2 numbers.*reduction to 'mean'"):
        probe_of_metric(metric, channels=2).score({})
