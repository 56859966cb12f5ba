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
"""FedISM, Table 1: Dice of clean and of corrupted clients, with 10, 20 and 30 % of the clients' images corrupted.

Ten clients hold even shares of one clinic's photographs; all are tested with the same photographs, clean clients with
clean ones, corrupted clients with corrupted ones. Gaussian noise is of severity 3, as in the paper, motion blur of
severity 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reading import Result, cases, difference, interval_of, markdown, read, words
from study import Study

from monai_fairfl.intervals import Interval

STUDIES = ("quality",)
SETTINGS = {
    "noise10": "noise, 10 %",
    "noise20": "noise, 20 %",
    "noise30": "noise, 30 %",
    "blur20": "motion blur, 20 %",
}
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA", "FedISM")


def table() -> str:
    """A row per setting and method."""
    rows = []
    for setting, what in SETTINGS.items():
        results = read("quality", setting)
        for method in METHODS:
            rows.append([what, method, *row(results, method, setting)])
    return markdown(HEAD, rows)


HEAD = ["images", "method", "clean", "corrupted", "corrupted, gain over FedAvg"]


def row(results: Mapping[str, Sequence[Result]], method: str, setting: str) -> list[str]:
    """Clean Dice, corrupted Dice, and the gain in the latter."""
    groups = groups_of(setting)
    gain = words(difference(results[method], results["FedAvg"], groups["corrupted"][:1]), signed=True)
    return [
        *(words(group_dice(results[method], sites)) for sites in reversed(groups.values())),
        gain if method != "FedAvg" else "–",
    ]


def group_dice(results: Sequence[Result], sites: Sequence[str]) -> Interval:
    """Dice of a group with its interval. All have the same model and the same tests, so one speaks for all."""
    pooled = cases(results)
    return interval_of({sites[0]: pooled[sites[0]]})


def groups_of(setting: str) -> dict[str, list[str]]:
    """``"corrupted"`` and ``"clean"`` clients of a setting."""
    return dict(Study.read("quality").settings[setting]["arguments"]["groups"])
