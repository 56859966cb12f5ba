# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site may report of its images: every number is of a smallest count of cases, or withheld.

A site has the numbers of each case. :func:`site_statistics` makes of them what leaves the site, and
:func:`over_sites` combines what several sites reported. Four rules protect a single case:

- A site with fewer than ``least`` cases reports nothing.
- There is no minimum, no maximum and no value of a voxel or a case. Means and standard deviations
  are over ``least`` cases or more.
- A bin of a histogram is a number only where ``least`` cases have voxels in it. An empty bin and
  one of few cases look alike. Voxels outside of all bins are treated as a bin of their own. The
  withheld bins together are of ``least`` cases too, else the smallest other bin is withheld with
  them: the number of all voxels tells nothing of fewer cases by subtraction.
- The number of cases with a label is left out where fewer than ``least`` cases lack it.

The totals over sites are made of what the sites reported, so that a total less the sites is never
something that a site withheld.

These rules do not protect against comparing: statistics of the same site before and after one case
was added differ by this case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fairfl.errors import DataError
from monai_fairfl.statistics.least import DEFAULT_LEAST, check_least

Moments = dict[str, Any]
"""``mean`` and ``stdev`` (over ``n``) of a number over ``cases``."""


@dataclass(frozen=True)
class CaseNumbers:
    """The numbers of one case; they stay at its site.

    Args:
        size: voxels or pixels along each axis.
        spacing: of voxels along each axis, in mm; ``None`` for a picture, which has none.
        intensity: of each channel, name -> value, over the whole image.
        labelled: the same over the labelled voxels; ``None`` where there are none.
        shares: label -> its share of the voxels, above 0.
        counts: of each channel, the number of voxels in each bin.
    """

    size: Sequence[int]
    spacing: Sequence[float] | None
    intensity: Sequence[Mapping[str, float]]
    labelled: Sequence[Mapping[str, float]] | None
    shares: Mapping[str, float]
    counts: Sequence[Sequence[int]]


def site_statistics(cases: Sequence[CaseNumbers], least: int = DEFAULT_LEAST) -> dict[str, Any]:
    """What leaves a site.

    Args:
        cases: of the site.
        least: the smallest count of cases behind a number.

    Returns:
        For JSON: ``cases``; ``size`` (voxels), ``spacing`` and ``extent`` (mm), each a list of
        moments, one an axis; ``intensity`` and ``labelled``, of each channel name -> moments;
        ``labels``, label -> moments of its share; ``histogram``, of each channel ``counts`` and
        ``outside``. Moments are ``cases``, ``mean`` and ``stdev``. ``None`` stands for what is
        withheld, or what the images do not have. A site with too few cases has ``withheld`` alone.

    Raises:
        ConfigError: when ``least`` is too small.
        DataError: when the cases differ in their axes or channels, or a number is not finite.

    >>> case = CaseNumbers((4, 6), None, [{"mean": 7.0}], None, {"1": 0.5}, [[24, 0]])
    >>> site_statistics([case] * 3)
    {'withheld': 'fewer than 5 cases'}
    >>> found = site_statistics([case] * 6)
    >>> found["size"][1], found["labels"]
    ({'cases': 6, 'mean': 6.0, 'stdev': 0.0}, {'1': {'cases': 6, 'mean': 0.5, 'stdev': 0.0}})
    >>> found["histogram"]
    [{'counts': [144, None], 'outside': None}]
    """
    check_least(least)
    if len(cases) < least:
        return {"withheld": f"fewer than {least} cases"}
    _require_alike(cases)
    labelled = [case.labelled for case in cases if case.labelled is not None]
    spacings = [case.spacing for case in cases if case.spacing is not None]
    extents = []
    for case in cases:
        if case.spacing is not None:
            extents.append(np.multiply(case.size, case.spacing))
    intensities = []
    labelled_intensities = []
    histograms = []
    for channel in range(len(cases[0].intensity)):
        of_all = [case.intensity[channel] for case in cases]
        of_labelled = [of_case[channel] for of_case in labelled]
        intensities.append(_by_name(of_all, len(cases), least))
        labelled_intensities.append(_by_name(of_labelled, len(cases), least))
        histograms.append(_histogram(cases, channel, least))
    return {
        "cases": len(cases),
        "size": _by_axis([case.size for case in cases], len(cases), least),
        "spacing": _by_axis(spacings, len(cases), least),
        "extent": _by_axis(extents, len(cases), least),
        "intensity": intensities,
        "labelled": labelled_intensities,
        "labels": _labels(cases, least),
        "histogram": histograms,
    }


def _require_alike(cases: Sequence[CaseNumbers]) -> None:
    """Refuse cases that no mean can be made of."""
    kinds = {(len(case.size), len(case.intensity), case.spacing is None) for case in cases}
    if len(kinds) > 1:
        words = [f"{axes} axes and {channels} channel(s)" for axes, channels, _ in sorted(kinds)]
        raise DataError(f"the images differ: {', '.join(words)}; convert them to one kind")
    for case in cases:
        for channel in (*case.intensity, *(case.labelled or ())):
            if not all(math.isfinite(value) for value in channel.values()):
                raise DataError(
                    "an image has values that are not finite; monai-fairfl datalist --check names "
                    "it"
                )


def _moments(values: Sequence[float], all_cases: int, least: int) -> Moments | None:
    """Moments over the cases that have the value; ``None`` where they are too few.

    ``cases`` is ``None`` where too few lack it.
    """
    if len(values) < least:
        return None
    lacking = all_cases - len(values)
    known = lacking == 0 or lacking >= least
    return {
        "cases": len(values) if known else None,
        "mean": float(np.mean(values)),
        "stdev": float(np.std(values)),
    }


def _by_axis(
    rows: Sequence[Sequence[float] | npt.NDArray[np.float64]], all_cases: int, least: int
) -> list[Moments] | None:
    """Moments along each axis."""
    found = []
    for column in zip(*rows):
        moments = _moments(column, all_cases, least)
        if moments is None:
            return None
        found.append(moments)
    return found or None


def _by_name(
    rows: Sequence[Mapping[str, float]], all_cases: int, least: int
) -> dict[str, Moments] | None:
    """Moments of each named value."""
    if len(rows) < least:
        return None
    found = {}
    for name in rows[0]:
        moments = _moments([row[name] for row in rows], all_cases, least)
        if moments is not None:
            found[name] = moments
    return found


def _labels(cases: Sequence[CaseNumbers], least: int) -> dict[str, Moments]:
    """Moments of each label's share, over the cases that have it.

    One that too few cases have is not named: the name alone would say that one of them has it.
    """
    shares: dict[str, list[float]] = {}
    for case in cases:
        for label, share in case.shares.items():
            shares.setdefault(label, []).append(share)
    found = {}
    for label in _in_order(shares):
        moments = _moments(shares[label], len(cases), least)
        if moments is not None:
            found[label] = moments
    return found


def _in_order(labels: Iterable[str]) -> list[str]:
    """Labels by their numbers; names of structures stay in their order.

    >>> _in_order(["10", "9"]), _in_order(["disc", "cup"])
    (['9', '10'], ['disc', 'cup'])
    """
    found = list(labels)
    if all(label.isdecimal() for label in found):
        return sorted(found, key=int)
    return found


def _histogram(cases: Sequence[CaseNumbers], channel: int, least: int) -> dict[str, Any]:
    """Voxels of all cases in each bin of a channel, and outside of all bins."""
    rows = []
    for case in cases:
        counts = case.counts[channel]
        outside = math.prod(case.size) - sum(counts)
        rows.append([*counts, outside])
    voxels = np.array(rows)
    *inside, beyond = shown_counts(voxels, least)
    return {"counts": inside, "outside": beyond}


def shown_counts(voxels: npt.NDArray[np.int64], least: int) -> list[int | None]:
    """Sums of counts over the cases, ``None`` where a sum would show something of too few.

    Args:
        voxels: cases x bins, counts from 0.
        least: the smallest count of cases behind a sum, and behind all that are withheld together.

    >>> shown_counts(np.array([[9, 1, 0], [8, 0, 0], [7, 2, 0]]), 3)
    [None, None, None]
    >>> shown_counts(np.array([[9, 1, 5], [8, 0, 6], [7, 2, 7]]), 3)
    [24, None, None]
    """
    present = voxels > 0
    sums = voxels.sum(axis=0)
    shown = present.sum(axis=0) >= least
    # What is withheld is the difference between all voxels and what is shown: it must be of enough
    # cases, too.
    while shown.any() and 0 < present[:, ~shown].any(axis=1).sum() < least:
        smallest = min(np.flatnonzero(shown), key=lambda bin: sums[bin])
        shown[smallest] = False
    return [int(total) if is_shown else None for total, is_shown in zip(sums, shown)]


# ---- over sites


def over_sites(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The same over all sites, of nothing but what they reported.

    Sites that are withheld do not count. Moments whose number of cases is not known do not, either.
    Where sites have images of different kinds, what cannot be combined is ``None``.

    Args:
        sites: site -> what :func:`site_statistics` returned there.

    >>> def site(count, mean):
    ...     moments = {"cases": count, "mean": mean, "stdev": 0.0}
    ...     return {"cases": count, "size": [moments], "spacing": None, "extent": None,
    ...             "intensity": [], "labelled": [], "labels": {"1": moments},
    ...             "histogram": [{"counts": [count, None], "outside": None}]}
    >>> sites = {"elm": site(6, 1.0), "oak": site(18, 5.0), "yew": {"withheld": "..."}}
    >>> found = over_sites(sites)
    >>> found["cases"], found["size"][0]["mean"], found["histogram"][0]["counts"]
    (24, 4.0, [24, None])
    """
    reported = [site for site in sites.values() if "withheld" not in site]
    if not reported:
        return {"withheld": "no site has enough cases"}
    labels: dict[str, list[Moments | None]] = {}
    for site in reported:
        for label, moments in site["labels"].items():
            labels.setdefault(label, []).append(moments)
    combined_labels = {}
    for label in _in_order(labels):
        moments = _combined(labels[label])
        if moments is not None:
            combined_labels[label] = moments
    found: dict[str, Any] = {"cases": sum(site["cases"] for site in reported)}
    for name in ("size", "spacing", "extent"):
        found[name] = _combined_axes([site[name] for site in reported])
    for name in ("intensity", "labelled"):
        found[name] = _combined_channels([site[name] for site in reported])
    found["labels"] = combined_labels
    found["histogram"] = _combined_histograms([site["histogram"] for site in reported])
    return found


def _combined(moments: Sequence[Moments | None]) -> Moments | None:
    """Moments over the cases of several groups, as if they were one."""
    known = [group for group in moments if group is not None and group["cases"] is not None]
    if not known:
        return None
    counts = np.array([group["cases"] for group in known])
    means = np.array([group["mean"] for group in known])
    stdevs = np.array([group["stdev"] for group in known])
    mean = np.average(means, weights=counts)
    variance = np.average(stdevs**2 + (means - mean) ** 2, weights=counts)
    return {
        "cases": int(counts.sum()),
        "mean": float(mean),
        "stdev": float(np.sqrt(variance)),
    }


def _combined_axes(sites: Sequence[Sequence[Moments] | None]) -> list[Moments | None] | None:
    """Moments along each axis; ``None`` where the sites differ in their axes."""
    known = [axes for axes in sites if axes is not None]
    if len(known) < len(sites) or len({len(axes) for axes in known}) > 1:
        return None
    return [_combined(column) for column in zip(*known)]


def _combined_channels(
    sites: Sequence[Sequence[Mapping[str, Moments] | None]],
) -> list[dict[str, Moments | None] | None] | None:
    """Moments of each channel's values; ``None`` where the sites differ in their channels."""
    if len({len(channels) for channels in sites}) > 1:
        return None
    found: list[dict[str, Moments | None] | None] = []
    for column in zip(*sites):
        known = [values for values in column if values is not None]
        if not known:
            found.append(None)
            continue
        combined = {}
        for name in known[0]:
            combined[name] = _combined([values[name] for values in known])
        found.append(combined)
    return found


def _combined_histograms(
    sites: Sequence[Sequence[Mapping[str, Any]]],
) -> list[dict[str, Any]] | None:
    """Sums of the bins that sites show; ``None`` where the sites differ in their channels."""
    if len({len(channels) for channels in sites}) > 1:
        return None
    found = []
    for column in zip(*sites):
        of_sites = [channel["counts"] for channel in column]
        counts = [_sum_of_known(bins) for bins in zip(*of_sites)]
        outside = _sum_of_known([channel["outside"] for channel in column])
        found.append({"counts": counts, "outside": outside})
    return found


def _sum_of_known(numbers: Sequence[int | None]) -> int | None:
    """The sum of the numbers that are known; ``None`` where none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
