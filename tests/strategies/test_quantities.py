# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from monai_fairfl.strategies import Mixed, Sparsified
from monai_fairfl.strategies.catalogue import quantity
from monai_fairfl.strategies.quantities import SCALE, Quantity
from monai_fairfl.strategies.resolver import shipped

DECLARED: list[tuple[str, str, Quantity]] = []
for strategy, kind in shipped().items():
    for name, texts in kind.quantities.items():
        DECLARED.append((strategy, name, texts))


@pytest.mark.parametrize(("strategy", "name", "texts"), DECLARED)
def test_a_quantity_has_a_title_an_axis_and_a_sentence(
    strategy: str, name: str, texts: Quantity
) -> None:
    assert texts.title and texts.axis and texts.meaning.endswith(".")
    assert quantity(strategy, name) == texts


def test_any_strategy_may_record_what_a_reward_gives_and_a_scale() -> None:
    for strategy in (*shipped(), "MyStrategy"):
        assert quantity(strategy, "kept") == Sparsified.quantities["kept"]
        assert quantity(strategy, "mixing") == Mixed.quantities["mixing"]
        assert quantity(strategy, "scale") == SCALE


def test_a_quantity_of_one_method_is_not_that_of_another() -> None:
    assert quantity("FedAvg", "reputation") is None
    assert quantity("CFFL", "reputation") != quantity("CGSV", "reputation")
