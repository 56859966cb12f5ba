# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a client can measure: one entry in :data:`MEASUREMENTS` per name, each a plain function.

A measurement is ``(probe, weights, memory, context) -> value``: ``probe`` runs weights on this
client's data, ``weights`` is the model in question, ``memory`` what the client kept of its own
training, ``context`` the numbers the server sent. ``None`` means that it could not be measured, and
the server is told nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from monai_fairfl.measurements.cka import (
    COLUMNS,
    LEAST_IMAGES,
    centred_gram,
    cka_of_grams,
    minibatch_cka,
)
from monai_fairfl.measurements.features import (
    count_different,
    network_inputs,
    paired_features,
    scored_layers,
)
from monai_fairfl.measurements.probe import Probe
from monai_fairfl.measurements.training_probe import TrainingProbe
from monai_fairfl.protocol.values import Estimate, Measurement, Weights


@dataclass(frozen=True)
class Memory:
    """What a client knows of its own training; ``None``: it does not.

    Args:
        previous: the weights it trained in the round before, exactly.
        present: the weights it has trained in this round.
    """

    previous: Weights | None = None
    present: Weights | None = None


Context = Mapping[str, float]
Function = Callable[[Any, Weights, Memory, Context], Measurement | None]


def score(probe: Probe, weights: Weights, memory: Memory, context: Context) -> Measurement:
    """Mean Dice of ``weights`` on this client's validation or test data; per class too."""
    return probe.score(weights)


def loss(probe: TrainingProbe, weights: Weights, memory: Memory, context: Context) -> Measurement:
    """The bundle's training loss of ``weights`` on the local training data, the same crops each
    time.
    """
    return probe.loss(weights)


def sharpness(
    probe: TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement:
    """FedISM's sharpness of ``weights`` (IJCAI 2024) on the local training data; radius
    ``sam_rho``.
    """
    return probe.sharpness(weights, context.get("sam_rho", 0.05))


def leave_one_out_error(
    probe: Probe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    r"""FedCE's error of the model without this client (Jiang et al., CVPR 2023, Eq. 3): 1 -
    Dice(w^{-i}) in [0, 1].

    ``context["previous_weight"]`` is the weight with which this client's last update entered
    ``weights``; 0 means that it did not, and the received model is itself the one without this
    client.
    """
    previous = context.get("previous_weight", 0.0)
    if previous == 0:
        without = weights
    elif memory.previous is None or not 0 < previous <= 1 - 1e-6:
        return None
    else:
        without = leave_one_out_model(weights, memory.previous, previous)
    dice = probe.score(without)["mean"]
    assert isinstance(dice, Estimate)
    return Estimate(1 - dice.value, dice.stderr, dice.n)


def leave_one_out_model(
    weights: Weights, local: Weights, previous_weight: float
) -> dict[str, torch.Tensor]:
    r"""The received model less one client: w^{-i} = (w - pi w_i) / (1 - pi).

    Exact when ``local`` (w_i) entered ``weights`` (w) with weight pi. Counters are copied; running
    variances, which rounding or another buffer policy could push below zero, are held at 0.

    >>> leave_one_out_model({"w": torch.tensor([2.0])}, {"w": torch.tensor([3.0])}, 0.5)["w"].tolist()
    [1.0]
    """
    without = dict(weights)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and name in local:
            rest = (tensor.double() - previous_weight * local[name].double()) / (
                1 - previous_weight
            )
            without[name] = (rest.clamp(min=0) if name.endswith("running_var") else rest).to(
                tensor.dtype
            )
    return without


def cka(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """Fed-LWR's CKA of each layer (MICCAI 2024, Eq. 3-4), of this client's trained model and
    ``weights``, the anchor.

    Layer -> CKA, and ``"mean"`` over the layers; nothing of fewer than four different images: of
    two, the biased estimate is 1 whatever the models. ``cka_unbiased`` takes the mini-batch
    estimator of the authors' code.
    """
    grams: dict[str, list[torch.Tensor]] = {}
    for layer, *pair in _features(probe, weights, memory, LEAST_IMAGES):
        sums = grams.setdefault(
            layer, [torch.zeros(len(u), len(u), dtype=torch.float64) for u in pair]
        )
        for total, piece in zip(sums, pair, strict=True):
            total += centred_gram(piece)
    unbiased = bool(context.get("cka_unbiased", 0))
    alike: Callable[..., float] = minibatch_cka if unbiased else cka_of_grams
    return _by_layer({layer: alike(*pair) for layer, pair in grams.items()})


def feature_cosine(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, context: Context
) -> Measurement | None:
    """The cosine of both models' features, mean over images; by layer and ``"mean"`` (Fed-LWR's
    ablation).
    """
    products: defaultdict[str, torch.Tensor | int] = defaultdict(
        int
    )  # layer -> (3, n): u v, u u, v v
    for layer, u, v in _features(probe, weights, memory):
        for a, b in zip(
            u.split(COLUMNS, 1), v.split(COLUMNS, 1), strict=True
        ):  # float64 of all would be large
            a, b = a.double(), b.double()
            products[layer] += torch.stack([(a * b).sum(1), a.square().sum(1), b.square().sum(1)])
    return _by_layer({layer: float(_cosines(*sums).mean()) for layer, sums in products.items()})  # type: ignore[misc]


def _features(
    probe: Probe | TrainingProbe, weights: Weights, memory: Memory, least: int = 1
) -> Any:
    """(layer, features of this round's own model, features of ``weights``), piece by piece.

    Nothing without a model, or with fewer than ``least`` different images.
    """
    if memory.present is None:
        return ()
    network: Any = probe.engine.network
    images = network_inputs(probe.engine)
    if count_different(images) < least:
        return ()
    return paired_features(network, memory.present, weights, images, scored_layers(network))


def _cosines(product: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Cosines from inner products; 1 where both vectors are zero, 0 where one is."""
    cosines = product / (first.sqrt() * second.sqrt())
    return torch.where(
        (first == 0) | (second == 0), ((first == 0) & (second == 0)).double(), cosines
    )


def _by_layer(values: Mapping[str, float]) -> Measurement | None:
    """``values`` that are finite, and their mean."""
    finite = {layer: value for layer, value in values.items() if math.isfinite(value)}
    return {"mean": sum(finite.values()) / len(finite), **finite} if finite else None


@dataclass(frozen=True)
class Entry:
    """One measurement.

    Args:
        of: the ``"received"`` model, before any training, the ``"trained"`` one, or the
            ``"personal"`` one (Ditto).
        function: makes it.
        data: ``"validation"``, ``"test"`` or ``"training"``.
        needs: what it must remember, a field of :class:`Memory`; nothing when empty.
        training_key: context key that, at 1, moves it to the training data.
    """

    of: str
    function: Function
    data: str = "validation"
    needs: str = ""
    training_key: str = ""

    def data_for(self, context: Context) -> str:
        """The data on which this context wants it."""
        return "training" if context.get(self.training_key, 0) else self.data


MEASUREMENTS: dict[str, Entry] = {
    "leave_one_out_error": Entry("received", leave_one_out_error, needs="previous"),
    "global_score": Entry("received", score),
    "score": Entry("received", score),
    "test_score": Entry("received", score, data="test"),
    "local_score": Entry("trained", score),
    "personal_score": Entry("personal", score),
    "personal_test_score": Entry("personal", score, data="test"),
    "global_loss": Entry("received", loss, data="training"),
    "local_loss": Entry("trained", loss, data="training"),
    "sharpness": Entry("received", sharpness, data="training"),
    "cka": Entry("received", cka, needs="present", training_key="cka_training"),
    "feature_cosine": Entry(
        "received", feature_cosine, needs="present", training_key="cka_training"
    ),
}
"""name -> entry. A new client half is one more entry; ``train_loss`` comes from a handler during
training.
"""
