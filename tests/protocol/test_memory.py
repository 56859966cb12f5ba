# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Memory is used again only where nobody looks at it any more."""

from __future__ import annotations

import gc

import pytest
import torch

from monai_fairfl.protocol.memory import ReusedMemory


@pytest.mark.slow
@pytest.mark.parametrize("hold", [lambda t: t[1:], lambda t: t.numpy(), lambda t: t.view(-1)])
def test_memory_that_a_view_looks_at_is_not_given_out_again(hold) -> None:  # type: ignore[no-untyped-def]
    memory = ReusedMemory(most=1000)
    first = memory.empty((4, 2), torch.float32)
    first.fill_(7.0)
    held = hold(first)
    del first
    gc.collect()
    memory.empty((4, 2), torch.float32).zero_()
    assert (held == 7.0).all()


def test_no_more_memory_is_stored_than_the_most() -> None:
    memory = ReusedMemory(most=100)
    tensors = [memory.empty((10,), torch.float32) for _ in range(4)]
    del tensors
    assert memory.free == 80


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_has_its_type_and_shape_and_aligned_memory(dtype: torch.dtype) -> None:
    memory = ReusedMemory(most=1000)
    for shape in ((2, 3), (), (0, 4)):
        tensor = memory.empty(shape, dtype)
        assert tensor.dtype == dtype and tensor.shape == shape
        assert tensor.is_contiguous() and tensor.data_ptr() % 64 == 0
