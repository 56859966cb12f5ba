# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""CKA and cosine of features, layer by layer: worked numbers, the textbook, and odd networks."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_evaluators import cases_of, evaluator_of
from monai.networks.nets import UNet
from torch import nn

from monai_fairfl.measurements import Memory, Probe
from monai_fairfl.messages import MEASUREMENTS


def measured(name: str, probe: Probe, anchor: Any, local: Any, **context: float) -> Any:
    return MEASUREMENTS[name](probe, anchor, Memory(present=local), context)


def alike(one: Any, two: Any, name: str = "cka", **context: float) -> float | None:
    """A measurement of two models whose layer gives these features (n, z) of n images.

    Image i is 1 in place i and 0 elsewhere, so the layer's weights are the features.
    """
    one, two = torch.as_tensor(one), torch.as_tensor(two)
    n, width = len(one), max(one.shape[1], two.shape[1])
    network = nn.Sequential(nn.Linear(n, width, bias=False)).to(one.dtype)
    models = []
    for features in (one, two):
        padded = torch.zeros(width, n, dtype=one.dtype)
        padded[: features.shape[1]] = features.T
        models.append({"0.weight": padded})
    images = cases_of(list(torch.eye(n, dtype=one.dtype)))
    probe = Probe(evaluator_of(network, images, batch_size=4))
    found = measured(name, probe, models[1], models[0], **context)
    if found is None:
        return None
    assert set(found) == {"0", "mean"} and found["mean"] == found["0"]
    value: float = found["0"]
    return value


def unbiased(one: Any, two: Any) -> float | None:
    return alike(one, two, cka_unbiased=1.0)


def random_features(seed: int, n: int, z: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, z)))


def textbook(one: torch.Tensor, two: torch.Tensor) -> float:
    """Kornblith et al., written out with the centring matrix."""
    n = len(one)
    centring = np.eye(n) - np.ones((n, n)) / n
    k = centring @ (one.double() @ one.double().T).numpy() @ centring
    v = centring @ (two.double() @ two.double().T).numpy() @ centring
    return float(np.sum(k * v) / (np.linalg.norm(k) * np.linalg.norm(v)))


def hsic_1(one: torch.Tensor, two: torch.Tensor) -> float:
    """The mean over ordered quadruples of different samples (Gretton's U-statistic)."""
    k, v = (one @ one.T).numpy(), (two @ two.T).numpy()
    i, j, q, r = np.array(list(permutations(range(len(k)), 4))).T
    return float(np.mean(k[i, j] * v[i, j] + k[i, j] * v[q, r] - 2 * k[i, j] * v[i, q]))


# ---- the formulas


def test_it_is_that_of_the_textbook_at_any_scale() -> None:
    one, two = random_features(7, 7, 2) + 3, random_features(8, 7, 9)
    expected = pytest.approx(textbook(one, two), abs=2e-6)
    for scale in (1, 1e-6, 1000):
        assert alike(one, scale * two) == expected


def test_the_unbiased_estimate_is_a_ratio_of_sums_over_batches_of_eight() -> None:
    one, two = random_features(3, 18, 3) + 2, random_features(4, 18, 2)
    sums = np.zeros(3)
    for begin in (0, 8):  # a last batch of fewer than four is dropped
        a, b = one[begin : begin + 8], two[begin : begin + 8]
        sums += [hsic_1(a, b), hsic_1(a, a), hsic_1(b, b)]
    expected = sums[0] / np.sqrt(sums[1] * sums[2])
    assert unbiased(one, two) == pytest.approx(expected, abs=2e-6)


def test_features_that_do_not_vary_and_those_of_diverged_models() -> None:
    # No more noise than a forward pass's rounding.
    constant = torch.full((6, 3), 0.1).double() + 1e-9 * random_features(1, 6, 3)
    other = torch.tensor([7.3, -1e4, 0.3]).double().expand(6, 3)
    varied = random_features(0, 6, 3)
    for function in (alike, unbiased):
        assert function(constant, other) == 1.0
        assert function(constant, varied) == function(varied, constant) == 0.0
    broken = varied.clone()
    broken[2, 1] = torch.nan
    # Not a number that looks right.
    assert alike(broken, varied) is None


def test_cosines_are_the_mean_over_images() -> None:
    one, two = random_features(1, 5, 4), random_features(2, 5, 4)
    expected = torch.nn.functional.cosine_similarity(one, two).mean()
    assert alike(one, two, "feature_cosine") == pytest.approx(float(expected), abs=2e-6)
    nothing = torch.zeros_like(one)
    assert alike(nothing, nothing, "feature_cosine") == 1
    assert alike(nothing, one, "feature_cosine") == 0


# ---- features of networks


def noisy(network: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """The network's weights with noise; its counters as they are."""
    torch.manual_seed(seed)
    own = network.state_dict().items()
    return {n: w + 0.1 * torch.rand_like(w) if w.is_floating_point() else w.clone() for n, w in own}


def compared(network: nn.Module, images: torch.Tensor) -> dict[str, float]:
    """CKA of a network's own weights and noisy ones."""
    probe = Probe(evaluator_of(network, cases_of(list(images)), batch_size=4))
    own = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    found: dict[str, float] = measured("cka", probe, noisy(network, 1), own)
    return found


def features_by_hooks(
    network: nn.Module, weights: dict[str, torch.Tensor], images: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Oracle: layer -> its output in one forward pass."""
    outputs: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in network.named_modules():
        if list(module.parameters(recurse=False)):
            hooks.append(
                module.register_forward_hook(
                    lambda m, i, o, name=name: outputs.update({name: o.flatten(1)})
                )
            )
    network.load_state_dict(weights)
    with torch.no_grad():
        network.eval()(images)
    for hook in hooks:
        hook.remove()
    return outputs


def test_every_layer_of_a_unet_is_compared_by_name() -> None:
    network = UNet(2, 1, 2, (4, 8, 8), (2, 2), num_res_units=2, norm="batch").train()
    images = torch.randn(11, 1, 16, 16)
    own = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    found = compared(network, images)
    # Weights and mode are as before.
    assert all(torch.equal(own[key], tensor) for key, tensor in network.state_dict().items())
    assert network.training
    expected_names = {name.rpartition(".")[0] for name, _ in network.named_parameters()}
    assert set(found) == {*expected_names, "mean"}
    mine = features_by_hooks(network, own, images)
    theirs = features_by_hooks(network, noisy(network, 1), images)
    for layer in expected_names:
        assert found[layer] == pytest.approx(textbook(mine[layer], theirs[layer]), abs=1e-4)
    assert found["mean"] == pytest.approx(np.mean([found[layer] for layer in expected_names]))


def test_features_that_do_not_fit_into_the_memory_at_once_come_in_pieces() -> None:
    """Twelve images of 4.5 million features: 30 each, repeated; the last, in another piece, count
    most.
    """
    torch.manual_seed(0)
    network, images = nn.Conv2d(2, 2, 1), torch.rand(12, 2, 15, 1)
    images[:, :, 14] *= 10
    large = images.repeat_interleave(100, 2).expand(-1, -1, -1, 1500)
    found = compared(network, large)[""]
    assert found == pytest.approx(compared(network, images)[""], abs=1e-4)
