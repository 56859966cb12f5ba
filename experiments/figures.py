# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The house style of the figures: small, without decoration, the same bytes from the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

__all__ = ["PALETTE", "heat_maps", "lines", "panels", "save"]

# Okabe and Ito's colours for all kinds of sight, as in the report
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#999999"]
STYLE = {
    "svg.hashsalt": "monai_fairfl",
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "axes.prop_cycle": matplotlib.cycler(color=PALETTE),
}
plt.rcParams.update(STYLE)


def panels(
    titles: Sequence[str], across: int = 3, height: float = 2.2, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title."""
    across = min(across, len(titles))
    down = -(-len(titles) // across)
    figure, grid = plt.subplots(
        down,
        across,
        figsize=(3.0 * across, height * down),
        sharey=share,
        squeeze=False,
        layout="constrained",
    )
    axes = list(grid.flat)
    for axis, title in zip(axes, titles):
        axis.set_title(title)
    for spare in axes[len(titles) :]:
        spare.set_visible(False)
    return figure, axes[: len(titles)]


def lines(
    axis: Axes,
    series: Mapping[str, Sequence[float | None]],
    x: str = "round",
    y: str = "",
    first: int = 1,
) -> None:
    """One line per name, from round ``first`` on; gaps where a value is missing."""
    for name, values in series.items():
        numbers = [np.nan if value is None else value for value in values]
        axis.plot(range(first, first + len(numbers)), numbers, label=name)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def save(figure: Figure, path: Path) -> None:
    """Write SVG without the date, so that equal numbers give an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def heat_maps(
    maps: Mapping[str, np.ndarray], rows: Sequence[str], columns: Sequence[str]
) -> Figure:
    """Matrices side by side; every column is divided by its largest absolute value, and shows the
    value itself.
    """
    drawn, axes = panels(list(maps), across=len(maps), height=0.3 * len(rows) + 0.8, share=False)
    for axis, values in zip(axes, maps.values()):
        axis.imshow(
            values / np.abs(values).max(axis=0), cmap="RdBu", vmin=-1.5, vmax=1.5, aspect="auto"
        )
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        for row, column in np.ndindex(values.shape):
            axis.text(
                column, row, f"{values[row, column]:.3f}", ha="center", va="center", fontsize=6
            )
    return drawn
