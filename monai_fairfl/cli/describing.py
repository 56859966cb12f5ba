# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``statistics``: what hospitals may tell each other about their images."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import (
    Add,
    Answer,
    add_verbose,
    plain_mapping,
    positive,
    progress_stream,
    require_writable,
)
from monai_fairfl.errors import ConfigError
from monai_fairfl.statistics.least import DEFAULT_LEAST, SMALLEST_LEAST, check_least

if TYPE_CHECKING:
    from monai_fairfl.bundle.data_statistics import SiteData

BINS = 32
"""Of a histogram: eight levels each, for pictures of 8 bits."""

NOTES = """
If the images must stay at the hospitals, each hospital runs the command on its
own folder, with the same --range, checks the file and sends it. Then run the
command once more with all these files as DATA."""


def add_commands(add: Add) -> None:
    """Add the command of this module to the program."""
    command = add(
        "statistics",
        statistics,
        "statistics hospitals\n"
        "statistics hospitals --run runs/fedce          # and show them in its report\n"
        "statistics hospitals/alder --range 0 500 --out alder.json\n"
        "statistics alder.json birch.json --out both.json",
    )
    command.epilog = f"{command.epilog}\n{NOTES}"
    command.add_argument(
        "data",
        nargs="+",
        metavar="DATA",
        help=(
            "one folder per hospital, or one hospital's folder, or files that this command wrote"
        ),
    )
    command.add_argument(
        "--least",
        type=positive,
        metavar="N",
        help=(
            "report no number that comes from fewer cases than this (default: "
            f"{DEFAULT_LEAST}, smallest: {SMALLEST_LEAST})"
        ),
    )
    command.add_argument(
        "--range",
        dest="limits",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help=(
            "lower and upper end of the histograms (default: 0 256 for pictures; for "
            "volumes round numbers that include most intensities)"
        ),
    )
    command.add_argument(
        "--bins",
        type=positive,
        metavar="N",
        help=f"number of bins in each histogram (default: {BINS})",
    )
    command.add_argument(
        "--bundle",
        metavar="NAME|DIR",
        help="bundle that lists the cases (default: the shipped one that fits the images)",
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="JSON file with keys of a federation, as for train",
    )
    command.add_argument(
        "--overrides",
        type=plain_mapping,
        default={},
        metavar="{...}",
        help="values for the bundle's configuration, as for train",
    )
    command.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="run that gets the statistics as statistics.json and in its report",
    )
    command.add_argument(
        "--out", metavar="FILE", help="new file for the numbers (default: statistics-NAME.json)"
    )
    add_verbose(command)


def statistics(args: argparse.Namespace) -> Answer:
    """Describe the hospitals' images by counts, means and histograms, never by a single case.

    MONAI's MonaiAlgoStats computes the numbers of each case, which stay at the hospital.
    """
    from monai_fairfl.report import write_report
    from monai_fairfl.report.data_statistics import statistics_note, statistics_table
    from monai_fairfl.report.write import failures_of
    from monai_fairfl.statistics.documents import is_document, merged, read_document

    paths = [Path(given).absolute() for given in args.data]
    file = _new_file(args, paths)
    if all(is_document(path) for path in paths):
        _refuse_settings(args)
        found = merged({str(path): read_document(path) for path in paths})
    elif len(paths) == 1:
        found = _of_folder(args, paths[0])
    else:
        raise ConfigError(
            f"{' and '.join(args.data)}: give one folder, or several files that this command made"
        )
    _write(file, found)
    lines = [
        statistics_table(found),
        "",
        statistics_note(found),
        f"Numbers and histograms: {file}",
    ]
    data = {"file": str(file), "report": None, **found}
    if args.run:
        write_report([args.run], args.run, failures_of(args.run))
        page = args.run.absolute() / "report.html"
        data["report"] = str(page)
        lines.append(f"Report: {page}")
    return Answer(data, "\n".join(lines))


def _new_file(args: argparse.Namespace, paths: Sequence[Path]) -> Path:
    """The file that is written, which must not exist."""
    from monai_fairfl.statistics.documents import FILE

    if args.run and args.out:
        raise ConfigError(f"--run writes {FILE} into the run: leave out --out")
    if args.run and not args.run.is_dir():
        raise ConfigError(f"{args.run} does not exist: --run names the folder of a run")
    if args.run:
        file = args.run.absolute() / FILE
    elif args.out:
        file = Path(args.out).absolute()
    elif len(paths) == 1:
        file = Path.cwd() / f"statistics-{paths[0].stem}.json"
    else:
        file = Path.cwd() / FILE
    if file.exists():
        raise ConfigError(f"{file} is there already: delete it, or give another --out")
    if not args.run:
        require_writable(file, "--out")
    return file


def _refuse_settings(args: argparse.Namespace) -> None:
    """Refuse what cannot change numbers that are computed already."""
    given = {
        "--least": args.least,
        "--range": args.limits,
        "--bins": args.bins,
        "--bundle": args.bundle,
        "--config": args.config,
        "--overrides": args.overrides,
    }
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"{option} cannot change files that are made already: leave it out, or make them "
                "again with it"
            )


def _of_folder(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The statistics of the hospitals in a folder, or of the one that it is."""
    from monai_fairfl.bundle.data_statistics import RANGE_OF_PICTURES
    from monai_fairfl.cli.running import output_into
    from monai_fairfl.statistics.documents import document

    least = check_least(args.least or DEFAULT_LEAST)
    bins = args.bins or BINS
    limits = None
    if args.limits:
        low, high = args.limits
        if not low < high:
            raise ConfigError(f"--range {low:g} {high:g}: the first must be below the second")
        limits = (low, high)
    sites = _sites(args, folder)
    progress = progress_stream(args)
    numbers = {}
    with TemporaryDirectory() as temporary:
        log = Path(temporary) / "log.txt"
        if limits is None:
            with output_into(log, args.verbose):
                limits = _usual_limits(sites, least) or RANGE_OF_PICTURES
        for number, site in enumerate(sites, start=1):
            print(f"{site.site} ({number} of {len(sites)})", file=progress, flush=True)
            with output_into(log, args.verbose):
                numbers[site.site] = site.statistics(bins, limits, least)
    return document(numbers, least, bins, limits)


def _usual_limits(sites: Sequence[SiteData], least: int) -> tuple[float, float] | None:
    """Ends that hold the usual intensities of all sites; ``None`` where all are too small."""
    found = []
    for site in sites:
        limits = site.usual_limits(least)
        if limits is not None:
            found.append(limits)
    if not found:
        return None
    return min(low for low, _ in found), max(high for _, high in found)


def _sites(args: argparse.Namespace, folder: Path) -> list[SiteData]:
    """The hospitals, each with the settings that a federation of them would give it."""
    from monai_fairfl.bundle.adoption.site_check import listed_sites
    from monai_fairfl.bundle.configuration import takes_any_folder
    from monai_fairfl.bundle.data_statistics import SiteData
    from monai_fairfl.bundle.settings import TRAIN, SiteSettings
    from monai_fairfl.bundle.shipped import find_bundle, locate_bundle
    from monai_fairfl.cli.choosing import bundle_for
    from monai_fairfl.data.layouts import sites_at
    from monai_fairfl.utils.terminal import warnings_as_notes

    bundle = locate_bundle(args.bundle) if args.bundle else None
    if bundle is not None and takes_any_folder(bundle):
        keys = _keys_of_federation(args, bundle)
        folders = listed_sites(folder, bundle, keys.get("config") or TRAIN)
    else:
        with warnings_as_notes():
            folders = sites_at(folder)
        bundle = bundle or find_bundle(bundle_for(folders))
        keys = _keys_of_federation(args, bundle)
    common = SiteSettings(
        config=keys.get("config") or TRAIN,
        overrides={**(keys.get("overrides") or {}), **args.overrides},
    )
    additions: Mapping[str, Mapping[str, Any]] = keys.get("sites") or {}
    sites = []
    for name, place in folders.items():
        added = dict(additions.get(name, {}))
        dataset_dir = added.pop("dataset_dir", place)
        sites.append(SiteData(bundle, name, dataset_dir, common.for_site(added)))
    return sites


def _keys_of_federation(args: argparse.Namespace, bundle: Path) -> dict[str, Any]:
    """Keys of ``federate.json`` that say what a site's training configuration is."""
    from monai_fairfl.bundle.first_look import FEDERATE
    from monai_fairfl.cli.running import MonaiLine

    files = [bundle / FEDERATE] if (bundle / FEDERATE).exists() else []
    if args.config:
        files.append(args.config)
    if not files:
        return {}
    parser = MonaiLine([str(file) for file in files], {"bundle_root": str(bundle)}).configuration()
    found = {}
    for key in ("config", "overrides", "sites"):
        if key in parser:
            found[key] = parser.get_parsed_content(key)
    return found


def _write(file: Path, found: Mapping[str, Any]) -> None:
    from monai_fairfl.utils.files import write_atomically

    write_atomically(file, (json.dumps(found, indent=2, allow_nan=False) + "\n").encode())
