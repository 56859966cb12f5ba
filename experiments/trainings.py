# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Trainings whose clients are watched or attack: federations made in Python, with real clients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from study import ROOT

from monai_fairfl.bundle.site import bundle_client, initial_model
from monai_fairfl.data import write_clinics, write_sites
from monai_fairfl.guards import Guard
from monai_fairfl.server.federation import Federation, History
from monai_fairfl.strategies import Strategy
from monai_fairfl.transports.in_process import Client, InProcess

GENERATED: Mapping[str, Callable[..., list[str]]] = {
    "six_prostate": write_sites,
    "six_fundus": write_clinics,
}
"""Sites that are not real -> writes their images."""
LIGHT = ("configs/train.json", "configs/light.json")
Wrap = Callable[[str, Client], Client]
"""A site's name and its client -> the client that takes part."""


def as_it_is(site: str, client: Client) -> Client:
    """An honest client."""
    return client


@dataclass(frozen=True)
class Training:
    """A federation of a bundle's sites.

    Args:
        bundle: its folder's name.
        sites: a folder of real images within the data root, or one of :data:`GENERATED`: six
            generated hospitals or clinics.
        rounds: in all.
        local_epochs: of every round.
        overrides: plain values of the bundle's config, the same at all sites.
        of_sites: site -> values of its own, such as a smaller share of its images for training.
        config: configuration files, relative to the bundle.
    """

    bundle: str
    sites: str
    rounds: int
    local_epochs: int
    overrides: Mapping[str, Any]
    of_sites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Sequence[str] = LIGHT

    def run(
        self,
        strategy: Strategy,
        guards: Sequence[Guard],
        data: Path,
        run_dir: Path,
        wrap: Wrap = as_it_is,
        transport: Callable[[Mapping[str, Callable[[], Client]]], InProcess] = InProcess,
        **settings: Any,
    ) -> History:
        """Train.

        Args:
            strategy: of the federation.
            guards: of the federation.
            data: folder of real images.
            run_dir: of the run; a new folder.
            wrap: puts something in a client's place.
            transport: made of site -> function that makes its client.
            settings: of the federation.
        """
        root = ROOT / "bundles" / self.bundle
        folders = self._folders(data, run_dir.parent / "sites")
        makers: dict[str, Callable[[], Client]] = {}
        for site, folder in folders.items():
            makers[site] = partial(self._client, root, site, folder, run_dir, wrap)
        federation = Federation(
            strategy,
            transport(makers),
            self.rounds,
            partial(initial_model, root, overrides=dict(self.overrides), config=self.config),
            guards,
            run_dir,
            **settings,
        )
        return federation.run()

    def _folders(self, data: Path, generated: Path) -> dict[str, Path]:
        """Site -> the folder of its images.

        Raises:
            SystemExit: there are no real images, in whose place none are generated.
        """
        root = data / self.sites
        if self.sites in GENERATED:
            root = generated / self.sites
            # What is there stays; what an interrupted call did not write is written now.
            GENERATED[self.sites](root, seed=0)
        elif not root.is_dir():
            sys.exit(f"there are no real images in {root}; name their folder with --data")
        return {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}

    def _client(self, root: Path, site: str, folder: Path, run_dir: Path, wrap: Wrap) -> Client:
        client = bundle_client(
            root,
            site,
            run_dir / "clients" / site,
            dataset_dir=folder,
            rounds=self.rounds,
            local_epochs=self.local_epochs,
            config=self.config,
            overrides={**self.overrides, **self.of_sites.get(site, {})},
            device="cpu",
        )
        return wrap(site, client)


VOLUMES = {"size": [128, 128], "split_seed": 0}
PHOTOGRAPHS = {"size": [128, 128], "working_size": 512, "split_seed": 0}
SMALL_VOLUMES = {"size": [64, 64], "channels": [16, 32, 64, 128], "split_seed": 0}
SMALL_PHOTOGRAPHS = {**SMALL_VOLUMES, "working_size": 256}
QUARTER = {"split_fractions": [0.2, 0.4, 0.4]}
"""Fewer than half of the images that a site usually trains on; more validate and test."""

PROSTATE = "prostate_mri_segmentation"
FUNDUS = "fundus_disc_cup_segmentation"

TRAININGS = {
    "four hospitals": Training(PROSTATE, "prostate", 60, 4, VOLUMES),
    "four hospitals, BIDMC small": Training(
        PROSTATE, "prostate", 60, 4, VOLUMES, {"BIDMC": QUARTER}
    ),
    "three clinics": Training(FUNDUS, "fundus", 30, 2, PHOTOGRAPHS),
    "three clinics, DrishtiGS1 small": Training(
        FUNDUS, "fundus", 30, 2, PHOTOGRAPHS, {"DrishtiGS1": QUARTER}
    ),
    "six generated hospitals": Training(PROSTATE, "six_prostate", 30, 4, SMALL_VOLUMES),
    "six generated hospitals, elm small": Training(
        PROSTATE, "six_prostate", 30, 4, SMALL_VOLUMES, {"elm": QUARTER}
    ),
    "six generated clinics": Training(FUNDUS, "six_fundus", 25, 2, SMALL_PHOTOGRAPHS),
    "six generated clinics, fir small": Training(
        FUNDUS, "six_fundus", 25, 2, SMALL_PHOTOGRAPHS, {"fir": QUARTER}
    ),
}
"""Name -> training; volumes and photographs, real and generated, even and with one site small."""
