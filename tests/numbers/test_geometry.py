# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Inner products of updates, whole and of each class, and what methods make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.driving import agree, drive, values
from helpers.fixed_sites import federate
from helpers.given_strategy import equal

from monai_fairfl import ModelSpec, Reply, Request
from monai_fairfl.strategies import FedCE

NAMES = "ABCDE"
SHAPES: dict[str, tuple[int, ...]] = {
    "a.weight": (5, 2),
    "head.bias": (3,),
    "head.weight": (3, 4, 2, 2),
}
LAYERS = {name: name.split(".")[0] for name in SHAPES}
SPEC = ModelSpec(tuple(SHAPES), layers=LAYERS, output=("head", 0))

Updates = dict[str, dict[str, torch.Tensor]]


def random_updates(shapes: dict[str, tuple[int, ...]] = SHAPES, count: int = 4) -> Updates:
    generator = torch.Generator().manual_seed(0)
    return {
        client: {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for client in NAMES[:count]
    }


def flat(update: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([update[name].double().numpy().ravel() for name in sorted(update)])


def gram_of(folder: Path, updates: Updates, spec: ModelSpec = SPEC) -> dict[str, Any]:
    """The inner products that the ledger records of one round."""
    (record,) = federate(equal(tuple(updates)), folder, [updates], spec=spec).rounds
    assert record["gram"]["clients"] == sorted(updates)
    found: dict[str, Any] = record["gram"]
    return found


@pytest.mark.parametrize(("axis", "bias"), [(0, True), (1, False)])
def test_inner_products_are_the_direct_ones_whole_and_of_each_class(
    axis: int, bias: bool, tmp_path: Path
) -> None:
    """A class is its row of the output layer, with its bias."""
    shapes = {**SHAPES, "head.weight": (3, 4, 2, 2) if axis == 0 else (4, 3, 2, 2)}
    if not bias:
        del shapes["head.bias"]
    layers = {name: LAYERS[name] for name in shapes}
    updates = random_updates(shapes)
    found = gram_of(
        tmp_path, updates, ModelSpec(tuple(shapes), layers=layers, output=("head", axis))
    )
    rows = np.stack([flat(update) for update in updates.values()])
    np.testing.assert_allclose(found["whole"], rows @ rows.T, rtol=1e-5, atol=1e-6)
    for label in range(3):
        of_class = []
        for update in updates.values():
            row = update["head.weight"].double().numpy().take(label, axis).ravel()
            of_class.append(np.append(row, float(update["head.bias"][label])) if bias else row)
        expected = np.stack(of_class) @ np.stack(of_class).T
        np.testing.assert_allclose(found["classes"]["head"][label], expected, rtol=1e-5, atol=1e-6)


# ---- classes that some clients do not label

LABELLED = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]], bool)


def masked_rows(updates: Updates) -> tuple[np.ndarray, np.ndarray]:
    """The updates, one a row, and whether each of their numbers counts; those of a body do."""
    rows, counted = [], []
    for update, labels in zip(updates.values(), LABELLED, strict=True):
        of_class = torch.from_numpy(labels)
        mask = {
            "a.weight": torch.ones(5, 2),
            "head.bias": of_class,
            "head.weight": of_class[:, None, None, None].expand(3, 4, 2, 2),
        }
        rows.append(flat(update))
        counted.append(flat(mask))
    return np.stack(rows), np.stack(counted).astype(bool)


def played(strategy: Any, updates: Updates) -> Any:
    labels = dict(zip(NAMES, LABELLED.tolist(), strict=True))

    def answer(request: Request) -> Reply:
        client = request.client
        return request.reply(updates[client], 10, labelled=tuple(labels[client]))

    start = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    strategy.start(start, NAMES, SPEC)
    return drive(strategy, NAMES, answer, SPEC)[0]


def test_a_class_is_averaged_over_those_who_label_it() -> None:
    updates = random_updates(count=5)
    rows, counted = masked_rows(updates)
    found = flat(played(equal(NAMES), updates).weights)
    sums = (rows * counted).sum(0)
    expected = np.where(counted.any(0), sums / np.maximum(counted.sum(0), 1), rows.mean(0))
    agree(found[counted.any(0)], expected[counted.any(0)], 1e-6)


def test_fedces_cosines_leave_out_the_rows_of_classes_that_one_side_does_not_label() -> None:
    """A class counts where the client labels it, and at least one of the others."""
    updates = random_updates(count=5)
    rows, counted = masked_rows(updates)
    distances = []
    for i in range(5):
        others = np.delete(np.arange(5), i)
        both = counted[i] & counted[others].any(0)
        u, v = rows[i][both], rows[others].sum(0)[both]
        distances.append(1 - u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    found = values(played(FedCE("cos"), updates).aggregation, tuple(NAMES))
    expected = np.array(distances) / sum(distances)
    assert found == pytest.approx(expected.tolist(), abs=1e-5)
