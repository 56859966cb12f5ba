# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Figs 4 and 7, by round: in which rounds does a rider's score stand out?

In each round the six sites are ranked by their score, the highest first. Shown is in how many
runs, of all riders and folds, the rider has the highest score; if scores said nothing of riding,
it would in one run of six. Beside it: the rider's mean rank (3.5 by chance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from papers.fedce_figures4_7 import FORMS, NOBODY, STUDIES
from reading import NotFinished, markdown, read
from study import Study

ROUNDS = 10  # of every study at least


def table() -> str:
    """A row per study and form of the score, a column per round."""
    rows = []
    for study in STUDIES:
        for form in FORMS:
            try:
                ranks = ranks_of_riders(study, form)
            except NotFinished:
                continue
            row = [study, form, str(len(ranks))]
            for ranks_of_round in ranks.T:
                known = ranks_of_round[np.isfinite(ranks_of_round)]
                first = np.mean(known == 1)
                row.append(f"{first:.0%} ({known.mean():.1f})")
            rows.append(row)
    rounds = [f"round {number}" for number in range(1, ROUNDS + 1)]
    return markdown(["study", "score", "runs", *rounds], rows)


def ranks_of_riders(study: str, form: str) -> np.ndarray:
    """Return the rider's rank by round, a row for every run of the study with a rider.

    A rank is NaN where the rider has no score, as when a guard kept it out of the round.

    Args:
        study: its name.
        form: of the score.

    Raises:
        NotFinished: no run of a rider exists.
    """
    rows = []
    for rider in Study.read(study).settings:
        if rider == NOBODY:
            continue
        for result in read(study, rider)["FedCE"]:
            rows.append(_ranks(result["free_riders"][form]["scores"], rider))
    return np.array(rows)


def _ranks(scores: Mapping[str, Sequence[Any]], rider: str) -> list[float]:
    """Rank the rider in each of the first rounds: 1 for the highest score."""
    values = {site: np.array(of_site, float) for site, of_site in scores.items()}
    ranks: list[float] = []
    for number in range(ROUNDS):
        if np.isnan(values[rider][number]):
            ranks.append(np.nan)
            continue
        higher = [site for site in values if values[site][number] > values[rider][number]]
        ranks.append(len(higher) + 1)
    return ranks
