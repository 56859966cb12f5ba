# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that cross together are the same as those that cross one by one.

The bytes are packed and unpacked on the CPU here, as for a GPU; the meta device shows where tensors
are put.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.checkout import DEVICE

from monai_fairfl.utils import tensors as module
from monai_fairfl.utils.tensors import copied_together, moved, names_not_finite, on_cpu

CPU = torch.device("cpu")
META = torch.device("meta")


def odd_tensors() -> list[torch.Tensor]:
    """Everything that a model's state or an optimizer's may hold, and its odd shapes."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(6, 8, generator=generator)
    kernels = torch.randn(4, 3, 5, 5, generator=generator)
    volumes = torch.randn(2, 3, 4, 5, 6, generator=generator)
    shared = torch.randn(10, generator=generator)
    return [
        torch.tensor(7),  # a counter of batches
        torch.tensor(3.0),
        torch.tensor([True, False, True]),
        torch.randn(3, generator=generator).half(),
        torch.randn(5, generator=generator).bfloat16(),
        torch.randn(2, 2, generator=generator, dtype=torch.float64),
        torch.tensor([float("nan"), float("-inf"), -0.0]),
        torch.empty(0),
        torch.empty(3, 0, dtype=torch.int64),
        whole.T,
        whole[::2, 1::3],
        kernels.to(memory_format=torch.channels_last),
        volumes.to(memory_format=torch.channels_last_3d),
        torch.ones(1).expand(4, 3),
        shared[:6],
        shared[4:],  # the same memory as the one before
        torch.nn.Parameter(torch.randn(2, 3, generator=generator)),
        torch.randn(3, generator=generator, dtype=torch.complex64),
        torch.tensor([-1, 127], dtype=torch.int8),
    ]


def plainly(tensor: torch.Tensor) -> torch.Tensor:
    """What one tensor's own transfer gives."""
    return tensor.detach().cpu().clone()


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape, found.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    # Not even the sign of a zero differs.
    assert found.contiguous().view(-1).tolist().__repr__() == expected.flatten().tolist().__repr__()
    assert not found.requires_grad


def test_tensors_that_cross_together_are_those_that_cross_one_by_one() -> None:
    sources = [tensor.to(DEVICE) for tensor in odd_tensors()]
    found = copied_together(sources, CPU)
    assert len(found) == len(sources)
    for tensor, source in zip(found, sources, strict=True):
        assert_same(tensor, plainly(source))


def test_no_copy_shares_memory_with_another_or_with_its_source() -> None:
    sources = odd_tensors()
    found = copied_together(sources, CPU)
    filled = [tensor for tensor in found if tensor.numel()]
    memories = {tensor.untyped_storage().data_ptr() for tensor in filled}
    of_sources = {tensor.untyped_storage().data_ptr() for tensor in sources if tensor.numel()}
    assert len(memories) == len(filled) and not memories & of_sources
    for tensor in filled:
        # A file of one tensor does not hold the others.
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def nested() -> dict[str, Any]:
    return {
        "local": {"w": torch.ones(2, 2), "batches": torch.tensor(3)},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0), "moment": torch.full((2, 2), 5.0)}}},
        "schedulers": [{"last": 3, "rates": (0.1, torch.tensor(0.2))}],
        "nothing": None,
    }


def test_tensors_from_elsewhere_take_their_own_places_among_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = nested()
    # Adam's counters are on the CPU, and all else is where the network is.
    value["local"]["w"] = value["local"]["w"].to(META)
    value["local"]["batches"] = value["local"]["batches"].to(META)
    value["optimizer"]["state"][0]["moment"] = torch.empty(2, 2, device=META)
    crossings = []

    def arrive(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        crossings.append([tuple(tensor.shape) for tensor in tensors])
        return [torch.ones(2, 2), torch.tensor(3), torch.full((2, 2), 5.0)]

    monkeypatch.setattr(module, "copied_together", arrive)
    found = on_cpu(value)
    assert crossings == [[(2, 2), (), (2, 2)]]
    assert repr(found) == repr(nested())


def test_on_the_cpu_a_state_is_copied_and_weights_are_left_where_they_are() -> None:
    value = nested()
    found = on_cpu(value)
    value["local"]["w"].zero_()
    assert repr(found) == repr(nested())
    assert moved(value["local"], CPU) is value["local"]


def test_only_tensors_that_lie_elsewhere_are_moved() -> None:
    there = torch.empty(2, 3, device=META)
    weights = {"w": torch.ones(4, 2), "there": there, "batches": torch.tensor(3)}
    found = moved(weights, META)
    assert list(found) == list(weights) and found["there"] is there
    for name, tensor in found.items():
        assert tensor.device == META
        assert (tensor.shape, tensor.dtype) == (weights[name].shape, weights[name].dtype)


def test_tensors_that_are_not_finite_are_found_by_one_question() -> None:
    weights = {
        "w": torch.ones(2, 2),
        "batches": torch.tensor(3),
        "mask": torch.tensor([0.0, float("-inf")]),
        "empty": torch.empty(0),
        "half": torch.tensor([float("nan")], dtype=torch.float16),
    }
    assert names_not_finite(weights) == ["mask", "half"]
    assert names_not_finite({}) == []
