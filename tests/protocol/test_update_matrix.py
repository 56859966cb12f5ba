# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from monai_fairfl.protocol.update_matrix import UpdateMatrix


def test_views_share_memory_with_the_row_and_select_keeps_order() -> None:
    matrix = UpdateMatrix({"w": torch.zeros(2)}, ["w"], 3)
    for row in range(3):
        matrix.put(row, {"w": torch.full((2,), float(row))})
    matrix.views(1)["w"].fill_(7.0)
    assert matrix.rows[1].tolist() == [7.0, 7.0]
    assert matrix.select([0, 1, 2]) is matrix
    assert matrix.select([2, 0]).rows[:, 0].tolist() == [2.0, 0.0]


def test_an_update_that_is_replaced_leaves_the_first_matrix_alone() -> None:
    update = {"w": torch.ones(3)}
    matrix = UpdateMatrix(update, ["w"], 2)
    for row in range(2):
        matrix.put(row, update)
    changed = matrix.replaced({0: {"w": torch.zeros(3)}})
    assert changed.rows.tolist() == [[0.0] * 3, [1.0] * 3]
    assert matrix.rows.tolist() == [[1.0] * 3] * 2 and update["w"].tolist() == [1.0] * 3


def test_selected_rows_have_their_own_order_and_views() -> None:
    matrix = UpdateMatrix({"w": torch.zeros(1)}, ["w"], 3)
    for row in range(3):
        matrix.put(row, {"w": torch.tensor([float(row)])})
    turned = matrix.select([2, 1, 0])
    assert turned.views(0)["w"].tolist() == [2.0] and len(turned) == 3
    assert turned.select([0, 2]).rows.tolist() == [[2.0], [0.0]]
    assert turned.rows.tolist() == [[2.0], [1.0], [0.0]]


def test_what_is_put_into_some_rows_leaves_the_others_alone() -> None:
    matrix = UpdateMatrix({"w": torch.zeros(1)}, ["w"], 2)
    for row in range(2):
        matrix.put(row, {"w": torch.tensor([float(row)])})
    matrix.select([1]).put(0, {"w": torch.tensor([9.0])})
    assert matrix.rows.tolist() == [[0.0], [1.0]]


def test_half_precision_updates_are_stored_in_float32_and_float64_models_keep_theirs() -> None:
    for own, stored in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        matrix = UpdateMatrix({"w": torch.zeros(1, dtype=own)}, ["w"], 1)
        assert matrix.rows.dtype == stored
