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
"""FedCE, Fig. 5: do the others' contributions keep their proportions when one site is left out?

The paper shows that they do. Shares of the run with all sites, without the one left out and divided by their sum,
beside those of the run without it; means over folds.
"""

from __future__ import annotations

import numpy as np
from papers.fedce_table3 import mean_of
from reading import markdown, read, shares
from scipy.stats import pearsonr
from study import Study

STUDIES = ("without_one", "without_one_fundus", "six_prostate", "six_fundus")
WHOLE = {"without_one": "six_prostate", "without_one_fundus": "six_fundus"}


def table() -> str:
    """A row per site left out."""
    rows = []
    for study, whole in WHOLE.items():
        everybody = mean_of([shares(result) for result in read(whole)["FedCE"]])
        for setting in Study.read(study).settings:
            found = mean_of([shares(result) for result in read(study, setting)["FedCE"]])
            rest = sum(everybody[site] for site in found)
            before = {site: everybody[site] / rest for site in found}
            change = {site: found[site] - before[site] for site in found}
            most = max(change, key=lambda site: abs(change[site]))
            r = pearsonr(list(before.values()), list(found.values())).statistic
            mean = np.mean(np.abs(list(change.values())))
            rows.append(
                [whole, setting.removeprefix("without_"), f"{r:.2f}", f"{mean:.3f}", f"{most}, {change[most]:+.3f}"]
            )
    return markdown(["study", "left out", "Pearson", "mean change of a share", "largest change"], rows)
