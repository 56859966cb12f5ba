# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The sites of a bundle's federation: where their images are, their settings and their clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from monai_fairfl.bundle.configuration import data_folder_of, train_config
from monai_fairfl.bundle.jobs import number_of_cases
from monai_fairfl.bundle.settings import Settings, SiteSettings
from monai_fairfl.bundle.site import bundle_client, images_of_site, listed_cases
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.data.layouts import CaseFiles
from monai_fairfl.data.sites import folders_in, site_folders
from monai_fairfl.errors import ConfigError, DataError, did_you_mean, in_words
from monai_fairfl.utils.files import safe_name
from monai_fairfl.utils.settings import plain_value
from monai_fairfl.utils.terminal import quiet

OF_A_DESKTOP = {"thumbs.db", "desktop.ini"}
"""Files, in small letters, that Windows writes into the folders that somebody opens."""


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
        return data_folders(Path(self.settings.sites_root), self.settings.any_folder)

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


def site_names(
    sites_root: Path,
    chosen: str | Sequence[str] | None,
    sites: Mapping[str, Mapping[str, Any]],
    any_folder: bool = False,
) -> list[str]:
    """The sites that take part, sorted.

    Args:
        sites_root: one folder per site.
        chosen: names of those that take part, or the name of a single one; ``None``: all.
        sites: site -> its additions.
        any_folder: as of :func:`data_folders`.

    Raises:
        ConfigError: when the folder is missing or empty, none is chosen or one twice, or a chosen
            or configured site has no data there.
    """
    elsewhere = [name for name, additions in sites.items() if "dataset_dir" in additions]
    known = sorted({*data_folders(sites_root, any_folder), *elsewhere})
    if not known and not sites_root.is_dir():
        fault = "is a file" if sites_root.exists() else "does not exist"
        raise ConfigError(
            f"sites_root {sites_root} {fault}: give the folder that holds one folder per hospital"
        )
    if not known:
        raise ConfigError(
            f"sites_root {sites_root} holds no site: give it one folder per hospital "
            "(SITE/CaseNN.nii.gz, or another layout of docs/data.md)"
        )
    names = known
    if chosen is not None:
        names = _chosen_names(chosen)
    for name in [*names, *sites]:
        if name not in known:
            raise ConfigError(
                f"site {name!r} has no folder in {sites_root}{did_you_mean(name, known)}"
            )
    return sorted(safe_name(name, "the name of the hospital's folder") for name in names)


def _chosen_names(chosen: str | Sequence[str]) -> list[str]:
    """The names of ``site_names``: at least one, each once."""
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    if not names:
        raise ConfigError("site_names names no site: leave it out for all sites, or name some")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"site_names must hold names in quotes, got {name!r}")
        # It would train and weigh twice.
        if names.count(name) > 1:
            raise ConfigError(f"site_names names {name!r} twice: name each site once")
    return names


def data_folders(sites_root: Path, any_folder: bool = False) -> dict[str, Path]:
    """Where each site's data is: what its ``dataset_dir`` must be.

    An empty folder is a site too, whose data did not arrive: its check reports that, instead of a
    federation without it. So is one that holds no more than what a desktop has left there.

    Args:
        sites_root: one folder per site.
        any_folder: every folder is a site, whatever it holds, since the bundle lists its own files;
            else those whose layout is known.
    """
    if not sites_root.is_dir():
        return {}
    folders = folders_in(sites_root)
    if any_folder:
        return {path.name: path for path in folders}
    found = dict(site_folders(sites_root, must=False))
    if any(path.is_file() for path in found.values()):
        return found  # data lists: a folder beside them is no site
    for path in folders:
        if _is_empty(path):
            found[path.name] = path
    return found


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or only hidden files and those that a desktop writes."""
    for path in folder.iterdir():
        if not path.name.startswith(".") and path.name.lower() not in OF_A_DESKTOP:
            return False
    return True


def check_groups(
    groups: (
        Mapping[str, Sequence[str]] | Callable[[Sequence[str]], Mapping[str, Sequence[str]]] | None
    ),
    sites: Sequence[str],
) -> dict[str, list[str]]:
    """The groups of sites that were asked for.

    Args:
        groups: name -> sites, or a function from all sites to these.
        sites: that take part.

    Raises:
        ConfigError: when a group is no list, or names a site that does not take part, or one that
            is named already.

    >>> check_groups(lambda sites: {"corrupted": sites[:1]}, ["elm", "oak"])
    {'corrupted': ['elm']}
    """
    given = groups(list(sites)) if callable(groups) else groups
    found: dict[str, list[str]] = plain_value("groups", given, "Mapping[str, Sequence[str]]")
    group_of: dict[str, str] = {}
    for name, members in found.items():
        for site in members:
            if site not in sites:
                raise ConfigError(
                    f"group {name!r} names {site!r}, which does not take part; the sites are "
                    f"{list(sites)}"
                )
            if site in group_of:
                # Within a group, it would count twice in the mean.
                raise ConfigError(
                    f"{site!r} is in the groups {group_of[site]!r} and {name!r}; name it once"
                )
            group_of[site] = name
    return found
