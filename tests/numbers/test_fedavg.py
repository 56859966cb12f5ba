# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedAvg, and training alone."""

from __future__ import annotations

import numpy as np
from helpers.driving import COMMON, GOLDEN, SAMPLES, UPDATES, agree, play, play_round

from monai_fairfl.strategies import FedAvg, Standalone


def test_the_model_is_the_worked_one() -> None:
    for weighting, key in (("samples", "new_global"), ("uniform", "uniform")):
        (result,) = play(FedAvg(weighting), samples=SAMPLES)
        agree(result.weights["w"], GOLDEN["fedavg"][key])
        assert result.rewards is None


def test_alone_every_client_has_its_own_model_and_an_absent_one_keeps_it() -> None:
    strategy = Standalone()
    (first,) = play(strategy)
    assert first.weights["w"].tolist() == COMMON["w0"] and first.aggregation == {}
    strategy.rewards = dict(first.rewards or {})
    present = {client: UPDATES[client] for client in ("1", "2")}
    own = play_round(strategy, present, {}).rewards or {}
    for client, rounds in {"1": 2, "2": 2, "3": 1}.items():
        expected = np.add(COMMON["w0"], rounds * np.array(UPDATES[client]))
        np.testing.assert_allclose(own[client]["w"], expected)
