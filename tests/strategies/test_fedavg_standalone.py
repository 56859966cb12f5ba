# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from helpers.driving import GOLDEN, play, play_round

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import FedAvg, Median, Sparsified, Standalone, Uniform, compose

COMMON = GOLDEN["common"]
UPDATES = {str(i + 1): update for i, update in enumerate(COMMON["updates"])}
SAMPLES = {str(i + 1): int(n) for i, n in enumerate(COMMON["n"])}


@pytest.mark.parametrize(("weighting", "key"), [("samples", "new_global"), ("uniform", "uniform")])
def test_fedavg_gives_the_worked_numbers(weighting: str, key: str) -> None:
    (result,) = play(FedAvg(weighting), [UPDATES], [{}], COMMON["w0"], SAMPLES)
    np.testing.assert_allclose(result.weights["w"].numpy(), GOLDEN["fedavg"][key], atol=2e-6)
    assert sum(result.aggregation.values()) == pytest.approx(1.0)


def test_fedavg_refuses_an_unknown_weighting() -> None:
    with pytest.raises(ValueError, match="one of 'samples', 'uniform', got 'median'"):
        FedAvg("median")


def test_standalone_leaves_every_client_its_own_model_and_the_global_one_alone() -> None:
    strategy = Standalone()
    (result,) = play(strategy, [UPDATES], [{}], COMMON["w0"])
    assert result.weights["w"].tolist() == COMMON["w0"] and result.aggregation == {}
    for client, update in UPDATES.items():
        own = result.rewards[client]["w"].numpy()  # type: ignore[index]
        np.testing.assert_allclose(own, np.add(COMMON["w0"], update))


def test_standalone_keeps_the_model_of_an_absent_client() -> None:
    strategy = Standalone()
    (first,) = play(strategy, [UPDATES], [{}], COMMON["w0"])
    strategy.rewards = first.rewards  # type: ignore[assignment]
    present = {client: UPDATES[client] for client in ("1", "2")}
    second = play_round(strategy, present, {})
    assert second.rewards["3"] is first.rewards["3"]  # type: ignore[index]
    np.testing.assert_allclose(
        second.rewards["1"]["w"].numpy(), np.add(COMMON["w0"], 2 * np.array(UPDATES["1"]))
    )


def test_names_show_the_arguments_that_are_not_the_defaults() -> None:
    assert (FedAvg().name, FedAvg("uniform").name) == ("FedAvg", "FedAvg-uniform")


def test_standalone_takes_training_alone_of_other_methods() -> None:
    assert compose(Standalone(), training={"sam_rho": 0.05}).name == "Standalone-sam_rho_0.05"
    for part in ({"reward": Sparsified()}, {"weighting": Uniform()}, {"average": Median()}):
        with pytest.raises(ConfigError, match="compose it with training alone"):
            compose(Standalone(), **part)
