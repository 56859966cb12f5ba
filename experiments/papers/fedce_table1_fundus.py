# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, fundus: Dice of every strategy at every site.

Mean with its interval, deviation over sites, worst site.
"""

from __future__ import annotations

from reading import Results, cases, dice_table, markdown, read, shown_name

STUDIES = ("fundus",)
MISSED = 0.5  # Dice below which a disc counts as not found


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case.

    Below, how many discs were missed altogether.
    """
    results = read("fundus")
    return f"{dice_table(results, ('disc', 'cup'))}\n\n{missed(results)}"


def missed(results: Results) -> str:
    """How many discs of every site were not found, a row per strategy."""
    discs = {strategy: cases(found, "disc") for strategy, found in results.items()}
    first = next(iter(discs.values()))
    rows = []
    for strategy, found in discs.items():
        missed_at = []
        for site in first:
            missed_at.append(sum(dice < MISSED for dice in found[site].values()))
        rows.append([shown_name(strategy), *missed_at, sum(missed_at)])
    sites = [f"{site} ({len(scores)})" for site, scores in first.items()]
    head = ["strategy", *sites, "all"]
    return f"Discs not found (Dice below {MISSED:g}):\n\n{markdown(head, rows)}"
