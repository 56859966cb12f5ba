# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Draw the picture of ``use_model.md``: what ``evaluate`` wrote of a hospital, and words to it.

The words have the places of this run::

    monai-fairfl demo --data-only --out hospitals
    monai-fairfl train hospitals --quick --strategy FedAvg --out run \\
        --overrides "{'size': [96, 96]}"
    monai-fairfl evaluate run hospitals --out scores
    python docs/images/use_model.py scores/ash
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

from monai_fairfl.utils.spreadsheets import read_csv_text

matplotlib.use("Agg")  # no window

import matplotlib.pyplot as plt  # noqa: E402

GREY = "#808891"  # is read on white and on black
WORDS = {
    "reference": ((58, 30), (92, 100)),
    "missed": ((262, 30), (215, 90)),
    "prediction": ((262, 245), (250, 168)),
    "too much": ((590, 215), (520, 166)),
}
"""Words -> their place, and that of the arrow's tip, in pixels below the titles of the picture."""


@plt.style.context("default")
def draw(scores: Path, file: Path) -> None:
    """Draw ``cases.png`` with arrows, and the volumes of ``sizes.csv``."""
    rows = read_csv_text((scores / "sizes.csv").read_text())
    rows.sort(key=lambda row: -float(row["dice"]))
    shown = {"best": rows[0], "median": rows[len(rows) // 2], "worst": rows[-1]}
    figure, axes = plt.subplots(figsize=(9.8, 3.4), layout="constrained")
    picture = plt.imread(scores / "cases.png")[34:]
    for number, (name, row) in enumerate(shown.items()):
        left = 330 * number
        panel = picture[:, left : left + 320]
        panel = panel[(panel < 1).any(axis=(1, 2))]  # below it is white
        axes.imshow(panel, extent=(left, left + 320, len(panel), 0))
        numbers = [float(row[column]) for column in ("dice", "reference", "prediction")]
        title = "{}: Dice {:.2f}\n{:.0f} ml, predicted {:.0f} ml".format(name, *numbers)
        axes.text(left + 160, -8, title, color=GREY, ha="center", fontsize=14)
    for words, (place, tip) in WORDS.items():
        style = {"color": "white", "fontsize": 14, "ha": "center"}
        style["bbox"] = {"facecolor": "black", "alpha": 0.6, "linewidth": 0}
        arrow = {"arrowstyle": "->", "color": "white", "linewidth": 2.5}
        axes.annotate(words, tip, place, arrowprops=arrow, **style)
    axes.set_xlim(0, 980)
    axes.set_ylim(280, -60)
    axes.axis("off")
    figure.savefig(file, dpi=80, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scores", type=Path, help="folder of a hospital that evaluate wrote")
    draw(parser.parse_args().scores, Path(__file__).with_suffix(".png"))
