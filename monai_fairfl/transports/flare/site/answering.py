# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A site of an NVFlare job: its own bundle and data, the job's plain settings, and one client that
answers tasks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser, ReferenceResolver
from nvflare.app_common.abstract.fl_model import FLModel

from monai_fairfl.bundle import configuration
from monai_fairfl.bundle.shipped import locate_bundle
from monai_fairfl.bundle.site import TRAIN, bundle_client
from monai_fairfl.client.algo import FairMonaiAlgo
from monai_fairfl.data.layouts import site_folders
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.protocol.messages import Reply, Request, failed
from monai_fairfl.transports.flare.wire import reply_model, request_of
from monai_fairfl.transports.flare.workspace import kept_folder
from monai_fairfl.utils.files import safe_name

logger = logging.getLogger(__name__)

SITE_FILE = "local/fairfl.json"
"""The hospital's own settings, in its workspace: they win over those of any job."""


@dataclass(frozen=True)
class SiteSettings:
    """What a site needs to know; a job says some of it, the site's own ``local/fairfl.json`` the
    rest.

    Args:
        bundle: name of a bundle of this package, or the path of one on the site.
        dataset_dir: the site's images and labels.
        sites_root: a folder with the data of every site, for trials on one machine.
        config: training configuration, files relative to the bundle.
        overrides: of the configuration; from a job plain values only.
        local_epochs: of one round.
        device: such as ``"cuda:0"``; by default the first GPU, else the processor.
        amp: automatic mixed precision.
        threads: of torch on the processor; more than one changes bits.
        groups: name -> sites.
        check: read every image before the first round that the site takes part in.
    """

    bundle: str = ""
    dataset_dir: str = ""
    sites_root: str = ""
    config: tuple[str, ...] = TRAIN
    overrides: Mapping[str, Any] = field(default_factory=dict)
    local_epochs: int = 1
    device: str = ""
    amp: bool = False
    threads: int = 1
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    check: bool = True

    @classmethod
    def of(
        cls, job: Mapping[str, Any], own: Mapping[str, Any], where: str = SITE_FILE
    ) -> SiteSettings:
        """The job's settings, then the site's own; the overrides of both count.

        What the site sets, as a setting or an override, no override of the job replaces, at
        whatever depth. A site that says where its data is is not sent to other files by a job.

        Raises:
            ConfigError: for an unknown key, a value of the wrong type, or an override of the job
                that is an expression, which would be the job's code, run by the site, or names a
                file of the site.

        >>> SiteSettings.of({"bundle": "a", "overrides": {"amp": True}}, {"bundle": "/data/b"}).bundle
        '/data/b'
        >>> SiteSettings.of({"overrides": {"size": "$__import__('os').getcwd()"}}, {})
        Traceback (most recent call last):
        ...
        monai_fairfl.errors.ConfigError: the job's overrides hold the expression or class "$__import__('os')...
        """
        known = [entry.name for entry in fields(cls)]
        for source, keys in (("the job", job), (where, own)):
            unknown = sorted(set(keys) - set(known))
            if unknown:
                raise ConfigError(
                    f"{source} sets {unknown[0]!r}, which no site knows; known are {', '.join(known)}"
                )
        overrides, own_overrides = dict(job.get("overrides") or {}), dict(
            own.get("overrides") or {}
        )
        if code := _code_in(overrides):
            raise ConfigError(
                f"the job's overrides hold the expression or class {code!r}, and a job's settings must not bring code: "
                f"give plain values, or let the site write it into the overrides of {where}"
            )
        for file in job.get("config") or ():
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise ConfigError(
                    f"the job's config {file!r} must be a file of the bundle, such as configs/train.json"
                )
        fixed = {*own, *own_overrides}
        overrides = {
            key: value
            for key, value in overrides.items()
            if fixed.isdisjoint((key, _last_part(key)))
        }
        if "dataset_dir" in own and (file := _file_in(overrides)):
            raise ConfigError(
                f"the job's overrides name the file or folder {file!r}, and the site's own dataset_dir says where its "
                f"data is: leave it out of the job, or let the site write it into the overrides of {where}"
            )
        values = {**job, **own, "overrides": {**overrides, **own_overrides}}
        for name, (fits, meaning) in MUST_BE.items():
            if name in values and not fits(values[name]):
                source = where if name in own else "the job"
                raise ConfigError(
                    f"{source} sets {name} to {values[name]!r}, and it must be {meaning}"
                )
        return cls(**{**values, "config": tuple(values.get("config") or cls.config)})


class Site:
    """Answers the tasks of one job. Its state is on disk, so a new process goes on where the last
    one was.

    Args:
        name: of the site, as the engine authenticated it.
        workspace: the site's NVFlare workspace: ``local/fairfl.json`` is read there, states are
            kept in ``fairfl``.
        job: the job's settings, see :class:`SiteSettings`.
    """

    def __init__(self, name: str, workspace: str | Path, job: Mapping[str, Any]):
        self.name, self.workspace, self.job = safe_name(name), Path(workspace), job
        self._checked = False
        for noisy in ("ignite", "monai"):  # several lines per round and site, which say nothing
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def answer(self, model: FLModel) -> FLModel:
        """Carry out one task; whatever goes wrong is told in the reply, and the site waits for the
        next task.
        """
        try:
            request = request_of(model, self.name)
        except Exception as error:
            logger.exception("site %s cannot read its task", self.name)
            return reply_model(Reply(self.name, None, 0, error=in_words(error)))
        try:
            self._prepare(request, rounds=model.total_rounds or 1)
            return reply_model(self._client.answer(request))
        except Exception as error:
            logger.exception(
                "site %s cannot do task %d of round %d", self.name, request.id, request.round
            )
            return reply_model(failed(request, in_words(error)))

    def close(self) -> None:
        """The job is over."""
        if "_client" in self.__dict__:
            self._client.finalize()

    # ---- set-up, when the first task comes
    # --------------------------------------------------------------------

    @cached_property
    def settings(self) -> SiteSettings:
        """Of the job and the site."""
        file = self.workspace / SITE_FILE
        try:
            own = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from error
        return SiteSettings.of(self.job, own, str(file))

    @cached_property
    def bundle_root(self) -> Path:
        """The site's bundle: a path, or one of those that came with the package."""
        try:
            return locate_bundle(self.settings.bundle)
        except ConfigError as error:
            fix = f'write {{"bundle": "/path/of/the/bundle"}} into {self.workspace / SITE_FILE}'
            raise ConfigError(f"site {self.name}: {error}: {fix}") from error

    @cached_property
    def dataset_dir(self) -> Path:
        """Where the site's images are."""
        settings = self.settings
        if settings.dataset_dir:
            return Path(settings.dataset_dir)
        found = site_folders(Path(settings.sites_root)) if settings.sites_root else {}
        if self.name not in found:
            raise ConfigError(
                f'site {self.name}: where are its images? Write {{"dataset_dir": "/path"}} into '
                f"{self.workspace / SITE_FILE}"
                + (f"; {settings.sites_root} holds {sorted(found)}" if found else "")
            )
        return found[self.name]

    def _prepare(self, request: Request, rounds: int) -> None:
        torch.set_num_threads(
            self.settings.threads
        )  # of this thread: NVFlare may use another for each task
        self._rounds = rounds
        if (
            not self._checked
            and self.settings.check
            and not self._client.states.before(request.run, request.round)
        ):
            self._check()  # a site with a state of an earlier round passed it, in a process before this one
        self._checked = True

    def _check(self) -> None:
        """The bundle's own check of the site's files, as its ``federate.json`` names it."""
        parser = ConfigParser()
        file = self.bundle_root / "configs" / "federate.json"
        if not file.exists():
            return
        parser.read_config(str(file))
        check = parser.get_parsed_content("check")
        if check is not None:
            check(str(self.dataset_dir), **configuration.settings_of_files(self.settings.overrides))

    @cached_property
    def _client(self) -> FairMonaiAlgo:
        settings = self.settings
        return bundle_client(
            self.bundle_root,
            self.name,
            kept_folder(self.workspace) / self.name,
            dataset_dir=self.dataset_dir,
            groups=settings.groups,
            device=settings.device or ("cuda:0" if torch.cuda.is_available() else "cpu"),
            amp=settings.amp,
            rounds=self._rounds,
            local_epochs=settings.local_epochs,
            config=settings.config,
            overrides=settings.overrides,
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_device(value: Any) -> bool:
    try:
        return value == "" or (isinstance(value, str) and bool(torch.device(value)))
    except RuntimeError:
        return False


def _are_groups(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and all(map(safe_name, value))
    except ValueError:
        return False


MUST_BE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "local_epochs": (_is_count, "a whole number from 1"),
    "threads": (_is_count, "a whole number from 1"),
    "amp": (lambda value: isinstance(value, bool), "true or false"),
    "device": (_is_device, "a device of torch, such as 'cuda:0' or 'cpu'"),
    "groups": (
        _are_groups,
        "names -> sites, each name of letters, digits, '_', '-', '.' and spaces",
    ),
}
"""Settings that become part of a configuration, where another text than these could be code."""


def _last_part(key: str) -> str:
    return str(ReferenceResolver.split_id(key)[-1])


def _file_in(value: Any) -> str:
    """The first text in ``value`` that is the path of a file outside the folder where the job runs."""
    if isinstance(value, (Mapping, list, tuple)):
        parts = value.values() if isinstance(value, Mapping) else value
        return next(filter(None, map(_file_in, parts)), "")
    outside = isinstance(value, str) and (Path(value).is_absolute() or ".." in Path(value).parts)
    return value if outside else ""


def _code_in(value: Any) -> str:
    """The first text in ``value`` with which MONAI would run something: an expression, a reference,
    or a class.
    """
    if isinstance(value, Mapping):
        keys = (str(key) for key in value)
        named = next((key for key in keys if "_target_" in key or key.startswith("imports")), "")
        return named or next(filter(None, map(_code_in, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_code_in, value)), "")
    return value if isinstance(value, str) and value.lstrip()[:1] in ("$", "@", "%") else ""
