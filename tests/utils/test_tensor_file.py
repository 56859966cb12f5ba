# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A file that is written from the tensors' memory is the one that safetensors would write."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from monai_fairfl.utils.tensor_file import NAMES, PART, TensorFile, memory_of

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.builds(
    lambda dtype, shape, fill: torch.full(shape, fill).to(dtype),
    st.sampled_from(list(NAMES)),
    SHAPES,
    st.floats(0, 9),
)
NAMES_OF_TENSORS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def content_of(file: TensorFile) -> bytes:
    return b"".join(file)


@given(st.dictionaries(NAMES_OF_TENSORS, TENSORS, max_size=6))
def test_the_bytes_are_those_of_safetensors(weights: dict[str, torch.Tensor]) -> None:
    file = TensorFile(weights)
    assert content_of(file) == save(weights)
    assert file.size == len(save(weights))


def test_a_large_tensor_comes_in_parts_and_a_transposed_one_in_its_own_order() -> None:
    large = torch.arange(PART, dtype=torch.float32)
    weights = {"large": large, "transposed": torch.arange(6.0).view(2, 3).T}
    file = TensorFile(weights)
    assert max(len(part) for part in file) == PART and len(list(file)) == 1 + 4 + 1
    found = load(content_of(file))
    assert torch.equal(found["large"], large)
    assert found["transposed"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_tensor_of_one_value_or_none_may_have_any_stride() -> None:
    numbers = torch.arange(6.0)
    weights = {"one": numbers[1::5][:1], "none": numbers[6:].as_strided((0,), (3,))}
    found = load(content_of(TensorFile(weights)))
    assert found["one"].tolist() == [1.0] and found["none"].tolist() == []


def test_tensors_that_share_memory_are_each_written() -> None:
    both = torch.arange(4.0)
    found = load(content_of(TensorFile({"all": both, "end": both[2:]})))
    assert found["all"].tolist() == [0.0, 1.0, 2.0, 3.0] and found["end"].tolist() == [2.0, 3.0]


def test_the_parts_are_the_tensors_own_memory() -> None:
    tensor = torch.zeros(3, dtype=torch.uint8)
    content = memory_of(tensor)
    tensor.fill_(7)
    assert bytes(content) == b"\x07\x07\x07"
