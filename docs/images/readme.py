# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Draw the README's picture: four real hospitals, and one case of the demo's *willow*.

The left panel is of the committed results of ``strong_prostate``, the right one of a run of the
demo::

    make demo
    .venv/bin/python docs/images/readme.py demo/hospitals demo/run
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import matplotlib
import nibabel
import numpy as np
import numpy.typing as npt

matplotlib.use("Agg")  # no window

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parents[1] / "experiments"))

from study import Study  # noqa: E402

STRATEGIES = {"Standalone": "alone", "FedAvg": "FedAvg", "FedCE-sum": "FedCE's sum"}

# Told apart with any eyes, after Okabe and Ito; all are read on white and on black.
GREY, RED, GREEN, BLUE = "#808891", "#f07020", "#00c08b", "#3d8fd1"
BIG = 23

Array = npt.NDArray[np.floating]


def site_dice(strategy: str) -> dict[str, float]:
    """The mean test Dice of each hospital, over its cases in all folds and seeds, as received."""
    cases: dict[str, list[float]] = {}
    for result in Study.read("strong_prostate").results().values():
        if (result["strategy"], result["setting"]) == (strategy, ""):
            for site, values in result["test"]["dice"].items():
                cases.setdefault(site, []).extend(values)
    return {site: float(np.mean(values)) for site, values in cases.items()}


def draw_hospitals(panel: Axes) -> None:
    """Draw a line for each hospital, from training alone to the fair method."""
    means = [site_dice(strategy) for strategy in STRATEGIES]
    weakest = min(means[0], key=lambda site: means[0][site])
    for site in means[0]:
        values = [of_sites[site] for of_sites in means]
        bold = site == weakest
        style = {"color": BLUE if bold else GREY, "linewidth": 4 if bold else 1.8, "marker": "o"}
        panel.plot(range(len(values)), values, zorder=2 + bold, **style)
        if bold:
            for place, value in enumerate(values):
                words = f"{site} {value:.3f}" if place == 0 else f"{value:.3f}"
                below = {"xytext": (6, -30), "textcoords": "offset points", "weight": "bold"}
                panel.annotate(words, (place, value), color=BLUE, fontsize=BIG, **below)
    panel.set_xticks(range(len(means)), list(STRATEGIES.values()), fontsize=BIG)
    panel.set_xlim(-0.3, len(means) - 0.55)
    panel.set_ylim(0.6, 0.9)
    panel.set_yticks([0.6, 0.7, 0.8, 0.9])
    panel.set_title("Dice, four real hospitals", fontsize=BIG, color=GREY)
    panel.tick_params(labelsize=BIG, colors=GREY, length=0)
    panel.spines[:].set_visible(False)
    panel.grid(axis="y", color=GREY, alpha=0.35)


class Case(NamedTuple):
    """A test case with its reference mask and the masks of two models."""

    image: Array
    reference: Array
    fedavg: Array
    fedce: Array


def dice(mask: Array, reference: Array) -> float:
    """The Dice coefficient of two masks."""
    both = (mask > 0) & (reference > 0)
    return float(2 * both.sum() / ((mask > 0).sum() + (reference > 0).sum()))


def read(file: Path) -> Array:
    return np.asarray(nibabel.nifti1.load(file).get_fdata())


def masks_of(run: Path, images: Path, out: Path) -> dict[str, Array]:
    """Segment a folder of images with a run's model, by ``infer``."""
    words = [sys.executable, "-m", "monai_fairfl", "infer", str(run), str(images)]
    subprocess.run([*words, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    found = {}
    for image in images.iterdir():
        name = image.name.removesuffix(".nii.gz")
        [mask] = out.rglob(f"{name}*.nii.gz")
        found[name] = read(mask)
    return found


def hardest_case(hospitals: Path, runs: Path) -> Case:
    """Willow's test case with the lowest Dice of FedAvg."""
    entries = json.loads((hospitals / "datalist" / "willow.json").read_text())["testing"]
    references = {}
    with TemporaryDirectory() as folder:
        images = Path(folder, "images")
        images.mkdir()
        for entry in entries:
            image = shutil.copy(hospitals / entry["image"], images)
            name = Path(image).name.removesuffix(".nii.gz")
            references[name] = read(hospitals / entry["label"])
        fedavg = masks_of(runs / "FedAvg", images, Path(folder, "FedAvg"))
        fedce = masks_of(runs / "FedCE-sum", images, Path(folder, "FedCE"))
    for name, mask in references.items():
        found = dice(fedavg[name], mask), dice(fedce[name], mask)
        print("{}: Dice {:.3f} with FedAvg, {:.3f} with FedCE's sum".format(name, *found))
    hardest = min(references, key=lambda name: dice(fedavg[name], references[name]))
    print(f"drawn: {hardest}")
    image = read(hospitals / "willow" / f"{hardest}.nii.gz")
    return Case(image, references[hardest], fedavg[hardest], fedce[hardest])


def draw_case(panel: Axes, case: Case) -> None:
    """Draw the slice where the reference is largest, around it, with three outlines."""
    at = int(case.reference.sum(axis=(0, 1)).argmax())
    image = case.image[:, :, at].T
    rows, columns = np.nonzero(case.reference[:, :, at].T)
    half = 0.85 * max(np.ptp(rows), np.ptp(columns))
    panel.imshow(image, cmap="gray", vmin=0, vmax=float(np.percentile(case.image, 99.5)))
    outlines = {
        "reference": (case.reference, "white"),
        "FedAvg": (case.fedavg, RED),
        "FedCE's sum": (case.fedce, GREEN),
    }
    for place, (name, (mask, colour)) in enumerate(outlines.items()):
        panel.contour(mask[:, :, at].T, [0.5], colors=colour, linewidths=3)
        where = {"transform": panel.transAxes, "fontsize": BIG, "weight": "bold"}
        where["bbox"] = {"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 2}
        panel.text(0.03, 0.97 - 0.11 * place, name, color=colour, va="top", **where)
    panel.set_xlim(columns.mean() - half, columns.mean() + half)
    panel.set_ylim(rows.mean() + half, rows.mean() - half)
    panel.set_title("willow (generated)", fontsize=BIG, color=GREY)
    panel.axis("off")


@plt.style.context("default")
def draw(hospitals: Path, runs: Path, file: Path) -> None:
    widths = {"width_ratios": [1.3, 1]}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 5), gridspec_kw=widths)
    draw_hospitals(left)
    draw_case(right, hardest_case(hospitals, runs))
    figure.tight_layout()
    # Transparent, for light and dark pages; without the version of its writer.
    figure.savefig(file, dpi=120, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hospitals", type=Path, help="demo/hospitals")
    parser.add_argument("runs", type=Path, help="demo/run")
    arguments = parser.parse_args()
    draw(arguments.hospitals, arguments.runs, FOLDER / "readme.png")
