# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE: two worked rounds of every variant, the model without a client, and who is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clipping import Clip
from helpers.driving import CLIENTS, COMMON, GOLDEN, agree, play, reported
from helpers.fixed_sites import federate, vectors

from monai_fairfl import ModelSpec
from monai_fairfl.errors import ConfigError
from monai_fairfl.measurements import leave_one_out_model
from monai_fairfl.strategies import FedCE, FedGA, Median, Mixed, Sparsified

WORKED = GOLDEN["fedce"]
UPDATES = [
    dict(zip(CLIENTS, COMMON["updates"], strict=True)),
    dict(zip(CLIENTS, WORKED["updates_round1"], strict=True)),
]
ERRORS = [{}, reported("leave_one_out_error", [1 - dice for dice in WORKED["minus_dice_round1"]])]
NAMES = {"paper": "paper_equations", "revised": "revised_code", "released": "original_code"}
MODES = {"multi": "times", "sum": "plus", "cos": "cos", "err": "err"}


@pytest.mark.parametrize("variant", NAMES)
def test_two_rounds_give_the_worked_weights(variant: str) -> None:
    worked = WORKED[NAMES[variant]]
    for mode, key in MODES.items():
        if key not in worked:
            continue
        for number, result in enumerate(play(FedCE(mode, variant), UPDATES, ERRORS)):
            expected = worked[key][f"rho_round{number}"]
            agree(result.aggregation, expected)


# ---- the model without a client


def test_the_model_without_a_client_is_the_reweighted_mean_of_the_others() -> None:
    example = WORKED["minus_model_example"]
    whole = {"w": torch.tensor(example["global_new"], dtype=torch.float64)}
    rho, models = np.array(example["rho"]), np.array(example["local_models"])
    for i in range(3):
        local = {"w": torch.tensor(models[i])}
        without = leave_one_out_model(whole, local, rho[i])["w"].numpy()
        others = np.delete(rho, i) @ np.delete(models, i, axis=0) / (1 - rho[i])
        agree(without, others, 5e-6)


def test_a_variance_stays_above_zero_without_a_client_and_a_counter_as_it_is() -> None:
    name, count = "bn.running_var", "bn.num_batches_tracked"
    whole = {name: torch.tensor([1.0, 2.0]), count: torch.tensor(7)}
    local = {name: torch.tensor([9.0, 1.0]), count: torch.tensor(5)}
    without = leave_one_out_model(whole, local, 0.5)
    assert without[name].tolist() == [0.0, 3.0] and without[count].item() == 7


# ---- who is asked, and what an absence means


def test_each_client_receives_its_own_weight_and_is_asked_from_the_second_round_on() -> None:
    strategy = FedCE()
    (result,) = play(strategy, UPDATES[:1], ERRORS[:1])
    for request in next(strategy.round(CLIENTS)):
        assert request.measure == ("leave_one_out_error",)
        assert dict(request.context) == {"previous_weight": result.aggregation[request.client]}
    fresh = FedCE()
    fresh.start(strategy.weights, CLIENTS, strategy.spec)
    for request in next(fresh.round(CLIENTS)):
        assert request.measure == () and request.context == {"previous_weight": 0.0}


def test_a_client_whose_update_was_shortened_is_not_asked_to_take_itself_out(
    tmp_path: Path,
) -> None:
    """It holds another model than the one that was averaged."""
    updates = [vectors(UPDATES[0]), vectors(UPDATES[1]), vectors(UPDATES[1])]
    errors = reported("leave_one_out_error", [1.0, 0.2, 0.4])
    clip = Clip({0: ["1"]})
    played = federate(FedCE(), tmp_path, updates, [{}, errors, errors], guards=[clip])
    own = ("leave_one_out_error",)
    assert played.measured_in(0) == {"1": (), "2": (), "3": ()}
    assert played.measured_in(1) == {"1": (), "2": own, "3": own}
    assert played.measured_in(2) == {"1": own, "2": own, "3": own}
    notes = played.rounds[1]["notes"]
    assert set(notes) == {"1"} and "0.3" in notes["1"]


# ---- what is refused


def test_the_model_without_a_client_needs_the_own_average_and_no_reward() -> None:
    for part in ({"average": Median()}, {"reward": Sparsified()}):
        with pytest.raises(ConfigError, match="mode 'cos'"):
            FedCE("err", **part)  # type: ignore[arg-type]
        FedCE("cos", **part)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="FedGA.*reward"):
        FedGA(reward=Mixed())


def test_statistics_averaged_with_other_weights_are_refused() -> None:
    spec = ModelSpec(("w",), buffers=("running_mean",), layers={"w": "fc", "running_mean": "bn"})
    weights = {"w": torch.zeros(2), "running_mean": torch.zeros(1)}
    strategy = FedCE()
    strategy.buffers = "samples"
    with pytest.raises(ConfigError, match="'aggregation' or 'local'"):
        strategy.start(weights, ["A", "B"], spec)
