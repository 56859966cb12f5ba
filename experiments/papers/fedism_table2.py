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
"""FedISM, Table 2: its training alone (SALT), its weights alone (SAGA), both; 20 % of the clients with noise."""

from __future__ import annotations

from papers.fedism_table1 import HEAD, SETTINGS, rows_of
from reading import markdown

STUDIES = ("quality", "quality_volumes")
PARTS = {"neither (FedAvg)": "FedAvg", "SALT only": "FedAvg-SALT", "SAGA only": "SAGA", "both (FedISM)": "FedISM"}


def table() -> str:
    """A row per combination."""
    settings = {key: what for key, what in SETTINGS.items() if key[1] == "noise20"}
    return markdown(["images", "parts", *HEAD], rows_of(settings, PARTS))
