# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Files with the statistics of sites: what hospitals send, and what a run's report shows."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.disclosure import over_sites
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.settings import is_number, is_whole

FILE = "statistics.json"
"""Its name in the folder of a run."""

KIND = "monai-fairfl statistics"
FORMAT = 1

MOST_COUNTED = 2**63
"""No site has so many voxels."""

SAME = ("format", "least", "histogram")
"""What files must agree in, to be combined."""


def document(
    sites: Mapping[str, Mapping[str, Any]], least: int, bins: int, limits: tuple[float, float]
) -> dict[str, Any]:
    """The statistics of sites and over all of them, for JSON.

    Args:
        sites: site -> what :func:`~monai_fairfl.statistics.disclosure.site_statistics` returned.
        least: the smallest count of cases behind a number.
        bins: of the histograms.
        limits: their lower and upper end.

    >>> found = document({"elm": {"withheld": "fewer than 5 cases"}}, 5, 8, (0.0, 256.0))
    >>> found["histogram"], found["all"]
    ({'low': 0.0, 'high': 256.0, 'bins': 8}, {'withheld': 'no site has enough cases'})
    """
    low, high = limits
    return {
        "kind": KIND,
        "format": FORMAT,
        "least": least,
        "histogram": {"low": low, "high": high, "bins": bins},
        "sites": {name: dict(sites[name]) for name in sorted(sites)},
        "all": over_sites(sites),
    }


def is_document(path: Path) -> bool:
    """Whether a file has the statistics of sites; another JSON file may be a site's data list."""
    try:
        found = object_of_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return found.get("kind") == KIND


def read_document(path: Path) -> dict[str, Any]:
    """The statistics of a file. Those over all sites are computed again.

    Raises:
        ConfigError: when it cannot be read, is of another format, or is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        if found["kind"] != KIND:
            raise ValueError(f"its kind is {found['kind']!r}")
        written = found["format"]
        if written == FORMAT:
            bins = found["histogram"]
            limits = (float(bins["low"]), float(bins["high"]))
            if not limits[0] < limits[1]:
                raise ValueError(f"its histograms are from {limits[0]} to {limits[1]}")
            least, number = int(found["least"]), int(bins["bins"])
            for name, site in found["sites"].items():
                _check_site(name, site, least, number)
            return document(found["sites"], least, number, limits)
    except (OSError, RecursionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no whole file of monai-fairfl statistics ({error!r}); make it again"
        ) from error
    raise ConfigError(
        f"{path} has format {written!r}, and this version of monai_fairfl reads {FORMAT}: use the "
        "same version at all sites"
    )


def _check_site(name: str, site: Mapping[str, Any], least: int, bins: int) -> None:
    """Refuse numbers that :func:`~monai_fairfl.statistics.disclosure.site_statistics` never makes.

    Args:
        name: of the site.
        site: its numbers, of a file that somebody sent.
        least: the smallest count of cases behind a number, and so of voxels in a bin.
        bins: of its histograms.

    Raises:
        ValueError: naming the site, and a number.
    """
    if "withheld" in site:
        return
    moments: list[Mapping[str, Any]] = list(site["labels"].values())
    for axes in ("size", "spacing", "extent"):
        moments.extend(site[axes] or ())
    for channel in (*site["intensity"], *site["labelled"]):
        moments.extend((channel or {}).values())
    counts = [site["cases"]]
    for channel in site["histogram"]:
        if len(channel["counts"]) != bins:
            raise ValueError(f"{name} has {len(channel['counts'])} bins in place of {bins}")
        counts += [*channel["counts"], channel["outside"]]
    for found in moments:
        counts.append(found["cases"])
        for value in (found["mean"], found["stdev"]):
            if not is_number(value) or not math.isfinite(value):
                raise ValueError(f"{name} has the mean or deviation {value!r:.40}")
    for count in counts:
        # ``None`` is withheld.
        if count is not None and not (is_whole(count) and least <= count < MOST_COUNTED):
            raise ValueError(f"{name} has the count {count!r:.40}")


def merged(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several files as one.

    Args:
        documents: name of the file -> its statistics.

    Raises:
        ConfigError: when two files have the same site, or cannot be combined.
    """
    first, *_ = documents
    sites: dict[str, Mapping[str, Any]] = {}
    origin: dict[str, str] = {}
    for file, found in documents.items():
        for key in SAME:
            if found[key] != documents[first][key]:
                raise ConfigError(
                    f"{first} and {file} differ in {key!r} ({documents[first][key]} and "
                    f"{found[key]}): make them with the same --least, --range and --bins"
                )
        for site, numbers in found["sites"].items():
            if site in sites:
                raise ConfigError(f"site {site!r} is in {origin[site]} and in {file}: give one")
            sites[site] = numbers
            origin[site] = file
    return _of_sites(sites, documents[first])


def without_sites(found: Mapping[str, Any], absent: Collection[str]) -> dict[str, Any]:
    """The same statistics without some sites, such as those that have withdrawn."""
    sites = {name: site for name, site in found["sites"].items() if name not in absent}
    return _of_sites(sites, found)


def _of_sites(sites: Mapping[str, Mapping[str, Any]], like: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of these sites, made with the settings of others."""
    histogram = like["histogram"]
    limits = (histogram["low"], histogram["high"])
    return document(sites, like["least"], histogram["bins"], limits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
