# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from monai_fairfl.protocol.geometry import Geometry, cosine
from monai_fairfl.protocol.model_spec import ModelSpec
from monai_fairfl.protocol.update_matrix import BLOCK, UpdateMatrix

SPEC = ModelSpec(
    ("a.weight", "head.bias", "head.weight"),
    layers={"a.weight": "a", "head.bias": "head", "head.weight": "head"},
    output=("head", 0),
)
SHAPES = {"a.weight": (5, 2), "head.weight": (3, 4, 1, 1), "head.bias": (3,)}


Updates = list[dict[str, torch.Tensor]]


def geometry_of(
    count: int, spec: ModelSpec = SPEC, shapes: dict[str, tuple[int, ...]] = SHAPES, seed: int = 0
) -> tuple[Geometry, Updates]:
    """Random updates, and their geometry."""
    generator = torch.Generator().manual_seed(seed)
    updates = []
    for _ in range(count):
        updates.append({k: torch.randn(v, generator=generator) for k, v in shapes.items()})
    matrix = UpdateMatrix(updates[0], spec.parameters, count)
    for row, update in enumerate(updates):
        matrix.put(row, update)
    return Geometry(matrix, spec), updates


def flat(update: dict[str, torch.Tensor], names: tuple[str, ...] | list[str]) -> np.ndarray:
    return np.concatenate([update[name].double().numpy().ravel() for name in names])


def test_gram_equals_direct_inner_products_whole_and_per_layer() -> None:
    geometry, updates = geometry_of(4)
    rows = np.stack([flat(u, SPEC.parameters) for u in updates])
    np.testing.assert_allclose(geometry.gram, rows @ rows.T, rtol=1e-6)
    head = np.stack([flat(u, ["head.weight", "head.bias"]) for u in updates])
    np.testing.assert_allclose(geometry.layers["head"], head @ head.T, rtol=1e-6)
    np.testing.assert_allclose(geometry.norms, np.linalg.norm(rows, axis=1), rtol=1e-6)
    found = geometry.norms_of_layers
    assert set(found) == {"a", "head"}
    np.testing.assert_allclose(found["head"], np.linalg.norm(head, axis=1), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_class_grams_are_the_rows_of_the_head_with_its_bias(axis: int) -> None:
    shapes = {**SHAPES, "head.weight": (3, 4, 2, 2) if axis == 0 else (4, 3, 2, 2)}
    spec = ModelSpec(SPEC.parameters, layers=SPEC.layers, output=("head", axis))
    geometry, updates = geometry_of(3, spec, shapes)
    for label in range(3):
        rows = []
        for update in updates:
            weight = update["head.weight"].double().numpy().take(label, axis).ravel()
            rows.append(np.append(weight, float(update["head.bias"][label])))
        expected = np.stack(rows) @ np.stack(rows).T
        np.testing.assert_allclose(geometry.classes()[label], expected, rtol=1e-6)


def test_class_grams_of_a_head_without_bias() -> None:
    spec = ModelSpec(("head.weight",), layers={"head.weight": "head"}, output=("head", 0))
    geometry, updates = geometry_of(2, spec, {"head.weight": (2, 3)})
    expected = updates[0]["head.weight"][1].double() @ updates[1]["head.weight"][1].double()
    assert geometry.classes()[1, 0, 1] == pytest.approx(float(expected), rel=1e-6)


def test_blocks_keep_float32_right_where_one_product_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    spec, size = ModelSpec(("w",), layers={"w": "w"}), 3_000_000
    matrix = UpdateMatrix({"w": torch.zeros(size)}, ["w"], 2)
    for row in range(2):
        matrix.put(row, {"w": torch.randn(size, generator=generator) + 0.1})
    exact = matrix.rows.double() @ matrix.rows.double().T
    np.testing.assert_allclose(Geometry(matrix, spec).gram, exact.numpy(), rtol=1e-6)


def test_huge_finite_values_do_not_overflow_and_nan_stays_visible() -> None:
    spec = ModelSpec(("w",), layers={"w": "w"})
    matrix = UpdateMatrix({"w": torch.zeros(3)}, ["w"], 3)
    matrix.put(0, {"w": torch.full((3,), 1e30)})
    matrix.put(1, {"w": torch.ones(3)})
    matrix.put(2, {"w": torch.tensor([1.0, float("nan"), 0.0])})
    gram = Geometry(matrix, spec).gram
    assert gram[0, 0] == pytest.approx(3e60) and gram[1, 1] == 3.0
    assert np.isnan(gram[2, 2]) and np.isfinite(gram[:2, :2]).all()


WIDTHS = st.lists(st.sampled_from([1, 3, 16, 17, 70_000]), min_size=1, max_size=4)


@given(widths=WIDTHS, count=st.integers(1, 7), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_copied_and_selected_updates_have_the_same_bits(
    widths: list[int], count: int, seed: int
) -> None:
    shapes = {f"layer{i}.weight": (width,) for i, width in enumerate(widths)}
    spec = ModelSpec(tuple(shapes), layers=dict.fromkeys(shapes, "all"))
    copied, updates = geometry_of(count, spec, shapes, seed)
    # Of more rows, stored in another order, some are chosen.
    stored = UpdateMatrix(updates[0], spec.parameters, count + 2)
    for row, update in enumerate(updates):
        stored.put(count + 1 - row, update)
    chosen = stored.select([count + 1 - row for row in range(count)])

    # As one product of a matrix that holds all updates, block by block.
    whole = copied.matrix.rows
    expected = np.zeros((count, count))
    for columns in copied.matrix.columns.values():
        of_parameter = np.zeros((count, count))
        for block in whole[:, columns].split(BLOCK, dim=1):
            of_parameter += (block @ block.T).double().numpy()
        expected += of_parameter
    for matrix in (copied.matrix, chosen):
        assert (Geometry(matrix, spec).gram == expected).all()
        assert torch.equal(matrix.rows, whole)


vectors = arrays(np.float64, (3, 6), elements=st.floats(-100, 100, width=32))


@settings(max_examples=60, deadline=None)
@given(
    rows=vectors,
    a=arrays(np.float64, 3, elements=st.floats(-2, 2)),
    b=arrays(np.float64, 3, elements=st.floats(-2, 2)),
)
def test_cosine_from_the_gram_equals_the_direct_one(
    rows: np.ndarray, a: np.ndarray, b: np.ndarray
) -> None:
    u, v = a @ rows, b @ rows
    norms = np.linalg.norm(u) * np.linalg.norm(v)
    value = cosine(rows @ rows.T, a, b)
    assert -1 <= value <= 1
    if np.linalg.norm(u) > 1e-3 and np.linalg.norm(v) > 1e-3:
        assert value == pytest.approx(u @ v / norms, abs=1e-6)


def test_a_vector_without_length_has_cosine_zero() -> None:
    assert cosine(np.zeros((2, 2)), np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0


def test_distances_are_of_the_rows_that_both_label_or_the_mean_of_those_who_do() -> None:
    geometry, updates = geometry_of(5, seed=3)
    rows = np.stack([flat(update, SPEC.parameters) for update in updates])
    np.testing.assert_allclose(
        geometry.squared_distances(), ((rows[:, None] - rows[None]) ** 2).sum(2), atol=1e-4
    )
    weights = np.array([0.1, 0.0, 0.5, 0.3, 0.1])
    np.testing.assert_allclose(
        geometry.squared_distances_from_mean(weights),
        ((rows - weights @ rows) ** 2).sum(1),
        atol=1e-4,
    )

    # Of every value of an update, whether its client labels the value's class; a body has none.
    labelled = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]], bool)
    counts = []
    for of_update in labelled:
        of_class = torch.from_numpy(of_update)
        weight = of_class[:, None].expand(3, 4)
        counts.append(flat({"a": torch.ones(10), "b": of_class, "w": weight}, ["a", "b", "w"]))
    counted = np.array(counts, bool)
    geometry.labelled = labelled
    in_both = counted[:, None] & counted[None]
    expected = (in_both * (rows[:, None] - rows[None]) ** 2).sum(2)
    np.testing.assert_allclose(geometry.squared_distances(), expected, atol=1e-4)

    shares = weights[:, None] * counted
    mean = (shares * rows).sum(0) / np.maximum(shares.sum(0), 1e-30)
    np.testing.assert_allclose(
        geometry.squared_distances_from_mean(weights),
        (counted * (rows - mean) ** 2).sum(1),
        atol=1e-4,
    )
