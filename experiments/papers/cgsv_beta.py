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
"""CGSV's beta, how unequal the rewards are: Dice and fairness on the power-law partition.

The paper shows that a small beta is fairer, and a large one serves everybody better; 1e7 gives everybody everything.
"""

from __future__ import annotations

from papers.cgsv_partitions import HEAD, row
from reading import markdown, read

STUDIES = ("rewards",)
BETAS = {"0.5": "CGSV-beta0.5", "1": "CGSV", "1.2": "CGSV-beta1.2", "1.5": "CGSV-beta1.5", "2": "CGSV-beta2"}


def table() -> str:
    """A row per value."""
    results = read("rewards", "power_law")
    rows = [
        [beta, *row(results[method], results["Standalone"])]
        for beta, method in {**BETAS, "1e7": "CGSV-beta1e7"}.items()
    ]
    return markdown(["beta", *HEAD[2:]], rows)
