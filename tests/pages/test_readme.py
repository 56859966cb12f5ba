# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The README is short, its numbers are those of the files, and its Python runs as it is printed."""

from __future__ import annotations

import csv
import gzip
import re
import statistics
import sys
from pathlib import Path

from helpers.checkout import CHECKOUT
from helpers.page_blocks import FEW, run_commands

sys.path.append(str(CHECKOUT / "experiments"))

import results  # noqa: E402

README = (CHECKOUT / "README.md").read_text()
STUDY = CHECKOUT / "experiments" / "results" / "strong_prostate.csv.gz"


def test_the_page_is_short() -> None:
    assert len(README.split()) <= 900
    assert len((CHECKOUT / "CHANGELOG.md").read_text().split()) <= 320


ROWS = {
    "each hospital alone": "Standalone",
    "FedAvg": "FedAvg",
    "uniform weights, equal for every hospital": "FedAvg-uniform",
    "FedCE's sum": "FedCE-sum",
}
"""A row of the table of results -> its strategy in the study."""


def test_the_table_of_results_is_recomputed_from_the_studys_table() -> None:
    """Beside the intervals, which the linked page has from code of its own."""
    page = results.block("strong_prostate")
    with gzip.open(STUDY, "rt") as file:
        rows = list(csv.DictReader(file))
    for name, strategy in ROWS.items():
        [row] = re.findall(rf"^\| {name} \| (.*) \|$", README, re.MULTILINE)
        weakest, mean, spread = row.split(" | ")
        cases: dict[str, list[float]] = {}
        for of_site in rows:
            if of_site["site"] and of_site["cell"].startswith(f"{strategy}-fold"):
                values = of_site["test/dice/*"].strip("[]").split()
                cases.setdefault(of_site["site"], []).extend(map(float, values))
        assert len(cases) == 4 and sum(map(len, cases.values())) == 3 * 34  # seeds, volumes
        means = [sum(values) / len(values) for values in cases.values()]
        assert weakest == f"{min(means):.3f}"
        assert mean.split()[0] == f"{sum(means) / 4:.3f}"
        assert spread == f"{statistics.stdev(means):.3f}"
        assert f"| {mean} | {spread} | {weakest} (BIDMC) |" in page


def test_every_other_number_is_of_the_demo() -> None:
    text = re.sub(r"^(\||```).*$|`[^`]*`", "", README, flags=re.MULTILINE)
    demo = (CHECKOUT / "docs" / "demo.md").read_text()
    numbers = re.findall(r"\b0\.\d{2,}\b", text)
    assert numbers
    for number in numbers:
        assert re.search(rf"\b{number}", demo), number


def test_the_python_prints_contributions_and_writes_a_report(tmp_path: Path) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    for written, tiny in {
        "import write_demo": "import pelvis",
        'write_demo("hospitals")': FEW,
        "rounds=20": "rounds=1",
        "local_epochs=4": "jobs=1",
    }.items():
        assert written in code
        code = code.replace(written, tiny)
    (tmp_path / "of_readme.py").write_text(code)
    # Sites answer at once; those of the notebook train.
    printed = run_commands([["python", "-m", "of_readme"]], tmp_path, {}, trains=False)
    assert "'willow'" in printed.splitlines()[-1]
    assert (tmp_path / "runs" / "python" / "report.html").exists()
