# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A job that trains a bundle: what its sites run with, its initial model, and what it records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monai_fairfl.bundle import configuration, preflight
from monai_fairfl.bundle.initial import (
    bundle_recipe,
    digests_of_configs,
    initial_model,
    warn_of_other_training,
)
from monai_fairfl.bundle.shipped import bundle_names, locate_bundle
from monai_fairfl.bundle.site import closing_measurements
from monai_fairfl.messages import ModelSpec, Weights
from monai_fairfl.model_files.recipe import ModelRecipe
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.engines.site_settings import JobSiteSettings


class BundleJob:
    """What a job of a bundle consists of, under any engine.

    Args:
        bundle: name of a bundle of this package, or the path of one.
        strategy: of the federation.
        min_clients: of the federation.
        settings: of :class:`~monai_fairfl.transports.engines.site_settings.JobSiteSettings`, for
            every site.

    Raises:
        ConfigError: when bundle, strategy, overrides and number of clients do not go together.
    """

    def __init__(
        self, bundle: str, strategy: Strategy, min_clients: int, settings: Mapping[str, Any]
    ):
        self.root = locate_bundle(bundle)
        self.name = f"{self.root.name}-{strategy.name}"

        # A site finds a shipped bundle by its name in its own installation.
        is_shipped = bundle in bundle_names()
        self.settings = {**settings, "bundle": bundle if is_shipped else str(self.root)}
        self.of_all = self.settings_of("", {})

        train = configuration.train_config(self.root, self.of_all.overrides, self.of_all.config)
        clients = [f"client {number}" for number in range(min_clients)]
        preflight.check_strategies([strategy], clients, train)

    @property
    def federation(self) -> dict[str, Any]:
        """Settings of the federation that follow from the bundle."""
        return {"final": list(closing_measurements(self.root))}

    @property
    def asked(self) -> dict[str, Any]:
        """What the run's ``config.json`` records: the job's settings and the bundle's full run.

        A site's own ``local/fairfl.json`` may set other values, which only the site knows.
        """
        return {
            "bundle": self.root.name,
            "files": digests_of_configs(self.root, self.of_all.config),
            **self.of_all.training(),
            "full_run": configuration.full_run_of(self.root),
        }

    def initial(self, file: str | None) -> tuple[Weights, ModelSpec]:
        """Return the bundle's network, built under the caller's seed, or the values of ``file``."""
        overrides, config = self.of_all.overrides, self.of_all.config
        model = initial_model(self.root, overrides, file, config)
        if file is not None:
            warn_of_other_training(file, bundle_recipe(self.root, overrides, config))
        return model

    def recipe(self, per_site: Mapping[str, Mapping[str, Any]]) -> ModelRecipe | None:
        """Return how the sites train.

        The job does not know what a site sets in its own ``local/fairfl.json``.
        """
        overrides, config = self.of_all.overrides, self.of_all.config
        of_sites = {}
        for site, own in per_site.items():
            of_sites[site] = {**own.get("overrides", {}), "config": own.get("config", config)}
        return bundle_recipe(
            self.root,
            overrides,
            config,
            of_sites,
            local_epochs=self.of_all.local_epochs,
            full_run=configuration.full_run_of(self.root),
        )

    def settings_of(self, site: str, own: Mapping[str, Any]) -> JobSiteSettings:
        """Return the job's settings for one site."""
        where = f"per_site_config of {site}" if site else "the job"
        return JobSiteSettings.merged({**self.settings, **own}, {}, where)
