# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Free riders: scores of one round, flags over rounds, and both from a run's ledger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attackers import ATTACKS
from helpers.attacked_federation import federation_of
from helpers.driving import GOLDEN, play

from monai_fairfl.errors import ConfigError, FairFLError, FederationError
from monai_fairfl.protocol.values import Estimate
from monai_fairfl.run_folder.ledger import Ledger, read_ledger
from monai_fairfl.strategies import CGSV, FedAvg
from monai_fairfl.valuation import (
    flag_free_riders,
    free_rider_history,
    free_rider_scores,
    global_cosines,
)

EXAMPLE = GOLDEN["fedce"]["free_rider_example"]
UPDATES = np.array(GOLDEN["common"]["updates"])
WEIGHTS = {"1": 0.311393, "2": 0.325217, "3": 0.363391}


def by_client(values: list[float]) -> dict[str, float]:
    """Client -> its number of the worked example."""
    return dict(zip("123", values, strict=True))


# --- scores of one round


@pytest.mark.parametrize(("form", "key"), [("product", "product"), ("dissimilarity", "dissim")])
def test_scores_meet_the_worked_example_from_the_gram_matrix_on(form: str, key: str) -> None:
    cosines = global_cosines(UPDATES @ UPDATES.T, WEIGHTS, "123")
    assert cosines == pytest.approx(by_client(EXAMPLE["cos_local_global"]), abs=2e-6)
    global_errors = by_client(EXAMPLE["global_err"])
    local_errors = by_client(EXAMPLE["local_err"])
    scores = free_rider_scores(cosines, global_errors, local_errors, form)
    assert scores == pytest.approx(by_client(EXAMPLE[key]), abs=2e-6)


def test_an_update_of_zero_has_cosine_zero() -> None:
    cosines = global_cosines([[1.0, 0.0], [0.0, 0.0]], {"a": 0.5, "b": 0.5}, ["a", "b"])
    assert cosines == {"a": 1.0, "b": 0.0}


def test_a_client_that_was_not_averaged_is_not_in_the_global_update() -> None:
    assert global_cosines(np.eye(3), {"a": 1.0}, "abc") == {"a": 1.0, "b": 0.0, "c": 0.0}


def test_a_local_model_that_is_worse_than_the_global_one_scores_as_one_that_is_better() -> None:
    cosines = {"a": 0.5, "b": 0.5}
    scores = free_rider_scores(cosines, {"a": 0.1, "b": 0.3}, {"a": 0.3, "b": 0.1})
    assert scores == pytest.approx({"a": 0.1, "b": 0.1})


# --- flags over rounds

HIGH = {"a": 0.01, "b": 0.02, "c": 0.2}
LOW = {"a": 0.01, "b": 0.02, "c": 0.02}


def test_a_flag_needs_rounds_in_a_row() -> None:
    assert flag_free_riders([HIGH, HIGH, LOW, HIGH, HIGH]) == {}
    assert flag_free_riders([LOW, HIGH, HIGH, HIGH, LOW]) == {"c": 3}
    assert flag_free_riders([HIGH, HIGH], rounds=2) == {"c": 1}


def test_the_round_of_a_flag_is_the_first() -> None:
    assert flag_free_riders([HIGH] * 6) == {"c": 2}


def test_the_threshold_is_five_times_the_median_of_the_others() -> None:
    others = {"a": 0.01, "b": 0.02, "c": 0.06}
    at_threshold = {**others, "d": 0.02 * 5}
    above = {**others, "d": 0.02 * 5 + 1e-9}
    assert flag_free_riders([at_threshold] * 3) == {}
    assert flag_free_riders([above] * 3) == {"d": 2}
    assert flag_free_riders([above] * 3, factor=6) == {}


def test_absence_neither_adds_to_a_run_nor_ends_it() -> None:
    high = {"a": 0.01, "b": 0.01, "c": 0.2}
    absent = {"a": 0.01, "b": 0.01}
    assert flag_free_riders([high, absent, high, absent, absent]) == {}
    assert flag_free_riders([high, absent, high, absent, high]) == {"c": 4}


def test_nobody_stands_out_where_most_score_nothing() -> None:
    """Early on most models may find no gland at all, globally and locally.

    A client that finds a little is no free rider.
    """
    assert flag_free_riders([{"a": 0.0, "b": 0.0, "c": 0.02}] * 3) == {}
    assert flag_free_riders([{"a": 0.0, "b": 0.001, "c": 0.02}] * 3) == {"c": 2}


def test_negative_products_make_nobody_else_suspicious() -> None:
    others = {"a": -0.02, "b": -0.01, "d": -0.03}
    assert flag_free_riders([{**others, "c": 0.01}] * 3) == {}
    assert flag_free_riders([{**others, "c": 0.11}] * 3) == {"c": 2}


# --- scores and flags of a ledger


def record(number: int, gram: np.ndarray | None = None, **changes: Any) -> dict[str, Any]:
    """A round's record of the worked example; ``changes`` replace its fields."""
    global_errors = by_client(EXAMPLE["global_err"])
    local_errors = by_client(EXAMPLE["local_err"])
    measured = {}
    for client in "123":
        received = 1 - global_errors[client]
        measured[client] = {
            "global_score": {"mean": Estimate(received, 0.01, 5), "gland": received},
            "local_score": Estimate(1 - local_errors[client], None, 5),
        }
    if gram is None:
        gram = UPDATES @ UPDATES.T
    return {
        "kind": "round",
        "round": number,
        "gram": {"clients": list("123"), "whole": gram.tolist()},
        "aggregation": WEIGHTS,
        "measurements": measured,
        "details": {},
        "verdicts": {},
        **changes,
    }


def as_read(*records: dict[str, Any]) -> list[dict[str, Any]]:
    """Records as they are after they were written as JSON."""
    read: list[dict[str, Any]] = json.loads(json.dumps(records, default=vars))
    return read


def test_a_ledger_gives_scores_and_flags_and_rounds_without_measurements_are_skipped(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append({"kind": "start"})
    ledger.append(record(0))
    ledger.append(record(1, measurements={client: {"global_score": 0.5} for client in "123"}))
    ledger.append({**record(2), "gram": None})
    ledger.append(record(3))
    ledger.append(record(4))
    ledger.append({"kind": "end"})
    found = free_rider_history(read_ledger(tmp_path / "ledger.jsonl"), form="dissimilarity")
    assert found.rounds == [0, 3, 4]
    assert found.flagged == {"3": 4}
    for client, expected in by_client(EXAMPLE["dissim"]).items():
        assert found.scores[client] == pytest.approx([expected] * 3, abs=2e-6)
    json.dumps(found.scores, allow_nan=False)


def test_a_round_that_only_one_client_measured_is_skipped() -> None:
    alone = record(1)
    for client in "12":
        del alone["measurements"][client]["local_score"]
    records = as_read(record(0), alone, record(2), record(3))
    found = free_rider_history(records, form="dissimilarity")
    assert found.rounds == [0, 2, 3]
    assert found.flagged == {"3": 3}


def test_a_client_without_measurements_has_no_score_that_round() -> None:
    partial = record(1)
    del partial["measurements"]["2"]["local_score"]
    found = free_rider_history(as_read(record(0), partial))
    assert found.scores["2"][1] is None
    assert found.scores["1"][1] == found.scores["1"][0]


def test_weights_per_layer_count_by_their_mean() -> None:
    layers = {
        "conv": {client: 0.5 * weight for client, weight in WEIGHTS.items()},
        "head": {client: 1.5 * weight for client, weight in WEIGHTS.items()},
    }
    plain = free_rider_history(as_read(record(0))).scores
    layered = free_rider_history(as_read(record(0, aggregation=layers))).scores
    assert set(layered) == set(plain)
    for client in plain:
        assert layered[client][0] == pytest.approx(plain[client][0])


def test_rounds_without_the_measurements_or_an_average_have_no_scores() -> None:
    records = [{"kind": "start"}, record(0, measurements={}), record(1, aggregation={})]
    found = free_rider_history(records)
    assert (found.rounds, found.scores, found.flagged) == ([], {}, {})


def test_a_methods_factors_of_the_updates_are_in_the_global_one() -> None:
    updates = {"1": [0.2, 0.1, -0.3, 0.4], "2": [0.1, -0.2, 0.2, 0.3], "3": [-3.0, 4.0, 1.0, -1.0]}
    (result,) = play(CGSV(), [updates], [{}], [0.0] * 4)

    # By hand: the cosine of each update with the step of the global model.
    matrix = np.array(list(updates.values()))
    step = result.weights["w"].numpy()
    cosines = matrix @ step / np.linalg.norm(matrix, axis=1) / np.linalg.norm(step)

    measured = {client: {"global_score": 0.5, "local_score": 0.6} for client in updates}
    with_factors = record(
        0,
        matrix @ matrix.T,
        aggregation=dict(result.aggregation),
        details={name: dict(found) for name, found in result.details.items()},
        measurements=measured,
    )
    assert with_factors["gram"]["clients"] == list(updates)
    scores = free_rider_history([with_factors]).scores
    found = [scores[client][0] for client in updates]
    # The errors of the global and the local model differ by 0.1.
    assert found == pytest.approx(0.1 * cosines)


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All numbers in one row."""
    return torch.cat([tensor.flatten().double() for tensor in tensors.values()])


# --- what is refused


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(FairFLError, match="form"):
        free_rider_scores({}, {}, {}, form="sum")
    with pytest.raises(FairFLError, match="'b' has a cosine but lacks an error"):
        free_rider_scores({"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 0.1}, {"a": 0.1})
    with pytest.raises(FairFLError, match="Gram"):
        global_cosines(np.eye(3), {"a": 1.0}, ["a"])
    with pytest.raises(FairFLError, match="rounds"):
        flag_free_riders([], rounds=0)


@pytest.mark.parametrize(
    "damaged",
    [
        {"kind": "round", "round": 1},
        {**record(1), "measurements": None},
        {**record(1), "gram": {"clients": ["1"]}},
        {**record(1), "verdicts": {"1": [{}]}},
    ],
    ids=["aggregation", "measurements", "gram", "verdicts"],
)
def test_a_record_that_lacks_what_every_round_has_is_named(damaged: dict[str, Any]) -> None:
    """A method that averages nothing has no weights: its record has an empty entry."""
    with pytest.raises(FederationError, match="record 3 of those given is not that of a round.*re"):
        free_rider_history([{"kind": "start"}, record(0), damaged])
    with pytest.raises(ConfigError, match="form must be one of"):
        free_rider_history([record(0)], form="sum")


@pytest.mark.parametrize(
    ("attack", "guard"),
    [
        ("zeros", "Empty"),
        ("noise of honest length", "Noise"),
        ("replay of the last step", "Replayed"),
        ("copy", "Copies"),
    ],
)
def test_what_guards_found_is_the_evidence_beside_the_score(
    tmp_path: Path, attack: str, guard: str
) -> None:
    records = federation_of(FedAvg(), tmp_path / "run", ATTACKS[attack], rounds=4).run().records
    found = free_rider_history(records)
    assert found.rounds == []  # nobody measured what a score needs
    assert guard in found.evidence["H"]
    others = {"H", "A"} if attack == "copy" else {"H"}
    assert set(found.evidence) == others


def test_honest_sites_leave_no_evidence(tmp_path: Path) -> None:
    records = federation_of(FedAvg(), tmp_path / "run", outlier=True, rounds=4).run().records
    assert free_rider_history(records).evidence == {}
