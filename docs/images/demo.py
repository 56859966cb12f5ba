# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of the demonstration: its hospitals, and what it recorded by round.

Run it after ``make demo``::

    python docs/images/demo.py demo/run
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from monai_fairfl.data import DEMO_SITES, make_case
from monai_fairfl.report.collect import load_runs
from monai_fairfl.report.contributions import points_of

matplotlib.use("Agg")  # no window

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

FOLDER = Path(__file__).parent
SEED = 0
SIZE = (96, 96, 12)

# Okabe and Ito's colours, as in the report; the last is willow's.
COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00")


@plt.style.context("default")  # whatever else of this process has set
def draw_hospitals(file: Path) -> None:
    """Draw a slice of the first case of each hospital, with the outline of the gland.

    It is the slice in which the gland is largest.
    """
    size = (2.5 * len(DEMO_SITES), 2.8)
    # tight_layout cuts the titles of panels without axes.
    figure, panels = plt.subplots(1, len(DEMO_SITES), figsize=size, layout="constrained")
    for panel, site in zip(panels, DEMO_SITES, strict=True):
        image, mask, _ = make_case(site, 0, SEED, SIZE)
        largest = int(mask.sum(axis=(0, 1)).argmax())
        # Rows run from front to back, columns from right to left.
        shown = image[:, :, largest].T
        # The bundle scales a volume by the same percentile.
        panel.imshow(shown, cmap="gray", vmin=0, vmax=np.percentile(image, 99.5))
        panel.contour(mask[:, :, largest].T, [0.5], colors="gold", linewidths=1.2)
        panel.set_title(site.name)
        panel.axis("off")
    _save(figure, file)


@plt.style.context("default")
def draw_rounds(folder: Path, file: Path) -> None:
    """Draw validation Dice and aggregation weights by round of every run in ``folder``."""
    runs = load_runs([folder])
    size = (3.3 * len(runs), 5.2)
    figure, rows = plt.subplots(2, len(runs), figsize=size, sharey="row", sharex=True)
    for dice, weight, run in zip(rows[0], rows[1], runs, strict=True):
        dice.set_title(run.name)
        _plot(dice, points_of([run], "dice"))
        weights = points_of([run], "weight")
        if any(weights.values()):
            _plot(weight, weights)
        else:
            weight.text(0.5, 0.5, "averages nothing", transform=weight.transAxes, ha="center")
            weight.spines[["top", "right"]].set_visible(False)
        weight.set_xlabel("round")

    # The panels of a row share their range, which is known when all is drawn.
    for row in rows:
        row[0].set_ylim(bottom=0)
    rows[0][0].set_ylabel("validation Dice")
    rows[1][0].set_ylabel("aggregation weight")
    rows[0][0].legend(frameon=False)
    figure.tight_layout(pad=0.6)
    _save(figure, file)


def _plot(axes: Axes, series: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw a line for each site."""
    style = {"linewidth": 1.5, "marker": "o", "markersize": 2.5}
    for colour, (site, points) in zip(COLOURS, series.items(), strict=True):
        rounds = [point["round"] for point in points]
        values = [point["value"] for point in points]
        axes.plot(rounds, values, color=colour, label=site, **style)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6")


def _save(figure: plt.Figure, file: Path) -> None:
    """Write a small PNG without the version of its writer."""
    figure.savefig(file, dpi=80, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path, help="what make demo wrote, demo/run")
    arguments = parser.parse_args()
    draw_hospitals(FOLDER / "demo_hospitals.png")
    draw_rounds(arguments.run_dir, FOLDER / "demo_rounds.png")
