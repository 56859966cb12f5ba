# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.linear_federation import LinearRun

from monai_fairfl.valuation import (
    FinishedRun,
    Game,
    MaxSamples,
    RunValuation,
    gtg_shapley,
    permutation_shapley,
    stratified_shapley,
    sum_over_rounds,
)
from monai_fairfl.valuation.finished import Evaluator
from monai_fairfl.valuation.utility import MeasuredModels


class OfOneModel(RunValuation):
    """Every coalition has the same model; of any number of players."""

    players = 3

    def words(self) -> tuple[str, ...]:
        return ("one",)

    def measured(self, run: FinishedRun) -> MeasuredModels:
        return MeasuredModels(run.run_dir / "measured.jsonl", "run")

    def games(self, run: FinishedRun, evaluate: Evaluator) -> list[Game]:
        names = [f"site{i:02d}" for i in range(self.players)]
        return [
            Game(
                names,
                lambda s: evaluate("game", s, lambda: run.train(frozenset(), None, run.run_dir)),
            )
        ]


@pytest.mark.parametrize(
    ("method", "players", "last"),
    [
        ("exact", 3, "model 8 of 8"),
        ("leave_one_out", 3, "model 4 of 4"),
        ("permutation", 3, "model 4 of at most 8"),
        # Of 2^60: no useful bound.
        ("permutation", 60, "model 61"),
    ],
)
def test_each_model_has_a_line_that_says_how_many_are_left(
    method: str, players: int, last: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    valuation = OfOneModel(method, stop=MaxSamples(1) if method == "permutation" else None)
    valuation.players = players
    with caplog.at_level(logging.INFO, "monai_fairfl"):
        found = valuation.value(LinearRun(tmp_path).finished())
    assert caplog.messages[-1].endswith(f"; {last}") and len(caplog.messages) == found.evaluations


def test_what_was_measured_before_counts_as_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = LinearRun(tmp_path).finished()
    OfOneModel("leave_one_out").value(run)
    # Another test may have left the logger at this level.
    caplog.clear()
    with caplog.at_level(logging.INFO, "monai_fairfl"):
        OfOneModel("exact").value(run)
    assert [message.rpartition("; ")[2].split(",")[0] for message in caplog.messages] == [
        f"model {number} of 8"
        for number in (1, 2, 3, 5)  # the fourth is of two players, and so are the sixth, seventh
    ]


@pytest.mark.parametrize("method", ["permutation", "stratified"])
def test_every_round_is_sampled_with_a_seed_of_its_own(
    method: str, random_game: Callable[[int], Game]
) -> None:
    found = OfOneModel(method, stop=MaxSamples(2), seed=5).play([random_game(0), random_game(0)])
    sample = {"permutation": permutation_shapley, "stratified": stratified_shapley}[method]
    alone = [sample(random_game(0), MaxSamples(2), seed) for seed in (5, 6)]
    assert found == sum_over_rounds(alone) and alone[0].values != alone[1].values


def test_sampling_ends_at_a_small_standard_error_or_after_two_hundred_models(
    random_game: Callable[[int], Game],
) -> None:
    additive = OfOneModel("permutation").play([Game("abcdefgh", len)])
    assert additive.values["a"].n == 30  # the rule's least
    random = OfOneModel("permutation").play([random_game(0)])
    assert 200 <= random.evaluations < 200 + 8


def test_gtg_goes_by_the_seed(random_game: Callable[[int], Game]) -> None:
    found = OfOneModel("gtg", seed=5).play([random_game(2)])
    assert found == gtg_shapley([random_game(2)], seed=5) != gtg_shapley([random_game(2)])


def test_names_tell_valuations_apart() -> None:
    assert OfOneModel("exact").name == "one-exact-mean"
    assert OfOneModel("gtg", "worst", "test").name == "one-gtg-worst-test"
