# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Real prostate volumes that train in place of validating: Dice with both shares."""

from __future__ import annotations

from papers.last_mile import came_out
from papers.strong_prostate import LEAST_USED
from reading import NotFinished, hierarchical_interval, markdown, shown_name, words
from seeds import Cells, finished, gains, on_same_cells, received_and_used, scores
from study import Study

STUDIES = ("strong_prostate", "strong_prostate_fifth")
THIRD, FIFTH = "35 % validate", "20 % validate"
PREDICTED = "What was predicted before any test, and what came out:"


def table() -> str:
    """Write a row for each share, then one for each strategy; below each, what was predicted."""
    study = Study.read("strong_prostate_fifth")
    third = finished(Study.read("strong_prostate")).get("FedAvg")
    trained = finished(study)
    unfinished = {cell.strategy for cell in study.missing()}
    fifth = trained.get("FedAvg")
    if not third or not fifth:
        raise NotFinished("runs of FedAvg with both shares")
    shares = on_same_cells({THIRD: third, FIFTH: fifth})
    parts = [
        *received_and_used(shares, baseline=THIRD, of="FedAvg on"),
        PREDICTED,
        _predictions_of_shares(shares, complete="FedAvg" not in unfinished),
    ]
    # Strategies are compared when they are trained on all seeds and folds.
    strategies = {name: cells for name, cells in trained.items() if name not in unfinished}
    if "FedAvg" in strategies and len(strategies) > 1:
        parts += [
            *received_and_used(strategies, of="With 20 % for validation, on"),
            PREDICTED,
            _predictions_of_strategies(strategies),
        ]
    return "\n\n".join(parts)


def _predictions_of_shares(found: dict[str, Cells], complete: bool) -> str:
    gain = hierarchical_interval(gains(scores(found[FIFTH]), scores(found[THIRD])))
    return _table_of(
        [
            [
                "as received, more training volumes have the higher mean Dice",
                words(gain, signed=True),
                came_out(gain.estimate > 0, complete),
            ],
            _is_high_enough("the mean Dice as used", found[FIFTH], complete),
        ]
    )


def _predictions_of_strategies(found: dict[str, Cells]) -> str:
    rows = []
    for strategy, cells in found.items():
        if strategy != "FedAvg":
            what = f"{shown_name(strategy)}: the mean Dice as used"
            rows.append(_is_high_enough(what, cells, complete=True))
    return _table_of(rows)


def _is_high_enough(what: str, cells: Cells, complete: bool) -> list[str]:
    used = hierarchical_interval(scores(cells, "test_used"))
    came_true = came_out(used.estimate >= LEAST_USED, complete)
    return [f"{what} is at least {LEAST_USED}", words(used), came_true]


def _table_of(rows: list[list[str]]) -> str:
    return markdown(["predicted", "came out", ""], rows)
