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
"""FedCE, Table 1, prostate: Dice of every strategy at every site, mean, interval, deviation over sites, worst site."""

from __future__ import annotations

from reading import dice_table, joined, read

STUDIES = ("prostate", "prostate_other_folds")


def table() -> str:
    """A row per strategy; the gain over FedAvg is case by case."""
    whole, half = dice_table(joined(*STUDIES)), dice_table(read("prostate"))
    return f"All four folds:\n\n{whole}\n\nThe first two folds, every strategy:\n\n{half}"
