# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the hospitals reported of their images, as a table and as histograms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fairfl.report.columns import NO_VALUE
from monai_fairfl.report.figures import Figure, histograms
from monai_fairfl.statistics.documents import FILE, read_document, without_sites
from monai_fairfl.utils.tables import text_of_table

ALL = "All"
"""The last row."""

COLOURS = ("red", "green", "blue")
"""Names of three channels."""

TITLES = (
    "Site",
    "Cases",
    "Size, voxels",
    "Spacing, mm",
    "Intensity",
    "In the label",
    "Labels: share of the image",
)

Lines = list[str]
Moments = Mapping[str, Any]


def find_statistics(
    folder: Path, run_dirs: Sequence[str | Path], withdrawn: Collection[str] = ()
) -> dict[str, Any] | None:
    """The statistics beside a report, or in one of its runs; ``None``: there are none.

    Args:
        folder: of the report.
        run_dirs: of its runs.
        withdrawn: sites that are left out.

    Raises:
        ConfigError: when the file is damaged.
    """
    for place in (folder, *map(Path, run_dirs)):
        file = place / FILE
        if file.exists():
            return without_sites(read_document(file), withdrawn)
    return None


def statistics_rows(found: Mapping[str, Any]) -> list[list[Lines]]:
    """Rows of the sites and of all together: for each of :data:`TITLES` the lines of its cell.

    >>> site = {"withheld": "fewer than 5 cases"}
    >>> statistics_rows({"sites": {"elm": site}, "all": site})[0][:2]
    [['elm'], ['withheld: fewer than 5 cases']]
    """
    rows = [_row(name, site) for name, site in found["sites"].items()]
    return [*rows, _row(ALL, found["all"], found["sites"])]


def statistics_table(found: Mapping[str, Any]) -> str:
    """The rows as text, for a terminal."""
    rows = []
    for cells in statistics_rows(found):
        rows.append(["\n".join(lines) for lines in cells])
    return text_of_table(TITLES, rows)


def statistics_note(found: Mapping[str, Any]) -> str:
    """How the table is to be read."""
    least = found["least"]
    return (
        f"Means ± standard deviations over the cases, of images as they are stored. Every number "
        f"is of at least {least} cases, else it is withheld; a label of fewer cases is not named. "
        f"Intensity is the mean of each image, in the smallest box around what is above zero. "
        f"{NO_VALUE}: withheld, or nothing that such images have. {ALL}: made of what the sites "
        f"reported."
    )


def histogram_figure(found: Mapping[str, Any], sites: Sequence[str]) -> Figure | None:
    """Histograms of the intensities, a panel for each channel; ``None`` where none is reported.

    Args:
        found: the statistics.
        sites: of the report; the place of a site decides its colour.
    """
    ordered = [*sites, *(name for name in found["sites"] if name not in sites)]
    shares: dict[str, dict[str, list[float | None]]] = {}
    for name in ordered:
        channels = found["sites"].get(name, {}).get("histogram", ())
        for title, channel in zip(_channel_names(len(channels)), channels):
            shares.setdefault(title, {})[name] = _shares(channel["counts"])
    if not shares:
        return None
    return histograms(shares, ordered, found["histogram"]["low"], found["histogram"]["high"])


def _channel_names(count: int) -> list[str]:
    if count == 1:
        return [""]
    if count == len(COLOURS):
        return [name.capitalize() for name in COLOURS]
    return [f"Channel {number}" for number in range(count)]


def _shares(counts: Sequence[int | None]) -> list[float | None]:
    """Shares in percent of all voxels that are shown."""
    total = sum(count for count in counts if count is not None)
    return [None if count is None else 100 * count / total for count in counts]


def _row(
    name: str, site: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]] = {}
) -> list[Lines]:
    """The cells of a site, or of all sites together, which are its ``parts``."""
    if "withheld" in site:
        empty = [[NO_VALUE] for _ in TITLES[2:]]
        return [[name], [f"withheld: {site['withheld']}"], *empty]
    return [
        [name],
        [str(site["cases"])],
        _axes(site["size"]),
        _axes(site["spacing"]),
        _channels(site["intensity"]),
        [*_channels(site["labelled"]), *(_left_out(parts) if site["labelled"] else ())],
        _labels(site["labels"], site["cases"], parts),
    ]


def _left_out(parts: Mapping[str, Mapping[str, Any]]) -> Lines:
    """A line on the sites whose labelled cases are not counted: no mean over all has them."""
    names = []
    for name, site in parts.items():
        channels = [channel for channel in site.get("labelled") or () if channel]
        if any(moments["cases"] is None for channel in channels for moments in channel.values()):
            names.append(name)
    return [f"without {', '.join(names)}"] if names else []


def _axes(axes: Sequence[Moments | None] | None) -> Lines:
    if not axes:
        return [NO_VALUE]
    return [" x ".join(_text(moments) for moments in axes)]


def _channels(channels: Sequence[Mapping[str, Moments | None] | None] | None) -> Lines:
    """A line for each channel: the mean of its images' means."""
    if not channels:
        return [NO_VALUE]
    lines = []
    for title, channel in zip(_channel_names(len(channels)), channels):
        moments = channel["mean"] if channel else None
        lines.append(f"{title} {_text(moments)}".strip())
    return lines


def _labels(
    labels: Mapping[str, Moments], cases: int, parts: Mapping[str, Mapping[str, Any]]
) -> Lines:
    """A line for each label; of all sites together it names those whose count is not known."""
    lines = []
    for label, moments in labels.items():
        percent = {"mean": 100 * moments["mean"], "stdev": 100 * moments["stdev"]}
        count = moments["cases"]
        words = f"in {count}"
        if count is None:
            words = "in most"
        elif count == cases:
            words = "in all"
        left_out = []
        for name, site in parts.items():
            if site.get("labels", {}).get(label, {"cases": 0})["cases"] is None:
                left_out.append(name)
        if left_out:
            words += f", without {', '.join(left_out)}"
        lines.append(f"{label}: {_text(percent)} %, {words}")
    return lines or [NO_VALUE]


def _text(moments: Moments | None) -> str:
    """Mean and standard deviation, to three and two digits.

    >>> _text({"mean": 384.0, "stdev": 0.0}), _text({"mean": 0.6251, "stdev": 0.0404})
    ('384', '0.625 ± 0.04')
    >>> _text({"mean": 1177.6, "stdev": 1480.2}), _text({"mean": 999.7, "stdev": 99.6})
    ('1178 ± 1480', '1000 ± 100')
    """
    if moments is None:
        return NO_VALUE
    mean = _number(moments["mean"], 3)
    if moments["stdev"] <= 1e-4 * abs(moments["mean"]):
        return mean
    return f"{mean} ± {_number(moments['stdev'], 2)}"


def _number(value: float, digits: int) -> str:
    """A number to so many digits, or to a whole one.

    >>> _number(0.6251, 3), _number(999.4, 3), _number(999.6, 3)
    ('0.625', '999', '1000')
    """
    shown = f"{value:.{digits}g}"
    # What is rounded up may have a digit more, as 999.6 has.
    if abs(float(shown)) >= 10**digits:
        return f"{value:.0f}"
    return shown
