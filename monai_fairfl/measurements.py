# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What a client can measure: one entry in :data:`MEASUREMENTS` per name, each a plain function.

A measurement is ``(probe, weights, memory, context) -> value``: ``probe`` scores weights on this client's data,
``weights`` is the model in question, ``memory`` what the client kept of its own last round, ``context`` the numbers
the server sent. ``None`` means that it could not be measured, and the server is told nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from monai_fairfl.messages import Estimate, Measurement, Weights
from monai_fairfl.probe import Probe

__all__ = ["MEASUREMENTS", "Memory", "leave_one_out_error", "leave_one_out_model", "score"]


@dataclass(frozen=True)
class Memory:
    """What a client knows of its own past: the weights it trained in ``round``, if that was the round before."""

    local: Weights | None = None


Function = Callable[[Probe, Weights, Memory, Mapping[str, float]], Measurement | None]


def score(probe: Probe, weights: Weights, memory: Memory, context: Mapping[str, float]) -> Measurement | None:
    """Mean Dice of ``weights`` on this client's validation data; per class too."""
    return probe.score(weights)


def leave_one_out_error(
    probe: Probe, weights: Weights, memory: Memory, context: Mapping[str, float]
) -> Measurement | None:
    r"""FedCE's error of the model without this client (Jiang et al., CVPR 2023, Eq. 3): 1 - Dice(w^{-i}) in [0, 1].

    ``context["previous_weight"]`` is the weight with which this client's last update entered ``weights``; 0 means
    that it did not, and the received model is itself the one without this client.
    """
    previous = context.get("previous_weight", 0.0)
    if previous == 0:
        without = weights
    elif memory.local is None or not 0 < previous <= 1 - 1e-6:
        return None
    else:
        without = leave_one_out_model(weights, memory.local, previous)
    dice = probe.score(without)["mean"]
    assert isinstance(dice, Estimate)
    return Estimate(1 - dice.value, dice.stderr, dice.n)


def leave_one_out_model(weights: Weights, local: Weights, previous_weight: float) -> dict[str, torch.Tensor]:
    r"""The received model less one client: w^{-i} = (w - pi w_i) / (1 - pi).

    Exact when ``local`` (w_i) entered ``weights`` (w) with weight pi. Counters are copied; running variances, which
    rounding or another buffer policy could push below zero, are held at 0.

    >>> leave_one_out_model({"w": torch.tensor([2.0])}, {"w": torch.tensor([3.0])}, 0.5)["w"].tolist()
    [1.0]
    """
    without = dict(weights)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and name in local:
            rest = (tensor.double() - previous_weight * local[name].double()) / (1 - previous_weight)
            without[name] = (rest.clamp(min=0) if name.endswith("running_var") else rest).to(tensor.dtype)
    return without


@dataclass(frozen=True)
class Entry:
    """When a measurement is made: of the ``"received"`` model, before any training, or of the ``"trained"`` one."""

    of: str
    function: Function
    data: str = "validation"


MEASUREMENTS: dict[str, Entry] = {
    "leave_one_out_error": Entry("received", leave_one_out_error),
    "global_score": Entry("received", score),
    "score": Entry("received", score),
    "test_score": Entry("received", score, data="test"),
    "local_score": Entry("trained", score),
}
"""name -> entry. A new client half is one more entry; ``train_loss`` comes from a handler during training."""
