# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the methods' own quantities mean: the texts that the report shows beside their figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """How the report shows one of the ``details`` of a ledger's record.

    Args:
        title: plain words, without units.
        axis: title of the axis.
        meaning: one sentence with unit and range.
        key: what a bare number among its keys stands for, such as ``"class"``.
    """

    title: str
    axis: str
    meaning: str = ""
    key: str = ""


QUANTITIES = {
    "CFFL reputation": Quantity(
        "Reputation",
        "Reputation",
        "Follows the validation Dice of each site's own model; the sites' reputations sum to "
        "1, and 0 is a site that no longer counts.",
    ),
    "cosine": Quantity(
        "Agreement with the step by reputations",
        "Cosine",
        "Cosine of a site's update and the sum of all updates by the reputations before the "
        "round, which is the server's step unless another weighting is given (or its Shapley "
        "value, with exact=True): 1 is the same direction, 0 a right angle, -1 the opposite.",
    ),
    "CGSV reputation": Quantity(
        "Reputation",
        "Reputation",
        "Moving average of that agreement; sums to 1 over the sites.",
    ),
    "FairFed gap": Quantity(
        "Distance from the mean Dice",
        "Distance",
        "How far the received model's validation Dice at a site is from the mean, whichever "
        "side, from 0 to 1.",
    ),
    "round_value": Quantity(
        "Value in the round",
        "Dice",
        "Shapley value of a site in this round alone, in validation Dice; negative: the "
        "coalitions score less with it.",
    ),
    "FedGA gap": Quantity(
        "Generalisation gap",
        "Loss",
        "Training loss of the averaged model less that of the site's own model which went "
        "into it; positive: averaging cost the site something.",
    ),
    "sharpness": Quantity(
        "Sharpness",
        "Loss",
        "How much the training loss rises when the received model moves a small distance up "
        "its gradient; high is sharp, which is thought to generalise worse.",
    ),
    "layer_weight": Quantity(
        "Layer weights",
        "Weight",
        "Weight of each site in each layer; a layer sums to 1.",
    ),
    "at_clip": Quantity(
        "Layers too alike to tell",
        "Share",
        "Share of a site's layers whose similarity is at its upper limit; where all sites are"
        " at 1, the round was a plain average.",
    ),
    "similarity": Quantity(
        "Similarity of features",
        "Similarity",
        "How alike the features of the site's own and of the average model are on its data, "
        "per layer: 1 is the same. It is clipped as the strategy says.",
    ),
    "drop": Quantity(
        "Dice lost without the site",
        "Dice",
        "Validation Dice of everybody's model less that of the model without the site; "
        "negative: better without it.",
    ),
    "kept": Quantity(
        "Share of the step received",
        "Share",
        "How much of the global step each site's reward holds, from 0 to 1: all.",
    ),
    "mixing": Quantity(
        "Share of the global model",
        "Share",
        "Each site's next model: 1 is the global model, 0 the one it trained.",
    ),
    "class_value": Quantity(
        "Class values",
        "Cosine",
        "Cosine of a site's update and the sum of all updates by the previous weights of the "
        "method, in the output layer's row of each class, smoothed over rounds: 1 is the same"
        " direction, -1 the opposite.",
        key="class",
    ),
    "scale": Quantity(
        "Factor of the update",
        "Factor",
        "What each site's update is multiplied with before it is averaged; 1 is FedAvg's.",
    ),
}
"""Name, or strategy and name where several methods give one -> its texts."""


def quantity(strategy: str, name: str) -> Quantity:
    """The texts of a detail; one that no shipped method gives has its name alone.

    >>> quantity("CGSV", "cosine").axis, quantity("FedGA", "gap").axis, quantity("Mine", "gap").axis
    ('Cosine', 'Loss', 'gap')
    """
    unknown = Quantity(name, name, "As the strategy reports it.")
    return QUANTITIES.get(f"{strategy} {name}") or QUANTITIES.get(name, unknown)
