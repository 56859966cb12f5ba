# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""FedCE, Table 1, fundus: Dice of every strategy at every site.

Mean with its interval, deviation over sites, worst site.
"""

from __future__ import annotations

from reading import NOT_FOUND, Results, cases, dice_table, markdown, read, shown_name

STUDIES = ("fundus",)
SHORT = ("Standalone", "FedAvg", "FedCE", "FedCE-sum")
"""The rows of the short table: the strategies that have all four folds on the volumes."""


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case.

    Below, how many discs were missed altogether.
    """
    return _both_tables(read("fundus"))


def short_table() -> str:
    """Return the same tables with the rows of ``SHORT`` only."""
    results = read("fundus")
    return _both_tables(Results({name: results[name] for name in SHORT}))


def _both_tables(results: Results) -> str:
    return f"{dice_table(results, ('disc', 'cup'))}\n\n{missed(results)}"


def missed(results: Results) -> str:
    """How many discs of every site were not found, a row per strategy."""
    discs = {strategy: cases(found, "disc") for strategy, found in results.items()}
    first = next(iter(discs.values()))
    rows = []
    for strategy, found in discs.items():
        missed_at = []
        for site in first:
            missed_at.append(sum(dice < NOT_FOUND for dice in found[site].values()))
        rows.append([shown_name(strategy), *missed_at, sum(missed_at)])
    sites = [f"{site} ({len(scores)})" for site, scores in first.items()]
    head = ["strategy", *sites, "all"]
    return f"Discs not found (Dice below {NOT_FOUND:g}):\n\n{markdown(head, rows)}"
