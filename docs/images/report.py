# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Draw the first screen of the demonstration's report, with labels, for light and dark pages.

It needs Chromium. Run it after ``make demo``::

    monai-fairfl value demo/run
    .venv/bin/python docs/images/report.py demo/run
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")  # no window

import matplotlib.pyplot as plt  # noqa: E402

FOLDER = Path(__file__).parent
WIDTH, HEIGHT, BELOW = 1280, 672, 68
"""Pixels of the screen, and those below it that have labels."""

COLOUR = "#cc2379"

LABELS = {
    "the answer": ((560, 36), (480, 66)),
    "Dice and its 95 % interval": ((1010, 36), (1005, 98)),
    "one verdict a hospital": ((210, 718), (225, 656)),
    "share of images → of weight": ((560, 718), (645, 652)),
    "what it is worth to the others": ((830, 718), (812, 652)),
    "what to do next": ((1080, 718), (1050, 652)),
}
"""Label -> where it is, and what it points to, in pixels from the upper left corner."""


def screenshot(page: str, folder: Path) -> Path:
    """The first screen of a page as a PNG in ``folder``."""
    file, picture = folder / "page.html", folder / "page.png"
    file.write_text(page)
    usual = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    # Chromium does not draw the last pixels of a window.
    shown = [f"--window-size={WIDTH},{2 * HEIGHT}", "--hide-scrollbars", f"--screenshot={picture}"]
    profile = f"--user-data-dir={folder / 'profile'}"
    subprocess.run(["chromium", *usual, profile, *shown, file.as_uri()], check=True)
    return picture


@plt.style.context("default")  # whatever else of this process has set
def draw(page: str, file: Path) -> None:
    """Draw a page's first screen with the labels."""
    with TemporaryDirectory() as folder:
        image = plt.imread(screenshot(page, Path(folder)))[:HEIGHT]
    size = (WIDTH / 100, (HEIGHT + BELOW) / 100)
    figure = plt.figure(figsize=size, facecolor=tuple(image[0, 0]))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(image, interpolation="none", extent=(0, WIDTH, HEIGHT, 0))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT + BELOW, 0))
    axes.axis("off")
    style = {"color": "white", "weight": "bold", "fontsize": 11, "ha": "center", "va": "center"}
    for label, (place, target) in LABELS.items():
        box = {"boxstyle": "round,pad=0.4", "facecolor": COLOUR, "linewidth": 0}
        arrow = {"arrowstyle": "-|>", "color": COLOUR, "linewidth": 2}
        axes.annotate(label, target, place, bbox=box, arrowprops=arrow, **style)
    figure.savefig(file, dpi=100, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path, help="what make demo wrote, demo/run")
    arguments = parser.parse_args()
    light = (arguments.run_dir / "report.html").read_text()
    draw(light, FOLDER / "report.png")
    dark = light.replace("@media screen and (prefers-color-scheme: dark)", "@media screen")
    draw(dark, FOLDER / "report_dark.png")
