# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What is scored: the key metric, the network's output, and the test cases."""

from __future__ import annotations

from typing import Any

import torch
from monai.networks.utils import eval_mode, train_mode

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.adoption.training_config import (
    EVALUATOR,
    TRAINER,
    TrainingConfig,
    target_of,
)
from monai_fairfl.errors import in_words
from monai_fairfl.utils.tensors import own_random_state

KEY_METRIC = f"{EVALUATOR}#key_val_metric"
FURTHER_METRICS = f"{EVALUATOR}#additional_metrics"

DICE = {"MeanDice"}
OVERLAPS = {"MeanIoUHandler", "MeanIoU"}
"""Scores of the same outputs as a Dice, with the same arguments."""

MEAN_DICE = {
    "val_mean_dice": {
        "_target_": "MeanDice",
        "include_background": False,
        "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
    }
}


def adopt_score(config: TrainingConfig) -> None:
    """Let the validation's key metric be a mean Dice, of which every report speaks."""
    if config.get(EVALUATOR) is None:
        return
    metrics = _metrics(config, KEY_METRIC)
    name = next(iter(metrics), "")
    target = target_of(metrics.get(name))
    if target in DICE:
        config.changed.append(
            f"Score: {name} ({target}) of each site's validation and test cases stays."
        )
        return

    further = _metrics(config, FURTHER_METRICS)
    for other, section in further.items():
        if target_of(section) in DICE:
            remaining = {label: one for label, one in further.items() if label != other}
            config.set(KEY_METRIC, {other: section})
            config.set(FURTHER_METRICS, {**remaining, **metrics})
            config.changed.append(
                f"Score: {other} (MeanDice) is the key metric in the place of {name} ({target}), "
                "so that reports speak of Dice."
            )
            return
    if target in OVERLAPS:
        dice = {**metrics[name], "_target_": "MeanDice"}
        config.set(KEY_METRIC, {"val_mean_dice": dice})
        config.set(FURTHER_METRICS, {**further, **metrics})
        config.changed.append(
            f"Score: val_mean_dice (MeanDice) of the same outputs is the key metric in place of "
            f"{name} ({target}), so that reports speak of Dice."
        )
        return
    config.set(KEY_METRIC, MEAN_DICE)
    config.changed.append(
        f"Score: the bundle's {name or 'key metric'} ({target or 'none'}) is no overlap, so "
        "val_mean_dice is the key metric; its postprocessing must give one channel for each class."
    )


def _metrics(config: TrainingConfig, key: str) -> dict[str, Any]:
    """The sections of metrics by name."""
    place = config.find(key)
    written = config.get(place) if place else None
    return dict(written) if isinstance(written, dict) else {}


def adopt_network(config: TrainingConfig) -> None:
    """Let the network be found under ``network_def``, and let one output of it be scored."""
    if config.get("network_def") is None:
        place = config.find(f"{TRAINER}#network")
        if place is None:
            return
        config.set("network_def", config.get(place))
        config.changed.append(f"Network: {place} is the network_def of the server's first model.")
    try:
        training, scoring = _outputs(config)
    except Exception as error:  # whatever a network raises
        config.left.append(
            f"Outputs: the network was not tried on an empty image: {in_words(error)}"
        )
        return
    if training > 1:
        config.changed.append(
            f"Outputs: the network gives {training} outputs in training (deep supervision); its "
            "loss gets all of them."
        )
        _score_no_training_output(config)
    if scoring > 0 and config.get(EVALUATOR) is not None:
        _score_first_output(config)


def _outputs(config: TrainingConfig) -> tuple[int, int]:
    """How many outputs the network gives for an empty image, in training and when it is scored.

    A single tensor counts as 0 where it is scored, and outputs in one tensor as their number.
    """
    shape = list(configuration.input_shape(config.root))
    if "network_def#in_channels" in config.parser:
        shape[1] = int(config.built("network_def#in_channels"))
    with own_random_state(0), torch.no_grad():
        network = config.built("network_def").cpu()
        image = torch.zeros(shape)
        with eval_mode(network):
            scored = network(image)
        with train_mode(network):
            # Batch normalisation needs more than one value for each channel.
            trained = network(image.expand(2, *shape[1:]))
    number_scored = len(scored) if isinstance(scored, (list, tuple, dict)) else 0
    if isinstance(trained, (list, tuple, dict)):
        return len(trained), number_scored
    stacked = isinstance(scored, torch.Tensor) and trained.ndim == scored.ndim + 1
    return trained.shape[1] if stacked else 1, number_scored


def _score_no_training_output(config: TrainingConfig) -> None:
    """Leave out the trainer's metric and postprocessing, which take one output."""
    for name in ("key_train_metric", "additional_metrics", "postprocessing"):
        if config.get(f"{TRAINER}#{name}") is not None:
            config.set(f"{TRAINER}#{name}", None)


def _score_first_output(config: TrainingConfig) -> None:
    """Let the evaluator take the first of several outputs, the one of full size."""
    inferer = config.get(f"{EVALUATOR}#inferer")
    config.set(
        f"{EVALUATOR}#inferer",
        {"_target_": "monai_fairfl.inferers.FirstOutputInferer", "inferer": inferer},
    )
    config.changed.append("Outputs: the first of the network's outputs is scored.")


def score_test_cases(config: TrainingConfig) -> None:
    """Let the evaluator of ``evaluate.json`` score the test cases.

    Args:
        config: of the training, followed by the bundle's own ``evaluate.json``.
    """
    loader = config.find(f"{EVALUATOR}#val_data_loader")
    dataset = config.find(f"{loader}#dataset") if loader else None
    if dataset is not None:
        config.set(f"{dataset}#data", "$@datalist['testing']")
