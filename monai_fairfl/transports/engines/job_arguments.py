# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the maker of a job may set: of its sites, of its run, or of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.configuration import takes_any_folder
from monai_fairfl.bundle.preflight import site_names
from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.errors import ConfigError, did_you_mean
from monai_fairfl.server.settings import RunSettings
from monai_fairfl.transports.engines.site_settings import JobSiteSettings
from monai_fairfl.utils.arguments import check_value

OF_THE_SITE = {"alone"}
"""What only a site itself can name, in its own file."""

SITE_SETTINGS = tuple(
    entry.name for entry in fields(JobSiteSettings) if entry.name not in OF_THE_SITE
)
"""Settings of a bundle's sites that a job may bring."""

OWN_ARGUMENTS = {"rounds", "min_clients", "timeout"}
"""Settings of a run for which a job has an argument, ``rounds`` being ``num_rounds``."""

RUN_SETTINGS = ("guards", *sorted({entry.name for entry in fields(RunSettings)} - OWN_ARGUMENTS))
"""The other settings of a run, and the guards of its updates."""


def split_settings(
    settings: Mapping[str, Any], asked: str, arguments: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the sites and those of the run; some are both.

    Args:
        settings: that the user gave beside the arguments.
        asked: what the user called, for the error.
        arguments: its arguments, for the advice on a misspelt one.

    Raises:
        ConfigError: when one is neither.
    """
    of_sites, of_run = {}, {}
    for name, value in settings.items():
        if name not in SITE_SETTINGS and name not in RUN_SETTINGS:
            known = {*arguments, *SITE_SETTINGS, *RUN_SETTINGS}
            raise ConfigError(f"{asked} has no argument {name!r}{did_you_mean(name, known)}")
        if name in SITE_SETTINGS:
            of_sites[name] = value
        if name in RUN_SETTINGS:
            of_run[name] = value
    if "sites_root" in of_sites:
        of_sites["sites_root"] = str(Path(of_sites["sites_root"]).absolute())
    return of_sites, of_run


def simulated_sites(
    sites_root: str | Path, chosen: Sequence[str] | None, bundle: str | None
) -> list[str]:
    """Return the names of the sites that take part in a simulation, sorted.

    Args:
        sites_root: one folder per site.
        chosen: names of those that take part; ``None``: all.
        bundle: of the job; ``None`` where the job names none, which its maker refuses.

    Raises:
        ConfigError: when the folder is missing or empty, or has no folder for a chosen site.
    """
    any_folder = bundle is not None and takes_any_folder(locate_bundle(bundle))
    return site_names(Path(sites_root), chosen, {}, any_folder)


def check_run_settings(
    settings: Mapping[str, Any], num_rounds: int, min_clients: int, timeout: float
) -> None:
    """Refuse settings that no run can have, before the job is made."""
    unknown = sorted(set(settings) - set(RUN_SETTINGS))
    if unknown:
        raise ConfigError(
            f"federation sets {unknown[0]!r}; what may stand there is {', '.join(RUN_SETTINGS)}"
        )
    check_value("timeout, in seconds or 0 to wait for all,", timeout, "float", "[0, inf]")
    plain = {name: value for name, value in settings.items() if name != "guards"}
    RunSettings(num_rounds, min_clients, **plain)
