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
"""FedISM, Table 3: sharpness-aware local training (SALT) added to other strategies; 20 % of the clients with noise."""

from __future__ import annotations

from papers.fedism_table1 import HEAD, groups_of, row
from reading import difference, markdown, read, shown_name, words

STUDIES = ("quality",)
METHODS = ("FedAvg", "qFedAvg", "AFL", "FairFed", "FedCE", "FedGA")


def table() -> str:
    """Each strategy without and with it, and what it adds, case by case."""
    results, groups, rows = read("quality", "noise20"), groups_of("quality", "noise20"), []
    for method in METHODS:
        added = [
            words(difference(results[f"{method}-SALT"], results[method], groups[group][:1]), signed=True)
            for group in ("clean", "corrupted")
        ]
        without = row(results, method, groups)[:2]
        with_it = row(results, f"{method}-SALT", groups)[:2]
        rows.append([shown_name(method), *without, *with_it, *added])
    head = [
        "method",
        *HEAD[:2],
        *(f"{name}, with SALT" for name in HEAD[:2]),
        "SALT adds, clean",
        "SALT adds, corrupted",
    ]
    return markdown(head, rows)
