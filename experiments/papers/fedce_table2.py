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
"""FedCE, Table 2: who gains what: Pearson and Euclidean distance between sites' Dice alone and with a strategy."""

from __future__ import annotations

from reading import cases, markdown, read, site_means

from monai_fairfl.fairness import performance_distance, performance_fairness_pearson

STUDIES = ("prostate", "fundus")


def table() -> str:
    """A row per strategy; the correlation times 100, the distance in points of Dice, as in the paper."""
    found = {study: _of(study) for study in STUDIES}
    strategies = dict.fromkeys(strategy for rows in found.values() for strategy in rows)
    head = ["strategy", *(f"{study}, {what}" for study in STUDIES for what in ("Pearson", "p", "Euclid"))]
    nothing = ["–"] * 3
    rows = [[name, *(cell for study in STUDIES for cell in found[study].get(name, nothing))] for name in strategies]
    return markdown(head, rows)


def _of(study: str) -> dict[str, list[str]]:
    results = read(study)
    alone, rows = site_means(cases(results["Standalone"])), {}
    for strategy, found in results.items():
        if strategy != "Standalone":
            means = site_means(cases(found))
            correlation = performance_fairness_pearson(alone, means)
            distance = performance_distance(alone, means)
            rows[strategy] = [f"{correlation.r:.1f}", f"{correlation.p_value:.2f}", f"{distance:.1f}"]
    return rows
