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
    assert first.rewards is not None
    for client, update in UPDATES.items():
        np.testing.assert_allclose(first.rewards[client]["w"], np.add(COMMON["w0"], update))

    strategy.rewards = dict(first.rewards)
    second = play_round(strategy, {client: UPDATES[client] for client in ("1", "2")}, {})
    assert second.rewards is not None
    assert second.rewards["3"]["w"].equal(first.rewards["3"]["w"])
    twice = np.add(COMMON["w0"], 2 * np.array(UPDATES["1"]))
    np.testing.assert_allclose(second.rewards["1"]["w"], twice)
