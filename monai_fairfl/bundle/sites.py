# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a bundle's federation: where their images are, their settings and their clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from monai_fairfl.bundle import preflight
from monai_fairfl.bundle.adoption.site_check import listed_cases
from monai_fairfl.bundle.configuration import data_folder_of, train_config
from monai_fairfl.bundle.jobs import number_of_cases
from monai_fairfl.bundle.settings import Settings, SiteSettings
from monai_fairfl.bundle.site import bundle_client, images_of_site
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.errors import ConfigError, DataError, in_words
from monai_fairfl.utils.terminal import quiet


@dataclass(frozen=True)
class BundleSites:
    """All sites that run one bundle.

    Args:
        settings: of the federation.
        names: of the sites, sorted.
    """

    settings: Settings
    names: Sequence[str]

    @property
    def bundle_root(self) -> Path:
        """The bundle."""
        return Path(self.settings.bundle_root)

    @property
    def datalists(self) -> Path:
        """Folder of the lists that say which case trains, validates and tests."""
        return Path(self.settings.run_dir) / "datalists"

    def settings_of(self, name: str) -> SiteSettings:
        """The settings of all sites with what this one adds."""
        additions = dict(self.settings.sites.get(name, {}))
        # The folder is that of data_of, written as the bundle's own paths need it.
        additions.pop("dataset_dir", None)
        return self.settings.for_site(additions)

    def data_of(self, name: str) -> str:
        """The folder of a site's images."""
        elsewhere = self.settings.sites.get(name, {}).get("dataset_dir")
        folder = Path(elsewhere) if elsewhere else self._folders[name]
        return str(folder.absolute())

    @cached_property
    def _folders(self) -> dict[str, Path]:
        return preflight.data_folders(Path(self.settings.sites_root), self.settings.any_folder)

    @cached_property
    def cases(self) -> dict[str, int]:
        """Site -> number of its cases: how much it has to do, roughly."""
        return {name: number_of_cases(self.data_of(name)) for name in self.names}

    def client_maker(
        self,
        name: str,
        folder: Path,
        device: str,
        datalist_file: Path | None = None,
        alone: str = "",
    ) -> Callable[[], FairMonaiAlgo]:
        """Makes a site's client, here or in another process.

        Args:
            name: of the site.
            folder: of the run.
            device: for its training.
            datalist_file: in place of the one in :attr:`datalists`.
            alone: file of the model that the site trained alone; empty: there is none.
        """
        return partial(
            bundle_client,
            self.bundle_root,
            name,
            folder / "sites" / name,
            dataset_dir=self.data_of(name),
            datalist_file=datalist_file or self._datalist_of(name),
            groups=self.settings.groups,
            rounds=self.settings.rounds,
            **{**self.settings_of(name).of_client(), "device": device, "alone": alone},
        )

    def _datalist_of(self, name: str) -> Path:
        return self.datalists / f"{name}.json"

    def listed(self, name: str) -> dict[str, list[CaseFiles]]:
        """The cases of a site in this run, by part; none where the bundle has no data list."""
        settings = self.settings_of(name)
        file = self._used_datalist_of(name)
        try:
            return listed_cases(
                self.data_of(name), self.bundle_root, settings.config, settings.overrides, file
            )
        except ConfigError:
            return {}

    def new_datalist(self, name: str) -> bytes | None:
        """The content of the data list that a site would make for itself; nothing is written.

        ``None`` where the bundle's configuration has not the usual keys, or the site's images or
        list lie elsewhere: its client makes its own.

        Raises:
            DataError: naming the site whose cases cannot be split.
        """
        of_site = self.settings_of(name)
        own = self.settings.sites.get(name, {})
        parser = train_config(self.bundle_root, of_site.overrides, of_site.config)
        is_usual = all(key in parser for key in ("datalist", "dataset_dir", "datalist_file"))
        if not is_usual or "datalist_file" in own or "dataset_dir" in own:
            return None
        with TemporaryDirectory() as place:
            made = Path(place) / f"{name}.json"
            parser["bundle_root"] = str(self.bundle_root)
            parser["dataset_dir"] = data_folder_of(parser, self.data_of(name))
            parser["datalist_file"] = str(made)
            try:
                parser.get_parsed_content("datalist")
            except Exception as error:  # MONAI's, around that of the data
                reason = in_words(error.__cause__ or error)
                raise DataError(f"site {name!r}: its cases cannot be split: {reason}") from error
            return made.read_bytes()

    def require_datalists(self) -> None:
        """Refuse a data list that is there and cannot be used, or has nothing to train on.

        Else its site would answer with an error in every round, and the others would go on.

        Raises:
            DataError: naming the file, and the fix.
        """
        for name in self.names:
            file = self._used_datalist_of(name)
            if file.exists() and self.listed(name).get("training") == []:
                raise DataError(
                    f"{file} lists no training case, so {name} could train nothing: add cases, or "
                    "leave the site out (site_names)"
                )

    def _used_datalist_of(self, name: str) -> Path:
        """The data list that the settings of a site name, else that of the run."""
        own = self.settings_of(name).overrides.get("datalist_file")
        return Path(own or self._datalist_of(name))

    def count_images(self, device: str, data: str) -> dict[str, int]:
        """Site -> different images of its ``data`` that pass the network.

        They are counted as a run of these settings would. Nothing is written beside the run: a data
        list that does not exist yet is made elsewhere, from the same seed.

        Args:
            device: that the clients are built for.
            data: ``"validation"`` or ``"training"``.

        Raises:
            ConfigError: naming the site whose images cannot be read.
        """
        counts = {}
        with TemporaryDirectory() as folder, quiet():
            for name in self.names:
                datalist = self._datalist_of(name)
                if not datalist.exists():
                    datalist = Path(folder) / f"{name}.json"
                try:
                    client = self.client_maker(name, Path(folder), device, datalist)()
                    counts[name] = images_of_site(client, name, data)
                except Exception as error:  # whatever a site's bundle raises
                    raise ConfigError(
                        f"site {name!r}: its {data} images cannot be read: {in_words(error)}"
                    ) from error
        return counts
