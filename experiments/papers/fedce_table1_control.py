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
"""FedCE, Table 1 on the generated hospitals, with augmentation and without: does augmentation close the gap by itself?

Control to the tables of the real images: the same strategies, and some of them without augmentation, as the papers
train (photographs are still looked at from anywhere near the disc). Hospitals differ there by construction.
"""

from __future__ import annotations

from papers.fedce_table1_fundus import missed
from reading import dice_table, read

STUDIES = ("six_prostate", "six_fundus")
SETTINGS = {"": "as everywhere else", "no_augmentation": "without augmentation"}


def table() -> str:
    """A table per task and setting; the gain over FedAvg is case by case, in the same setting."""
    return "\n\n".join(_of(study, setting) for study in STUDIES for setting in SETTINGS)


def _of(study: str, setting: str) -> str:
    results = read(study, setting)
    parts = [f"`{study}`, {SETTINGS[setting]}:", dice_table(results)]
    return "\n\n".join(parts + [missed(results)] if study == "six_fundus" else parts)
