# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a site of a job runs with: the job's settings below the site's own.

A job must bring neither code nor files of the site into the site's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ReferenceResolver
from monai.utils import ensure_tuple

from monai_fairfl.bundle.settings import SiteSettings
from monai_fairfl.bundle.shipped import bundle_names
from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.devices import best_device
from monai_fairfl.utils.names import safe_name
from monai_fairfl.utils.plain_values import check_extent
from monai_fairfl.utils.settings import is_whole, setting

SITE_FILE = "local/fairfl.json"
"""The hospital's own settings, in its workspace: they win over those of any job."""


MOST_OF_A_JOB: Mapping[str, int] = {"local_epochs": 1000, "threads": 64}
"""The largest number that a job may set. A site may write a larger one into its own file."""

MOST_VALUES = 10_000
MOST_DEPTH = 20
"""Values of a job's settings, and how deeply they may be nested."""


@dataclass(frozen=True)
class JobSiteSettings(SiteSettings):
    """What a site of a job needs to know: some of it from the job, the rest from the site's file.

    Args:
        bundle: name of a bundle of this package, or the path of one on the site. A job may give a
            site that names its own images no path.
        dataset_dir: the site's images and labels.
        sites_root: a folder with the data of every site, for trials on one machine.
        device: such as ``"cuda:0"``; by default the first GPU, else the processor.
        threads: of torch on the processor; more than one changes bits.
        groups: name -> sites.
        check: read every image before the first round that the site takes part in.

    The others are those of :class:`~monai_fairfl.bundle.settings.SiteSettings`; overrides of a job
    are plain values only.
    """

    device: str = setting("")
    bundle: str = setting("")
    dataset_dir: str = setting("")
    sites_root: str = setting("")
    threads: int = setting(1)
    groups: Mapping[str, Sequence[str]] = setting({})
    check: bool = setting(True)

    @classmethod
    def merged(
        cls, job: Mapping[str, Any], own: Mapping[str, Any], where: str = SITE_FILE
    ) -> JobSiteSettings:
        """Return the job's settings with the site's own over them; the overrides of both count.

        What the site sets, as a setting or an override, no override of the job replaces, at
        whatever depth. A site whose settings name its data is not sent to other files by a job.

        Args:
            job: the job's settings.
            own: the site's settings.
            where: the file of the site's settings, for errors.

        Raises:
            ConfigError: for an unknown key, a value of the wrong type, a job's value out of bounds,
                the images of a site named by a job, a folder of the site named by a job as its
                bundle, a permission that only the site can give, or an override of the job that is
                an expression, which would be the job's code, run by the site, or names a file of
                the site.

        >>> job = {"bundle": "a", "overrides": {"amp": True}}
        >>> JobSiteSettings.merged(job, {"bundle": "/b"}).bundle
        '/b'
        >>> JobSiteSettings.merged({"overrides": {"size": "$__import__('os').getcwd()"}}, {})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the job's overrides hold the expression or class "$__imp...
        """
        _check_extent(job)
        for settings, source in ((job, "the job"), (own, where)):
            _check_known(settings, source)
            for name, value in settings.items():
                _check_value(name, value, source)
        _check_dataset(job, own, where)
        _check_bundle(job, own, where)
        _check_permission(job, where)
        _check_config_files(ensure_tuple(job.get("config") or ()))
        overrides = _usable_overrides(job, own, where)
        overrides.update(own.get("overrides") or {})

        values: dict[str, Any] = {**job, **own}
        for name, value in job.items():
            if name not in own:
                _check_bound(name, value, where)
        values["overrides"] = overrides
        if not values.get("config"):
            values.pop("config", None)
        return cls(**values)

    def of_client(self) -> dict[str, Any]:
        """Return the settings that a client has under any engine, with the device chosen."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(SiteSettings)}
        if not self.device:
            settings["device"] = best_device()
        return settings


def _check_extent(job: Mapping[str, Any]) -> None:
    """Refuse settings that no honest job has, before anything walks through them."""
    try:
        check_extent(job, MOST_VALUES, MOST_DEPTH)
    except ValueError as error:
        raise ConfigError(f"the job's settings are refused: {error}") from None


def _check_known(settings: Mapping[str, Any], source: str) -> None:
    known = [entry.name for entry in fields(JobSiteSettings)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigError(
            f"{source} sets {unknown[0]!r}, which no site knows; known are {', '.join(known)}"
        )


def _check_dataset(job: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Refuse a job that says which folder of the site holds its images."""
    names_data = bool(job.get("dataset_dir")) or _names_dataset(job.get("overrides") or {})
    if names_data and not own.get("dataset_dir"):
        raise ConfigError(
            "the job sets dataset_dir, and only a site itself knows its images: leave it out of "
            f'the job, and write {{"dataset_dir": "/path"}} into {where} of the site'
        )


def _check_bundle(job: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Refuse a job that names a folder of a hospital as the bundle: a bundle is code.

    A site without images of its own is one of a trial on one machine, where the lead knows the
    folders.
    """
    named = job.get("bundle")
    if not named or own.get("bundle") or "dataset_dir" not in own:
        return
    if named not in bundle_names():
        raise ConfigError(
            f"the job names the bundle {named!r}, which is none of the package, and a bundle is "
            'code that only the site itself can choose: write {"bundle": "/path/of/the/bundle"} '
            f"into {where} of the site"
        )


def _check_permission(job: Mapping[str, Any], where: str) -> None:
    """Refuse a job that names what only the site itself can."""
    if job.get("alone"):
        raise ConfigError(
            "the job sets alone, and only a site itself knows its files: leave it out of the job, "
            f'and write {{"alone": "/path/model.pt"}} into {where} of the site'
        )


def _names_dataset(overrides: Any) -> bool:
    """Return whether a key of the overrides, at whatever depth, is the folder of the images."""
    if isinstance(overrides, Mapping):
        for key in map(str, overrides):
            if _last_part(key) == "dataset_dir":
                return True
    return any(_names_dataset(part) for part in _parts(overrides))


def _check_config_files(files: Sequence[str]) -> None:
    for file in files:
        if _is_outside(file):
            raise ConfigError(
                f"the job's config {file!r} must be a file of the bundle, such as "
                "configs/train.json"
            )


def _usable_overrides(job: Mapping[str, Any], own: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the job's overrides without those that the site sets itself.

    Raises:
        ConfigError: when one of them is code, or names a file though the site's settings name its
            data.
    """
    overrides: Mapping[str, Any] = job.get("overrides") or {}
    code = _first_code(overrides)
    if code:
        raise ConfigError(
            f"the job's overrides hold the expression or class {code!r}, and a job's settings must "
            "not bring code: give plain values, or let the site write it into the overrides of "
            f"{where}"
        )

    set_by_site = {*own, *(own.get("overrides") or {})}
    usable = {}
    for key, value in overrides.items():
        if key not in set_by_site and _last_part(key) not in set_by_site:
            usable[key] = value

    file = _first_file(usable)
    if file and "dataset_dir" in own:
        raise ConfigError(
            f"the job's overrides name the file or folder {file!r}, and the site's own dataset_dir "
            "names its data: leave it out of the job, or let the site write it into the overrides "
            f"of {where}"
        )
    return usable


def _check_value(name: str, value: Any, source: str) -> None:
    """Refuse another value where the setting becomes part of a configuration: it could be code."""
    if name not in MUST_BE:
        return
    fits, meaning = MUST_BE[name]
    if not fits(value):
        raise ConfigError(f"{source} sets {name} to {value!r}, and it must be {meaning}")


def _check_bound(name: str, value: Any, where: str) -> None:
    """Refuse a number of a job that would occupy a site for ever."""
    most = MOST_OF_A_JOB.get(name)
    if most is not None and value > most:
        raise ConfigError(
            f"the job sets {name} to {value}, and a job may set at most {most}: lower it, or let "
            f"the site write it into {where}"
        )


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_device(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value == "":
        return True
    try:
        torch.device(value)
    except RuntimeError:
        return False
    return True


def _is_mapping_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)


def _are_files_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str) or _are_texts(value)


def _are_groups(value: Any) -> bool:
    if not isinstance(value, Mapping) or not all(map(_are_texts, value.values())):
        return False
    try:
        for name in value:
            safe_name(name)
    except ValueError:
        return False
    return True


MUST_BE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "local_epochs": (_is_count, "a whole number from 1"),
    "threads": (_is_count, "a whole number from 1"),
    "amp": (_is_switch, "true or false"),
    "check": (_is_switch, "true or false"),
    "alone": (_is_text, "the path of a model file"),
    "bundle": (_is_text, "the name of a bundle, or its path"),
    "config": (_are_files_or_none, "files of the bundle"),
    "overrides": (_is_mapping_or_none, "keys of the bundle's configuration -> values"),
    "sites_root": (_is_text, "the path of a folder with the data of every site"),
    "dataset_dir": (_is_text, "the path of the site's images"),
    "device": (_is_device, "a device of torch, such as 'cuda:0' or 'cpu'"),
    "groups": (
        _are_groups,
        "names -> lists of sites, each name of letters, digits, '_', '-', '.' and spaces",
    ),
}
"""Settings that become part of a configuration, where another text than these could be code."""


def _last_part(key: str) -> str:
    """Return the last part of an override's key: ``"batch_size"`` of ``"train#batch_size"``."""
    return str(ReferenceResolver.split_id(key)[-1])


def _first_file(value: Any) -> str:
    """Return the first text in ``value`` that is a path outside the folder where the job runs.

    It is the empty string where there is none.
    """
    for part in _parts(value):
        file = _first_file(part)
        if file:
            return file
    if isinstance(value, str) and _is_outside(value):
        return value
    return ""


def _is_outside(path: str) -> bool:
    return Path(path).is_absolute() or ".." in Path(path).parts


def _first_code(value: Any) -> str:
    """Return the first text in ``value`` with which MONAI would run something.

    That is an expression, a reference, a key that MONAI reserves, or one of imports. It is the
    empty string where there is none.
    """
    if isinstance(value, Mapping):
        for key in map(str, value):
            if _has_reserved_part(key) or key.startswith("imports"):
                return key
    for part in _parts(value):
        code = _first_code(part)
        if code:
            return code
    if isinstance(value, str) and value.lstrip().startswith(("$", "@", "%")):
        return value
    return ""


def _has_reserved_part(key: str) -> bool:
    """Return whether a part of a key begins with an underscore.

    MONAI reads such keys as orders: ``_target_`` builds a class, ``_mode_`` opens a debugger,
    ``_requires_`` runs something first, ``_disabled_`` leaves a component out.

    >>> _has_reserved_part("train#handlers#0#_mode_"), _has_reserved_part("batch_size")
    (True, False)
    """
    if "_target_" in key:
        return True
    for part in ReferenceResolver.split_id(key):
        # A sign in front of a key says how a file is merged.
        if str(part).lstrip(" +~").startswith("_"):
            return True
    return False


def _parts(value: Any) -> Sequence[Any]:
    """Return the values of a mapping, or the items of a list."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    return ()
