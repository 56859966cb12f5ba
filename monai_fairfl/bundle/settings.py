# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a bundle's federation, one row each, and ``federate.json``, which lists them.

A row is here, in :class:`SiteSettings`, or in :class:`~monai_fairfl.server.settings.RunSettings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from monai_fairfl.bundle.shipped import TRAIN
from monai_fairfl.server.settings import (
    DATA,
    EVALUATION,
    FREE,
    LAST_MILE,
    METHOD,
    OUTPUT,
    PROCESSES,
    SERVER,
    TRAINING,
    RunSettings,
)
from monai_fairfl.utils.arguments import (
    BUNDLE,
    JOB,
    LEAD,
    SITE,
    Checked,
    setting,
)

TRAINS = "trains"
"""The setting decides what a site trains: a resumed run must have the same value."""

GROUPS = (DATA, TRAINING, PROCESSES, METHOD, LAST_MILE, SERVER, EVALUATION, OUTPUT)
"""Headings of the page of keys, in its order."""

ANYBODY = (LEAD, JOB, SITE)
ALL = (*ANYBODY, BUNDLE)

QUICK = Path("configs", "quick.json")
"""A bundle's overlay of ``federate.json`` for a first look of minutes, in its folder: fewer rounds,
smaller images, a smaller network."""

of_lead = partial(setting, by=(LEAD,))
"""A row that only the lead of a federation sets."""

BEST_DEVICE = "$'cuda' if torch.cuda.is_available() else 'cpu'"


@dataclass(frozen=True)
class SiteSettings(Checked):
    """How a site trains and measures, the same for a bundle's federation and for any engine.

    Args:
        config: files of the training configuration, relative to the bundle; a later one
            replaces values of those before it.
        overrides: plain values in place of those of `config`, such as `{'size': [64, 64]}`,
            for all sites and the initial model; the key `sites` counts more for its site.
        local_epochs: epochs that each site trains in each round.
        device: device of the training, such as `cuda:0`; by default a GPU if there is one.
        amp: whether GPUs train with automatic mixed precision, where the training
            configuration has a key `amp`.
        alone: file of the model that the site trained alone, a candidate of the last mile; empty:
            there is none.

    >>> SiteSettings(overrides={"size": [64, 64]}).for_site({"channel": 1}).overrides
    {'size': [64, 64], 'channel': 1}
    """

    config: Sequence[str] = setting([*TRAIN], TRAINING, TRAINS, by=ALL)
    overrides: Mapping[str, Any] = setting({}, TRAINING, TRAINS, FREE, by=ANYBODY)
    local_epochs: int = setting(1, TRAINING, TRAINS, FREE, allowed="[1, inf)", by=ALL)
    device: str = setting("cpu", PROCESSES, FREE, written=BEST_DEVICE, by=ANYBODY)
    amp: bool = setting(False, PROCESSES, TRAINS, by=ALL)
    # File of the model that the site trained alone, a candidate of the last mile; empty: none.
    alone: str = setting("", "", by=(SITE,))

    def for_site(self, additions: Mapping[str, Any]) -> SiteSettings:
        """These settings with what one site adds.

        Args:
            additions: overrides of the site, and ``"config"``, files in place of those of all.
        """
        # The folder is written as the bundle's own paths need it.
        own = {key: additions[key] for key in additions if key not in ("config", "dataset_dir")}
        given = {row.name: getattr(self, row.name) for row in fields(SiteSettings)}
        given["config"] = additions.get("config", self.config)
        return SiteSettings(**{**given, "overrides": {**self.overrides, **own}})


@dataclass(frozen=True)
class Settings(SiteSettings, RunSettings):
    """All settings of a bundle's federation: the table behind ``federate.json`` and the commands.

    Args:
        bundle_root: the bundle's folder.
        sites_root: folder with one folder [for each site](data.md), or with NVIDIA FLARE's
            data lists.
        site_names: the sites that take part, such as `['HK', 'UCL']`; `null`: all.
        any_folder: whether every folder of `sites_root` is a site, since the bundle lists
            its own files; else those with a [known layout](data.md#layouts), and empty
            ones.
        sites: settings of single sites, which count more than `overrides`, such as `{'HK':
            {'learning_rate': 0.001}}`; `config` is the site's own list of files,
            `dataset_dir` its folder of data.
        check: function that checks each site's folder before the training; `null`: no
            check.
        initial: file of the first model, a `state_dict` or a dictionary with one under
            `model`; `null`: the weights with which PyTorch makes the network.
        seeds: seeds in place of `seed`, such as `[0, 1, 2]`: with them, or with `folds`,
            the run is a [comparison](comparing.md#by-federatejson) of two methods or more.
        folds: folds of a cross-validation, which tests each case once; `null`: none.
        full_run: `rounds`, `local_epochs`, `overrides` and least `mean_dice` of the
            training that gave the bundle's results: the report judges only a run that is at
            least [as long and as good](report.md#first-look-or-full-run); `null`: none.
        devices: devices that the processes take in turn, such as `['cuda:0', 'cuda:1']`.
        jobs: processes that [train methods or sites at a
            time](run.md#train-several-at-a-time); `auto`: as many as cores and memory, or
            GPUs, allow; on CPUs the results are the same.
        strategy: the method: a text such as `FedCE('sum')`, or a mapping with `_target_`.
        strategies: several methods in place of `strategy`, such as `['FedAvg',
            'my_methods.Mine']`.
        trained_alone: folder with `SITE.pt`, the model that each site trained alone and a
            candidate; `null`: those of a `Standalone` among `strategies`; needs
            `adapt_epochs`.
        guards: [checks of updates](guards.md): names, or mappings with `_target_`; `null`:
            the default guards, `[]`: none.
        valuations: [valuations](valuation.md) of each finished run.
        run_dir: folder for all results.
        resume: whether the run in `run_dir` [goes on](run.md#stop-and-resume-a-run); else a
            folder with a run is refused.
        report: whether the [report](report.md) is written.
        share_cases: whether the report has `cases.csv`, each case's score; ask the sites
            first.

    Raises:
        ConfigError: when a value is of another kind or out of range; it names setting and value.

    >>> Settings(rounds=3, share_cases="false")
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: share_cases must be True or False, got 'false'
    """

    bundle_root: str = of_lead(".", TRAINING, FREE)
    sites_root: str = of_lead("", DATA, FREE, written="$@bundle_root + '/sites'")
    site_names: str | Sequence[str] | None = of_lead(None, DATA)
    any_folder: bool = setting(False, DATA, by=(LEAD, BUNDLE))
    sites: Mapping[str, Mapping[str, Any]] = of_lead({}, DATA)
    check: Callable[..., Any] | None = setting(
        None, DATA, FREE, written="$check_cases", by=(LEAD, BUNDLE)
    )
    initial: str | None = of_lead(None, TRAINING)
    seeds: Sequence[int] | None = of_lead(None, TRAINING, FREE)
    folds: int | None = of_lead(None, TRAINING, FREE, allowed="[2, inf)")
    full_run: Mapping[str, Any] | None = setting(None, TRAINING, FREE, by=(LEAD, BUNDLE))
    devices: Sequence[str] = of_lead([], PROCESSES, FREE)
    jobs: int | str = of_lead(1, PROCESSES, FREE, written="auto")
    strategy: Any = of_lead(
        "FedAvg", METHOD, FREE, written={"_target_": "monai_fairfl.strategies.FedAvg"}
    )
    strategies: Sequence[Any] = of_lead((), METHOD, FREE)
    trained_alone: str | None = of_lead(None, LAST_MILE)
    guards: Sequence[Any] | None = setting(None, SERVER)
    valuations: Sequence[Any] = of_lead((), EVALUATION)
    run_dir: str = of_lead("", OUTPUT, FREE, written="$@bundle_root + '/runs/federation'")
    resume: bool = of_lead(False, OUTPUT, FREE)
    report: bool = of_lead(True, OUTPUT, FREE)
    share_cases: bool = of_lead(False, OUTPUT, FREE)


def rows_of(who: str, kind: type[Checked] = Settings) -> dict[str, Field[Any]]:
    """Name -> row of the settings that somebody may set, by their groups.

    >>> [name for name, row in rows_of("lead").items() if row.metadata["group"] == "Last mile"]
    ['adapt_epochs', 'adapt_rate', 'adapt_fuse', 'trained_alone']
    """
    found = {}
    for group in ("", *GROUPS):
        for row in fields(kind):  # type: ignore[arg-type]
            if row.metadata["group"] == group and who in row.metadata["by"]:
                found[row.name] = row
    return found


KEYS = rows_of(LEAD)
"""Key of ``federate.json`` -> its row."""


def federate_config(own: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a bundle's ``configs/federate.json``.

    Args:
        own: keys of the bundle; all others are as the table has them.

    >>> federate_config({"rounds": 60})["federation"]["rounds"]
    '@rounds'
    """
    imports = [
        "$import torch",
        "$from monai_fairfl.bundle import check_config",
        "$from monai_fairfl.data import check_cases",
    ]
    content: dict[str, Any] = {"imports": imports}
    for name, row in KEYS.items():
        content[name] = row.metadata["written"]
    content.update(own)
    target = {"_target_": "monai_fairfl.BundleFederation.from_config"}
    content["federation"] = {**target, **{name: f"@{name}" for name in KEYS}}
    content["initialize"] = ["$check_config()"]
    content["run"] = ["$@federation.run()"]
    return content
