# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""FedCE, Table 1, fundus: Dice of every strategy at every site, mean, interval, deviation over sites, worst site."""

from __future__ import annotations

from reading import Results, cases, dice_table, markdown, read, shown_name

STUDIES = ("fundus",)
MISSED = 0.5  # Dice below which a disc counts as not found


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case. Then, how many discs were missed altogether."""
    results = read("fundus")
    return f"{dice_table(results, ('disc', 'cup'))}\n\n{missed(results)}"


def missed(results: Results) -> str:
    """How many discs of every site were not found, a row per strategy."""
    discs = {strategy: cases(found, "disc") for strategy, found in results.items()}
    sites = {site: len(scores) for site, scores in next(iter(discs.values())).items()}
    rows = []
    for strategy, found in discs.items():
        lost = [sum(dice < MISSED for dice in found[site].values()) for site in sites]
        rows.append([shown_name(strategy), *map(str, lost), str(sum(lost))])
    head = ["strategy", *(f"{site} ({number})" for site, number in sites.items()), "all"]
    return f"Discs not found (Dice below {MISSED:g}):\n\n{markdown(head, rows)}"
