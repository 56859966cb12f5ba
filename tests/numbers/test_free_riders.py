# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Free riders: scores of one round, flags over rounds, and both from a run's ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attackers import ATTACKS
from helpers.attacked_federation import federation_of
from helpers.driving import GOLDEN
from helpers.fixed_sites import federate, vectors
from helpers.given_strategy import Given

from monai_fairfl import Estimate
from monai_fairfl.strategies import FedAvg
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


def test_scores_meet_the_worked_example_from_the_gram_matrix_on() -> None:
    cosines = global_cosines(UPDATES @ UPDATES.T, WEIGHTS, "123")
    assert cosines == pytest.approx(by_client(EXAMPLE["cos_local_global"]), abs=2e-6)
    global_errors = by_client(EXAMPLE["global_err"])
    local_errors = by_client(EXAMPLE["local_err"])
    for form, key in (("product", "product"), ("dissimilarity", "dissim")):
        scores = free_rider_scores(cosines, global_errors, local_errors, form)
        assert scores == pytest.approx(by_client(EXAMPLE[key]), abs=2e-6)


# ---- flags over rounds

HIGH = {"a": 0.01, "b": 0.02, "c": 0.2}
LOW = {"a": 0.01, "b": 0.02, "c": 0.02}


def test_a_flag_needs_rounds_in_a_row_and_is_of_the_first_such_round() -> None:
    assert flag_free_riders([HIGH, HIGH, LOW, HIGH, HIGH]) == {}
    assert flag_free_riders([LOW, HIGH, HIGH, HIGH, LOW]) == {"c": 3}
    # Absence neither adds to a run nor ends it.
    high, absent = {"a": 0.01, "b": 0.01, "c": 0.2}, {"a": 0.01, "b": 0.01}
    assert flag_free_riders([high, absent, high, absent, absent]) == {}
    assert flag_free_riders([high, absent, high, absent, high]) == {"c": 4}


def test_the_threshold_is_five_times_the_median_of_the_others() -> None:
    others = {"a": 0.01, "b": 0.02, "c": 0.06}
    assert flag_free_riders([{**others, "d": 0.02 * 5}] * 3) == {}
    above = [{**others, "d": 0.02 * 5 + 1e-9}] * 3
    assert flag_free_riders(above) == {"d": 2} and flag_free_riders(above, factor=6) == {}
    # Nobody stands out where most score nothing, as early on.
    assert flag_free_riders([{"a": 0.0, "b": 0.0, "c": 0.02}] * 3) == {}


# ---- scores and flags of a ledger


def measured(*without: str) -> dict[str, dict[str, Any]]:
    """client -> the worked errors as scores; some have no score of their own model."""
    found: dict[str, dict[str, Any]] = {}
    for client in "123":
        received = 1 - by_client(EXAMPLE["global_err"])[client]
        local = 1 - by_client(EXAMPLE["local_err"])[client]
        found[client] = {"global_score": {"mean": Estimate(received, 0.01, 5), "gland": received}}
        if client not in without:
            found[client]["local_score"] = Estimate(local, None, 5)
    return found


def records(folder: Path, numbers: list[dict[str, Any]]) -> list[Any]:
    """What the ledger holds of rounds in which these things were measured."""
    updates = vectors({client: update for client, update in zip("123", UPDATES.tolist())})
    played = federate(
        Given(WEIGHTS),
        folder,
        [updates] * len(numbers),
        numbers,
        evaluate=["global_score", "local_score"],
    )
    return list(played.rounds)


def test_a_ledger_gives_scores_and_flags_and_rounds_without_measurements_are_skipped(
    tmp_path: Path,
) -> None:
    """A round that fewer than two clients measured is skipped; a client without has no score."""
    numbers = [measured(), {}, measured("1", "2"), measured("2"), measured()]
    found = free_rider_history(records(tmp_path, numbers), form="dissimilarity")
    assert found.rounds == [0, 3, 4] and found.flagged == {"3": 4}
    for client, expected in by_client(EXAMPLE["dissim"]).items():
        assert found.scores[client][0] == pytest.approx(expected, abs=2e-6)
    assert found.scores["2"][1] is None and found.scores["1"][1] == found.scores["1"][0]
    json.dumps(found.scores, allow_nan=False)


def test_what_guards_found_is_the_evidence_beside_the_score(tmp_path: Path) -> None:
    hostile = ATTACKS["copy"]
    run = federation_of(FedAvg(), tmp_path / "run", hostile, outlier=True, rounds=2).run()
    found = free_rider_history(run.records)
    assert found.rounds == []  # nobody measured what a score needs
    assert set(found.evidence) == set("HA")
    assert all("Copies" in words for words in found.evidence.values())
