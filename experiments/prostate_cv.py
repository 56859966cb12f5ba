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
"""Four-fold cross-validation by case on the real prostate hospitals: every volume is tested once.

    python experiments/prostate_cv.py run --sites-root DIR --fold 0     # one fold, all strategies; resumable
    python experiments/prostate_cv.py table                             # the table, from the committed JSON files
    python experiments/prostate_cv.py readme                            # the same, into the bundle's README

One small JSON per (fold, strategy) goes to ``experiments/results/prostate_cv``; the table is made from these alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from monai_fairfl.fairness import performance
from monai_fairfl.intervals import bootstrap_site_mean
from monai_fairfl.ledger import read_ledger

ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "bundles" / "prostate_mri_segmentation"
RESULTS = Path(__file__).parent / "results" / "prostate_cv"
README = BUNDLE / "docs" / "README.md"
MARKS = ("<!-- cross-validation: begin -->", "<!-- cross-validation: end -->")
FOLDS = 4
STRATEGIES = [
    {"_target_": "monai_fairfl.strategies.Standalone"},
    {"_target_": "monai_fairfl.strategies.FedAvg"},
    {"_target_": "monai_fairfl.strategies.FedCE"},
    {"_target_": "monai_fairfl.strategies.FedCE", "mode": "sum"},
]
LOCAL_EPOCHS = 4  # each draws 5 slices of every volume, so a round sees about as many slices as there are
BASELINES = {"Standalone": 0, "FedAvg": 1}  # first in the table
OVERRIDES = {"size": [128, 128], "split_folds": FOLDS, "split_seed": 0}


def command(fold: int, sites_root: str, run_dir: str, rounds: int) -> list[str]:
    """The exact command of one fold."""
    return [
        *(sys.executable, "-m", "monai.bundle", "run"),
        *("--config_file", str((BUNDLE / "configs" / "federate.json").relative_to(ROOT))),
        *("--bundle_root", str(BUNDLE.relative_to(ROOT))),
        *("--sites_root", sites_root, "--run_dir", run_dir, "--rounds", str(rounds), "--seed", str(fold)),
        *(
            "--local_epochs",
            str(LOCAL_EPOCHS),
            "--strategies",
            str(STRATEGIES),
            "--overrides",
            str({**OVERRIDES, "split_fold": fold}),
        ),
        *("--device", "cpu", "--report", "False", "--resume", "True"),
    ]


def run(fold: int, sites_root: str, run_dir: Path, rounds: int) -> None:
    """Train and test one fold, then write its JSON files."""
    folder = run_dir / f"fold-{fold}"
    started = time.monotonic()
    subprocess.run(command(fold, sites_root, str(folder.absolute()), rounds), check=True, cwd=ROOT)
    minutes = (time.monotonic() - started) / 60
    RESULTS.mkdir(parents=True, exist_ok=True)
    for ledger in sorted(folder.glob("*/ledger.jsonl")):
        result = {**summary(ledger.parent), "fold": fold, "seed": fold, "fold_minutes": round(minutes, 1)}
        (RESULTS / f"fold-{fold}-{result['strategy']}.json").write_text(json.dumps(result, indent=1) + "\n")


def summary(run_dir: Path) -> dict[str, Any]:
    """What one run says: per-case test Dice of the model each site would use, and the last aggregation weights."""
    records = read_ledger(run_dir / "ledger.jsonl")
    rounds = [record for record in records if record["kind"] == "round"]
    sites = {}
    for site in records[0]["clients"]:
        files = (run_dir / "sites" / site / "state").glob(f"*-test_score-{len(rounds)}-*.csv")
        own = min(files, key=lambda path: int(path.stem.rpartition("-")[2]))  # asked first, before the global model's
        sites[site] = {row["case"]: float(row["dice"]) for row in csv.DictReader(own.open())}
    scores = records[-1]["scores"]
    return {
        "strategy": records[0]["name"],
        "rounds": len(rounds),
        "local_epochs": LOCAL_EPOCHS,
        "overrides": OVERRIDES,
        "test_dice": sites,
        "validation_dice": {site: scores[site]["own"]["score"]["mean"]["value"] for site in sites},
        "aggregation": rounds[-1]["aggregation"],
        "model": records[-1]["model"],
    }


def table(results: Iterable[dict[str, Any]]) -> str:
    """Markdown: per-site test Dice of all volumes, mean, std over sites, worst site, bootstrap interval of the mean."""
    by_strategy: dict[str, dict[str, dict[str, float]]] = {}
    for result in results:
        pooled = by_strategy.setdefault(result["strategy"], {})
        for site, cases in result["test_dice"].items():
            twice = set(cases) & set(pooled.setdefault(site, {}))
            if twice:
                raise ValueError(f"{result['strategy']}: {site} tested {sorted(twice)} in two folds")
            pooled[site] |= cases
    sites = sorted(next(iter(by_strategy.values())))
    counts = {site: len(next(iter(by_strategy.values()))[site]) for site in sites}
    lines = [
        "| strategy | "
        + " | ".join(f"{s} ({counts[s]})" for s in sites)
        + " | mean | 95 % interval | std | worst site |",
        "| --- " * (len(sites) + 5) + "|",
    ]
    for strategy in sorted(by_strategy, key=lambda name: (BASELINES.get(name, len(BASELINES)), name)):
        pooled = by_strategy[strategy]
        means = {site: sum(pooled[site].values()) / len(pooled[site]) for site in sites}
        summary = performance(means)
        interval = bootstrap_site_mean({site: list(pooled[site].values()) for site in sites})
        cells = [f"{means[site]:.3f}" for site in sites]
        cells += [f"**{summary.mean:.3f}**", f"{interval.low:.3f} to {interval.high:.3f}", f"{summary.std:.3f}"]
        lines.append(f"| {strategy} | " + " | ".join([*cells, f"{summary.worst:.3f} ({summary.worst_client})"]) + " |")
    return "\n".join(lines)


def committed() -> list[dict[str, Any]]:
    """The committed results."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="train and test one fold")
    one.add_argument(
        "--sites-root", required=True, help="folder with SITE/CaseNN.nii.gz and CaseNN_segmentation.nii.gz"
    )
    one.add_argument("--fold", type=int, required=True, choices=range(FOLDS))
    one.add_argument("--run-dir", type=Path, default=Path("runs/prostate_cv"))
    one.add_argument("--rounds", type=int, default=60)
    commands.add_parser("table", help="print the table")
    commands.add_parser("readme", help="write the table into the bundle's README")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.fold, arguments.sites_root, arguments.run_dir, arguments.rounds)
    elif arguments.command == "table":
        print(table(committed()))
    else:
        before, _, rest = README.read_text().partition(MARKS[0])
        README.write_text(f"{before}{MARKS[0]}\n{table(committed())}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
