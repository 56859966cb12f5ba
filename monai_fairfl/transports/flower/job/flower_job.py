# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a job for Flower asks for: a bundle, a strategy, and settings of the run and of its sites.

It travels as Flower's run configuration, the table ``[tool.flwr.app.config]`` of an app, which
``flwr run --run-config`` changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy
from monai_fairfl.strategies.registry import strategy_of
from monai_fairfl.transports.engines.bundle_job import BundleJob
from monai_fairfl.transports.engines.job_arguments import (
    RUN_SETTINGS,
    SITE_SETTINGS,
    check_run_settings,
    split_settings,
)
from monai_fairfl.transports.engines.job_guards import config_of_shipped
from monai_fairfl.utils.names import LONGEST_NAME, safe_name
from monai_fairfl.utils.plain_values import object_of_json

Scalar = bool | int | float | str


@dataclass(frozen=True)
class FlowerJob:
    """A federation of a bundle's sites, for Flower.

    >>> job = FlowerJob.of(bundle="prostate_mri_segmentation", overrides={"size": [32, 32]})
    >>> job.name, job.sites["overrides"]
    ('prostate_mri_segmentation-FedCE', {'size': [32, 32]})
    >>> job.run_config()["overrides"]
    '{"size": [32, 32]}'
    >>> FlowerJob.from_run_config(job.run_config()) == job
    True

    Args:
        bundle: name of a bundle of this package, or the path of one; a site may have its own copy
            elsewhere.
        strategy: name of a shipped strategy, the dotted path of your own, or a configuration with
            ``_target_``.
        min_clients: sites that are waited for, and must answer each round.
        num_rounds: rounds in all.
        name: of the run; by default the bundle's and the strategy's.
        timeout: seconds that an exchange may take; 0: no limit.
        resume: go on with a run of this name that did not end.
        initial_ckpt: a ``state_dict`` file at the server to begin with; empty: a model built under
            the seed.
        sites: settings of
            :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`.
        run: settings of :class:`~monai_fairfl.server.settings.RunSettings`, and ``guards``.
    """

    bundle: str
    strategy: str | Mapping[str, Any] = "FedCE"
    min_clients: int = 2
    num_rounds: int = 2
    name: str = ""
    timeout: float = 0.0
    resume: bool = True
    initial_ckpt: str = ""
    sites: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *, seed: int = 0, **given: Any) -> FlowerJob:
        """Return the job of a user's arguments, checked.

        Args:
            seed: of everything.
            given: the fields of this class, and in place of ``sites`` and ``run`` their settings.

        Raises:
            ConfigError: when bundle, strategy, settings and number of clients do not go together.
        """
        own = {}
        settings = {}
        for name, value in given.items():
            if value is None:
                continue
            if name in OWN:
                own[name] = value
            else:
                settings[name] = value
        of_sites, of_run = split_settings(settings, "A job for Flower", OWN)
        of_run = {"seed": seed, **of_run}
        if of_run.get("guards") is not None:
            of_run["guards"] = config_of_shipped(of_run["guards"])
        job = cls(sites=of_sites, run=of_run, **own)
        check_run_settings(of_run, job.num_rounds, job.min_clients, job.timeout)
        of_bundle = job.of_bundle(strategy_of(job.strategy))
        # A site finds a shipped bundle by its name in its own installation.
        bundle = of_bundle.settings["bundle"]
        name = safe_name(job.name or of_bundle.name, "name", LONGEST_NAME)
        return replace(job, bundle=bundle, name=name)

    def of_bundle(self, strategy: Strategy) -> BundleJob:
        """Return what the bundle makes of the job.

        Args:
            strategy: of the job.

        Raises:
            ConfigError: when bundle, strategy, overrides and number of clients do not go together.
        """
        return BundleJob(self.bundle, strategy, self.min_clients, self.sites)

    # ---- Flower's run configuration

    def run_config(self) -> dict[str, Scalar]:
        """Return the job as flat names with hyphens and values that TOML has."""
        flat = {name: getattr(self, name) for name in OWN}
        flat |= {**self.sites, **self.run}
        return {_with_hyphens(name): _scalar(value) for name, value in flat.items()}

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> FlowerJob:
        """Return the job that :meth:`run_config` described, and a user may have changed.

        Raises:
            ConfigError: when a value is no JSON or does not go with the others.
        """
        given = {}
        for name, value in config.items():
            given[name.replace("-", "_")] = _value(name, value)
        if "bundle" not in given:
            raise ConfigError(
                "the app's run configuration names no bundle: make the app with "
                "'monai-fairfl export-flower', not by hand"
            )
        return cls.of(**given)


OWN = tuple(entry.name for entry in fields(FlowerJob) if entry.name not in ("sites", "run"))
"""Arguments of a job that are no settings of its sites or its run."""


def site_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run configuration sets for its sites; nothing else of it reaches a site.

    >>> site_settings({"local-epochs": 2, "strategy": "FedCE", "overrides": '{"amp": true}'})
    {'local_epochs': 2, 'overrides': {'amp': True}}
    """
    found = {}
    for name, value in config.items():
        setting = name.replace("-", "_")
        if setting in SITE_SETTINGS:
            found[setting] = _value(name, value)
    return found


def _with_hyphens(name: str) -> str:
    return name.replace("_", "-")


def _scalar(value: Any) -> Scalar:
    """Return a value as TOML and Flower have it: mappings and lists as JSON."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return json.dumps(value)


def _value(name: str, value: Any) -> Any:
    """Invert :func:`_scalar`: a text that begins as JSON does is JSON."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return value
    try:
        return object_of_json(f'{{"value": {value}}}')["value"]
    except ValueError as error:
        raise ConfigError(f"the app's run configuration sets {name} to no JSON: {error}") from error


assert not {*OWN} & {*SITE_SETTINGS, *RUN_SETTINGS} - {"bundle"}, "a name must mean one thing"
