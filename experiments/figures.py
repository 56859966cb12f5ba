# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The house style of the figures: small and without decoration.

The same numbers give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler

matplotlib.use("svg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Okabe and Ito's colours for all kinds of sight, as in the report
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#999999"]
STYLE: dict[str, Any] = {
    "svg.hashsalt": "monai_fairfl",
    "font.size": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "axes.prop_cycle": cycler(color=PALETTE),
}
plt.rcParams.update(STYLE)  # type: ignore[arg-type]


def panels(
    titles: Sequence[str], across: int = 3, height: float = 2.2, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """Make a figure with one panel per title.

    Args:
        titles: of the panels, row by row.
        across: panels in a row, at most.
        height: of a panel, in inches.
        share: whether all panels have one vertical scale.
    """
    columns = min(across, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(3.0 * columns, height * rows),
        sharey=share,
        squeeze=False,
        layout="constrained",
    )
    axes = list(grid.flat)
    used = axes[: len(titles)]
    for axis, title in zip(used, titles):
        axis.set_title(title)
    for spare in axes[len(titles) :]:
        spare.set_visible(False)
    return figure, used


def lines(
    axis: Axes,
    series: Mapping[str, Sequence[float | None]],
    x: str = "round",
    y: str = "",
    first: int = 1,
) -> None:
    """Draw one line per name, from round ``first`` on; gaps where a value is missing."""
    for name, values in series.items():
        numbers = [np.nan if value is None else value for value in values]
        axis.plot(range(first, first + len(numbers)), numbers, label=name)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def heat_maps(
    maps: Mapping[str, np.ndarray], rows: Sequence[str], columns: Sequence[str]
) -> Figure:
    """Draw matrices side by side.

    Every column is coloured by its values divided by the largest absolute one; each entry shows
    the value itself.
    """
    figure, axes = panels(list(maps), across=len(maps), height=0.3 * len(rows) + 0.8, share=False)
    for axis, values in zip(axes, maps.values()):
        scaled = values / np.abs(values).max(axis=0)
        axis.imshow(scaled, cmap="RdBu", vmin=-1.5, vmax=1.5, aspect="auto")
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        for row, column in np.ndindex(values.shape):
            text = f"{values[row, column]:.3f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=6)
    return figure


def svg(figure: Figure) -> bytes:
    """Write SVG without the date, so that equal numbers give equal bytes."""
    written = BytesIO()
    figure.savefig(written, metadata={"Date": None})
    plt.close(figure)
    return written.getvalue()
