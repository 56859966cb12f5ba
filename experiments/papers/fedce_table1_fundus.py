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

from reading import cases, dice_table, markdown, read

STUDIES = ("fundus",)
MISSED = 0.5  # Dice below which a disc counts as not found


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case. Then, how many discs were missed altogether."""
    return f"{dice_table(read('fundus'), ('disc', 'cup'))}\n\nDiscs not found (Dice below {MISSED:g}):\n\n{_missed()}"


def _missed() -> str:
    results = {strategy: cases(found, "disc") for strategy, found in read("fundus").items()}
    sites = {site: len(scores) for site, scores in next(iter(results.values())).items()}
    rows = []
    for strategy, discs in results.items():
        missed = [sum(dice < MISSED for dice in discs[site].values()) for site in sites]
        rows.append([strategy, *map(str, missed), str(sum(missed))])
    return markdown(["strategy", *(f"{site} ({number})" for site, number in sites.items()), "all"], rows)
